"""ggml blocks whose values are looked up in a codebook: IQ1 ... IQ4, MXFP4, NVFP4.

Every function maps uint8 blocks [N, bytes per block] to float32 [N, values per block] in the order of
operations that ggml uses. The large grids come from the `gguf` package when a type is first met.
Source: ggml's block layouts (ggml-common.h).
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np

from umlm.kernels.gguf_bits import constant, fields, half, signs, trailing_fields

NIBBLES = (0, 4)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# The values of float4 (e2m1), doubled so that they are whole.
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@cache
def _grid(ggml_type: str) -> np.ndarray:
    """The codebook of an IQ type: float32 [entries, 4 or 8]."""
    from gguf import quants  # imports half a second of other things, which only IQ files should pay

    table = getattr(quants, ggml_type)
    table.init_grid()
    return table.grid.reshape(table.grid_shape)


@cache
def _sign_patterns() -> np.ndarray:
    """The 128 even-parity sign bytes that the 7-bit indices of IQ2 and IQ3 mean: uint8 [128]."""
    index = np.arange(128, dtype=np.uint8)
    parity = np.unpackbits(index[:, None], axis=1).sum(axis=1) & 1
    return index | (parity << 7).astype(np.uint8)


def _look_up(ggml_type: str, index: mx.array) -> mx.array:
    """Grid rows by index: [N, W] -> float32 [N, W, entry]."""
    return mx.array(_grid(ggml_type))[index]


def _grouped(scales: mx.array, values: mx.array) -> mx.array:
    """scales * values by group: [N, G] and [N, ...] -> [N, values]."""
    count, groups = scales.shape
    return (scales[:, :, None] * values.reshape(count, groups, -1)).reshape(count, -1)


def _nibbles(packed: mx.array) -> mx.array:
    """Nibbles of bytes, the low one first: uint8 [N, W] -> [N, 2 * W]."""
    return trailing_fields(packed, NIBBLES, 0x0F).reshape(packed.shape[0], -1)


def _packed_signs(words: mx.array) -> mx.array:
    """Four 7-bit sign indices of each word: uint32 [N, W] -> float32 [N, W * 4, 8]."""
    index = trailing_fields(words, (0, 7, 14, 21), 0x7F).reshape(words.shape[0], -1)
    return signs(mx.array(_sign_patterns())[index])


def iq2_xxs(blocks: mx.array) -> mx.array:
    words = blocks[:, 2:].view(mx.uint32).reshape(-1, 8, 2)
    index = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    scales = half(blocks, 0) * (0.5 + (words[:, :, 1] >> 28).astype(mx.float32)) * 0.25
    return _grouped(scales, _look_up("IQ2_XXS", index) * _packed_signs(words[:, :, 1]))


def iq2_xs(blocks: mx.array) -> mx.array:
    words = blocks[:, 2:66].view(mx.uint16)
    scales = half(blocks, 0) * (0.5 + _nibbles(blocks[:, 66:]).astype(mx.float32)) * 0.25
    pattern = signs(mx.array(_sign_patterns())[words >> 9])
    return _grouped(scales, _look_up("IQ2_XS", words & 511) * pattern)


def iq2_s(blocks: mx.array) -> mx.array:
    high = trailing_fields(blocks[:, 66:74], (0, 2, 4, 6), 3).reshape(-1, 32)
    index = blocks[:, 2:34].astype(mx.uint16) | (high.astype(mx.uint16) << 8)
    scales = half(blocks, 0) * (0.5 + _nibbles(blocks[:, 74:]).astype(mx.float32)) * 0.25
    return _grouped(scales, _look_up("IQ2_S", index) * signs(blocks[:, 34:66]))


def iq3_xxs(blocks: mx.array) -> mx.array:
    words = blocks[:, 66:].view(mx.uint32)
    scales = half(blocks, 0) * (0.5 + (words >> 28).astype(mx.float32)) * 0.5
    grid = _look_up("IQ3_XXS", blocks[:, 2:66]).reshape(-1, 32, 8)
    return _grouped(scales, grid * _packed_signs(words))


def iq3_s(blocks: mx.array) -> mx.array:
    high = trailing_fields(blocks[:, 66:74], range(8), 1).reshape(-1, 64)
    index = blocks[:, 2:66].astype(mx.uint16) | (high.astype(mx.uint16) << 8)
    scales = half(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:]).astype(mx.float32))
    return _grouped(scales, _look_up("IQ3_S", index).reshape(-1, 32, 8) * signs(blocks[:, 74:106]))


def iq1_s(blocks: mx.array) -> mx.array:
    words = blocks[:, 34:].view(mx.uint16)
    scales = half(blocks, 0) * (2 * ((words >> 12) & 7).astype(mx.float32) + 1)
    delta = mx.where((words & 0x8000) == 0, 0.125, -0.125)
    high = trailing_fields(words, (0, 3, 6, 9), 7).reshape(-1, 32)
    grid = _look_up("IQ1_S", blocks[:, 2:34].astype(mx.uint16) | (high << 8))
    return _grouped(scales, grid.reshape(-1, 8, 32) + delta[:, :, None])


def iq1_m(blocks: mx.array) -> mx.array:
    words = blocks[:, 48:].view(mx.uint16)
    # The float16 scale of the block is spread over the top nibbles of the four scale words.
    top = (words >> 12) << constant((0, 4, 8, 12), mx.uint16)
    scale = top.sum(axis=1, keepdims=True).astype(mx.uint16).view(mx.float16).astype(mx.float32)
    scales = scale * (2 * trailing_fields(words, (0, 3, 6, 9), 7).reshape(-1, 16).astype(mx.float32) + 1)
    high = trailing_fields(blocks[:, 32:48], NIBBLES, 0x0F).reshape(-1, 32)
    delta = mx.where((high & 8) == 0, 0.125, -0.125)
    grid = _look_up("IQ1_M", blocks[:, :32].astype(mx.uint16) | ((high & 7).astype(mx.uint16) << 8))
    return _grouped(scales, grid + delta[:, :, None])


def _from_table(table: tuple[int, ...], packed: mx.array) -> mx.array:
    """Table values by nibble, all low nibbles of a group first: uint8 [N, G, W] -> float32 [N, G * 2 * W]."""
    values = constant(table, mx.float32)[fields(packed, NIBBLES, 0x0F)]
    return values.reshape(packed.shape[0], -1)


def iq4_nl(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * _from_table(IQ4_VALUES, blocks[:, None, 2:])


def iq4_xs(blocks: mx.array) -> mx.array:
    high = (blocks[:, 2:4].view(mx.uint16) >> constant(range(0, 16, 2), mx.uint16)) & 3
    scales = half(blocks, 0) * ((_nibbles(blocks[:, 4:8]) | (high << 4)).astype(mx.float32) - 32)
    return _grouped(scales, _from_table(IQ4_VALUES, blocks[:, 8:].reshape(-1, 8, 16)))


def mxfp4(blocks: mx.array) -> mx.array:
    exponent = blocks[:, :1].astype(mx.uint32)
    # Half of 2^(e - 127), as bits: the two smallest are subnormal.
    bits = mx.where(exponent < 2, mx.array(0x00200000, dtype=mx.uint32) << exponent, (exponent - 1) << 23)
    return bits.view(mx.float32) * _from_table(FP4_VALUES, blocks[:, None, 1:])


@cache
def _ue4m3() -> np.ndarray:
    """Half of each unsigned float8 (e4m3, bias 7) value by its byte: float32 [256]."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    value = np.where(exponent == 0, mantissa * 2.0**-9, normal) / 2
    return np.where(byte == 0x7F, 0, value).astype(np.float32)


def nvfp4(blocks: mx.array) -> mx.array:
    scales = mx.array(_ue4m3())[blocks[:, :4]]
    return _grouped(scales, _from_table(FP4_VALUES, blocks[:, 4:].reshape(-1, 4, 8)))
