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


@pytest.mark.parametrize(
    ("length", "pages", "idle", "idle_in_a_slot"),
    [(100, 7, 0.107, 0.988), (1638, 103, 0.0061, 0.80), (3277, 205, 0.0009, 0.60)],
)
def test_idle_share_of_paged_sequences(length, pages, idle, idle_in_a_slot):
    """G2 and G4: against slots of 8,192 tokens; never as much as a page."""
    pool = PagePool(1, 16)
    assert pool.pages_for(length) == pages
    assert pages * 16 - length < 16
    assert 1 - length / (pages * 16) == pytest.approx(idle, abs=6e-4)
    assert 1 - length / 8192 == pytest.approx(idle_in_a_slot, abs=6e-4)


@pytest.mark.parametrize(("length", "streams"), [(1000, 24), (1024, 24), (1600, 15)])
def test_streams_in_a_pool_of_24576_tokens(length, streams):
    """G3."""
    pool = PagePool(24576 // 16, 16)
    got = 0
    while pool.allocate(pool.pages_for(length)) is not None:
        got += 1
    assert got == streams
    assert 24576 // 8192 == 3  # what contiguous slots of 8,192 tokens would hold


def test_a_page_lives_until_its_last_owner_leaves():
    pool = PagePool(4, 16)
    pages = pool.allocate(2)
    pool.share(pages[:1])
    assert [pool.owners(page) for page in pages] == [2, 1]
    pool.free(pages)
    assert (pool.num_free, pool.owners(pages[0])) == (3, 1)
    pool.free(pages[:1])
    assert (pool.num_free, pool.num_idle) == (4, 0)


def test_empty_pages_go_first_then_idle_ones_by_age_and_tails_first():
    pool = PagePool(5, 16)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.free(old, keep=old)
    pool.free(new, keep=new)
    assert (pool.num_free, pool.num_idle) == (5, 4)
    assert pool.allocate(1) == [4]
    pool.share(old[:1])
    pool.free(old[:1], keep=old)  # used again: now the newest
    assert pool.allocate(4) == [old[1], new[1], new[0], old[0]]


def test_sharing_an_empty_page_is_caught():
    with pytest.raises(AssertionError, match="page 2 is shared but empty"):
        PagePool(4, 16).share([2])
