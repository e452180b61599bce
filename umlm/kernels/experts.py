"""Products of tokens with the matrices of the experts that they are routed to."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op
from umlm.kernels.gguf_blocks import dequantize_blocks
from umlm.kernels.packed import CPU_BLOCKS, Packed


@op
def expert_matmul(x: mx.array, weight: mx.array | Packed, ids: mx.array) -> mx.array:
    """y[t, i] = W[ids[t, i]] x[t, i], or W[ids[t, i]] x[t, 0] where a token has one row for all its experts.

    x [..., k or 1, columns], weight [experts, rows, columns], ids [..., k] int -> [..., k, rows], in x's dtype.
    """
    if not isinstance(weight, Packed):
        return mx.gather_mm(x[..., None, :], weight.astype(x.dtype).swapaxes(-1, -2), rhs_indices=ids).squeeze(-2)
    if weight.format.mode == "gguf":
        return _by_expert(x, weight, ids)
    # MLX's CPU kernels sum in x's own dtype
    wide = x.astype(mx.float32) if mx.default_device().type == mx.cpu else x
    form = weight.format
    assert weight.scales is not None
    y = mx.gather_qmm(
        wide[..., None, :],
        weight.weight,
        weight.scales,
        weight.biases,
        rhs_indices=ids,
        transpose=True,
        group_size=form.group_size,
        bits=form.bits,
        mode=form.mode,
    )
    return y.squeeze(-2).astype(x.dtype)


@implement(expert_matmul, "cpu")
def _cpu_expert_matmul(x: mx.array, weight: mx.array | Packed, ids: mx.array) -> Any:
    if not isinstance(weight, Packed) or weight.format.ggml_type not in (None, *CPU_BLOCKS):
        return NotImplemented
    assert cpu.extension is not None
    return cpu.extension.expert_matmul(
        x,
        ids,
        weight.weight,
        weight.scales,
        weight.biases,
        weight.format.layout,
        weight.format.group_size,
        weight.shape[-1],
    )


def _by_expert(x: mx.array, weight: Packed, ids: mx.array) -> mx.array:
    """One expert's matrix after another, so that one at a time is expanded; in float32."""
    assert weight.format.ggml_type is not None
    experts, rows, columns = weight.shape
    wide, y = x.astype(mx.float32), mx.zeros((*ids.shape, rows))
    for expert in range(experts):
        matrix = dequantize_blocks(weight.weight[expert], weight.format.ggml_type, columns)
        y = mx.where((ids == expert)[..., None], wide @ matrix.T, y)
    return y.astype(x.dtype)
