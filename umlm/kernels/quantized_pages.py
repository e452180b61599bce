"""Keys and values in pages of 8 or 4 bits: how they are stored, and the plain operations for it.

The values of one token and head are a row of bytes. For each group of 32 dims, of which the last may have fewer:
an offset, the least value rounded down to bfloat16, and a scale, (greatest - offset) / (2^bits - 1) rounded up to it.

    code = round((x - offset) / scale), 0 .. 2^bits - 1        x' = scale * code + offset,  |x - x'| <= scale / 2

A row begins with (scale, offset) of each group, 2 bytes each; codes follow, up to a multiple of 16 dims. In 8 bits a
code is a byte. In 4 bits 16 codes are 8 bytes: byte j < 4 holds those of dims 4j and 4j + 2, byte 4 + j those of 4j + 1
and 4j + 3, the first in the low half. A group with a value that is not finite has the scale NaN.

A row depends on its own values alone, so that pages hold the same bytes however a prompt was cut. Offsets and small
groups pay: see docs/kernels.md for the errors that were measured.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

GROUP_DIMS = 32
BITS = (8, 4)
_CODE_DIMS = 16  # codes come in pieces of so many dims
_LEAST_SCALE = 2.0**-100


class QuantizedPages(NamedTuple):
    """Pages of keys or values in few bits.

    rows      uint8 [num_slots, heads, row_bytes(head_dim, bits)]
    bits      of a code: 8 or 4
    head_dim  values in a row
    """

    rows: mx.array
    bits: int
    head_dim: int

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


KeptPages = mx.array | QuantizedPages  # floats [num_slots, heads, head_dim], or the same in few bits


def row_bytes(head_dim: int, bits: int) -> int:
    """Bytes of one token and head. Raises ValueError for bits that there are no pages of."""
    if bits not in BITS:
        raise ValueError(f"pages of {bits} bits do not exist: use 16, 8 or 4 bits, or none to keep floats")
    groups, pieces = -(-head_dim // GROUP_DIMS), -(-head_dim // _CODE_DIMS)
    return 4 * groups + pieces * _CODE_DIMS * bits // 8


def empty_pages(num_slots: int, heads: int, head_dim: int, dtype: mx.Dtype, bits: int | None) -> KeptPages:
    """Pages of zeros: floats of this dtype where bits is None; where it is 16, of float16 in place of float32."""
    if bits == 16 and dtype == mx.float32:
        dtype = mx.float16
    if bits is None or bits == 16:
        return mx.zeros((num_slots, heads, head_dim), dtype)
    return QuantizedPages(mx.zeros((num_slots, heads, row_bytes(head_dim, bits)), mx.uint8), bits, head_dim)


def more_pages(pages: KeptPages, num_slots: int) -> KeptPages:
    """The pages with so many slots more, of zeros, in memory of their own."""
    if isinstance(pages, QuantizedPages):
        return pages._replace(rows=_longer(pages.rows, num_slots))
    return _longer(pages, num_slots)


def _longer(array: mx.array, count: int) -> mx.array:
    return mx.concatenate([array, mx.zeros((count, *array.shape[1:]), array.dtype)])


def quantize_rows(values: mx.array, bits: int) -> mx.array:
    """values [..., head_dim] -> uint8 [..., row_bytes(head_dim, bits)]."""
    x, head_dim = values.astype(mx.float32), values.shape[-1]
    groups = [_quantize_group(x[..., at : at + GROUP_DIMS], bits) for at in range(0, head_dim, GROUP_DIMS)]
    pairs = mx.stack([pair for scale, offset, _ in groups for pair in (scale, offset)], axis=-1)
    codes = mx.concatenate([codes for _, _, codes in groups], axis=-1)
    rest = -head_dim % _CODE_DIMS  # what fills the last piece is the group's first code, as in the kernels
    first = groups[-1][2][..., :1]
    codes = mx.concatenate([codes, mx.broadcast_to(first, (*first.shape[:-1], rest))], axis=-1)
    return mx.concatenate([pairs.view(mx.uint8), _packed(codes, bits)], axis=-1)


def dequantize_rows(rows: mx.array, bits: int, head_dim: int) -> mx.array:
    """uint8 [..., row_bytes(head_dim, bits)] -> float32 [..., head_dim]."""
    groups = -(-head_dim // GROUP_DIMS)
    pairs = mx.contiguous(rows[..., : 4 * groups]).view(mx.bfloat16).astype(mx.float32)
    codes = _unpacked(rows[..., 4 * groups :], bits)[..., :head_dim].astype(mx.float32)
    spread = lambda each: mx.repeat(each, GROUP_DIMS, axis=-1)[..., :head_dim]
    return spread(pairs[..., 0::2]) * codes + spread(pairs[..., 1::2])


def _quantize_group(x: mx.array, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    """Scale and offset, uint16 [...] with bfloat16's bits, and codes, uint8 [..., dims]."""
    most = 2**bits - 1
    low = x.min(axis=-1)
    low = mx.where(low == 0, 0.0, low).view(mx.uint32)  # there is one zero
    offset = (low + mx.where(low >> 31, 0xFFFF, 0).astype(mx.uint32)) & 0xFFFF0000
    step = mx.maximum((x.max(axis=-1) - offset.view(mx.float32)) / most, _LEAST_SCALE)
    scale = (step.view(mx.uint32) + 0xFFFF) & 0xFFFF0000
    scale = mx.where(mx.isfinite(x).all(axis=-1), scale, 0x7FC00000).astype(mx.uint32)
    inverse = 1 / scale.view(mx.float32)
    codes = mx.round((x - offset.view(mx.float32)[..., None]) * inverse[..., None])
    codes = mx.minimum(mx.where(codes > 0, codes, 0), most).astype(mx.uint8)
    return (scale >> 16).astype(mx.uint16), (offset >> 16).astype(mx.uint16), codes


def _packed(codes: mx.array, bits: int) -> mx.array:
    if bits == 8:
        return codes
    # [.., byte in its word, half, word]: dim 4j + 2 half + word
    pieces = codes.reshape(*codes.shape[:-1], -1, 4, 2, 2)
    halves = pieces[..., 0, :] | (pieces[..., 1, :] << 4)
    return halves.swapaxes(-1, -2).reshape(*codes.shape[:-1], -1)


def _unpacked(rows: mx.array, bits: int) -> mx.array:
    if bits == 8:
        return rows
    halves = rows.reshape(*rows.shape[:-1], -1, 2, 4).swapaxes(-1, -2)
    return mx.stack([halves & 15, halves >> 4], axis=-2).reshape(*rows.shape[:-1], -1)
