"""Dense product of activations with a stored matrix."""

from __future__ import annotations

import mlx.core as mx

from umlm.kernels.backends import op


@op
def matmul(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """y = x W^T + b.

    x [..., columns], weight [rows, columns], bias [rows] -> [..., rows], in x's dtype.
    """
    y = x @ weight.astype(x.dtype).T
    return y if bias is None else y + bias.astype(x.dtype)
