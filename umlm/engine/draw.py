"""Temperature, filters and one draw, for many rows at once.

A draw inverts the cumulative distribution with one uniform number that depends only on the request's seed, its index
and how many tokens it has. Sorting is avoided where a partition will do; which way a row takes depends on the row
alone, since ties are broken differently on another way. So batch mates and preemption change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from umlm.engine.params import SamplingParams
from umlm.engine.request import Request

_NEVER = -float("inf")
NUCLEUS = 1024  # tokens that nearly always hold the share top_p; finding them is 8 times cheaper than a sort


def choose(logits: mx.array, requests: Sequence[Request]) -> mx.array:
    """One token per row of adjusted logits float32 [S, V]: the likeliest, or a draw. Returns uint32 [S], lazy."""
    chosen = mx.argmax(logits, axis=-1)
    for width, places in _alike(logits, requests):
        rows = mx.array(places)
        chosen[rows] = draw(logits[rows], [requests[place] for place in places], width)
    return chosen


def draw(logits: mx.array, requests: Sequence[Request], width: int | None) -> mx.array:
    """Draw one token per row from what the filters keep: float32 [S, V] -> [S]. `width` as in `candidates`."""
    values, ids = candidates(logits, [request.params for request in requests], width)
    place = invert(values, [uniform(request) for request in requests])
    return place if ids is None else mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0]


def invert(values: mx.array, uniforms: list[float]) -> mx.array:
    """Where the cumulative distribution of softmax(values [S, C]) first exceeds each number of [0, 1): [S]."""
    total = mx.cumsum(mx.softmax(values, axis=-1, precise=True), axis=-1)
    return (total <= mx.array(uniforms)[:, None] * total[:, -1:]).sum(axis=-1)


def uniform(request: Request) -> float:
    """A number in [0, 1) for the request's next token; 23 bits, so that it stays below 1 when scaled in float32."""
    source = np.random.SeedSequence(request.seed, spawn_key=(request.index, request.num_generated))
    return float(source.generate_state(1)[0] >> 9) / 2**23


def candidates(
    logits: mx.array, params: Sequence[SamplingParams], width: int | None
) -> tuple[mx.array, mx.array | None]:
    """Temperature and filters: float32 [S, V] -> (values [S, C], token ids [S, C]), dropped ones at -Inf.

    Values are scaled logits relative to the row's best. `width` is C: None takes the vocabulary as it is, with
    ids None. All rows have the same top_k, and all or none a top_p below 1.
    """
    scaled = _scaled(logits, params)
    total, ids = None, None
    if params[0].top_p < 1 and params[0].top_k <= 0:
        total = mx.logsumexp(scaled, axis=-1, keepdims=True)
    if width is not None:
        ids = _best(scaled, width)
        scaled = mx.take_along_axis(scaled, ids, axis=-1)
    if params[0].top_p < 1:
        scaled = mx.where(_in_nucleus(scaled, total, _column(params, lambda each: each.top_p)), scaled, _NEVER)
    min_p = _column(params, lambda each: each.min_p)
    return mx.where(scaled >= mx.log(min_p), scaled, _NEVER), ids


def widths(logits: mx.array, params: Sequence[SamplingParams]) -> list[int | None]:
    """How many of the best tokens of each row, logits float32 [S, V], the filters have to look at; None for all."""
    size = logits.shape[-1]
    found: list[int | None] = [min(each.top_k, size) if each.top_k > 0 else None for each in params]
    open_ended = [place for place, each in enumerate(params) if each.top_p < 1 and each.top_k <= 0]
    if open_ended:
        narrow = _narrow(logits[mx.array(open_ended)], [params[place] for place in open_ended])
        for place, fits in zip(open_ended, narrow, strict=True):
            found[place] = min(NUCLEUS, size) if fits else size
    return found


def _alike(logits: mx.array, requests: Sequence[Request]) -> list[tuple[int | None, list[int]]]:
    """Width and places of the requests that draw, those together that look at the same tokens."""
    drawing = [place for place, request in enumerate(requests) if not request.params.is_greedy]
    if not drawing:
        return []
    params = [requests[place].params for place in drawing]
    groups: dict[tuple[int | None, int, bool], list[int]] = {}
    for place, each, width in zip(drawing, params, widths(logits[mx.array(drawing)], params), strict=True):
        groups.setdefault((width, max(each.top_k, 0), each.top_p < 1), []).append(place)
    return [(width, places) for (width, _, _), places in groups.items()]


def _narrow(logits: mx.array, params: Sequence[SamplingParams]) -> list[bool]:
    """Whether the NUCLEUS best tokens of each row hold the share top_p, with room for rounding."""
    scaled = _scaled(logits, params)
    best = mx.topk(scaled, min(NUCLEUS, scaled.shape[-1]), axis=-1)
    share = mx.exp(mx.logsumexp(best, axis=-1) - mx.logsumexp(scaled, axis=-1))
    return np.asarray(share >= _column(params, lambda each: each.top_p)[:, 0] + 1e-4).tolist()


def _scaled(logits: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    return (logits - logits.max(axis=-1, keepdims=True)) / _column(params, lambda each: each.temperature)


def _column(params: Sequence[SamplingParams], value: Callable[[SamplingParams], float]) -> mx.array:
    return mx.array([value(each) for each in params])[:, None]


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
