"""Attention over keys that lie in one array."""

from __future__ import annotations

import functools
from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


@op
def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    q_positions: mx.array,
    k_positions: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """softmax(mask(cap(scale q k^T))) v, causal by position, with grouped heads. arXiv:1706.03762, 2305.13245

    q [B, T, H, D], k [B, S, Hkv, D], v [B, S, Hkv, Dv], q_positions [T], k_positions [S] -> [B, T, H, Dv]
    in q's dtype; computed in float32. A query at p sees the keys at p - window + 1 .. p.
    softcap c: scores become c tanh(scores / c) (arXiv:2408.00118). sinks [H]: a logit per head that takes
    part in the softmax and has no value (arXiv:2309.17453).
    """
    batch, num_queries, num_heads, _ = q.shape
    num_kv_heads, v_head_dim = k.shape[2], v.shape[3]
    scores = _scores(q, k, scale)
    if softcap is not None:
        scores = softcap * mx.tanh(scores / softcap)
    scores = mx.where(_visible(q_positions, k_positions, window), scores, -mx.inf)
    weights = _softmax(scores, sinks)
    weights = weights.reshape(batch, num_kv_heads, -1, weights.shape[-1])
    out = weights @ v.astype(mx.float32).transpose(0, 2, 1, 3)
    out = out.reshape(batch, num_heads, num_queries, v_head_dim)
    return out.transpose(0, 2, 1, 3).astype(q.dtype)


def _scores(q: mx.array, k: mx.array, scale: float) -> mx.array:
    """[B, Hkv, H / Hkv, T, S] in float32."""
    batch, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads = k.shape[1:3]
    q = q.astype(mx.float32).transpose(0, 2, 1, 3).reshape(batch, num_kv_heads, -1, head_dim)
    k = k.astype(mx.float32).transpose(0, 2, 3, 1)
    scores = (q * scale) @ k
    return scores.reshape(batch, num_kv_heads, num_heads // num_kv_heads, num_queries, num_keys)


def _visible(q_positions: mx.array, k_positions: mx.array, window: int | None) -> mx.array:
    distance = q_positions[:, None] - k_positions[None, :]
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)


def _softmax(scores: mx.array, sinks: mx.array | None) -> mx.array:
    if sinks is None:
        return mx.softmax(scores, axis=-1)
    column = sinks.astype(mx.float32).reshape(1, scores.shape[1], -1, 1, 1)
    column = mx.broadcast_to(column, (*scores.shape[:-1], 1))
    return mx.softmax(mx.concatenate([column, scores], axis=-1), axis=-1)[..., 1:]


@implement(attention, "cpu")
def _cpu_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    q_positions: mx.array,
    k_positions: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> Any:
    if not cpu_serves(q, k, v):
        return NotImplemented
    options = {"scale": scale, "window": window, "softcap": softcap}
    primals = [q, k, v, q_positions, k_positions]
    return _differentiable(**options)(*primals, *([] if sinks is None else [sinks]))


def cpu_serves(q: mx.array, k: mx.array, v: mx.array) -> bool:
    """Whether the C++ kernels know these dtypes."""
    return q.dtype in FLOATS and k.dtype in FLOATS and k.dtype == v.dtype


FLOATS = (mx.float32, mx.float16, mx.bfloat16)


@functools.cache
def _differentiable(scale: float, window: int | None, softcap: float | None) -> Any:
    """The kernel forward; backward, the gradient of the plain operations."""

    @mx.custom_function
    def forward(*operands: mx.array) -> mx.array:
        q, k, v, q_positions, k_positions, *sinks = operands
        assert cpu.extension is not None
        return cpu.extension.attention(
            q, k, v, q_positions, k_positions, scale, window or 0, softcap or 0.0, sinks[0] if sinks else None
        )

    @forward.vjp
    def backward(operands: tuple[mx.array, ...], cotangent: mx.array, _: mx.array) -> tuple[mx.array, ...]:
        q, k, v, q_positions, k_positions, *sinks = operands

        def plain(*floats: mx.array) -> list[mx.array]:
            q, k, v, *sinks = floats
            options = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks[0] if sinks else None}
            return [attention.reference(q, k, v, q_positions, k_positions, **options)]  # type: ignore[attr-defined]

        gq, gk, gv, *gsinks = mx.vjp(plain, [q, k, v, *sinks], [cotangent])[1]
        return (gq, gk, gv, mx.zeros_like(q_positions), mx.zeros_like(k_positions), *gsinks)

    return forward
