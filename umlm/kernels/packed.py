"""Quantized matrices as they lie in memory: a format and its arrays.

Sources: MLX's affine / mxfp4 / mxfp8 / nvfp4 layouts (`mx.quantize`), GGUF block layouts (ggml).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

MODES = ("affine", "mxfp4", "mxfp8", "nvfp4", "gguf")
# ggml types whose blocks the CPU kernels compute on as they lie; the others are dequantized.
CPU_BLOCKS = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
)


@dataclass(frozen=True)
class Format:
    """How the values of a quantized matrix are stored.

    mode        one of MODES
    bits        bits of one value (0 for gguf)
    group_size  values that share a scale; for gguf the values of one block
    ggml_type   the ggml type's name ("Q4_K") for mode gguf, else None
    """

    mode: str
    bits: int
    group_size: int
    ggml_type: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"quantization mode {self.mode!r} is unknown; known: {', '.join(MODES)}")

    @property
    def layout(self) -> str:
        """The name by which the CPU kernels know a format: affine4, mxfp4, Q4_K."""
        return self.ggml_type or (f"affine{self.bits}" if self.mode == "affine" else self.mode)

    def __str__(self) -> str:
        return self.ggml_type or f"{self.mode} {self.bits}-bit group {self.group_size}"


@dataclass(frozen=True)
class Packed:
    """A quantized matrix of `shape` [rows, columns] (or [experts, rows, columns]).

    weight  uint32 [..., rows, columns * bits / 32] for MLX modes; uint8 [..., rows, bytes] for gguf
    scales  [..., rows, columns / group_size], None for gguf
    biases  like scales for affine, else None
    """

    format: Format
    shape: tuple[int, ...]
    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None

    @property
    def nbytes(self) -> int:
        arrays = (self.weight, self.scales, self.biases)
        return sum(array.nbytes for array in arrays if array is not None)
