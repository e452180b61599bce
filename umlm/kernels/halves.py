"""Halves of a transformer block as one operation each, where the CPU kernels have them.

attention half: y = x + post(o(attend(rope(norm(q)), rope(norm(k)), v))), q, k, v projections of norm(x)
feed-forward half: y = x + post(down(f(gate(n)) * up(n))), n = norm(x)

The numbers are those of the single ops, bit for bit; what is saved is the dispatch of a dozen ops per half.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import serving
from umlm.kernels.packed import Packed
from umlm.kernels.paged_attention import PageTable, array_of, bits_of
from umlm.kernels.quantized_matmul import CPU_BLOCKS
from umlm.kernels.quantized_pages import KeptPages


class Projection(NamedTuple):
    """y = x W^T + b."""

    weight: mx.array | Packed
    bias: mx.array | None = None


class Norm(NamedTuple):
    """x / rms(x) * (offset + weight)."""

    weight: mx.array
    eps: float
    offset: float = 0.0


class Pages(NamedTuple):
    """One layer's pages during one call, and what the new tokens of the packed row need of them.

    keys, values  floats [num_slots, kv_heads, head_dim] or quantized; a half writes into them, in place while they
                  have one owner
    positions, lengths, slots  int32 [T], as in cache/batch.py
    """

    keys: KeptPages
    values: KeptPages
    positions: mx.array
    lengths: mx.array
    slots: mx.array
    table: PageTable
    page_size: int


class StackPages(NamedTuple):
    """The same for all layers: lists of their keys and values, which are all of one kind."""

    keys: list[KeptPages]
    values: list[KeptPages]
    positions: mx.array
    lengths: mx.array
    slots: mx.array
    table: PageTable
    page_size: int


class AttentionHalf(NamedTuple):
    """y of x [1, T, hidden] of any float dtype, inv_freq or None, and Pages."""

    compiled: Any

    def __call__(self, x: mx.array, inv_freq: mx.array | None, pages: Pages) -> mx.array:
        return self.compiled(
            x,
            pages.positions,
            inv_freq,
            array_of(pages.keys),
            array_of(pages.values),
            pages.slots,
            pages.table.compiled,
            pages.page_size,
            bits_of(pages.keys),
            bits_of(pages.values),
        )


class BlockStack:
    """All blocks of a decoder, each a pair of halves, as one call: what is saved is Python's part of every layer."""

    def __init__(self, blocks: Sequence[tuple[AttentionHalf, Any]]) -> None:
        assert cpu.extension is not None
        self._compiled = cpu.extension.BlockStack([half.compiled for half, _ in blocks], [half for _, half in blocks])

    def __call__(self, x: mx.array, inv_freqs: list[mx.array | None], pages: StackPages) -> mx.array:
        """x [1, T, hidden] of any float dtype -> the last block's; one inv_freq or None per block."""
        return self._compiled(
            x,
            pages.positions,
            inv_freqs,
            list(map(array_of, pages.keys)),
            list(map(array_of, pages.values)),
            pages.slots,
            pages.table.compiled,
            pages.page_size,
            bits_of(pages.keys[0]),
            bits_of(pages.values[0]),
        )


def watch(modules: Sequence[dict]) -> Any:
    """An object whose `unchanged()` says whether these modules still hold the same arrays, written to by nobody."""
    assert cpu.extension is not None
    return cpu.extension.Watch(list(modules))


@functools.cache
def halves_serve() -> bool:
    """Whether fused halves exist on this device and with these settings; decided once, as for every op."""
    return cpu.extension is not None and serving("quantized_matmul") == "cpu"


def feed_forward_half(
    norm: Norm, gate: Projection, up: Projection, down: Projection, activation: str, post: Norm | None
) -> Any:
    """A callable x [..., hidden] of any float dtype -> y, made once per layer; None where a matrix has no kernel."""
    weights = [_weights(projection) for projection in (gate, up, down)]
    if None in weights:
        return None
    assert cpu.extension is not None
    return cpu.extension.MlpHalf(_norm(norm), *weights, activation, _norm(post))


def attention_half(
    norm: Norm,
    projections: Sequence[Projection],
    o: Projection,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    rope_scale: float,
    window: int | None,
    softcap: float | None,
    q_norm: Norm | None,
    k_norm: Norm | None,
    post: Norm | None,
) -> AttentionHalf | None:
    """The half, made once per layer; None where a matrix has no kernel.

    projections: q, k and v, or one whose rows are these one after another.
    """
    weights = [_weights(projection) for projection in (*projections, o)]
    if None in weights:
        return None
    assert cpu.extension is not None
    half = cpu.extension.AttentionHalf(
        _norm(norm),
        weights[:-1],
        weights[-1],
        num_heads,
        num_kv_heads,
        head_dim,
        scale,
        rope_scale,
        window or 0,
        softcap or 0.0,
        _norm(q_norm),
        _norm(k_norm),
        _norm(post),
    )
    return AttentionHalf(half)


def _weights(projection: Projection) -> Any:
    weight = projection.weight
    assert cpu.extension is not None
    if not isinstance(weight, Packed):
        return cpu.extension.weights(weight, None, None, projection.bias, None, 0, weight.shape[-1])
    if len(weight.shape) != 2 or weight.format.ggml_type not in (None, *CPU_BLOCKS):
        return None
    return cpu.extension.weights(
        weight.weight,
        weight.scales,
        weight.biases,
        projection.bias,
        weight.format.layout,
        weight.format.group_size,
        weight.shape[-1],
    )


def _norm(norm: Norm | None) -> Any:
    assert cpu.extension is not None
    return None if norm is None else cpu.extension.Norm(norm.weight, norm.eps, norm.offset)
