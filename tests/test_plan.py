"""`umlm plan` and --kv-memory: the table, what fits, and refusals before weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from umlm import generate, plan
from umlm.cache.memory import Available
from umlm.llm import load
from umlm.weights import safetensors, values


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 300 MiB left."""
    there = Available(300 << 20, "control group")
    monkeypatch.setattr(plan, "available_memory", lambda: there)
    monkeypatch.setattr("umlm.llm.available_memory", lambda: there)


@pytest.fixture
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a tensor's values fails."""

    def fail(*_: Any) -> Any:
        raise AssertionError("values are read")

    monkeypatch.setattr(values, "read_array", fail)
    monkeypatch.setattr(safetensors, "read_tensor", fail)
    monkeypatch.setattr("umlm.weights.folder.read_tensor", fail)


def found(capsys: pytest.CaptureFixture[str], *words: Any, code: int = 0) -> dict[str, Any]:
    assert plan.main([*map(str, words), "--json"]) == code
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.usefixtures("no_values")
def test_the_numbers_add_up(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = found(capsys, sentence_folder, "--dtype", "float32", "--context", 1000, "--users", 5)
    assert shown["kv_bytes_per_token"] == 2 * 8 * 4  # one layer of one head of 8 dims in float32
    assert (shown["num_pages"], shown["page_bytes"]) == (5 * 63, 16 * 64)
    assert shown["pages"] == 5 * 63 * 2 * 16 * 64  # the one layer is in memory twice while it grows
    assert shown["total"] == sum(shown[part] for part in ("weights", "activations", "reserve", "pages"))
    assert shown["fits"] and shown["refusal"] is None
    assert shown["largest_context"] == 4096 and shown["most_users"] > 5
    assert shown["path"] == str(sentence_folder)


def test_the_loaded_model_takes_the_same_numbers(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = found(capsys, sentence_folder, "--dtype", "float32", "--context", 1000, "--users", 5)
    with load(sentence_folder, dtype="float32", context=1000, max_requests=5) as llm:
        assert llm.memory.num_pages == shown["num_pages"]
        assert llm.memory.total == shown["total"]
        assert llm.memory.demand.weights == shown["weights"]


def test_the_table(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([str(sentence_folder), "--context", "1000", "--users", "5"]) == 0
    out, err = capsys.readouterr()
    names = [line[:18].strip() for line in out.splitlines()]
    assert names == [
        *("model", "weights", "keys and values", "activations", "reserve", "needed", "available", "fits"),
        *("largest context", "most users"),
    ]
    assert "5 x 1,000 tokens of 32 bytes, 315 pages" in out and err == ""


@pytest.mark.usefixtures("small_machine")
def test_what_does_not_fit_ends_with_1_and_says_why(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([str(sentence_folder), "--users", "5000"]) == 1
    out, err = capsys.readouterr()
    assert "fits              no" in out
    assert err.startswith("umlm plan: not enough memory: ") and err.count("\n") == 1
    assert "300.0 MiB available (control group); take a smaller context, fewer bits of keys and values (kv_bits)" in err
    shown = found(capsys, sentence_folder, "--users", 5000, code=1)
    assert not shown["fits"] and shown["refusal"] in err
    assert found(capsys, sentence_folder, "--users", shown["most_users"])["fits"]
    assert found(capsys, sentence_folder, "--users", 64, "--context", 100)["fits"]


def test_fewer_bits_and_a_share_change_what_fits(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = found(capsys, sentence_folder, "--kv-memory", "10MB")
    assert found(capsys, sentence_folder, "--kv-memory", "10MB", "--kv-bits", 4)["most_users"] > wide["most_users"]
    assert found(capsys, sentence_folder, "--kv-memory", "20MB")["most_users"] > wide["most_users"]
    assert found(capsys, sentence_folder, "--kv-memory", "0.2")["kv_memory"] == "20% of the rest"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--users", "0"], "users must be at least 1, not 0"),
        (["--users", "many"], "argument --users: invalid int value: 'many' (--help lists the options)"),
        (["--context", "1"], "context must be at least 2 tokens, not 1"),
        (
            ["--kv-memory", "8Gi"],
            "kv_memory must be auto, a share greater than 0 and at most 1, or a size such as 8GiB, not '8Gi'",
        ),
    ],
)
def test_misuse(sentence_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert plan.main([str(sentence_folder), *words]) == 2
    assert capsys.readouterr() == ("", f"umlm plan: {message}\n")


def test_a_context_beyond_the_model_s_fails(sentence_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([str(sentence_folder), "--context", "5000"]) == 1
    assert "context 5000 is more than the 4096 tokens" in capsys.readouterr().err


@pytest.mark.usefixtures("no_values", "small_machine")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_pages": 10**6}, "keys and values of 16000000 tokens"),
        ({"kv_memory": "1GiB", "max_requests": 4000, "token_budget": 4000}, "of which pages may take 1,024.0 MiB"),
        ({"context": 4096, "kv_memory": "64kB"}, "keys and values of 4096 tokens"),
        ({"max_requests": 20000, "token_budget": 100000}, "activations"),
    ],
)
def test_too_little_refuses_before_weights_are_read(
    sentence_folder: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=r"^not enough memory: ") as error:
        load(sentence_folder, **settings)
    assert words in str(error.value) and "300.0 MiB available (control group)" in str(error.value)


@pytest.mark.parametrize("value", ["8", "0", "lots", -1, 1.5, True, None, float("nan")])
def test_a_bad_kv_memory_is_named(sentence_folder: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^kv_memory must be "):
        load(sentence_folder, kv_memory=value)


@pytest.mark.parametrize("value", ["auto", "0.5", 0.5, "1MiB"])
def test_kv_memory_in_python_and_in_the_shell(
    sentence_folder: Path, capsys: pytest.CaptureFixture[str], value: str | float
) -> None:
    with load(sentence_folder, kv_memory=value) as llm:
        assert llm.memory.pages <= (1 << 20 if value == "1MiB" else llm.memory.limit.nbytes)
    words = ["--model", str(sentence_folder), "--prompt", "Hello", "--max-tokens", "1", "--kv-memory", str(value)]
    assert generate.main(words) == 0
    capsys.readouterr()


def test_a_context_that_memory_cuts_is_said(sentence_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with load(sentence_folder, dtype="float32", kv_memory="96kB") as llm:
        assert llm.context == llm.memory.num_tokens == 736
    assert "requests are limited to 736 tokens of 4096" in caplog.text
    caplog.clear()
    with load(sentence_folder) as llm:
        assert llm.context == 4096
    assert caplog.text == ""
