"""Normalisation over the last axis."""

from __future__ import annotations

import mlx.core as mx

from umlm.kernels.backends import op


@op
def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight. arXiv:1910.07467

    x [..., n], weight [n] -> [..., n] in x's dtype; computed in float32.
    """
    y = x.astype(mx.float32)
    y = y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y if weight is None else y * weight.astype(mx.float32)).astype(x.dtype)
