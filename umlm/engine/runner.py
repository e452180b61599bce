"""From a plan of integers to tokens: pack one row, call the model, sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from umlm.cache.batch import Batch
from umlm.engine.request import Request
from umlm.engine.sampler import Sample, sample
from umlm.engine.scheduler import Plan, Row


class Model(Protocol):
    """A decoder: tokens [1, T], one state per layer, places [S] -> logits [S, V].

    final gives the hidden states [1, T, hidden] that head makes logits of; only what reads prompts asks for them.
    """

    def __call__(self, tokens: mx.array, states: Sequence[Any], at: mx.array) -> mx.array: ...
    def final(self, tokens: mx.array, states: Sequence[Any]) -> mx.array: ...
    def head(self, x: mx.array) -> mx.array: ...


class Store(Protocol):
    """What holds the pages (cache/store.py)."""

    page_size: int

    def states(self, batch: Batch) -> Sequence[Any]: ...


class Runner:
    """Computes plans with one model and one page store, in the thread that made both."""

    def __init__(self, model: Model, store: Store) -> None:
        self.model = model
        self.store = store

    def run(self, plan: Plan) -> list[Sample]:
        """Compute a plan: one sample per `plan.sampled`, evaluated."""
        batch = pack(plan, self.store.page_size)
        if any(_reads(row.request) for row in plan.rows):
            return self._read(plan, batch)
        logits = self.model(batch.tokens, self.store.states(batch), at=batch.sample_at)
        if not plan.sampled:
            mx.eval(logits)
            return []
        return sample(logits, plan.sampled)

    def _read(self, plan: Plan, batch: Batch) -> list[Sample]:
        """The same where requests read their prompts: they see the hidden states of every place."""
        hidden = self.model.final(batch.tokens, self.store.states(batch))[0]
        mx.eval(hidden)
        for row, first in zip(plan.rows, batch.starts[:-1], strict=True):
            if _reads(row.request):
                row.request.reading.take(hidden[first : first + row.num_tokens], row.start, self.model.head)
        answering = [request for request in plan.sampled if not request.reads_only]
        logits = self.model.head(hidden[batch.sample_at]) if answering else None
        samples = dict(zip(answering, sample(logits, answering), strict=True)) if logits is not None else {}
        return [_checked(request, samples.get(request, Sample(0))) for request in plan.sampled]


def _reads(request: Request) -> bool:
    return request.reads_only or (request.reading is not None and not request.reading.done)


def _checked(request: Request, sample: Sample) -> Sample:
    """The sample, or what is wrong with the numbers that the request has read."""
    error = None if request.reading is None else request.reading.error
    return sample if error is None else Sample(0, None, error)


def pack(plan: Plan, page_size: int) -> Batch:
    """The rows of a plan as one row of tokens.

    A plan that samples nothing asks for its last place all the same: evaluating it is what writes the pages.
    """
    tokens: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    slots: list[int] = []
    ends, places = [0], []
    for row in plan.rows:
        _append(row, page_size, tokens, positions, lengths, slots)
        ends.append(len(tokens))
        if row.sample and not row.request.reads_only:
            places.append(ends[-1] - 1)
    return Batch(
        tokens=_ints(tokens)[None],
        positions=_ints(positions),
        lengths=_ints(lengths),
        slots=_ints(slots),
        page_table=[list(row.request.pages) for row in plan.rows],
        starts=ends,
        contexts=[row.start + row.num_tokens for row in plan.rows],
        sample_at=_ints(places or [ends[-1] - 1]),
    )


def _append(
    row: Row, page_size: int, tokens: list[int], positions: list[int], lengths: list[int], slots: list[int]
) -> None:
    request, places = row.request, range(row.start, row.start + row.num_tokens)
    tokens += request.tokens[row.start : places.stop]
    positions += places
    lengths += [max(place + 1, request.num_prompt) for place in places]
    slots += [request.pages[place // page_size] * page_size + place % page_size for place in places]


def _ints(values: Sequence[int]) -> mx.array:
    return mx.array(np.array(values, dtype=np.int32))
