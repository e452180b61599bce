"""When memory is short, cached pages go first and their memory with them; requests go on."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import zoo_model
from fakes import scripted_engine

from umlm.cache.budget import KV_BITS, KVBits
from umlm.cache.memory import Available, Pressure
from umlm.cache.pool import PagePool
from umlm.cache.store import PageStore
from umlm.engine.params import SamplingParams
from umlm.engine.relief import Relief
from umlm.nn import AttentionSpec


class ShortMachine(Pressure):
    """A look every time, at so little free memory."""

    def __init__(self, free: int) -> None:
        self.free = free
        super().__init__(1000, every=0.0, available=lambda: Available(self.free, "system memory"), clock=lambda: 1.0)


class CachingPool:
    """Pages 0 .. 9 are owned, 10 .. 29 cached; the newest are forgotten first."""

    def __init__(self) -> None:
        self.num_reached = 30

    def shrink(self, num_pages: int) -> int:
        forgotten = min(num_pages, self.num_reached - 10)
        self.num_reached -= forgotten
        return forgotten


class NotedStore:
    def __init__(self) -> None:
        self.kept: list[int] = []

    def shrink(self, num_pages: int) -> None:
        self.kept.append(num_pages)


@pytest.mark.parametrize(
    ("free", "forgotten", "kept"), [(2000, 0, []), (1000, 0, []), (999, 1, [29]), (500, 5, [25]), (-9000, 20, [10])]
)
def test_as_many_cached_pages_go_as_are_short(free: int, forgotten: int, kept: list[int]) -> None:
    pool, store = CachingPool(), NotedStore()
    assert Relief(ShortMachine(free), pool, store, page_bytes=100)() == forgotten
    assert store.kept == kept


def test_a_pool_that_cannot_shrink_keeps_its_pages() -> None:
    store = NotedStore()
    assert Relief(ShortMachine(0), PagePool(4, 16), store, page_bytes=100)() == 0
    assert store.kept == []


@pytest.mark.parametrize("bits", KV_BITS.values())
def test_a_store_gives_back_what_lies_behind_and_keeps_the_rest(bits: KVBits) -> None:
    store = PageStore([AttentionSpec(2, 64, 32)] * 3, 1000, 16, mx.float32, bits)
    store._reach(899)
    each, before = store.nbytes // store.allocated, store.allocated
    rows = [getattr(pages, "rows", pages) for pages in (*store.keys, *store.values)]
    for array in rows:
        array[:] = (mx.arange(array.size) % 251).reshape(array.shape).astype(array.dtype)
    first = [np.array(array[: 70 * 16]) for array in rows]
    del rows, array
    store.shrink(70)
    assert (store.allocated, store.nbytes) == (70, 70 * each)
    for pages, expected in zip((*store.keys, *store.values), first, strict=True):
        np.testing.assert_array_equal(np.array(getattr(pages, "rows", pages)), expected)
    store.shrink(500)
    assert store.allocated == 70 < before
    store._reach(899)
    assert store.allocated == 900


def test_a_store_never_gives_back_what_it_began_with() -> None:
    store = PageStore([AttentionSpec(2, 64, 32)], 1000, 16, mx.float32)
    store._reach(500)
    store.shrink(0)
    assert store.allocated == 64


def test_answers_are_the_same_while_pages_come_and_go() -> None:
    """The store is cut to the pages in use before every step of two requests."""
    model = zoo_model.load_case("llama")
    run = zoo_model.Run(np.arange(1, 41), 41, [7, 5, 1])
    expected = zoo_model.paged(model, [run], KV_BITS["none"])[0]
    other = zoo_model.Run(np.arange(1, 41), 41, [7, 5, 1])
    shrink = PageStore.states

    def states(store: PageStore, batch: object) -> object:
        store.shrink(1 + max(max(pages) for pages in batch.page_table))  # type: ignore[attr-defined]
        return shrink(store, batch)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("umlm.cache.store.FIRST_TOKENS", 4)
        patch.setattr(PageStore, "states", states)
        found = zoo_model.paged(model, [other], KV_BITS["none"])[0]
    np.testing.assert_array_equal(found, expected)


def test_the_engine_asks_before_every_step() -> None:
    calls: list[int] = []
    engine = scripted_engine()
    engine._relieve = lambda: calls.append(1)
    chunks = list(engine.submit([1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True)))
    assert len(calls) >= len(chunks) == 5
    engine.stop()
