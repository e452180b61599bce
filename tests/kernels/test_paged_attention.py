"""Attention over pages: equal to float64 on each request's tokens in order, wherever its pages lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import float64
import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide
from hypothesis import given, settings
from hypothesis import strategies as st

from umlm import kernels

HEADS, KV_HEADS, DIMS, V_DIMS = 4, 2, 8, 12
MIB = 1 << 20


@dataclass
class Paged:
    """Requests whose keys and values lie in pages in random order; (context, new tokens) of each."""

    requests: list[tuple[int, int]]
    page_size: int
    seed: int
    dtype: mx.Dtype = mx.float32

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        needed = [-(-context // self.page_size) for context, _ in self.requests]
        ids = rng.permutation(sum(needed) + 3).tolist()
        self.page_table = [[ids.pop() for _ in range(count)] for count in needed]
        self.q = draw(rng, 1, sum(new for _, new in self.requests), HEADS, DIMS, dtype=self.dtype)
        self.k = [draw(rng, context, KV_HEADS, DIMS, dtype=self.dtype) for context, _ in self.requests]
        self.v = [draw(rng, context, KV_HEADS, V_DIMS, dtype=self.dtype) for context, _ in self.requests]
        self.starts = np.cumsum([0, *(new for _, new in self.requests)]).tolist()
        self.num_slots = (sum(needed) + 3) * self.page_size

    def slots(self, row: int) -> np.ndarray:
        """Where each token of a request lies."""
        places = np.arange(self.requests[row][0])
        return np.array(self.page_table[row])[places // self.page_size] * self.page_size + places % self.page_size

    def pages(self, tokens: list[mx.array]) -> mx.array:
        """All slots; those that hold nothing are NaN, so that a read of one shows."""
        filled = mx.full((self.num_slots, *tokens[0].shape[1:]), float("nan"), dtype=self.dtype)
        for row, values in enumerate(tokens):
            filled = kernels.write_pages(filled, mx.array(self.slots(row).astype(np.int32)), values)
        return filled

    def positions(self, row: int) -> np.ndarray:
        context, new = self.requests[row]
        return np.arange(context - new, context, dtype=np.int32)

    def attend(self, **options: Any) -> mx.array:
        positions = np.concatenate([self.positions(row) for row in range(len(self.requests))])
        contexts = [context for context, _ in self.requests]
        return kernels.paged_attention(
            self.q, self.pages(self.k), self.pages(self.v), mx.array(positions), self.page_table,
            self.starts, contexts, page_size=self.page_size, **options,
        )  # fmt: skip

    def truth(self, **options: Any) -> np.ndarray:
        parts = [
            float64.attention(
                wide(self.q)[:, self.starts[row] : self.starts[row + 1]], wide(self.k[row])[None],
                wide(self.v[row])[None], self.positions(row), np.arange(context), **options,
            )
            for row, (context, _) in enumerate(self.requests)
        ]  # fmt: skip
        return np.concatenate(parts, axis=1)


requests = st.lists(
    st.integers(1, 40).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, context))),
    min_size=1,
    max_size=4,
)
windows = st.none() | st.integers(1, 45)


@settings(max_examples=60, deadline=None)
@given(requests, st.sampled_from([1, 3, 4, 16]), windows, st.booleans(), st.booleans(), st.integers(0, 99))
def test_equals_float64_for_any_requests_and_pages(
    requests: list[tuple[int, int]], page_size: int, window: int | None, capped: bool, sunk: bool, seed: int
) -> None:
    paged, softcap = Paged(requests, page_size, seed), 1.5 if capped else None
    sinks = draw(np.random.default_rng(seed), HEADS) if sunk else None
    found = paged.attend(scale=0.3, window=window, softcap=softcap, sinks=sinks)
    expected = paged.truth(scale=0.3, window=window, softcap=softcap, sinks=None if sinks is None else wide(sinks))
    assert_near(found, expected, mx.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype: mx.Dtype) -> None:
    paged = Paged([(17, 3), (5, 5), (33, 1)], 4, seed=1, dtype=dtype)
    assert_near(paged.attend(scale=0.3), paged.truth(scale=0.3), dtype)


def test_a_request_answers_the_same_alone_and_among_others() -> None:
    together = Paged([(9, 2), (30, 7), (4, 4)], 4, seed=2)
    positions = mx.array(together.positions(1))
    alone = kernels.paged_attention(
        together.q[:, 2:9], together.pages(together.k), together.pages(together.v), positions,
        [together.page_table[1]], [0, 7], [30], page_size=4, scale=0.3,
    )  # fmt: skip
    assert mx.array_equal(together.attend(scale=0.3)[:, 2:9], alone)


def test_pages_before_the_window_are_not_read() -> None:
    """A window bounds the work: what lies before it may be anything, even freed."""
    paged = Paged([(40, 2)], 4, seed=3)
    truth = paged.truth(scale=0.3, window=5)
    for tokens in (paged.k[0], paged.v[0]):
        tokens[:32] = float("nan")  # the oldest token that is seen is 34, in the page of 32 .. 35
    assert_near(paged.attend(scale=0.3, window=5), truth, mx.float32)


def test_write_pages_puts_each_value_in_its_slot_in_the_pages_dtype() -> None:
    pages, values = mx.zeros((12, 2, 3), dtype=mx.bfloat16), draw(np.random.default_rng(4), 4, 2, 3)
    expected = np.zeros((12, 2, 3))
    expected[[7, 0, 11, 3]] = wide(values.astype(mx.bfloat16))
    found = kernels.write_pages(pages, mx.array([7, 0, 11, 3]), values)
    assert found.dtype == mx.bfloat16
    np.testing.assert_array_equal(wide(found), expected)


def big_pages() -> mx.array:
    """64 MiB."""
    pages = mx.zeros((64 * 1024, 4, 64))
    mx.eval(pages)
    return pages


def peak_of_writes(pages: mx.array, slots: int = 3) -> int:
    """Bytes beyond those held before, at the highest, during three writes of one token each."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for slot in range(slots):
        pages = kernels.write_pages(pages, mx.array([slot]), mx.ones((1, 4, 64)))
        mx.eval(pages)
    assert pages[:slots].sum().item() == slots * 4 * 64
    return mx.get_peak_memory() - before


def test_writes_are_in_place_while_the_pages_have_one_owner() -> None:
    pages = [big_pages()]
    assert peak_of_writes(pages.pop()) < MIB


def test_the_measure_sees_a_copy_when_there_is_a_second_owner() -> None:
    pages = big_pages()
    second = pages.reshape(-1)  # shares the buffer
    mx.eval(second)
    assert peak_of_writes(pages) >= 64 * MIB
    assert second.sum().item() == 0


def test_a_decode_step_does_not_copy_the_pages() -> None:
    k_pages, v_pages = big_pages(), big_pages()
    rng, page_size, table = np.random.default_rng(5), 16, [[4000, 7, 88]]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for token in range(33, 36):
        slot = mx.array([table[0][token // page_size] * page_size + token % page_size])
        k_pages = kernels.write_pages(k_pages, slot, draw(rng, 1, 4, 64))
        v_pages = kernels.write_pages(v_pages, slot, draw(rng, 1, 4, 64))
        mx.eval(
            kernels.paged_attention(
                draw(rng, 1, 1, 8, 64), k_pages, v_pages, mx.array([token]), table, [0, 1], [token + 1],
                page_size=page_size, scale=0.1,
            )
        )  # fmt: skip
    assert mx.get_peak_memory() - before < 4 * MIB
