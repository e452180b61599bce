"""From logits to tokens: one order, whatever mix of requests is in the batch.

logit_bias and the mask of min_tokens -> repetition, presence and frequency penalties -> temperature -> top_k ->
top_p -> min_p -> one draw. A draw inverts the cumulative distribution with one uniform number that depends only on
the request's seed, its index and how many tokens it has, so batch mates and preemption change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from umlm.engine.params import SamplingParams
from umlm.engine.request import Request

_NEVER = -float("inf")


class TokenLogprobs(NamedTuple):
    """Log-probabilities of the model's own distribution, before bias, penalties, temperature and filters.

    top  (token, logprob) of the likeliest tokens, as many as asked for, likeliest first
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Sample(NamedTuple):
    """The token one request got; with an error the token means nothing."""

    token: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


def sample(logits: mx.array, requests: Sequence[Request]) -> list[Sample]:
    """Choose the next token of every request; logits [S, V] in any float type, request s has row s.

    A row with NaN, +Inf or nothing above -Inf gives an error for its request alone.
    """
    logits = logits.astype(mx.float32)
    usable = ~mx.isnan(logits.sum(axis=-1)) & mx.isfinite(logits.max(axis=-1))
    tokens = choose(adjust(logits, requests), requests)
    reports = _logprobs(logits, tokens, requests)
    return [
        Sample(token, report) if good else Sample(0, None, "the model gave logits that are NaN or infinite")
        for token, report, good in zip(tokens, reports, np.asarray(usable), strict=True)
    ]


def adjust(logits: mx.array, requests: Sequence[Request]) -> mx.array:
    """Bias, mask and penalties: float32 [S, V] -> [S, V]; rows without any are left as they are."""
    rows = {place: _adjust_row(logits[place], request) for place, request in enumerate(requests) if _adjusts(request)}
    if not rows:
        return logits
    return mx.stack([rows.get(place, logits[place]) for place in range(len(requests))])


def _adjusts(request: Request) -> bool:
    params = request.params
    penalties = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    return bool(penalties or params.bias or request.forbidden_ids)


def _adjust_row(row: mx.array, request: Request) -> mx.array:
    params, counts = request.params, request.counts
    if params.bias:
        row = row.at[_ids(params.bias)].add(_floats(params.bias.values()))
    if request.forbidden_ids:
        row[_ids(request.forbidden_ids)] = _NEVER
    if request.seen:
        ids, penalty = _ids(request.seen), params.repetition_penalty
        values = row[ids]
        row[ids] = mx.where(values > 0, values / penalty, values * penalty)
    if counts and (params.presence_penalty or params.frequency_penalty):
        amounts = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
        row = row.at[_ids(counts)].subtract(_floats(amounts))
    return row


def _ids(tokens: Collection[int]) -> mx.array:
    return mx.array(np.fromiter(tokens, np.uint32, len(tokens)))


def _floats(values: Collection[float]) -> mx.array:
    return mx.array(np.fromiter(values, np.float32, len(values)))


def choose(logits: mx.array, requests: Sequence[Request]) -> list[int]:
    """One token per row of adjusted logits float32 [S, V]: the likeliest, or a draw."""
    chosen: mx.array = mx.argmax(logits, axis=-1)
    for places in _alike(requests):
        drawn = draw(logits[mx.array(places)], [requests[place] for place in places])
        chosen[mx.array(places)] = drawn
    return np.asarray(chosen).tolist()


