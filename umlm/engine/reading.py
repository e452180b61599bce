"""What is read at every place of a prompt while it is computed, a chunk at a time: log-probabilities, an embedding.

A reading takes each place once, in order. After a preemption places come again, and are passed over; so a request
that reads must begin at place 0 and cannot take its first pages from another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from umlm.cache.activations import rows_scored
from umlm.engine.sampler import TokenLogprobs, report

POOLINGS = ("mean", "last", "cls")
Head = Any  # hidden [S, hidden] -> logits [S, vocab]


class Reading(Protocol):
    """done: whether no place is wanted any more; error: what is wrong with the numbers."""

    error: str | None

    @property
    def done(self) -> bool: ...
    def take(self, hidden: mx.array, start: int, head: Head) -> None: ...
    def fields(self) -> Mapping[str, Any]: ...


class PromptLogprobs:
    """The log-probability of every token of a prompt after the first, and the likeliest ones at its place.

    Logits exist for a few places at a time (cache/activations.py), whatever the prompt's length.
    """

    def __init__(self, prompt: Sequence[int], num_top: int, vocab_size: int) -> None:
        self.prompt, self.num_top, self.rows = prompt, num_top, rows_scored(vocab_size)
        self.entries: list[TokenLogprobs | None] = [None]
        self.error: str | None = None

    @property
    def done(self) -> bool:
        return len(self.entries) == len(self.prompt)

    def take(self, hidden: mx.array, start: int, head: Head) -> None:
        """hidden [n, hidden] of the places start .. start + n, after the final norm."""
        end = min(start + len(hidden), len(self.prompt) - 1)
        for first in range(max(start, len(self.entries) - 1), end, self.rows):
            last = min(first + self.rows, end)
            logits = head(hidden[first - start : last - start])
            self.entries += report(logits, self.prompt[first + 1 : last + 1], self.num_top)
        if any(entry is not None and not np.isfinite(entry.logprob) for entry in self.entries[-len(hidden) :]):
            self.error = "the model gave logits that are NaN or infinite"

    def fields(self) -> Mapping[str, Any]:
        """What a chunk tells of it."""
        return {"prompt_logprobs": tuple(self.entries)}


class Embedding:
    """The final hidden states of a prompt, pooled: their mean (summed in float64), the last, or the first (cls)."""

    def __init__(self, length: int, pooling: str) -> None:
        self.length, self.pooling = length, pooling
        self.taken = 0
        self.error: str | None = None
        self._sum: Any = 0.0

    @property
    def done(self) -> bool:
        return self.taken == self.length

    def take(self, hidden: mx.array, start: int, head: Head) -> None:
        """hidden [n, hidden] of the places start .. start + n, after the final norm."""
        end = start + len(hidden)
        wanted = {"mean": (self.taken, end), "last": (self.length - 1, end), "cls": (self.taken, 1)}[self.pooling]
        first, last = max(wanted[0], start), wanted[1]
        if first < last:
            rows = np.asarray(hidden[first - start : last - start].astype(mx.float32))
            self._sum = self._sum + rows.sum(axis=0, dtype=np.float64)
        self.taken = max(self.taken, end)
        if not np.isfinite(self._sum).all():
            self.error = "the model gave hidden states that are NaN or infinite"

    def fields(self) -> Mapping[str, Any]:
        """What a chunk tells of it: float32 [hidden]."""
        count = self.length if self.pooling == "mean" else 1
        return {"embedding": np.asarray(self._sum / count, dtype=np.float32)}
