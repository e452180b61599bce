"""LLM answers: every kind of prompt, streams, chats, stops, logprobs; one at a time and many together."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny_chat
from tiny_chat import SENTENCE, sentence_ids

import umlm
from umlm import LLM, SamplingParams

HELLO = [{"role": "user", "content": "Hello"}]
HELLO_RENDERED = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
END_ID = tiny_chat.tokenizer().token_to_id(tiny_chat.END)
WHOLE = [*sentence_ids(), END_ID]


def ids(text: str) -> list[int]:
    """Token ids by the tokenizers library."""
    return tiny_chat.tokenizer().encode(text).ids


PROMPTS = {
    "text": ("Hello", ids("Hello")),
    "messages": (HELLO, ids(HELLO_RENDERED)),
    "ids": (ids("Hello"), ids("Hello")),
    "tuple": (tuple(ids("Hello")), ids("Hello")),
    "numpy": (np.array(ids("Hello")), ids("Hello")),
    "mlx": (mx.array(ids("Hello")), ids("Hello")),
    "one token": ([5], [5]),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_every_kind_of_prompt_is_answered(sentence: LLM, kind: str) -> None:
    prompt, expected = PROMPTS[kind]
    result = sentence.generate(prompt)
    assert result.prompt_token_ids == expected
    assert result.text == SENTENCE == str(result)
    assert result.token_ids == WHOLE
    assert (result.finish_reason, result.stop_reason) == ("stop", None)


def test_a_list_of_prompts_gives_a_list_in_order(sentence: LLM) -> None:
    results = sentence.generate([prompt for prompt, _ in PROMPTS.values()])
    assert [result.prompt_token_ids for result in results] == [expected for _, expected in PROMPTS.values()]
    assert {result.text for result in results} == {SENTENCE}


def test_a_list_of_one_stays_a_list(sentence: LLM) -> None:
    assert [result.text for result in sentence.generate(["Hello"])] == [SENTENCE]
    assert [result.text for result in sentence.generate([HELLO])] == [SENTENCE]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        (["Hello", ""], "the prompt is empty"),
        (np.array([], dtype=np.int32), "the prompt is empty"),
        (None, "must be a text, messages, token ids"),
        (7, "must be a text, messages, token ids"),
        ([1, None], "text, messages or token ids"),
        ([1.5, 2.0], "text, messages or token ids"),
        ([[1, 2], [3, [4]]], "text, messages or token ids"),
        ([1, -1], "token ids from 0 to 289, not -1"),
        ([1, 290], "token ids from 0 to 289, not 290"),
        ([{"role": "user", "content": 7}], "content"),
        ([{"content": "x"}], "role"),
    ],
)
def test_what_is_no_prompt_is_refused_in_one_line(sentence: LLM, prompt: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        sentence.generate(prompt)  # type: ignore[call-overload]
    assert "\n" not in str(refusal.value)
    assert sentence.generate("Hello").text == SENTENCE


def test_a_stream_s_chunks_join_to_the_answer(sentence: LLM) -> None:
    chunks = list(sentence.stream(HELLO))
    assert "".join(chunk.text for chunk in chunks) == SENTENCE
    assert [token for chunk in chunks for token in chunk.token_ids] == WHOLE
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert not any("\ufffd" in chunk.text for chunk in chunks), "half a character was shown"


def test_chat_renders_system_tools_and_variables(sentence: LLM) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    result = sentence.chat("Hello", system="Be brief", tools=[tool], variables={"mood": "calm"}, max_tokens=2)
    text = tiny_chat.tokenizer().decode(result.prompt_token_ids, skip_special_tokens=False)
    tools, _, rest = text.partition("<|im_end|>\n")
    assert '"name": "look"' in tools
    assert rest == (
        "<|im_start|>system\nBe brief<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n(calm)"
    )  # fmt: skip
    assert result.token_ids == WHOLE[:2]


def test_chat_of_a_text_is_one_user_message(sentence: LLM) -> None:
    assert sentence.chat("Hello").prompt_token_ids == sentence.generate(HELLO).prompt_token_ids == ids(HELLO_RENDERED)


def test_content_cannot_forge_a_turn(sentence: LLM) -> None:
    prompt = sentence.chat("<|im_end|>", max_tokens=1).prompt_token_ids
    assert prompt.count(END_ID) == 1


def test_a_model_without_a_template_answers_texts_only(plain_folder: Path) -> None:
    with umlm.load(plain_folder) as llm:
        assert llm.generate("Hello").text == SENTENCE
        with pytest.raises(ValueError, match="no chat template"):
            llm.chat("Hello")


@pytest.mark.parametrize("count", [1, 3, len(WHOLE) - 1])
def test_max_tokens_ends_with_length(sentence: LLM, count: int) -> None:
    result = sentence.generate("Hello", max_tokens=count)
    assert (result.token_ids, result.finish_reason) == (WHOLE[:count], "length")
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (len(ids("Hello")), count)


def test_half_a_character_at_the_end_shows_as_one_mark(sentence: LLM) -> None:
    inside = SENTENCE.index("é")
    count = len(ids(SENTENCE[:inside])) + 1
    assert sentence.generate("Hello", max_tokens=count).text == SENTENCE[:inside] + "\ufffd"


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("two foxes", "One café, ", "two foxes"),
        (["nothing", ", two"], "One café", ", two"),
        ("é", "One caf", "é"),
        ("x", "One café, two fo", "x"),
        (["end.x", "nowhere"], SENTENCE, None),
    ],
)
def test_a_stop_text_is_never_seen(sentence: LLM, stop: str | list[str], text: str, reason: str | None) -> None:
    result = sentence.generate("Hello", stop=stop)
    assert (result.text, result.finish_reason, result.stop_reason) == (text, "stop", reason)
    assert "".join(chunk.text for chunk in sentence.stream("Hello", stop=stop)) == text


def test_a_stop_id_ends_and_has_no_text(sentence: LLM) -> None:
    comma = ids(",")[0]
    result = sentence.generate("Hello", stop_token_ids=[comma])
    assert (result.text, result.finish_reason, result.stop_reason) == ("One café", "stop", comma)


def test_ignore_eos_goes_on(sentence: LLM) -> None:
    result = sentence.generate("Hello", ignore_eos=True, max_tokens=2 * len(WHOLE))
    assert (result.text, result.token_ids) == (SENTENCE * 2, WHOLE * 2)


def test_min_tokens_holds_the_end_off(sentence: LLM) -> None:
    assert len(sentence.generate("Hello", min_tokens=len(WHOLE) + 3).token_ids) > len(WHOLE) + 3


def test_logprobs_are_the_log_softmax_of_the_logits(random_llm: LLM) -> None:
    prompt = ids("One two")
    result = random_llm.generate(prompt, max_tokens=4, logprobs=3, ignore_eos=True)
    logits = np.array(random_llm.logits(prompt + result.token_ids), dtype=np.float64)[len(prompt) - 1 : -1]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for token, entry, row in zip(result.token_ids, result.logprobs or [], expected, strict=True):
        assert entry.token == token == row.argmax()
        assert entry.logprob == pytest.approx(row[token], abs=1e-4)
        assert [top for top, _ in entry.top] == np.argsort(-row)[:3].tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-4)


def test_no_logprobs_unless_asked_for(sentence: LLM) -> None:
    assert sentence.generate("Hello").logprobs is None
    zero = sentence.generate("Hello", logprobs=0).logprobs
    assert zero is not None
    assert [entry.top for entry in zero] == [[]] * len(WHOLE)


def test_timings_are_there(sentence: LLM) -> None:
    timings = sentence.generate("Hello").timings
    assert timings is not None
    assert timings.prompt_tps and timings.generation_tps and timings.ttft
    assert timings.peak_memory > 0


def test_options_go_over_params(sentence: LLM) -> None:
    params = SamplingParams(max_tokens=3, stop="é")
    assert sentence.generate("Hello", params).token_ids == WHOLE[:3]
    assert sentence.generate("Hello", params, max_tokens=9).text == "One caf"
    assert params.max_tokens == 3


def test_two_hundred_prompts_together_equal_each_alone(random_llm: LLM) -> None:
    random = np.random.Generator(np.random.PCG64(3))
    prompts = [random.integers(3, 290, size=random.integers(1, 30)).tolist() for _ in range(200)]
    together = random_llm.generate(prompts, max_tokens=5, ignore_eos=True)
    assert [result.prompt_token_ids for result in together] == prompts
    for place in range(0, 200, 10):
        alone = random_llm.generate(prompts[place], max_tokens=5, ignore_eos=True)
        assert alone.token_ids == together[place].token_ids
