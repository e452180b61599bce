"""ggml blocks that are scale * integer + offset by 32 values, repacked losslessly to MLX's affine layout.

Only the order of bits changes: MLX packs consecutive values from the lowest bit on, ggml puts the first half of
a block into the low nibbles and the second into the high ones. Scales stay the float16 that they are.
Source: mx.quantize's layout, ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from umlm.kernels.gguf_blocks import BLOCKS
from umlm.kernels.packed import Format, Packed

GROUP = 32
# ggml type -> (bits, where the integers begin, what was subtracted from them or None if an offset is stored)
AFFINE = {"Q4_0": (4, 2, 8), "Q4_1": (4, 4, None), "Q5_0": (5, 2, 16), "Q5_1": (5, 4, None), "Q8_0": (8, 2, 128)}
# Blocks handled at a time: 32 Mi values would cost 256 MiB of 64-bit words, this costs 8.
STEP = 1 << 15
# By byte: its two nibbles five bits apart, and its eight bits as the fifth bits of eight values.
_BYTES = np.arange(256, dtype="<u8")
SPREAD_PAIRS = (_BYTES & 15) | (_BYTES >> 4 << 5)
SPREAD_BITS = np.add.reduce([(_BYTES >> bit & 1) << (5 * bit + 4) for bit in range(8)])


def affine_format(ggml_type: str) -> Format | None:
    """The MLX format that holds this ggml type exactly, or None."""
    return Format("affine", AFFINE[ggml_type][0], GROUP) if ggml_type in AFFINE else None


def affine_from_blocks(blocks: np.ndarray, ggml_type: str, shape: tuple[int, ...]) -> Packed | None:
    """Repacks blocks, uint8 [..., rows, row bytes], of a matrix of `shape` [..., rows, columns].

    None where the affine form would not give the same float32 values: an offset beyond float16, or scales
    that are not finite.
    """
    bits, start, zero = AFFINE[ggml_type]
    groups = blocks.reshape(-1, BLOCKS[ggml_type][1])
    heads = np.ascontiguousarray(groups[:, :start]).view(np.float16)
    scales = np.ascontiguousarray(heads[:, 0])
    biases = np.ascontiguousarray(heads[:, 1]) if zero is None else _offsets(scales, zero)
    if not (np.isfinite(scales).all() and np.isfinite(biases).all()):
        return None
    words = np.empty((len(groups), 4 * bits), dtype=np.uint8)
    for at in range(0, len(groups), STEP):
        words[at : at + STEP] = _PACK[bits](groups[at : at + STEP, start:])
    per_group = (*shape[:-1], shape[-1] // GROUP)
    return Packed(
        Format("affine", bits, GROUP),
        shape,
        mx.array(words.view(np.uint32).reshape(*shape[:-1], -1)),
        mx.array(scales.reshape(per_group)),
        mx.array(biases.reshape(per_group)),
    )


def _offsets(scales: np.ndarray, zero: int) -> np.ndarray:
    """-zero * scale in float16: a power of two times a float16 is exact, or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return scales * np.float16(-zero)


def _pack4(integers: np.ndarray) -> np.ndarray:
    """Two values of neighbouring bytes at a time: uint8 [N, 16] -> [N, 16]."""
    pairs = np.ascontiguousarray(integers).view("<u2")
    low = (pairs & 0x000F) | ((pairs >> 4) & 0x00F0)
    high = ((pairs >> 4) & 0x000F) | ((pairs >> 8) & 0x00F0)
    return np.concatenate([low, high], axis=1).astype(np.uint8)


def _pack5(integers: np.ndarray) -> np.ndarray:
    """Fifth bits, then nibbles: uint8 [N, 20] -> [N, 20], eight values in five bytes."""
    pairs = _pack4(integers[:, 4:]).reshape(-1, 4)
    words = SPREAD_BITS[integers[:, :4].reshape(-1)]
    for place in range(4):
        words |= SPREAD_PAIRS[pairs[:, place]] << np.uint64(10 * place)
    return words.view(np.uint8).reshape(-1, 8)[:, :5].reshape(-1, 20)


def _pack8(integers: np.ndarray) -> np.ndarray:
    """Signed to unsigned: uint8 [N, 32] -> [N, 32]."""
    return integers ^ np.uint8(0x80)


_PACK: dict[int, Callable[[np.ndarray], np.ndarray]] = {4: _pack4, 5: _pack5, 8: _pack8}