def _alike(requests: Sequence[Request]) -> list[list[int]]:
    """Places of the requests that draw, together with those that take the same way through `candidates`.

    The way must not depend on batch mates: ties are broken differently on another way.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for place, request in enumerate(requests):
        params = request.params
        if not params.is_greedy:
            groups.setdefault((max(params.top_k, 0), params.top_p < 1), []).append(place)
    return list(groups.values())


def draw(logits: mx.array, requests: Sequence[Request]) -> mx.array:
    """Draw one token per row from what the filters keep: float32 [S, V] -> uint32 [S]."""
    values, ids = candidates(logits, [request.params for request in requests])
    total = mx.cumsum(mx.softmax(values, axis=-1, precise=True), axis=-1)
    threshold = mx.array([uniform(request) for request in requests])[:, None] * total[:, -1:]
    place = (total <= threshold).sum(axis=-1)
    return place if ids is None else mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0]


def uniform(request: Request) -> float:
    """A number in [0, 1) for the request's next token; 23 bits, so that it stays below 1 when scaled in float32."""
    source = np.random.SeedSequence(request.seed, spawn_key=(request.index, request.num_generated))
    return float(source.generate_state(1)[0] >> 9) / 2**23


def candidates(logits: mx.array, params: Sequence[SamplingParams]) -> tuple[mx.array, mx.array | None]:
    """Temperature and filters: float32 [S, V] -> (values [S, C], token ids [S, C]), dropped ones at -Inf.

    Values are scaled logits relative to the row's best. Without top_k and top_p nothing is sorted and ids is None.
    All rows have the same top_k, and all or none a top_p below 1.
    """
    scaled = (logits - logits.max(axis=-1, keepdims=True)) / _column(params, lambda p: p.temperature)
    top_k, sorts = params[0].top_k, params[0].top_p < 1
    ids = None
    if 0 < top_k < logits.shape[-1]:
        ids = mx.argpartition(-scaled, kth=top_k - 1, axis=-1)[:, :top_k]
        scaled = mx.take_along_axis(scaled, ids, axis=-1)
    if sorts:
        scaled, ids = _sort(scaled, ids)
        scaled = mx.where(_in_nucleus(scaled, _column(params, lambda p: p.top_p)), scaled, _NEVER)
    min_p = _column(params, lambda p: p.min_p)
    return mx.where(scaled >= mx.log(min_p), scaled, _NEVER), ids


def _column(params: Sequence[SamplingParams], value: Callable[[SamplingParams], float]) -> mx.array:
    return mx.array([value(each) for each in params])[:, None]


def _sort(values: mx.array, ids: mx.array | None) -> tuple[mx.array, mx.array]:
    """Values [S, C] and their token ids, likeliest first."""
    order = mx.argsort(-values, axis=-1)
    ids = order if ids is None else mx.take_along_axis(ids, order, axis=-1)
    return mx.take_along_axis(values, order, axis=-1), ids


def _in_nucleus(values: mx.array, top_p: mx.array) -> mx.array:
    """Which of the sorted values [S, C] have less than top_p of the probability before them; always the first."""
    before = mx.cumsum(mx.softmax(values, axis=-1, precise=True), axis=-1, inclusive=False)
    return (before < top_p) | (mx.arange(values.shape[-1]) == 0)


def _logprobs(logits: mx.array, tokens: Sequence[int], requests: Sequence[Request]) -> list[TokenLogprobs | None]:
    """Log-probabilities for the rows whose requests want them, from unmodified logits float32 [S, V]."""
    reports: list[TokenLogprobs | None] = [None] * len(requests)
    for place, request in enumerate(requests):
        if request.params.logprobs is not None:
            reports[place] = _report(logits[place], tokens[place], request.params.logprobs)
    return reports


def _report(row: mx.array, token: int, num_top: int) -> TokenLogprobs:
    logprobs = row - mx.logsumexp(row)
    num_top = min(num_top, row.size)
    if not num_top:
        return TokenLogprobs(token, float(logprobs[token]), [])
    best = mx.argpartition(-row, kth=num_top - 1)[:num_top]
    best = best[mx.argsort(-row[best])]
    top = zip(np.asarray(best).tolist(), np.asarray(logprobs[best]).tolist(), strict=True)
    return TokenLogprobs(token, float(logprobs[token]), list(top))
