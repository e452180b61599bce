"""From a plan of integers to tokens: pack one row, call the model, sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from umlm.cache.batch import Batch
from umlm.engine.sampler import Sample, sample
from umlm.engine.scheduler import Plan, Row


class Model(Protocol):
    """A decoder: tokens [1, T], one state per layer, places [S] -> logits [S, V]."""

    def __call__(self, tokens: mx.array, states: Sequence[Any], at: mx.array) -> mx.array: ...


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
        logits = self.model(batch.tokens, self.store.states(batch), at=batch.sample_at)
        if not plan.sampled:
            mx.eval(logits)
            return []
        return sample(logits, plan.sampled)


def pack(plan: Plan, page_size: int) -> Batch:
    """The rows of a plan as one row of tokens.

    A plan that samples nothing asks for its last place all the same: evaluating it is what writes the pages.
    """
    rows = plan.rows
    ends = np.cumsum([0, *(row.num_tokens for row in rows)])
    places = [end - 1 for row, end in zip(rows, ends[1:], strict=True) if row.sample] or [ends[-1] - 1]
    return Batch(
        tokens=_ints([token for row in rows for token in _tokens(row)])[None],
        positions=_ints(np.concatenate([_positions(row) for row in rows])),
        lengths=_ints(np.concatenate([np.maximum(_positions(row) + 1, row.request.num_prompt) for row in rows])),
        slots=_ints(np.concatenate([_slots(row, page_size) for row in rows])),
        page_table=[list(row.request.pages) for row in rows],
        starts=ends.tolist(),
        contexts=[row.start + row.num_tokens for row in rows],
        sample_at=_ints(places),
    )


def _tokens(row: Row) -> list[int]:
    return row.request.tokens[row.start : row.start + row.num_tokens]


def _positions(row: Row) -> np.ndarray:
    return np.arange(row.start, row.start + row.num_tokens)


def _slots(row: Row, page_size: int) -> np.ndarray:
    positions = _positions(row)
    first = row.start // page_size
    pages = np.asarray(row.request.pages[first : positions[-1] // page_size + 1])
    return pages[positions // page_size - first] * page_size + positions % page_size


def _ints(values: Sequence[int] | np.ndarray) -> mx.array:
    return mx.array(np.asarray(values, dtype=np.int32))
