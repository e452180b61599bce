"""Whole answers, collected from chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from umlm.engine.output import Chunk, Usage
from umlm.engine.sampler import TokenLogprobs


@dataclass(frozen=True)
class Speed:
    """How fast an answer came. Rates in tokens per second, ttft in seconds from submission to the first token.

    peak_memory  most bytes that the process has had in memory since it began, mapped weights included
    """

    prompt_tps: float | None
    generation_tps: float | None
    ttft: float | None
    peak_memory: int


@dataclass
class Answer:
    """One of the n answers to a prompt.

    token_ids      an end token included
    logprobs       one entry per token, where they were asked for
    finish_reason  "stop", "length", "abort", "timeout" or "error"
    stop_reason    the stop text or stop id that ended it; None for the model's own end token
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    usage: Usage | None = None
    timings: Speed | None = None

    def add(self, chunk: Chunk) -> None:
        """Append what one step gave."""
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        if chunk.logprobs is not None:
            self.logprobs = (self.logprobs or []) + list(chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason, self.stop_reason, self.error = chunk.finish_reason, chunk.stop_reason, chunk.error
            self.usage, self.timings = chunk.usage, _speed(chunk)


@dataclass
class Result:
    """All answers to one prompt; text, token_ids and the rest are those of the first.

    prompt_logprobs  one entry per token of the prompt, None for the first, where they were asked for
    embedding        float32 [hidden], of a prompt that was embedded
    """

    prompt_token_ids: list[int]
    answers: list[Answer]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    embedding: np.ndarray | None = None

    @property
    def text(self) -> str:
        return self.answers[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.answers[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.answers[0].logprobs

    @property
    def finish_reason(self) -> str | None:
        return self.answers[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.answers[0].stop_reason

    @property
    def usage(self) -> Usage | None:
        return self.answers[0].usage

    @property
    def timings(self) -> Speed | None:
        return self.answers[0].timings

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Score:
    """How likely a model finds the tokens of a text, each after those before it.

    entries  one per token, None for the first: nothing comes before it
    """

    token_ids: list[int]
    entries: list[TokenLogprobs | None]

    @property
    def logprobs(self) -> list[float | None]:
        """The log-probability (natural) of each token."""
        return [None if entry is None else entry.logprob for entry in self.entries]

    @property
    def total(self) -> float:
        """The log-probability of the whole text, given its first token."""
        return math.fsum(logprob for logprob in self.logprobs if logprob is not None)

    @property
    def perplexity(self) -> float:
        """exp(-mean log-probability); NaN for a single token."""
        return math.exp(-self.total / (len(self.entries) - 1)) if len(self.entries) > 1 else math.nan


class GenerationError(RuntimeError):
    """Some answers ended with an error; `results` holds everything that was generated."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


def collect(prompt_ids: list[int], num_answers: int, chunks: Iterable[Chunk]) -> Result:
    """Wait for all chunks of a submission."""
    result = Result(prompt_ids, [Answer(index) for index in range(num_answers)])
    for chunk in chunks:
        result.answers[chunk.index].add(chunk)
        if chunk.prompt_logprobs is not None:
            result.prompt_logprobs = list(chunk.prompt_logprobs)
        if chunk.embedding is not None:
            result.embedding = chunk.embedding
    return result


def raise_errors(results: list[Result]) -> None:
    """Raise GenerationError for answers that ended with an error."""
    errors = [answer.error for result in results for answer in result.answers if answer.finish_reason == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise GenerationError(f"{errors[0]}{more}", results)


def _speed(chunk: Chunk) -> Speed | None:
    if chunk.timings is None or chunk.usage is None:
        return None
    timings, usage = chunk.timings, chunk.usage
    return Speed(timings.prompt_rate(usage), timings.generation_rate(usage), timings.ttft, timings.peak_memory)
