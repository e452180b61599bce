"""`umlm bench`: what its figures are made of, on tiny models; no figure is compared with a clock of another machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import umlm
from umlm.bench import main
from umlm.bench.machine import read_bandwidth
from umlm.bench.ours import Round, answers, bytes_per_token
from umlm.bench.verb import measure
from umlm.bench.workload import Samples, Workload, ratios

WORK = Workload(prefill=(4, 40), decode=(0, 20), batch=(3,), tokens=5, threads=1)
SIZES = ["--prefill", "4", "40", "--decode", "0", "20", "--batch", "3", "--tokens", "5", "--rounds", "2"]


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_the_json_has_every_figure(capsys: pytest.CaptureFixture[str], random_folder: Path) -> None:
    code, out, err = run(capsys, random_folder, *SIZES, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found["prefill"]) == ["4", "40"]
    assert list(found["decode"]) == ["0", "20"]
    assert list(found["batch"]) == ["3"]
    assert all(rate > 0 for kind in ("prefill", "decode", "batch") for rate in found[kind].values())
    assert min(found[name] for name in ("ttft_ms", "load_ms", "peak_memory_bytes", "read_bytes_per_second")) > 0
    share = found["decode"]["0"] * found["bytes_per_token"] / found["read_bytes_per_second"]
    assert found["bandwidth_share"] == pytest.approx(share)
    assert (found["model"], found["rounds"], found["tokens"], found["peers"]) == (str(random_folder), 2, 5, [])


def test_quantized_pages_are_measured_and_named(capsys: pytest.CaptureFixture[str], random_folder: Path) -> None:
    words = [random_folder, "--prefill", "4", "--decode", "--batch", "--tokens", "3", "--rounds", "1"]
    for bits in ("none", "k8v4"):
        code, out, _ = run(capsys, *words, "--kv-bits", bits, "--json")
        assert code == 0 and json.loads(out)["kv_bits"] == bits
        _, out, _ = run(capsys, *words, "--kv-bits", bits)
        assert f"precision  activations int16, keys and values {bits} bits" in out.splitlines()


def test_the_table_shows_them(capsys: pytest.CaptureFixture[str], random_folder: Path) -> None:
    code, out, err = run(capsys, random_folder, *SIZES)
    assert (code, err) == (0, "")
    starts = ("prefill   40 tokens of prompt", "decode    after 0 tokens", "batch     3 requests together")
    for start in starts:
        (line,) = [line for line in out.splitlines() if line.startswith(start)]
        assert float(line.removeprefix(start)) > 0
    assert "peak memory" in out and "decode uses" in out and "loaded in" in out


def test_what_is_not_asked_for_is_absent(capsys: pytest.CaptureFixture[str], random_folder: Path) -> None:
    words = [random_folder, "--prefill", "--decode", "--batch", "2", "--tokens", "3", "--rounds", "1"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["prefill"], found["decode"], list(found["batch"])) == ({}, {}, ["2"])
    assert (found["ttft_ms"], found["bandwidth_share"]) == (None, None)
    assert run(capsys, *words)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--prefill", "0"], "--prefill, --batch and --rounds must be at least 1"),
        (["--decode", "-1"], "must be at least 0"),
        (["--tokens", "1"], "--tokens must be at least 2, the first and one more, not 1"),
        (["--prefill", "--decode", "--batch"], "nothing to measure"),
        (["--prefill", "x"], "'x'"),
    ],
)
def test_sizes_that_mean_nothing_are_misuse(
    capsys: pytest.CaptureFixture[str], random_folder: Path, words: list[str], said: str
) -> None:
    code, out, err = run(capsys, random_folder, *words)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_the_default_s_long_context_gives_way_but_an_asked_one_is_an_error(
    capsys: pytest.CaptureFixture[str], random_folder: Path
) -> None:
    rest = ["--prefill", "8", "--batch", "--tokens", "4", "--rounds", "1", "--json"]
    code, out, _ = run(capsys, random_folder, *rest)
    assert code == 0 and list(json.loads(out)["decode"]) == ["0"]
    code, out, err = run(capsys, random_folder, *rest, "--decode", "61")
    assert (code, out) == (1, "")
    assert err == "umlm bench: 65 tokens are more than this model's context of 64: measure less\n"


def test_rates_are_no_faster_than_the_clock_outside(random_llm: umlm.LLM) -> None:
    start = time.perf_counter()
    taken = Round(random_llm, WORK, seed=3).run()
    elapsed = time.perf_counter() - start
    prefill = sum(length / rate for length, rate in taken.rates["prefill"].items())
    decode = sum((WORK.tokens - 1) / rate for rate in taken.rates["decode"].values())
    batch = 3 * (WORK.tokens - 1) / taken.rates["batch"][3]
    assert 0 < prefill + decode + batch <= elapsed
    assert taken.ttft[40] >= 40 / taken.rates["prefill"][40]


def test_requests_of_a_batch_begin_in_one_step(random_llm: umlm.LLM) -> None:
    for _ in range(5):
        timings = answers(random_llm, [[1, 2, 3]] * 8, 3)
        started = [each.started for each in timings if each.started is not None]
        first = [each.first_token for each in timings if each.first_token is not None]
        assert len(started) == len(first) == 8
        assert max(started) < min(first)


def test_rounds_ask_different_prompts_and_repeat_themselves(random_llm: umlm.LLM) -> None:
    prompts = [Round(random_llm, WORK, seed)._prompt(30) for seed in (1, 1, 2)]
    assert prompts[0] == prompts[1] != prompts[2]
    assert all(0 <= token < random_llm.config.vocab_size for token in prompts[0])


def test_bytes_of_a_token_are_all_weights_but_the_untied_embedding(sentence: umlm.LLM, sentence_folder: Path) -> None:
    stored = load_file(sentence_folder / "model.safetensors")
    wanted = sum(array.nbytes for name, array in stored.items() if name != "model.embed_tokens.weight")
    assert bytes_per_token(sentence.model) == wanted


def test_peers_take_turns_and_medians_are_compared(random_llm: umlm.LLM) -> None:
    class Steady:
        name, model = "steady", "m"

        def __init__(self) -> None:
            self.rounds = 0

        def rates(self, work: Workload) -> dict[str, dict[int, float]]:
            self.rounds += 1
            return {"prefill": {40: float(self.rounds)}, "decode": {}, "batch": {3: 10.0}}

    found = measure(random_llm, WORK, 3, [Steady()])
    (other,) = found["peers"]
    assert other["prefill"] == {40: 2.0} and other["batch"] == {3: 10.0}
    assert other["ratio"] == {
        "prefill": {40: found["prefill"][40] / 2}, "decode": {}, "batch": {3: found["batch"][3] / 10}
    }  # fmt: skip


def test_medians_and_ratios() -> None:
    samples = Samples()
    for rate in (1.0, 9.0, 2.0):
        samples.add({"prefill": {8: rate}, "decode": {}, "batch": {}})
    assert samples.medians() == {"prefill": {8: 2.0}, "decode": {}, "batch": {}}
    ours = {"prefill": {8: 4.0, 9: 1.0}, "decode": {}, "batch": {}}
    assert ratios(ours, samples.medians()) == {"prefill": {8: 2.0}, "decode": {}, "batch": {}}


def test_the_workload_s_context() -> None:
    assert WORK.context == 41
    assert Workload((), (100,), (), 8, 1).context == 108
    assert Workload((), (), (4,), 8, 1).context == 40
    assert Workload((), (0,), (), 8, 1).context == 9


def test_memory_is_read_at_a_rate_that_memory_can_have() -> None:
    assert 1e8 < read_bandwidth(1) < 1e13
