"""Products with, and reads of, quantized matrices."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op, serving
from umlm.kernels.gguf_blocks import dequantize_blocks
from umlm.kernels.packed import CPU_BLOCKS, Packed


@op
def quantized_matmul(x: mx.array, packed: Packed) -> mx.array:
    """y = x W^T for a quantized W of shape [rows, columns].

    x [..., columns] -> [..., rows], in x's dtype. GGUF blocks are dequantized in slices of rows, so that the
    matrix is never whole in memory.
    """
    if packed.format.mode != "gguf":
        assert packed.scales is not None
        y = mx.quantized_matmul(
            _summable(x), packed.weight, packed.scales, packed.biases, transpose=True, **_mlx_arguments(packed)
        )
        return y.astype(x.dtype)
    rows = packed.shape[-2]
    step = max(1, SLICE_VALUES // packed.shape[-1])
    parts = [x @ _blocks(packed, slice(i, i + step), x.dtype).T for i in range(0, rows, step)]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


@implement(quantized_matmul, "cpu")
def _cpu_quantized_matmul(x: mx.array, packed: Packed) -> Any:
    if not _has_kernel(packed):
        return NotImplemented
    assert cpu.extension is not None
    return cpu.extension.quantized_matmul(
        x, packed.weight, packed.scales, packed.biases, packed.format.layout, packed.format.group_size, packed.shape[-1]
    )


def computes_on(ggml_type: str) -> bool:
    """Whether a kernel multiplies with ggml blocks of this type as they lie; else another form may serve better."""
    return ggml_type in CPU_BLOCKS and serving("quantized_matmul") == "cpu"


def _has_kernel(packed: Packed) -> bool:
    return len(packed.shape) == 2 and packed.format.ggml_type in (None, *CPU_BLOCKS)


@op
def dequantize(packed: Packed, dtype: mx.Dtype = mx.float32) -> mx.array:
    """The values of a quantized matrix, [..., rows, columns] in `dtype`; computed in float32."""
    if packed.format.mode == "gguf":
        return _blocks(packed, slice(None), dtype)
    assert packed.scales is not None
    return _dequantize_mlx(packed, packed.weight, packed.scales, packed.biases, dtype)


@op
def embedding(ids: mx.array, table: mx.array | Packed, dtype: mx.Dtype) -> mx.array:
    """Rows of an embedding table: ids [...] int, table [vocab, hidden] -> [..., hidden] in `dtype`."""
    if not isinstance(table, Packed):
        return table[ids].astype(dtype)
    if table.format.mode == "gguf":
        return dequantize_blocks(table.weight[ids], _ggml_type(table), table.shape[-1], dtype)
    assert table.scales is not None
    biases = None if table.biases is None else table.biases[ids]
    return _dequantize_mlx(table, table.weight[ids], table.scales[ids], biases, dtype)


@implement(embedding, "cpu")
def _cpu_embedding(ids: mx.array, table: mx.array | Packed, dtype: mx.Dtype) -> Any:
    if not isinstance(table, Packed) or not _has_kernel(table):
        return NotImplemented
    assert cpu.extension is not None
    form = table.format
    return cpu.extension.embedding(
        ids, table.weight, table.scales, table.biases, table.format.layout, form.group_size, table.shape[-1], dtype
    )


# A slice of this many values (4 MiB of float32) is dequantized at a time; MLX keeps some ten operations in flight,
# so up to 25 slices are in memory together.
SLICE_VALUES = 1 << 20


def _summable(x: mx.array) -> mx.array:
    # MLX's CPU kernels sum in x's own dtype: 16 bits lose precision there, and are slower too
    return x.astype(mx.float32) if mx.default_device().type == mx.cpu else x


def _blocks(packed: Packed, rows: slice, dtype: mx.Dtype) -> mx.array:
    return dequantize_blocks(packed.weight[..., rows, :], _ggml_type(packed), packed.shape[-1], dtype)


def _ggml_type(packed: Packed) -> str:
    assert packed.format.ggml_type is not None
    return packed.format.ggml_type


def _mlx_arguments(packed: Packed) -> dict:
    form = packed.format
    return {"group_size": form.group_size, "bits": form.bits, "mode": form.mode}


def _dequantize_mlx(
    packed: Packed, weight: mx.array, scales: mx.array, biases: mx.array | None, dtype: mx.Dtype
) -> mx.array:
    if packed.format.mode == "affine":
        assert biases is not None
        # scale * q + bias is exact in float32 where it would round in the scales' own 16 bits
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(weight, scales, biases, **_mlx_arguments(packed)).astype(dtype)
