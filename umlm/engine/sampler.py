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
            reports[place] = report(logits[place : place + 1], tokens[place : place + 1], num_top)[0]
    return reports


def report(logits: mx.array, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """The log-probability of one token per row of logits [S, V], and of the num_top likeliest ones there.

    Computed by numpy with sums in float64: mx.logsumexp over 49,152 float32 values is 2e-4 off, and slower on a CPU.
    """
    rows = np.asarray(logits.astype(mx.float32))
    best = _best(rows, min(num_top, rows.shape[1]))
    places = np.concatenate([np.asarray(tokens)[:, None], best], axis=1)
    logprobs = (np.take_along_axis(rows, places, axis=1) - _log_sums(rows)).tolist()
    found = zip(tokens, logprobs, best.tolist(), strict=True)
    return [TokenLogprobs(token, own, list(zip(ids, top, strict=True))) for token, (own, *top), ids in found]


def _log_sums(rows: np.ndarray) -> np.ndarray:
    """log(sum(exp(row))) of each row, float64 [S, 1]."""
    largest = rows.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinities and NaN come out as NaN
        return largest + np.log(np.exp(rows - largest).sum(axis=1, keepdims=True, dtype=np.float64))


def _best(rows: np.ndarray, num_top: int) -> np.ndarray:
    """Ids [S, num_top] of the largest values of each row, the largest first."""
    if not num_top:
        return np.zeros((len(rows), 0), np.int64)
    best = np.argpartition(-rows, num_top - 1, axis=1)[:, :num_top]
    order = np.argsort(-np.take_along_axis(rows, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)
