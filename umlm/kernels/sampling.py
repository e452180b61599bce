"""Tokens from logits: temperature, filters and one draw, for many rows at once.

A draw inverts the cumulative distribution with one uniform number. In the reference, sorting is avoided where a
partition will do; which way a row takes depends on the row alone, since ties are broken differently on another way. So
a row's batch mates change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op

_NEVER = -float("inf")
NUCLEUS = 1024  # tokens that nearly always hold the share top_p; finding them is 8 times cheaper than a sort


class Filters(Protocol):
    """What decides which tokens of a row may be drawn, and how likely they are."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...


class Draw(NamedTuple):
    """Filters of one row, and the number in [0, 1) with which its distribution is inverted."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


class Chosen(NamedTuple):
    """A token per row, uint32 [S]; and whether it means anything, bool [S]."""

    tokens: mx.array
    usable: mx.array


@op
def sample_rows(logits: mx.array, draws: Sequence[Draw | None]) -> Chosen:
    """One token per row of logits [S, V] of any float type: the likeliest where `draws` has None, else a draw; S >= 1.

    Order: temperature, top_k, top_p, min_p, draw; each filter sees the renormalized distribution that the one before
    it left, and the likeliest token always stays. The draw goes from token 0 on without top_k and top_p, else from the
    likeliest on; among equal logits the kernels take the lower token first, the reference any of them.
    A row with NaN, +Inf or nothing above -Inf is not usable.
    """
    logits = logits.astype(mx.float32)
    tokens = mx.argmax(logits, axis=-1)
    for width, places in _alike(logits, draws):
        rows = mx.array(places)
        tokens[rows] = _draw(logits[rows], [draw for draw in map(draws.__getitem__, places) if draw], width)
    return Chosen(tokens, ~mx.isnan(logits.sum(axis=-1)) & mx.isfinite(logits.max(axis=-1)))


@implement(sample_rows, "cpu")
def _cpu_sample_rows(logits: mx.array, draws: Sequence[Draw | None]) -> Any:
    assert cpu.extension is not None
    likeliest = Draw(0.0, 0, 1.0, 0.0, 0.0)
    return Chosen(*cpu.extension.sample_rows(logits, [draw or likeliest for draw in draws]))


def invert(values: mx.array, uniforms: list[float]) -> mx.array:
    """Where the cumulative distribution of softmax(values [S, C]) first exceeds each number of [0, 1): [S]."""
    total = mx.cumsum(mx.softmax(values, axis=-1, precise=True), axis=-1)
    return (total <= mx.array(uniforms)[:, None] * total[:, -1:]).sum(axis=-1)


def candidates(logits: mx.array, filters: Sequence[Filters], width: int | None) -> tuple[mx.array, mx.array | None]:
    """Temperature and filters: float32 [S, V] -> (values [S, C], token ids [S, C]), dropped ones at -Inf.

    Values are scaled logits relative to the row's best. `width` is C: None takes the vocabulary as it is, with
    ids None. All rows have the same top_k, and all or none a top_p below 1.
    """
    scaled = _scaled(logits, filters)
    total, ids = None, None
    if filters[0].top_p < 1 and filters[0].top_k <= 0:
        total = mx.logsumexp(scaled, axis=-1, keepdims=True)
    if width is not None:
        ids = _best(scaled, width)
        scaled = mx.take_along_axis(scaled, ids, axis=-1)
    if filters[0].top_p < 1:
        scaled = mx.where(_in_nucleus(scaled, total, _column(filters, lambda each: each.top_p)), scaled, _NEVER)
    min_p = _column(filters, lambda each: each.min_p)
    return mx.where(scaled >= mx.log(min_p), scaled, _NEVER), ids


def widths(logits: mx.array, filters: Sequence[Filters]) -> list[int | None]:
    """How many of the best tokens of each row, logits float32 [S, V], the filters have to look at; None for all."""
    size = logits.shape[-1]
    found: list[int | None] = [min(each.top_k, size) if each.top_k > 0 else None for each in filters]
    open_ended = [place for place, each in enumerate(filters) if each.top_p < 1 and each.top_k <= 0]
    if open_ended:
        narrow = _narrow(logits[mx.array(open_ended)], [filters[place] for place in open_ended])
        for place, fits in zip(open_ended, narrow, strict=True):
            found[place] = min(NUCLEUS, size) if fits else size
    return found


def _draw(logits: mx.array, draws: Sequence[Draw], width: int | None) -> mx.array:
    """Draw one token per row from what the filters keep: float32 [S, V] -> [S]. `width` as in `candidates`."""
    values, ids = candidates(logits, draws, width)
    place = invert(values, [draw.uniform for draw in draws])
    return place if ids is None else mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0]


def _alike(logits: mx.array, draws: Sequence[Draw | None]) -> list[tuple[int | None, list[int]]]:
    """Width and places of the rows that draw, those together that look at the same tokens."""
    drawing = [(place, draw) for place, draw in enumerate(draws) if draw is not None]
    if not drawing:
        return []
    found = widths(logits[mx.array([place for place, _ in drawing])], [draw for _, draw in drawing])
    groups: dict[tuple[int | None, int, bool], list[int]] = {}
    for (place, draw), width in zip(drawing, found, strict=True):
        groups.setdefault((width, max(draw.top_k, 0), draw.top_p < 1), []).append(place)
    return [(width, places) for (width, _, _), places in groups.items()]


def _narrow(logits: mx.array, filters: Sequence[Filters]) -> list[bool]:
    """Whether the NUCLEUS best tokens of each row hold the share top_p, with room for rounding."""
    scaled = _scaled(logits, filters)
    best = mx.topk(scaled, min(NUCLEUS, scaled.shape[-1]), axis=-1)
    share = mx.exp(mx.logsumexp(best, axis=-1) - mx.logsumexp(scaled, axis=-1))
    return np.asarray(share >= _column(filters, lambda each: each.top_p)[:, 0] + 1e-4).tolist()


def _scaled(logits: mx.array, filters: Sequence[Filters]) -> mx.array:
    return (logits - logits.max(axis=-1, keepdims=True)) / _column(filters, lambda each: each.temperature)


def _column(filters: Sequence[Filters], value: Callable[[Filters], float]) -> mx.array:
    return mx.array([value(each) for each in filters])[:, None]


def _best(values: mx.array, width: int) -> mx.array:
    """Ids of the `width` largest values [S, V], largest first."""
    if width == values.shape[-1]:
        return mx.argsort(-values, axis=-1)
    ids = mx.argpartition(-values, kth=width - 1, axis=-1)[:, :width]
    order = mx.argsort(-mx.take_along_axis(values, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _in_nucleus(values: mx.array, total: mx.array | None, top_p: mx.array) -> mx.array:
    """Which of the sorted values [S, C] have less than top_p of the probability before them; always the first.

    total  log of the whole that shares are taken of, [S, 1]; None: of these values
    """
    total = mx.logsumexp(values, axis=-1, keepdims=True) if total is None else total
    before = mx.cumsum(mx.exp(values - total), axis=-1, inclusive=False)
    return (before < top_p) | (mx.arange(values.shape[-1]) == 0)
