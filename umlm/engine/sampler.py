"""From logits to tokens: one order, whatever mix of requests is in the batch.

logit_bias and the mask of min_tokens -> repetition, presence and frequency penalties -> temperature -> top_k ->
top_p -> min_p -> one draw. The first two are here, the rest is in kernels/sampling.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from umlm.engine.draw import choose
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
    chosen, usable = choose(adjust(logits, requests), requests)
    mx.eval(chosen, usable)  # together: each evaluation waits for the device once
    tokens = np.asarray(chosen).tolist()
    reports = _logprobs(logits, tokens, requests)
    return [
        Sample(token, report) if good else Sample(0, None, "the model gave logits that are NaN or infinite")
        for token, report, good in zip(tokens, reports, np.asarray(usable), strict=True)
    ]


def adjust(logits: mx.array, requests: Sequence[Request]) -> mx.array:
    """Bias, mask and penalties in float32: [S, V] -> [S, V]; without any the logits are left as they are."""
    wide = logits.astype(mx.float32)
    rows = {place: _adjust_row(wide[place], request) for place, request in enumerate(requests) if _adjusts(request)}
    if not rows:
        return logits
    return mx.stack([rows.get(place, wide[place]) for place in range(len(requests))])


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


def _logprobs(logits: mx.array, tokens: Sequence[int], requests: Sequence[Request]) -> list[TokenLogprobs | None]:
    """Log-probabilities for the rows whose requests want them, from unmodified logits [S, V]."""
    reports: list[TokenLogprobs | None] = [None] * len(requests)
    for place, request in enumerate(requests):
        if (num_top := request.params.logprobs) is not None:
            reports[place] = report(logits[place : place + 1].astype(mx.float32), tokens[place : place + 1], num_top)[0]
    return reports


def report(logits: mx.array, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """The log-probability of one token per row of float32 logits [S, V], and of the likeliest ones there."""
    sums = mx.logsumexp(logits, axis=-1, keepdims=True)
    num_top = min(num_top, logits.shape[-1])
    best = _best(logits, num_top)
    places = mx.concatenate([mx.array(np.array(tokens, np.uint32))[:, None], best], axis=1)
    logprobs = np.asarray(mx.take_along_axis(logits, places, axis=1) - sums).tolist()
    rows = zip(tokens, logprobs, np.asarray(best).tolist(), strict=True)
    return [TokenLogprobs(token, own, list(zip(ids, top, strict=True))) for token, (own, *top), ids in rows]


def _best(logits: mx.array, num_top: int) -> mx.array:
    """Ids [S, num_top] of the largest logits of each row, the largest first."""
    if not num_top:
        return mx.zeros((len(logits), 0), mx.uint32)
    best = mx.argpartition(-logits, kth=num_top - 1, axis=-1)[:, :num_top]
    order = mx.argsort(-mx.take_along_axis(logits, best, axis=1), axis=-1)
    return mx.take_along_axis(best, order, axis=1)
