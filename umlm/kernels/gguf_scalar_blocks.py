"""ggml blocks whose values are scale * integer (+ offset): Q4_0 ... Q8_0, Q2_K ... Q6_K, TQ1_0, TQ2_0.

Every function maps uint8 blocks [N, bytes per block] to float32 [N, values per block] in the order of
operations that ggml uses, so that the results are the same floats.
Source: ggml's block layouts (ggml-common.h).
"""

from __future__ import annotations

import mlx.core as mx

from umlm.kernels.gguf_bits import constant, fields, half

NIBBLES = (0, 4)
PAIRS = (0, 2, 4, 6)


def _flat(values: mx.array) -> mx.array:
    return values.reshape(values.shape[0], -1).astype(mx.float32)


def bf16(blocks: mx.array) -> mx.array:
    return blocks.view(mx.bfloat16).astype(mx.float32)


def q4_0(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * (_flat(fields(blocks[:, 2:], NIBBLES, 0x0F)) - 8)


def q4_1(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * _flat(fields(blocks[:, 4:], NIBBLES, 0x0F)) + half(blocks, 2)


def _five_bits(high: mx.array, low: mx.array) -> mx.array:
    """Joins the fifth bits, uint8 [N, 4], with the nibbles, uint8 [N, 16] -> float32 [N, 32]."""
    fifth = (high.view(mx.uint32) >> constant(range(32), mx.uint32)) & mx.array(1, dtype=mx.uint32)
    return _flat(fields(low, NIBBLES, 0x0F)) + 16 * fifth.astype(mx.float32)


def q5_0(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * (_five_bits(blocks[:, 2:6], blocks[:, 6:]) - 16)


def q5_1(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * _five_bits(blocks[:, 4:8], blocks[:, 8:]) + half(blocks, 2)


def q8_0(blocks: mx.array) -> mx.array:
    return half(blocks, 0) * blocks[:, 2:].view(mx.int8).astype(mx.float32)


def _scaled(scales: mx.array, values: mx.array, offsets: mx.array | None = None) -> mx.array:
    """scales * values (- offsets) by group: [N, G] and [N, G * width] -> [N, G * width]."""
    count, groups = scales.shape
    out = scales[:, :, None] * values.reshape(count, groups, -1)
    if offsets is not None:
        out = out - offsets[:, :, None]
    return out.reshape(count, -1)


def q2_k(blocks: mx.array) -> mx.array:
    packed, quants = blocks[:, :16], blocks[:, 16:80].reshape(-1, 2, 32)
    scales = half(blocks, 80) * (packed & 0x0F).astype(mx.float32)
    offsets = half(blocks, 82) * (packed >> 4).astype(mx.float32)
    return _scaled(scales, _flat(fields(quants, PAIRS, 3)), offsets)


def q3_k(blocks: mx.array) -> mx.array:
    high, low = blocks[:, :32], blocks[:, 32:96].reshape(-1, 2, 32)
    scales = _flat(fields(blocks[:, 96:104], NIBBLES, 0x0F))
    scales = scales + 16 * _flat(fields(blocks[:, 104:108], PAIRS, 3)) - 32
    # A set high bit means no offset, a clear one means minus four.
    values = _flat(fields(low, PAIRS, 3)) + 4 * _flat(fields(high, range(8), 1)) - 4
    return _scaled(half(blocks, 108) * scales, values)


def _six_bit_scales(packed: mx.array) -> tuple[mx.array, mx.array]:
    """Eight 6-bit scales and eight 6-bit offsets of a K block: uint8 [N, 12] -> two float32 [N, 8]."""
    scale, offset, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = mx.concatenate([scale & 0x3F, (rest & 0x0F) | ((scale >> 2) & 0x30)], axis=1)
    offsets = mx.concatenate([offset & 0x3F, (rest >> 4) | ((offset >> 2) & 0x30)], axis=1)
    return scales.astype(mx.float32), offsets.astype(mx.float32)


def q4_k(blocks: mx.array) -> mx.array:
    scales, offsets = _six_bit_scales(blocks[:, 4:16])
    values = _flat(fields(blocks[:, 16:].reshape(-1, 4, 32), NIBBLES, 0x0F))
    return _scaled(half(blocks, 0) * scales, values, half(blocks, 2) * offsets)


def q5_k(blocks: mx.array) -> mx.array:
    scales, offsets = _six_bit_scales(blocks[:, 4:16])
    fifth = _flat(fields(blocks[:, 16:48], range(8), 1))
    values = _flat(fields(blocks[:, 48:].reshape(-1, 4, 32), NIBBLES, 0x0F)) + 16 * fifth
    return _scaled(half(blocks, 0) * scales, values, half(blocks, 2) * offsets)


def q6_k(blocks: mx.array) -> mx.array:
    low = _flat(fields(blocks[:, :128].reshape(-1, 2, 64), NIBBLES, 0x0F))
    high = _flat(fields(blocks[:, 128:192].reshape(-1, 2, 32), PAIRS, 3))
    scales = half(blocks, 208) * blocks[:, 192:208].view(mx.int8).astype(mx.float32)
    return _scaled(scales, low + 16 * high - 32)


def _trits(packed: mx.array, powers: tuple[int, ...]) -> mx.array:
    """Base-3 digits of bytes: uint8 [N, W] -> float32 [N, len(powers) * W] of 0, 1, 2."""
    # The product wraps at 8 bits on purpose: what is left is the fraction below the digit.
    shifted = packed[:, None, :] * constant(powers, mx.uint8)[:, None]
    return _flat((shifted.astype(mx.uint16) * 3) >> 8)


def tq1_0(blocks: mx.array) -> mx.array:
    five, four = (1, 3, 9, 27, 81), (1, 3, 9, 27)
    parts = [_trits(blocks[:, :32], five), _trits(blocks[:, 32:48], five), _trits(blocks[:, 48:52], four)]
    return half(blocks, 52) * (mx.concatenate(parts, axis=1) - 1)


def tq2_0(blocks: mx.array) -> mx.array:
    return half(blocks, 64) * (_flat(fields(blocks[:, :64].reshape(-1, 2, 32), PAIRS, 3)) - 1)
