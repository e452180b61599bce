"""The gated delta rule: a matrix a head that forgets, and is corrected by what it recalls for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from umlm.kernels import cpu, segments
from umlm.kernels.backends import implement, op


@op
def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    beta: mx.array,
    states: mx.array,
    starts: Sequence[int],
    *,
    scale: float,
    norm_eps: float | None = None,
) -> tuple[mx.array, mx.array]:
    """S = exp(log_decay) S; S += k (beta (v - S^T k))^T; y = S^T (scale q). arXiv:2412.06464

    q, k [T, Hk, Dk], v [T, Hv, Dv], a packed row of requests; Hv is a multiple of Hk, and each head of q and k serves
    Hv / Hk consecutive heads of v. log_decay <= 0: [T, Hv] a number a head, or [T, Hv, Dk] a number a channel (Kimi
    Delta Attention, arXiv:2510.26692). beta [T, Hv]. states float32 [R, Hv, Dk, Dv], one a request: request r owns
    tokens starts[r]:starts[r + 1], which may be none.
    norm_eps: q and k are divided by sqrt(sum of their squares + norm_eps) first; None: they are taken as they are.
    Returns y [T, Hv, Dv] in v's dtype, and the states after the last tokens, in new memory. Computed in float32.
    """
    _check(q, k, v, log_decay, beta, states, starts)
    repeats = v.shape[1] // k.shape[1]
    y = v
    q, k, v, beta = (x.astype(mx.float32) for x in (q, k, v, beta))
    if norm_eps is not None:
        q, k = (x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) + norm_eps) for x in (q, k))
    q, k = mx.repeat(scale * q, repeats, axis=1), mx.repeat(k, repeats, axis=1)
    ones = [1] * (4 - log_decay.ndim)
    decay = mx.exp(log_decay.astype(mx.float32)).reshape(*log_decay.shape, *ones)  # [T, Hv, Dk or 1, 1]

    def step(t: int, state: mx.array) -> tuple[mx.array, mx.array]:
        state = decay[t] * state  # [Hv, Dk, Dv]
        recalled = (k[t, :, :, None] * state).sum(axis=-2)  # [Hv, Dv]
        state = state + k[t, :, :, None] * (beta[t, :, None] * (v[t] - recalled))[:, None]
        return (q[t, :, :, None] * state).sum(axis=-2), state

    return segments.walk(states, starts, step, like=y)


@implement(gated_delta, "cpu")
def _cpu_gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    beta: mx.array,
    states: mx.array,
    starts: Sequence[int],
    *,
    scale: float,
    norm_eps: float | None = None,
) -> Any:
    _check(q, k, v, log_decay, beta, states, starts)
    if not segments.kernels_serve([q, k, v], [log_decay, beta, states]):
        return NotImplemented
    assert cpu.extension is not None
    eps = -1.0 if norm_eps is None else norm_eps
    return cpu.extension.gated_delta(q, k, v, log_decay, beta, states, starts, scale, eps)


def _check(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    beta: mx.array,
    states: mx.array,
    starts: Sequence[int],
) -> None:
    name = "gated_delta"
    segments.check_dimensions(name, k=(k, (3,)), v=(v, (3,)), states=(states, (4,)))
    tokens, k_heads, k_dim = k.shape
    _, v_heads, v_dim = v.shape
    segments.check_group(name, "heads of v", v_heads, "heads of k", k_heads)
    decay = (tokens, v_heads, k_dim)[: max(log_decay.ndim, 2)]
    segments.check_shapes(
        name,
        q=(q, k.shape),
        v=(v, (tokens, v_heads, v_dim)),
        log_decay=(log_decay, decay),
        beta=(beta, (tokens, v_heads)),
        states=(states, (states.shape[0], v_heads, k_dim, v_dim)),
    )
    segments.check_float32(name, states=states)
    segments.check_starts(name, starts, tokens, states.shape[0])
