"""`umlm generate`: what it reads, writes and refuses, called in this process."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_chat
from tiny_chat import SENTENCE

from umlm.generate import main

HELLO = [{"role": "user", "content": "Hello"}]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Generate = Callable[..., Ended]


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sentence_folder: Path) -> Generate:
    """generate(*flags, stdin=text) with the model that says SENTENCE."""

    def run(*flags: Any, stdin: str = "", model: Path = sentence_folder) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["--model", str(model), *map(str, flags)])
        return Ended(code, *capsys.readouterr())

    return run


def num_prompt_tokens(rendered: str) -> int:
    return len(tiny_chat.tokenizer().encode(rendered).ids)


def chatml(*turns: tuple[str, str]) -> str:
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return said + "<|im_start|>assistant\n"


def test_the_answer_goes_to_stdout_and_ends_its_line(generate: Generate) -> None:
    assert generate("--prompt", "Hello") == (0, SENTENCE + "\n", "")


def test_a_line_that_the_model_ended_is_not_ended_twice(generate: Generate) -> None:
    newline = tiny_chat.tokenizer().token_to_id("Ċ")
    ended = generate("--prompt", "Hello", "--logit-bias", f"{newline}=100", "--max-tokens", 2)
    assert ended == (0, "\n\n", "")


@pytest.mark.parametrize("flags", [[], ["--prompt", "-"]])
def test_a_prompt_from_stdin_loses_one_final_newline(generate: Generate, flags: list[str]) -> None:
    ended = generate(*flags, "--json", stdin="Hello\n\n")
    assert json.loads(ended.out)["prompt_tokens"] == num_prompt_tokens(chatml(("user", "Hello\n")))


@pytest.mark.parametrize(
    ("flags", "rendered"),
    [
        ([], chatml(("user", "Hello"))),
        (["--system", "Be brief"], chatml(("system", "Be brief"), ("user", "Hello"))),
        (["--raw"], "Hello"),
    ],
)
def test_system_and_raw(generate: Generate, flags: list[str], rendered: str) -> None:
    ended = generate("--prompt", "Hello", "--json", *flags)
    assert json.loads(ended.out)["prompt_tokens"] == num_prompt_tokens(rendered)


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_messages_from_a_file_or_stdin(generate: Generate, tmp_path: Path, source: str) -> None:
    turns = [("user", "One"), ("assistant", "two 🦊"), ("user", "foxes")]
    text = json.dumps([{"role": role, "content": content} for role, content in turns], ensure_ascii=False)
    (tmp_path / "talk.json").write_text(text, encoding="utf-8")
    ended = generate("--json", "--messages", tmp_path / "talk.json" if source == "file" else "-", stdin=text)
    assert json.loads(ended.out)["prompt_tokens"] == num_prompt_tokens(chatml(*turns))


def test_json_holds_the_prompt_s_logprobs(generate: Generate) -> None:
    """Of each token after the first; max_tokens 0 asks for nothing else."""
    flags = ("--raw", "--prompt", "One two", "--json", "--prompt-logprobs", 1)
    found = json.loads(generate(*flags, "--max-tokens", 0).out)
    first, *others = found["prompt_logprobs"]
    assert first is None and len(others) == found["prompt_tokens"] - 1 > 0
    assert all(entry["logprob"] <= entry["top"][0]["logprob"] <= 0 and len(entry["top"]) == 1 for entry in others)
    assert found["answers"][0]["token_ids"] == []
    assert "prompt_logprobs" not in json.loads(generate(*flags[:4], "--max-tokens", 1).out)


def test_json_holds_everything_about_the_answer(generate: Generate) -> None:
    ended = generate("--prompt", "Hello", "--json", "--logprobs", 2)
    found = json.loads(ended.out)
    answer = found["answers"][0]
    assert set(found) == {"model", "prompt_tokens", "answers"}
    assert answer["text"] == SENTENCE
    assert (answer["index"], answer["finish_reason"], answer["stop_reason"], answer["error"]) == (0, "stop", None, None)
    counts = {"prompt_tokens": found["prompt_tokens"], "completion_tokens": len(answer["token_ids"])}
    assert answer["usage"] == {**counts, "cached_tokens": 0, "cache_miss": "short"}
    assert set(answer["timings"]) == {"prompt_tps", "generation_tps", "ttft", "peak_memory"}
    said = b"".join(bytes(entry["bytes"]) for entry in answer["logprobs"])
    assert said.decode() == SENTENCE + tiny_chat.END
    assert [entry["token_id"] for entry in answer["logprobs"]] == answer["token_ids"]
    assert all(len(entry["top"]) == 2 and entry["top"][0]["bytes"] == entry["bytes"] for entry in answer["logprobs"])


def test_stats_go_to_stderr_only(generate: Generate) -> None:
    ended = generate("--prompt", "Hello", "--stats")
    assert ended.out == SENTENCE + "\n"
    assert ended.err.count("\n") == 1
    prompt = num_prompt_tokens(chatml(("user", "Hello")))
    assert f"prompt {prompt} tokens, generated {len(tiny_chat.sentence_ids()) + 1} tokens" in ended.err
    assert "tok/s" in ended.err and "peak memory" in ended.err


def test_several_answers_are_numbered(generate: Generate) -> None:
    assert generate("--prompt", "Hello", "--n", 2).out == f"--- 1\n{SENTENCE}\n--- 2\n{SENTENCE}\n"
    assert [a["index"] for a in json.loads(generate("--prompt", "x", "--n", 2, "--json").out)["answers"]] == [0, 1]


def test_stop_may_be_given_several_times(generate: Generate) -> None:
    assert generate("--prompt", "Hello", "--stop", "nothing", "--stop", " two").out == "One café,\n"


def test_logit_bias_by_token_id(generate: Generate) -> None:
    assert generate("--prompt", "Hello", "--logit-bias", "5=100", "--max-tokens", 3).out == "###\n"


def test_max_tokens_none_goes_on_to_the_context_s_limit(generate: Generate, random_folder: Path) -> None:
    ended = generate("--raw", "--prompt", "One", "--ignore-eos", "--max-tokens", "none", "--json", model=random_folder)
    answer = json.loads(ended.out)["answers"][0]
    assert (len(answer["token_ids"]), answer["finish_reason"]) == (63, "length")
    assert "invalid int value: 'nine'" in generate("--max-tokens", "nine").err


def test_a_seed_repeats_the_answer(generate: Generate, loose_folder: Path) -> None:
    flags = ("--prompt", "Hello", "--temperature", 1, "--max-tokens", 30, "--json")
    texts = [
        json.loads(generate(*flags, "--seed", seed, model=loose_folder).out)["answers"][0]["token_ids"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_model_without_template_continues_the_text_and_says_so(generate: Generate, plain_folder: Path) -> None:
    ended = generate("--prompt", "Hello", model=plain_folder)
    assert (ended.code, ended.out) == (0, SENTENCE + "\n")
    assert "has no chat template" in ended.err and ended.err.count("\n") == 1
    assert generate("--prompt", "Hello", "--quiet", model=plain_folder).err == ""
    ended = generate("--prompt", "Hello", "--system", "x", model=plain_folder)
    assert (ended.code, ended.out) == (1, "")
    assert "no chat template" in ended.err


MISUSE = {
    "unknown flag": ["--temprature", "1"],
    "abbreviated flag": ["--temp", "1"],
    "no number": ["--temperature", "warm"],
    "out of range": ["--temperature", "999999"],
    "not finite": ["--top-p", "nan"],
    "no pair": ["--logit-bias", "7"],
    "bias of no number": ["--logit-bias", "7=x"],
    "bias of no token": ["--logit-bias", "seven=1"],
    "token beyond the vocabulary": ["--stop-token-ids", "290"],
    "empty stop": ["--stop", ""],
    "no answers": ["--n", "0"],
    "engine": ["--page-size", "17"],
    "two limits": ["--min-tokens", "9", "--max-tokens", "3"],
    "dtype": ["--dtype", "int8"],
    "raw with system": ["--raw", "--system", "x"],
    "messages with prompt": ["--messages", "x.json"],
    "empty prompt": ["--prompt", ""],
    "a second word": ["Hello"],
}


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_one_line_and_exit_code_2(generate: Generate, kind: str) -> None:
    ended = generate("--prompt", "Hello", *MISUSE[kind])
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("umlm generate: ")
    assert ended.err.count("\n") == 1 and ended.err.endswith("\n")


def test_an_empty_stdin_is_misuse(generate: Generate) -> None:
    assert generate(stdin="\n").code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        ("[]", "must hold a JSON list of messages"),
        ('{"role": "user"}', "must hold a JSON list of messages"),
        ('[{"content": "x"}]', "role"),
        ("\ud800", "is not JSON"),
    ],
)
def test_a_bad_messages_file_is_one_line_and_exit_code_1(
    generate: Generate, tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "talk.json"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
    ended = generate("--messages", file)
    assert (ended.code, ended.out) == (1, "")
    assert words in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("flags", [["--prompt", "word " * 5000], ["--prompt", "x", "--context", "5000"]])
def test_what_this_model_cannot_do_is_exit_code_1(generate: Generate, flags: list[str]) -> None:
    ended = generate(*flags)
    assert (ended.code, ended.out) == (1, "")
    assert str(tiny_chat.CONTEXT) in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("name", ["no/such/folder", "no-such-file.gguf"])
def test_a_missing_model_is_one_line_and_exit_code_1(generate: Generate, name: str) -> None:
    ended = generate("--prompt", "x", model=Path(name))
    assert (ended.code, ended.out) == (1, "")
    assert "no such file or folder" in ended.err
    assert ended.err.count("\n") == 1


def test_logits_that_are_no_numbers_are_one_line_and_exit_code_1(generate: Generate, tmp_path: Path) -> None:
    folder = tiny_chat.write_chat_model(tmp_path / "spoiled")
    tiny_chat.spoil(folder, 7)
    ended = generate("--prompt", "x", model=folder)
    assert (ended.code, ended.out) == (1, "\n")
    assert "NaN or infinite" in ended.err and ended.err.count("\n") == 1


def test_debug_lets_the_error_through(generate: Generate) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        generate("--prompt", "x", "--debug", model=Path("no/such/folder"))


def test_warnings_are_lines_on_stderr_unless_quiet(generate: Generate, sentence_folder: Path, tmp_path: Path) -> None:
    """A config that names a vision tower beside a text-only checkpoint."""
    folder = tmp_path / "towers"
    folder.mkdir()
    for file in sentence_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vision_config": {}}))
    loud, quiet = (generate("--prompt", "x", *flags, model=folder) for flags in ([], ["--quiet"]))
    assert (loud.code, loud.out) == (quiet.code, quiet.out)
    assert quiet.err == ""
    assert loud.err.startswith("umlm generate: ") and loud.err.count("\n") == 1
    assert logging.getLogger("umlm").handlers == [], "the handler outlives the command"


@pytest.mark.parametrize("bits", ["none", "8", "4", "k8v4"])
def test_pages_of_few_bits(generate: Generate, bits: str) -> None:
    assert generate("--prompt", "Hello", "--kv-bits", bits) == (0, SENTENCE + "\n", "")


def test_bits_that_there_are_not_are_misuse(generate: Generate) -> None:
    ended = generate("--prompt", "Hello", "--kv-bits", "5")
    assert (ended.code, ended.out) == (2, "")
    assert "--kv-bits" in ended.err and "'5'" in ended.err and "k8v4" in ended.err
