"""Dequantization of every ggml block type in plain MLX operations.

A block holds `values` consecutive values of a row in `bytes` bytes: scales first or last, packed integers or
codebook indices between. Results are computed in float32 and equal the `gguf` package's.
Source: ggml (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from umlm.kernels import gguf_codebook_blocks as codebook
from umlm.kernels import gguf_scalar_blocks as scalar

# ggml type -> (values per block, bytes per block)
BLOCKS: dict[str, tuple[int, int]] = {
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
    "NVFP4": (64, 36),
}

_DEQUANTIZE: dict[str, Callable[[mx.array], mx.array]] = {
    "BF16": scalar.bf16,
    "Q4_0": scalar.q4_0,
    "Q4_1": scalar.q4_1,
    "Q5_0": scalar.q5_0,
    "Q5_1": scalar.q5_1,
    "Q8_0": scalar.q8_0,
    "Q2_K": scalar.q2_k,
    "Q3_K": scalar.q3_k,
    "Q4_K": scalar.q4_k,
    "Q5_K": scalar.q5_k,
    "Q6_K": scalar.q6_k,
    "IQ1_S": codebook.iq1_s,
    "IQ1_M": codebook.iq1_m,
    "IQ2_XXS": codebook.iq2_xxs,
    "IQ2_XS": codebook.iq2_xs,
    "IQ2_S": codebook.iq2_s,
    "IQ3_XXS": codebook.iq3_xxs,
    "IQ3_S": codebook.iq3_s,
    "IQ4_NL": codebook.iq4_nl,
    "IQ4_XS": codebook.iq4_xs,
    "TQ1_0": scalar.tq1_0,
    "TQ2_0": scalar.tq2_0,
    "MXFP4": codebook.mxfp4,
    "NVFP4": codebook.nvfp4,
}


def row_bytes(ggml_type: str, columns: int) -> int:
    """Bytes of a row of `columns` values. ValueError for an unknown type or a row of broken blocks."""
    if ggml_type not in BLOCKS:
        raise ValueError(f"ggml type {ggml_type!r} is unknown; known: {', '.join(BLOCKS)}")
    values, size = BLOCKS[ggml_type]
    if columns <= 0 or columns % values:
        raise ValueError(f"{ggml_type} rows hold multiples of {values} values, not {columns}")
    return columns // values * size


def dequantize_blocks(weight: mx.array, ggml_type: str, columns: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Expands rows of ggml blocks.

    weight  uint8 [..., rows, row bytes], as the rows lie in the file
    returns dtype [..., rows, columns], computed in float32
    Raises ValueError for an unknown type or a row length that does not fit the type.
    """
    size = row_bytes(ggml_type, columns)
    if weight.dtype != mx.uint8 or weight.shape[-1] != size:
        raise ValueError(
            f"{ggml_type} rows of {columns} values are uint8 of {size} bytes, not {weight.dtype} of {weight.shape[-1]}"
        )
    blocks = weight.reshape(-1, BLOCKS[ggml_type][1])
    return _DEQUANTIZE[ggml_type](blocks).reshape(*weight.shape[:-1], columns).astype(dtype)
