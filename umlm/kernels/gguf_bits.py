"""Bit fields of ggml blocks as MLX arrays: the pieces every block layout is made of."""

from __future__ import annotations

import mlx.core as mx
import numpy as np


def half(blocks: mx.array, at: int) -> mx.array:
    """The float16 at byte `at` of every block: uint8 [N, bytes] -> float32 [N, 1]."""
    return blocks[:, at : at + 2].view(mx.float16).astype(mx.float32)


def fields(values: mx.array, shifts: range | tuple[int, ...], mask: int) -> mx.array:
    """Unpacks bit fields before the last axis: [..., W] -> [..., len(shifts), W] of the same dtype."""
    moves = constant(shifts, values.dtype)
    return (values[..., None, :] >> moves[:, None]) & mx.array(mask, dtype=values.dtype)


def trailing_fields(values: mx.array, shifts: range | tuple[int, ...], mask: int) -> mx.array:
    """Unpacks bit fields after the last axis: [..., W] -> [..., W, len(shifts)] of the same dtype."""
    moves = constant(shifts, values.dtype)
    return (values[..., None] >> moves) & mx.array(mask, dtype=values.dtype)


def signs(bits: mx.array) -> mx.array:
    """Eight sign bits of every byte, lowest first: uint8 [..., W] -> float32 [..., W, 8] of +1 and -1."""
    return 1.0 - 2.0 * trailing_fields(bits, range(8), 1).astype(mx.float32)


def constant(values: range | tuple[float, ...] | tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """A small constant vector of `dtype`."""
    return mx.array(np.array(values), dtype=dtype)
