"""The attention kernels of every instruction set: equal to float64, and the same bits however work is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import float64
import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide

from umlm import kernels
from umlm.kernels import KeptPages, QuantizedPages, cpu
from umlm.kernels.quantized_pages import quantize_rows

ext: Any = cpu.extension
assert ext is not None, cpu.why_not
PAGE = 16


@dataclass
class Drawn:
    """One sequence of random tokens, its keys and values in pages of a pool that is NaN elsewhere."""

    tokens: int
    heads: int
    kv_heads: int
    dims: int
    v_dims: int
    dtype: mx.Dtype
    page_dtype: mx.Dtype
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    bits: tuple[int | None, int | None] = (None, None)  # of keys and of values

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.q = draw(rng, 1, self.tokens, self.heads, self.dims, dtype=self.dtype)
        self.k = draw(rng, self.tokens, self.kv_heads, self.dims, dtype=self.page_dtype)
        self.v = draw(rng, self.tokens, self.kv_heads, self.v_dims, dtype=self.page_dtype)
        count = -(-self.tokens // PAGE)
        self.pages = rng.permutation(count + 2)[:count].tolist()
        self.slots = mx.array([self.pages[i // PAGE] * PAGE + i % PAGE for i in range(self.tokens)])
        if self.options.get("sinks"):
            self.options["sinks"] = draw(rng, self.heads)
        self.options["scale"] = self.dims**-0.5
        slots, (k_bits, v_bits) = (count + 2) * PAGE, self.bits
        self.k_pages, self.v_pages = self.pool(self.k, slots, k_bits), self.pool(self.v, slots, v_bits)

    def pool(self, values: mx.array, slots: int, bits: int | None) -> KeptPages:
        pages = kernels.empty_pages(slots, *values.shape[1:], self.page_dtype, bits)
        if isinstance(pages, QuantizedPages):
            pages = pages._replace(rows=pages.rows | 0xFF)  # of which each scale is NaN
        else:
            pages[:] = float("nan")
        return kernels.write_pages(pages, self.slots, values)

    def held(self, pages: KeptPages) -> np.ndarray:
        """What the pages hold for the tokens, exactly."""
        if isinstance(pages, QuantizedPages):
            return float64.kept(pages.rows[self.slots], pages.bits, pages.head_dim)
        return wide(pages[self.slots])

    def chunk(self, first: int, last: int) -> mx.array:
        """The answer to tokens first .. last - 1, computed in one call."""
        return attend([self], [(first, last)])

    def expected(self, places: Sequence[int] | None = None) -> np.ndarray:
        """The answers to these tokens, or to all."""
        asked, options = np.arange(self.tokens) if places is None else np.array(places), dict(self.options)
        if options.get("sinks") is not None:
            options["sinks"] = wide(options["sinks"])
        k, v = self.held(self.k_pages)[None], self.held(self.v_pages)[None]
        return float64.attention(wide(self.q)[:, asked], k, v, asked, np.arange(self.tokens), **options)


def attend(sequences: Sequence[Drawn], chunks: Sequence[tuple[int, int]]) -> mx.array:
    """A packed row of a chunk of each sequence, all in one pool."""
    offsets = np.cumsum([0, *(len(s.pages) + 2 for s in sequences)])
    return kernels.paged_attention(
        mx.concatenate([s.q[:, slice(*chunk)] for s, chunk in zip(sequences, chunks, strict=True)], axis=1),
        joined([s.k_pages for s in sequences]),
        joined([s.v_pages for s in sequences]),
        mx.array(np.concatenate([np.arange(*chunk) for chunk in chunks]).astype(np.int32)),
        [[page + int(offset) for page in s.pages] for s, offset in zip(sequences, offsets, strict=False)],
        np.cumsum([0, *(last - first for first, last in chunks)]).tolist(),
        [last for _, last in chunks],
        page_size=PAGE,
        **sequences[0].options,
    )


def joined(pools: Sequence[KeptPages]) -> KeptPages:
    first = pools[0]
    if isinstance(first, QuantizedPages):
        return first._replace(rows=mx.concatenate([pool.rows for pool in pools]))
    return mx.concatenate(pools)


SHAPES = [
    (1, 1, 64, 64),
    (6, 2, 64, 64),
    (3, 1, 80, 48),
    (4, 4, 96, 96),
    (5, 1, 128, 100),
    (4, 1, 256, 256),
    (2, 2, 7, 3),
]


@pytest.mark.parametrize("page_dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_equals_float64(isa: str, shape: tuple[int, int, int, int], page_dtype: mx.Dtype) -> None:
    for tokens, dtype in ((1, page_dtype), (70, mx.float32)):
        s = Drawn(tokens, *shape, dtype, page_dtype, {"softcap": 2.0, "sinks": True, "window": 60}, seed=tokens)
        assert_near(s.chunk(0, tokens), s.expected(), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", [None, 100, 600])
def test_decode_of_long_contexts_equals_float64(isa: str, window: int | None, dtype: mx.Dtype) -> None:
    s = Drawn(1100, 3, 1, 64, 64, dtype, dtype, {"window": window})
    expected = s.expected()
    for place in (511, 512, 513, 1099):
        assert_near(s.chunk(place, place + 1), expected[:, place : place + 1], dtype)


CUTS = {
    "one by one": [1],
    "sevens": [7],
    "mixed": [3, 64, 1, 130, 2, 5, 29],
    "whole": [10_000],
}


def chunks_of(tokens: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for size in itertools.cycle(sizes):
        if first >= tokens:
            return
        yield first, min(first + size, tokens)
        first += size


@pytest.mark.parametrize("page_dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "options"),
    [((3, 1, 64, 64), {}), ((4, 2, 40, 24), {"window": 33, "softcap": 5.0}), ((2, 1, 80, 80), {"sinks": True})],
)
def test_every_way_to_cut_a_prompt_gives_the_same_bits(
    isa: str, shape: tuple[int, int, int, int], options: dict[str, Any], page_dtype: mx.Dtype
) -> None:
    tokens = 600
    # queries of pages' own dtype may take another way than float32 ones
    s = Drawn(tokens, *shape, page_dtype if shape[1] == 1 else mx.float32, page_dtype, dict(options))
    whole = s.chunk(0, tokens)
    some = range(0, tokens, 37)
    for place in (*some, 511, 512, 513, 599):
        assert mx.array_equal(s.chunk(place, place + 1), whole[:, place : place + 1]), place
    for name in ("sevens", "mixed"):
        parts = [s.chunk(*chunk) for chunk in chunks_of(tokens, CUTS[name])]
        assert mx.array_equal(mx.concatenate(parts, axis=1), whole), name


def test_company_and_threads_do_not_change_bits(isa: str) -> None:
    check_company(mx.bfloat16, (None, None))


def check_company(dtype: mx.Dtype, bits: tuple[int | None, int | None]) -> None:
    sequences = [Drawn(tokens, 6, 2, 64, 64, dtype, dtype, seed=tokens, bits=bits) for tokens in (1, 40, 640, 1100)]
    chunks = [(0, 1), (0, 40), (639, 640), (1060, 1100)]
    alone = mx.concatenate([s.chunk(*chunk) for s, chunk in zip(sequences, chunks, strict=True)], axis=1)
    before = ext.num_threads()
    try:
        for threads in (1, 2, 5):
            ext.set_num_threads(threads)
            together = attend(sequences, chunks)
            assert mx.array_equal(together, alone), threads
            mx.eval(together)
    finally:
        ext.set_num_threads(before)


KINDS = [(8, 8), (4, 4), (8, 4), (None, 8), (4, None)]


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_pages_equal_float64_of_what_they_hold(
    isa: str, shape: tuple[int, int, int, int], bits: tuple[int | None, int | None]
) -> None:
    for tokens, dtype in ((1, mx.bfloat16), (70, mx.float32)):
        s = Drawn(tokens, *shape, dtype, dtype, {"softcap": 2.0, "sinks": True, "window": 60}, tokens, bits)
        assert_near(s.chunk(0, tokens), s.expected(), dtype)
    s = Drawn(1100, *shape, mx.float32, mx.float16, seed=2, bits=bits)
    found = mx.concatenate([s.chunk(511, 512), s.chunk(1099, 1100)], axis=1)
    assert_near(found, s.expected([511, 1099]), mx.float32)


@pytest.mark.parametrize("bits", KINDS)
def test_quantized_pages_give_the_same_bits_in_every_cut_and_company(
    isa: str, bits: tuple[int | None, int | None]
) -> None:
    s = Drawn(600, 4, 2, 80, 64, mx.float32, mx.float32, {"window": 333}, bits=bits)
    whole = s.chunk(0, 600)
    for name in ("sevens", "mixed"):
        parts = [s.chunk(*chunk) for chunk in chunks_of(600, CUTS[name])]
        assert mx.array_equal(mx.concatenate(parts, axis=1), whole), name
    for place in (0, 63, 64, 511, 512, 599):
        assert mx.array_equal(s.chunk(place, place + 1), whole[:, place : place + 1]), place
    check_company(mx.float32, bits)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dims", [64, 80, 96, 128, 256, 7, 47])
def test_every_instruction_set_writes_the_bytes_of_the_plain_operations(isa: str, dims: int, bits: int) -> None:
    rng = np.random.default_rng(dims)
    values = draw(rng, 20, 3, dims) * mx.array(np.exp(rng.standard_normal(dims)).astype(np.float32))
    slots = mx.array(rng.permutation(50)[:20].astype(np.int32))
    for dtype in FLOATS:
        pages = kernels.empty_pages(50, 3, dims, dtype, bits)
        kernels.write_pages(pages, slots, values.astype(dtype))
        expected = np.zeros(pages.rows.shape, np.uint8)
        expected[np.array(slots)] = np.array(quantize_rows(values.astype(dtype), bits))
        np.testing.assert_array_equal(np.array(pages.rows), expected)


def test_pages_of_another_shape_are_an_error() -> None:
    s = Drawn(20, 2, 1, 64, 64, mx.float32, mx.float32, bits=(8, 4))
    s.k_pages = s.k_pages._replace(bits=4)
    with pytest.raises(ValueError, match="a row of 64 dims takes 40 bytes, not 72"):
        s.chunk(0, 20)
    with pytest.raises(ValueError, match="as many heads"):
        kernels.write_pages(s.v_pages, mx.array([0]), mx.zeros((1, 2, 64)))


def test_one_array_gives_the_bits_of_pages(isa: str) -> None:
    s = Drawn(90, 4, 2, 64, 64, mx.float32, mx.float32, {"window": 50})
    places = mx.arange(90)
    dense = kernels.attention(s.q, s.k[None], s.v[None], places, places, **s.options)
    assert mx.array_equal(dense, s.chunk(0, 90))


def test_keys_in_any_order_of_positions(isa: str) -> None:
    """Keys whose positions are not consecutive are masked one by one."""
    rng = np.random.default_rng(3)
    q, k, v = draw(rng, 2, 9, 4, 16), draw(rng, 2, 75, 2, 16), draw(rng, 2, 75, 2, 16)
    q_places, k_places = np.arange(70, 79), rng.permutation(75)
    options: dict[str, Any] = {"scale": 0.3, "window": 20}
    found = kernels.attention(
        q, k, v, mx.array(q_places.astype(np.int32)), mx.array(k_places.astype(np.int32)), **options
    )
    assert_near(found, float64.attention(wide(q), wide(k), wide(v), q_places, k_places, **options), mx.float32)


def test_keys_that_begin_late(isa: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v = draw(rng, 1, 5, 2, 16), draw(rng, 1, 30, 1, 16), draw(rng, 1, 30, 1, 16)
    q_places, k_places = np.arange(125, 130), np.arange(100, 130)
    found = kernels.attention(q, k, v, mx.array(q_places), mx.array(k_places), scale=0.3)
    assert_near(found, float64.attention(wide(q), wide(k), wide(v), q_places, k_places, scale=0.3), mx.float32)


def test_a_page_that_does_not_exist_is_an_error() -> None:
    s = Drawn(20, 1, 1, 8, 8, mx.float32, mx.float32)
    s.pages = [0, 99]
    with pytest.raises(ValueError, match="no such page"):
        s.chunk(0, 20)
    s.pages = [0]
    with pytest.raises(ValueError, match="fewer pages"):
        s.chunk(0, 20)
