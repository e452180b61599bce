"""What LLM refuses, and how several answers and the context's limit behave (cases P15, P17, P18, K11, B01)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny_chat

from umlm import LLM, GenerationError
from umlm.llm import load

SENTENCE_LENGTH = len(tiny_chat.sentence_ids()) + 1  # with the end token

OUT_OF_RANGE = {
    "temperature": [-0.1, 999999, math.nan, math.inf, -math.inf, "1", None, True],
    "top_k": [-2, 1.5, "5", None],
    "top_p": [-1, 1.01, math.nan, -math.inf],
    "min_p": [-0.5, 2, math.nan],
    "repetition_penalty": [0, -1, math.inf, 1000],
    "presence_penalty": [-2.1, 3, math.nan],
    "frequency_penalty": [-2.1, 3, math.nan],
    "logit_bias": [{"abc": 1.0}, {7: "x"}, {7: math.nan}, {7: 101}, {-1: 1.0}, [7]],
    "seed": [2**64, 1.5, "1"],
    "stop": ["", [""], 5, ["a", 5], b"a"],
    "stop_token_ids": [[-1], ["7"], 7],
    "ignore_eos": [1, None, "yes"],
    "min_tokens": [-1, 300, None],
    "max_tokens": [0, -1, "5", 2.5, True, math.inf],
    "logprobs": [-1, 1001, 10**9, True],
    "n": [0, -1, 129, 1.0, None],
}
BAD = [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value!r}" for name, value in BAD])
def test_a_value_out_of_range_is_named_and_the_next_request_works(sentence: LLM, name: str, value: Any) -> None:
    """P15, P18: every field, with numbers no one-sided check would catch."""
    with pytest.raises(ValueError, match=name) as refusal:
        sentence.generate("Hello", **{name: value})
    assert "\n" not in str(refusal.value)
    assert sentence.generate("Hello", max_tokens=1).finish_reason == "length"


@pytest.mark.parametrize("name", ["logit_bias", "seed", "stop", "stop_token_ids", "max_tokens", "logprobs"])
def test_none_means_left_out(sentence: LLM, name: str) -> None:
    """P15: an optional field given as None."""
    assert sentence.generate("Hello", **{name: None}).text == tiny_chat.SENTENCE


@pytest.mark.parametrize("max_tokens", [1, 10**9])
def test_the_least_and_a_huge_max_tokens(sentence: LLM, max_tokens: int) -> None:
    """P15: one token, and far more than the context holds."""
    result = sentence.generate("Hello", max_tokens=max_tokens)
    assert len(result.token_ids) == min(max_tokens, SENTENCE_LENGTH)


@pytest.mark.parametrize("name", ["max_token", "top-k", "temprature", "context"])
def test_an_unknown_option_is_named(sentence: LLM, name: str) -> None:
    for call in (sentence.generate, sentence.stream, sentence.chat):
        with pytest.raises(ValueError, match=f"'{name}' is not an option; known: .*max_tokens"):
            call("Hello", **{name: 1})


def test_an_unknown_setting_of_load_is_named(sentence_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'max_tokens' is not an option; known: .*kv_memory"):
        load(sentence_folder, max_tokens=3)


@pytest.mark.parametrize("options", [{"logit_bias": {290: 1.0}}, {"stop_token_ids": [290]}])
def test_token_ids_of_options_lie_in_the_vocabulary(sentence: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="below 290, the vocabulary size, not 290"):
        sentence.generate("Hello", **options)


def test_logit_bias_forces_and_forbids(sentence: LLM) -> None:
    assert sentence.generate("Hello", logit_bias={7: 100}, max_tokens=4).token_ids == [7] * 4
    first = tiny_chat.sentence_ids()[0]
    assert first not in sentence.generate("Hello", logit_bias={str(first): -100}, max_tokens=4).token_ids


def test_n_answers_are_distinct_and_in_order(loose: LLM) -> None:
    """P17: n is never silently one."""
    result = loose.generate("Hello", n=3, temperature=1, max_tokens=20)
    assert [answer.index for answer in result.answers] == [0, 1, 2]
    assert len({tuple(answer.token_ids) for answer in result.answers}) == 3


def test_n_answers_with_a_seed_come_again(loose: LLM) -> None:
    """P17, P07: the same three answers, which differ from each other, also with others in the batch."""
    options = {"n": 3, "temperature": 1, "seed": 11, "max_tokens": 20}
    first = [answer.token_ids for answer in loose.generate("Hello", **options).answers]
    again = [answer.token_ids for answer in loose.generate(["Other", "Hello"], **options)[1].answers]
    assert first == again
    assert len(set(map(tuple, first))) == 3


def test_answers_without_a_seed_differ(loose: LLM) -> None:
    """P07: no hidden seed."""
    texts = {loose.generate("Hello", temperature=1, max_tokens=20).text for _ in range(5)}
    assert len(texts) > 1


def test_n_greedy_answers_are_equal(sentence: LLM) -> None:
    """P17: n at temperature 0 still gives n."""
    answers = sentence.generate("Hello", n=2).answers
    assert [answer.text for answer in answers] == [tiny_chat.SENTENCE] * 2


def test_a_stream_of_n_answers_marks_each_chunk(loose: LLM) -> None:
    """P17: n = 2 in a stream; both end, each with its own counts."""
    chunks = list(loose.stream("Hello", n=2, temperature=1, max_tokens=20))
    ends = [chunk for chunk in chunks if chunk.finish_reason is not None]
    assert sorted(chunk.index for chunk in ends) == [0, 1]
    for end in ends:
        count = sum(len(chunk.token_ids) for chunk in chunks if chunk.index == end.index)
        assert end.usage is not None
        assert end.usage.completion_tokens == count


def test_prompts_times_n_are_grouped_by_prompt(sentence: LLM) -> None:
    """P17: a list of prompts with n."""
    results = sentence.generate(["One", "two"], n=2, max_tokens=3)
    assert [len(result.answers) for result in results] == [2, 2]
    assert [result.prompt_token_ids for result in results] == [
        tiny_chat.tokenizer().encode(text).ids for text in ("One", "two")
    ]


@pytest.mark.parametrize(("length", "left"), [(60, 4), (63, 1), (64, 0)])
def test_a_prompt_that_leaves_little_room_ends_with_length(random_llm: LLM, length: int, left: int) -> None:
    """K11: the context holds 64 tokens."""
    result = random_llm.generate([5] * length, max_tokens=50, ignore_eos=True)
    assert (len(result.token_ids), result.finish_reason) == (left, "length")


@pytest.mark.parametrize("length", [65, 200])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(random_llm: LLM, length: int) -> None:
    """K11: nothing is cut off silently."""
    with pytest.raises(ValueError, match=f"{length} tokens, the context holds 64"):
        random_llm.generate([5] * length)
    with pytest.raises(ValueError, match="the context holds 64"):
        random_llm.chat("Hello", system="word " * length)


def test_a_smaller_context_is_obeyed_and_a_larger_one_refused(random_folder: Path) -> None:
    with load(random_folder, context=16) as llm:
        assert llm.context == 16
        with pytest.raises(ValueError, match="17 tokens, the context holds 16"):
            llm.generate([5] * 17)
    with pytest.raises(ValueError, match="context 65 is more than the 64 tokens"):
        load(random_folder, context=65)


def test_one_bad_prompt_of_many_starts_none(random_llm: LLM) -> None:
    with pytest.raises(ValueError, match="the context holds 64"):
        random_llm.generate([[5], [5] * 65], max_tokens=60)
    assert random_llm.engine.call(lambda: random_llm.engine.num_requests) == 0


def test_prompts_of_every_length_together_equal_each_alone(random_llm: LLM) -> None:
    """B01: six prompts of 1 to 20 tokens; none is padded into another."""
    prompts = [list(range(3, 3 + length)) for length in (1, 3, 7, 12, 16, 20)]
    together = random_llm.generate(prompts, max_tokens=8, ignore_eos=True)
    for prompt, result in zip(prompts, together, strict=True):
        assert random_llm.generate(prompt, max_tokens=8, ignore_eos=True).token_ids == result.token_ids


def test_logits_that_are_no_numbers_end_that_answer_with_an_error(tmp_path: Path) -> None:
    """P18: what was generated is kept, and the model stays usable."""
    folder = tiny_chat.write_chat_model(tmp_path / "spoiled")
    tiny_chat.spoil(folder, 7)
    with load(folder) as llm:
        for _ in range(2):
            with pytest.raises(GenerationError, match="NaN or infinite") as failure:
                llm.generate(["Hello", "One"])
            assert "and 1 more" in str(failure.value)
            assert [result.finish_reason for result in failure.value.results] == ["error", "error"]
        assert llm.engine.call(lambda: llm.engine.num_requests) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no/such/folder", "no such file or folder"),
        ("", "no such file or folder"),
        ("pypi:", "pypi:"),
    ],
)
def test_a_name_that_is_no_model_is_refused(name: str, words: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=words):
        load(name)


def test_an_unknown_dtype_is_refused(sentence_folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype"):
        load(sentence_folder, dtype="int8")


def test_quantized_pages_count_by_their_size(random_folder: Path) -> None:
    """The plan, the page arrays and the promise are of one size; another setting gives other bytes."""
    sizes = {}
    for bits in (None, "none", "16", "8", "k8v4", "4"):
        with load(random_folder, kv_bits=bits) as llm:
            store, plan = llm.engine.runner.store, llm.memory
            assert store.nbytes == store.allocated * plan.page_bytes
            sizes[bits] = plan.page_bytes
            assert len(llm.generate("Hello", max_tokens=5, ignore_eos=True).token_ids) == 5
    assert sizes["none"] > sizes["16"] == sizes[None] > sizes["8"] > sizes["k8v4"] > sizes["4"]


def test_precision_follows_dtype_unless_it_is_said(random_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**options: Any) -> tuple[str | None, str | None]:
        with load(random_folder, **options) as llm:
            return llm.settings.activations, llm.settings.kv_bits

    assert chosen() == ("int16", "16")
    assert chosen(dtype="float32") == chosen(dtype="bfloat16") == ("exact", "none")
    assert chosen(activations="int8", kv_bits="8", dtype="float32") == ("int8", "8")
    monkeypatch.setenv("UMLM_ACTIVATIONS", "exact")
    assert chosen() == ("exact", "16")


@pytest.mark.parametrize("value", ["int4", 8, True])
def test_unknown_activations_are_named(random_folder: Path, value: Any) -> None:
    with pytest.raises(ValueError, match="activations must be"):
        load(random_folder, activations=value)


@pytest.mark.parametrize("value", [8, "5", "k4", True])
def test_kv_bits_out_of_range_are_named(random_folder: Path, value: Any) -> None:
    with pytest.raises(ValueError, match="kv_bits must be"):
        load(random_folder, kv_bits=value)
