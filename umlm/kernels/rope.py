"""Rotary position embedding with a position for each token."""

from __future__ import annotations

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


@op
def rope(x: mx.array, positions: mx.array, inv_freq: mx.array, *, scale: float = 1.0) -> mx.array:
    """Rotate the first dims of each head by position * inv_freq. arXiv:2104.09864

    x [B, T, H, D], positions int32 [T], inv_freq float32 [dims / 2] or one row a token [T, dims / 2];
    dims <= D, the rest passes through. Pairs are (i, i + dims / 2). scale multiplies cos and sin.
    Returns x's shape and dtype; computed in float32.
    """
    half = inv_freq.shape[-1]
    angles = positions.astype(mx.float32)[:, None] * inv_freq
    cos = (mx.cos(angles) * scale)[None, :, None, :]
    sin = (mx.sin(angles) * scale)[None, :, None, :]
    first, second = x[..., :half].astype(mx.float32), x[..., half : 2 * half].astype(mx.float32)
    turned = [first * cos - second * sin, second * cos + first * sin]
    turned = [part.astype(x.dtype) for part in turned]
    rest = [x[..., 2 * half :]] if x.shape[-1] > 2 * half else []
    return mx.concatenate(turned + rest, axis=-1)


@implement(rope, "cpu")
def _cpu_rope(x: mx.array, positions: mx.array, inv_freq: mx.array, *, scale: float = 1.0) -> mx.array:
    assert cpu.extension is not None
    return cpu.extension.rope(x, positions, inv_freq, scale)
