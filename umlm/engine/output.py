"""From tokens to what a user sees: text, chunks, counts and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from umlm.engine.request import Request
from umlm.engine.sampler import Sample, TokenLogprobs
from umlm.engine.service import Service
from umlm.text.stops import StopMatcher

Clock = Callable[[], float]


class TextStream(Protocol):
    """Turns token ids into text bit by bit (text/detokenizer.py)."""

    def add(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class Usage(NamedTuple):
    """Tokens of a request; the end token counts as generated, prompts of equal requests count each time.

    cached_tokens  tokens of the prompt whose keys and values were there already
    cache_miss     why not more (cache/prefix.py, Miss); None if it never ran
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_miss: str | None = None


@dataclass
class Timings:
    """Moments of one request on a monotonic clock, in seconds, and the rates between them."""

    submitted: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    peak_memory: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from submission to the first token, waiting included; None without a token."""
        return None if self.first_token is None else self.first_token - self.submitted

    def prompt_rate(self, usage: Usage) -> float | None:
        """Computed prompt tokens per second, from the first step to the first token."""
        if self.first_token is None or self.started is None:
            return None
        return _rate(usage.prompt_tokens - usage.cached_tokens, self.first_token - self.started)

    def generation_rate(self, usage: Usage) -> float | None:
        """Generated tokens per second, after the first one; None for fewer than two."""
        if self.first_token is None or self.last_token is None:
            return None
        return _rate(usage.completion_tokens - 1, self.last_token - self.first_token)


def _usage(request: Request) -> Usage:
    miss = None if request.miss is None else request.miss.value
    generated = 0 if request.reads_only else request.num_generated
    return Usage(request.num_prompt, generated, request.cached_tokens or 0, miss)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


@dataclass(frozen=True)
class Chunk:
    """What one step gave one request.

    index          which of the n answers
    text           new text that is safe to show, possibly empty; neither end token nor stop text is ever in it
    token_ids      new tokens, an end token included
    logprobs       one per token where they were asked for
    finish_reason  in the last chunk: "stop", "length", "abort", "timeout" or "error"
    stop_reason    the stop text or the id of stop_token_ids that ended it; None for the model's own end token
    error          one line, with finish_reason "error" or "timeout"
    prompt_logprobs  in the first chunk of the first answer, where they were asked for; None for the first token
    embedding      float32 [hidden], in the only chunk of a prompt that was embedded
    usage, timings in the last chunk
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    embedding: np.ndarray | None = None
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass
class Output:
    """The text of one request while it grows."""

    request: Request
    detokenizer: TextStream
    timings: Timings
    clock: Clock = time.perf_counter
    service: Service = field(default_factory=Service)
    matcher: StopMatcher = field(init=False)

    def __post_init__(self) -> None:
        self.matcher = StopMatcher(self.request.params.stops)

    def add(self, sample: Sample) -> Chunk:
        """The chunk of a token that the request has appended; `stop` tells afterwards whether the text is over."""
        self._clock_token()
        if self.request.reads_only:
            return Chunk(self.request.index, **self.request.reading.fields())
        text = ""
        if self.request.finish_reason != "stop":  # an end token has no text
            text = self._match(self.detokenizer.add(sample.token))
        if self.request.finish_reason is not None and self.stop is None:
            text += self._match(self.detokenizer.finish())
            text += self.matcher.finish()
        logprobs = None if sample.logprobs is None else (sample.logprobs,)
        first = self.request.reading is not None and self.request.num_generated == 1
        read = self.request.reading.fields() if first else {}
        return Chunk(self.request.index, text, (sample.token,), logprobs, **read)

    @property
    def stop(self) -> str | None:
        """The stop string that the text has reached."""
        return self.matcher.matched

    def overdue(self, now: float) -> str | None:
        """In words, the time limit that has passed; None while there is time."""
        limit, age = self.service.timeout, now - self.timings.submitted
        if limit is not None and age >= limit:
            return f"took longer than timeout, {limit:g} s"
        limit = self.service.queue_timeout
        if limit is not None and age >= limit and self.timings.started is None:
            return f"waited longer than queue_timeout, {limit:g} s"
        return None

    def last(self, chunk: Chunk, peak_memory: int) -> Chunk:
        """The chunk with why the request ended, and its counts and times."""
        request = self.request
        self.timings.peak_memory = peak_memory
        return replace(
            chunk,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=request.error,
            usage=_usage(request),
            timings=self.timings,
        )

    def _match(self, text: str) -> str:
        """Pass text through the stop matcher, which does not see what comes before min_tokens."""
        if self.request.num_generated < self.request.params.min_tokens:
            return text
        return self.matcher.add(text)[0]

    def _clock_token(self) -> None:
        now = self.clock()
        self.timings.last_token = now
        if self.timings.first_token is None:
            self.timings.first_token = now
