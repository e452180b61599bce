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
from umlm.cache.prefix import ANYONE, PrefixIndex
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
    """Nothing is cached: what requests own stays theirs."""
    store, index = NotedStore(), PrefixIndex(PagePool(4, 16))
    owned = index.allocate(3)
    assert Relief(ShortMachine(0), index, store, page_bytes=100)() == 0
    assert store.kept == []
    assert owned is not None and [index.pool.owners(page) for page in owned] == [1, 1, 1]


def known(index: PrefixIndex, first: int, num_pages: int) -> list[int]:
    """Pages of tokens first, first + 1 ..., computed, known and without owner."""
    chain = index.chain(ANYONE, 4 * num_pages)
    chain.reach(range(first, first + 4 * num_pages), num_pages)
    pages = index.allocate(num_pages)
    assert pages is not None
    index.add(chain, pages, range(num_pages))
    index.release(pages)
    return pages


def test_the_index_forgets_the_oldest_tails_and_the_store_is_cut_behind_what_is_left() -> None:
    index, store = PrefixIndex(PagePool(10, 4)), NotedStore()
    owned = index.allocate(2)
    known(index, 0, 3)
    known(index, 100, 3)
    assert owned == [0, 1] and index.num_reached == 8
    assert Relief(ShortMachine(900), index, store, page_bytes=25)() == 4
    assert (index.num_pages, index.pool.num_idle, index.stats.evicted) == (2, 2, 4)
    chain = index.chain(ANYONE, 12)
    assert index.depth(chain.reach(range(100, 112), 3), 3) == 2
    assert store.kept == [index.num_reached] == [7]
    assert Relief(ShortMachine(-9000), index, store, page_bytes=25)() == 2
    assert store.kept == [7, 2]
    assert index.allocate(8) == list(range(2, 10))


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
