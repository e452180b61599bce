"""Scores and embeddings of given text: the same as from one dense call, whatever the chunks and the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny_chat

from umlm import LLM, GenerationError, SamplingParams
from umlm.engine.prompts import Prompt
from umlm.llm import load

PROMPTS = [list(range(3, 3 + length)) for length in (1, 2, 7, 12, 33, 64)]  # the context holds 64
TOLERANCE = 1e-6


@pytest.fixture(scope="module", params=[{}, {"token_budget": 7, "max_requests": 3}, {"num_pages": 5}], ids=str)
def llm(request: pytest.FixtureRequest, random_folder: Path) -> Iterator[LLM]:
    """In one step; in chunks of at most 7 tokens; with pages for 80 tokens, so that requests wait for each other."""
    with load(random_folder, dtype="float32", **request.param) as model:
        yield model


@pytest.fixture(scope="module")
def alone(random_folder: Path) -> Iterator[LLM]:
    """The same, for one prompt after the other."""
    with load(random_folder, dtype="float32") as model:
        yield model


def dense(llm: LLM, prompt: list[int]) -> np.ndarray:
    """Log-probabilities [T, V] in float64, from the logits of one call without pages."""
    logits = np.array(llm.logits(prompt), dtype=np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )


def test_scores_are_those_of_a_dense_call(llm: LLM) -> None:
    for prompt, score in zip(PROMPTS, llm.score(PROMPTS, top=3), strict=True):
        expected = dense(llm, prompt)
        assert score.token_ids == prompt
        assert score.logprobs[0] is None
        for place, entry in enumerate(score.entries[1:]):
            row = expected[place]
            assert entry is not None and entry.token == prompt[place + 1]
            assert entry.logprob == pytest.approx(row[entry.token], abs=TOLERANCE)
            assert [token for token, _ in entry.top] == np.argsort(-row)[:3].tolist()
            assert [logprob for _, logprob in entry.top] == pytest.approx(np.sort(row)[::-1][:3], abs=TOLERANCE)


def test_totals_and_perplexity(llm: LLM) -> None:
    prompt = PROMPTS[3]
    score = llm.score(prompt)
    own = dense(llm, prompt)[np.arange(len(prompt) - 1), prompt[1:]]
    assert score.total == pytest.approx(own.sum(), abs=1e-4)
    assert score.perplexity == pytest.approx(np.exp(-own.mean()), rel=1e-5)
    assert math.isnan(llm.score([5]).perplexity) and llm.score([5]).total == 0


def test_scores_do_not_depend_on_the_batch_or_the_chunks(llm: LLM, alone: LLM) -> None:
    """Bit for bit: rows are computed by themselves."""
    together = llm.score(PROMPTS)
    assert [score.logprobs for score in together] == [alone.score(prompt).logprobs for prompt in PROMPTS]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_are_those_of_a_dense_call(llm: LLM, pooling: str) -> None:
    layers = llm.config.num_hidden_layers
    found = llm.embed(PROMPTS, pooling=pooling, normalize=False)
    assert found.shape == (len(PROMPTS), llm.config.hidden_size) and found.dtype == np.float32
    for prompt, vector in zip(PROMPTS, found, strict=True):
        states = np.array(llm.hidden_states(prompt, [layers])[layers], dtype=np.float64)
        expected = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[pooling]
        np.testing.assert_allclose(vector, expected, atol=1e-5)
        unit = llm.embed(prompt, pooling=pooling)
        np.testing.assert_allclose(unit, expected / np.linalg.norm(expected), atol=1e-5)


def test_embeddings_do_not_depend_on_the_batch_or_the_chunks(llm: LLM, alone: LLM) -> None:
    expected = np.stack([alone.embed(prompt) for prompt in PROMPTS])
    np.testing.assert_allclose(llm.embed(PROMPTS), expected, atol=1e-7)


def test_reading_beside_requests_that_answer(llm: LLM, alone: LLM) -> None:
    """A score, an embedding and two answers in one batch equal each alone."""
    prompt, answering = PROMPTS[4], SamplingParams(max_tokens=8, ignore_eos=True)
    streams = [
        llm.engine.submit(prompt, answering),
        llm.engine.submit(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0)),
        llm.engine.submit(prompt, pooling="last"),
        llm.engine.submit(PROMPTS[3], SamplingParams(max_tokens=8, ignore_eos=True, prompt_logprobs=0)),
    ]
    answer, score, embedding, both = [list(stream) for stream in streams]
    assert ids(answer) == alone.generate(prompt, answering).token_ids
    assert [entry and entry.logprob for entry in score[-1].prompt_logprobs] == alone.score(prompt).logprobs
    np.testing.assert_array_equal(embedding[-1].embedding, alone.embed(prompt, pooling="last", normalize=False))
    assert ids(both) == alone.generate(PROMPTS[3], answering).token_ids
    assert [entry and entry.logprob for entry in both[0].prompt_logprobs] == alone.score(PROMPTS[3]).logprobs


def ids(chunks: Any) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def test_prompt_logprobs_come_with_an_answer_and_count_nothing(llm: LLM) -> None:
    result = llm.generate(PROMPTS[2], max_tokens=3, prompt_logprobs=2, ignore_eos=True, n=2)
    assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == 7
    assert result.usage is not None and tuple(result.usage)[:2] == (7, 3)
    assert [len(answer.token_ids) for answer in result.answers] == [3, 3]
    assert llm.generate(PROMPTS[2], max_tokens=3, ignore_eos=True).prompt_logprobs is None


def test_max_tokens_0_gives_logprobs_and_nothing_else(llm: LLM) -> None:
    result = llm.generate(PROMPTS[2], max_tokens=0, prompt_logprobs=0, temperature=0.7, n=2)
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "length")
    assert result.usage is not None and tuple(result.usage)[:2] == (7, 0)
    assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == 7
    with pytest.raises(ValueError, match="max_tokens must be at least 1, not 0"):
        llm.generate(PROMPTS[2], max_tokens=0)


def test_a_prompt_that_fills_the_context_is_scored_too(llm: LLM) -> None:
    result = llm.generate(PROMPTS[-1], prompt_logprobs=0)
    assert result.token_ids == [] and result.finish_reason == "length"
    assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == 64


def test_texts_and_conversations(sentence: LLM) -> None:
    score = sentence.score(tiny_chat.SENTENCE)
    assert score.token_ids == tiny_chat.sentence_ids()
    assert score.total == pytest.approx(0, abs=0.1)  # it always says this sentence
    assert sentence.embed([{"role": "user", "content": "Hello"}]).ndim == 1
    assert isinstance(sentence.score(["One", "two"]), list)


@pytest.mark.parametrize("call", ["generate", "score", "embed"])
def test_one_bad_prompt_of_many_is_named_and_none_is_begun(llm: LLM, call: str) -> None:
    prompts: list[Prompt] = [[5]] * 300
    for bad, words in (([5] * 65, "65 tokens, the context holds 64"), ([10**6], "token ids from 0 to"), ("", "empty")):
        with pytest.raises(ValueError, match=f"^prompt 217 of 301: .*{words}"):
            getattr(llm, call)([*prompts[:217], bad, *prompts[217:]])
    assert llm.engine.call(lambda: llm.engine.num_requests) == 0


def test_results_of_hundreds_of_prompts_are_in_order(llm: LLM) -> None:
    prompts = [[3 + i % 250, 7] for i in range(300)]
    results = llm.generate(prompts, max_tokens=1)
    assert [result.prompt_token_ids for result in results] == prompts
    assert results[40].token_ids == llm.generate(prompts[40], max_tokens=1).token_ids


def test_a_bar_counts_many_prompts_where_it_is_asked_for(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([[5], [6], [7]], max_tokens=1, progress=True)
    assert "3/3" in capsys.readouterr().err
    llm.generate([[5], [6], [7]], max_tokens=1)  # stderr is no terminal
    llm.generate([5], max_tokens=1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pooling", ["max", "", None])
def test_an_unknown_pooling_is_named(llm: LLM, pooling: Any) -> None:
    with pytest.raises(ValueError, match="pooling must be one of mean, last, cls, not"):
        llm.embed("Hello", pooling=pooling)


def test_logits_and_states_that_are_no_numbers_are_errors(tmp_path: Path) -> None:
    folder = tiny_chat.write_chat_model(tmp_path / "spoiled")
    tiny_chat.spoil(folder, 7)
    with load(folder) as llm:
        with pytest.raises(GenerationError, match="logits that are NaN or infinite"):
            llm.score("Hello")
        assert np.isfinite(llm.embed("Hello")).all()  # the head alone is spoiled
        assert llm.engine.call(lambda: llm.engine.num_requests) == 0


def test_a_preempted_prompt_is_read_once(random_folder: Path, alone: LLM) -> None:
    """Pages for 64 tokens: answers that grow take the newest request's pages away, the one that reads."""
    with load(random_folder, dtype="float32", num_pages=4, token_budget=8, max_requests=4) as llm:
        growing = SamplingParams(max_tokens=40, ignore_eos=True)
        preempted: list[int] = []
        scheduler = llm.engine.scheduler
        preempt = scheduler.preempt
        scheduler.preempt = lambda request: (preempted.append(request.computed), preempt(request))  # type: ignore[method-assign, assignment]
        first = llm.engine.submit([9, 8, 7], growing)
        score = llm.engine.submit(PROMPTS[4][:30], SamplingParams(max_tokens=30, prompt_logprobs=0, ignore_eos=True))
        list(first)
        read = list(score)
        assert preempted and preempted[0] > 0
        found = [entry and entry.logprob for entry in read[0].prompt_logprobs or ()]
        assert found == alone.score(PROMPTS[4][:30]).logprobs


def test_logits_of_a_long_prompt_are_never_all_in_memory(sentence_folder: Path) -> None:
    """4,000 places of 290 logits; the head is asked for 32 rows at a time."""
    with load(sentence_folder) as llm:
        rows: list[int] = []
        head = llm.model.head

        def counting(x: mx.array) -> mx.array:
            rows.append(len(x))
            return head(x)

        llm.model.head = counting  # type: ignore[method-assign]
        llm.score([5] * 4000)
        assert sum(rows) == 3999 and max(rows) <= 32
