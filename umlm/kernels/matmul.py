"""Dense product of activations with a stored matrix."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


@op
def matmul(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """y = x W^T + b.

    x [..., columns], weight [rows, columns], bias [rows] -> [..., rows], in x's dtype.
    """
    y = x @ weight.astype(x.dtype).T
    return y if bias is None else y + bias.astype(x.dtype)


@implement(matmul, "cpu")
def _cpu_matmul(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> Any:
    if weight.ndim != 2:
        return NotImplemented
    assert cpu.extension is not None
    return cpu.extension.matmul(x, weight, bias)
