"""Softmax over the last axis."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


@op
def softmax(x: mx.array, scale: float = 1.0) -> mx.array:
    """exp(scale x) / sum of exp(scale x) over the last axis.

    x [..., n] -> [..., n] in x's dtype; computed in float32. A row with NaN, or with nothing finite, is NaN.
    """
    return mx.softmax(scale * x.astype(mx.float32), axis=-1).astype(x.dtype)


@implement(softmax, "cpu")
def _cpu_softmax(x: mx.array, scale: float = 1.0) -> Any:
    assert cpu.extension is not None
    return cpu.extension.softmax(x, scale)
