"""Normalisation over the last axis."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


@op
def rms_norm(x: mx.array, weight: mx.array | None, eps: float, offset: float = 0.0) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * (offset + weight); without a weight the last factor is 1. arXiv:1910.07467

    x [..., n], weight [n] -> [..., n] in x's dtype; computed in float32.
    """
    y = x.astype(mx.float32)
    y = y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y if weight is None else y * (offset + weight.astype(mx.float32))).astype(x.dtype)


@implement(rms_norm, "cpu")
def _cpu_rms_norm(x: mx.array, weight: mx.array | None, eps: float, offset: float = 0.0) -> Any:
    assert cpu.extension is not None
    return cpu.extension.rms_norm(x, weight, eps, offset)
