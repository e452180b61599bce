"""The page pool: every page has at most one owner, and waste stays below a page per request."""

import pytest

from umlm.cache.pool import PagePool


def test_allocates_all_or_nothing():
    pool = PagePool(4, 16)
    assert len(pool.allocate(3)) == 3
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []


def test_a_sequence_gives_back_its_tail_first():
    pool = PagePool(4, 16)
    pages = pool.allocate(4)
    pool.free(pages)
    assert pool.allocate(1) == pages[-1:]


@pytest.mark.parametrize("twice", [[0, 0], [0], [3]])
def test_freeing_what_is_not_owned_is_caught(twice):
    pool = PagePool(4, 16)
    pool.free(pool.allocate(1))
    with pytest.raises(AssertionError, match="not owned"):
        pool.free(twice)


@pytest.mark.parametrize("sizes", [(0, 16), (4, 0), (-1, 16)])
def test_an_empty_pool_is_refused(sizes):
    with pytest.raises(ValueError, match="at least one page of one token"):
        PagePool(*sizes)


@pytest.mark.parametrize(("length", "pages", "idle"), [(100, 7, 0.107), (1638, 103, 0.0061), (3277, 205, 0.0009)])
def test_idle_share_of_paged_sequences(length, pages, idle):
    pool = PagePool(1, 16)
    assert pool.pages_for(length) == pages
    assert 1 - length / (pages * 16) == pytest.approx(idle, abs=6e-4)


@pytest.mark.parametrize(("length", "streams"), [(1000, 24), (1024, 24), (1600, 15)])
def test_streams_in_a_pool_of_24576_tokens(length, streams):
    pool = PagePool(24576 // 16, 16)
    got = 0
    while pool.allocate(pool.pages_for(length)) is not None:
        got += 1
    assert got == streams
    assert 24576 // 8192 == 3  # what contiguous slots of 8,192 tokens would hold
