"""The prefix index: golden numbers, whose pages are whose, why a prompt is not found, and what eviction leaves."""

import pytest

from umlm.cache.pool import PagePool
from umlm.cache.prefix import ANYONE, Identity, Miss, PrefixIndex
from umlm.nn import RopeParameters


def insert(index, tokens, identity=ANYONE, num_prompt=None, leave=True):
    """Find, compute and add a sequence, as a request does; returns (pages found, its pages)."""
    size = index.pool.page_size
    chain = index.chain(identity, num_prompt or len(tokens))
    full = len(tokens) // size
    digests = chain.reach(tokens, full)
    depth = index.depth(digests, full)
    pages = index.share(digests, depth)
    pages += index.allocate(index.pool.pages_for(len(tokens)) - depth)
    index.add(chain, pages, range(depth, full))
    if leave:
        index.release(pages)
    return depth, pages


def found(index, tokens, identity=ANYONE, num_prompt=None):
    """(pages found, why not more) of a prompt, whose last token must be computed."""
    limit = (len(tokens) - 1) // index.pool.page_size
    chain = index.chain(identity, num_prompt or len(tokens))
    depth = index.depth(chain.reach(tokens, limit), limit)
    return depth, index.miss(chain, depth, limit)


def test_g13_a_hit_of_two_pages():
    """Page 4, 10 pages, a request of 14 tokens that shares 10 with a cached one."""
    index = PrefixIndex(PagePool(10, 4))
    insert(index, [*range(10), 90, 91])
    assert found(index, [*range(10), 70, 71, 72, 73]) == (2, Miss.UNKNOWN)


def test_g14_no_token_is_stored_twice():
    index = PrefixIndex(PagePool(30, 1))
    for tokens in ([1, 2, 3], [1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 5, 6, 7], [8, 9, 10, 11, 12]):
        insert(index, tokens)
    assert found(index, [1, 2, 3, 13, 14]) == (3, Miss.UNKNOWN)
    assert index.num_pages == index.pool.num_idle == 12


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("pages", [1, 2, 5])
def test_g6_the_last_token_is_always_computed(size, pages):
    index = PrefixIndex(PagePool(20, size))
    tokens = list(range(size * pages))
    insert(index, tokens)
    depth, _ = found(index, tokens)
    assert depth * size == (len(tokens) - 1) // size * size < len(tokens)
    assert found(index, [*tokens, 7])[0] == pages


def test_a_page_counts_only_after_the_same_pages():
    index = PrefixIndex(PagePool(20, 2))
    insert(index, [1, 2, 3, 4])
    assert found(index, [9, 9, 3, 4, 5])[0] == 0
    assert found(index, [3, 4, 1, 2, 5])[0] == 0
    assert found(index, [1, 2, 3, 4, 5])[0] == 2


OTHERS = [Identity("a"), Identity("b"), Identity("a", 0.5), Identity(salt="a"), Identity("a", salt="s"), ANYONE]


def test_pages_belong_to_an_adapter_a_scale_and_a_salt():
    """Field case K05 for the key: each finds nothing of the others, and its own again."""
    index = PrefixIndex(PagePool(40, 2))
    for identity in OTHERS:
        assert found(index, [1, 2, 3], identity)[0] == 0
        insert(index, [1, 2, 3], identity)
    assert [found(index, [1, 2, 3], identity) for identity in OTHERS] == [(1, Miss.NONE)] * len(OTHERS)


@pytest.mark.parametrize("sources", [("model a", "model b"), ("model float32", "model float16")])
def test_digests_depend_on_the_model(sources):
    """Field case K02: caches of different models never mix, were they ever put together."""
    pool = PagePool(4, 2)
    one, other = (PrefixIndex(pool, source=source).chain(ANYONE, 2).reach([1, 2], 1) for source in sources)
    assert one != other


def test_two_identities_never_look_alike():
    """What is written before the tokens says where each part ends."""
    identities = [Identity("a", salt="b"), Identity("ab"), Identity("a', 1.0, 'b"), Identity(salt="None"), ANYONE]
    chains = [PrefixIndex(PagePool(1, 1)).chain(identity, 1).reach([1], 1)[0] for identity in identities]
    assert len(set(chains)) == len(identities)


def test_every_reason_of_a_miss():
    index = PrefixIndex(PagePool(3, 2))
    assert found(index, [1, 2]) == (0, Miss.SHORT)
    assert found(index, [1, 2, 3]) == (0, Miss.UNKNOWN)
    insert(index, [1, 2, 3, 4])
    assert found(index, [1, 2, 3, 4, 5]) == (2, Miss.NONE)
    assert found(index, [1, 2, 9, 9, 9]) == (1, Miss.UNKNOWN)
    assert found(index, [1, 2, 3], Identity("adapter")) == (0, Miss.IDENTITY)
    assert found(index, [1, 2, 3], Identity(salt="s")) == (0, Miss.SALT)
    insert(index, [7, 7, 8, 8])
    assert found(index, [1, 2, 3, 4, 5]) == (1, Miss.EVICTED)
    assert found(PrefixIndex(PagePool(3, 2), keep=False), [1, 2, 3]) == (0, Miss.OFF)


def test_evicted_tails_leave_the_head():
    index = PrefixIndex(PagePool(6, 2))
    insert(index, list(range(8)))
    insert(index, [50, 51, 52, 53, 54, 55])  # takes the two empty pages and the tail of the first
    assert found(index, [*range(8), 9])[0] == 3
    insert(index, [*range(4), 90, 91])  # used again: the head is younger than the other sequence now
    insert(index, [70, 71, 72, 73])
    assert found(index, [*range(4), 0])[0] == 2
    assert found(index, [50, 51, 52, 53, 0])[0] == 1
    assert index.stats.evicted == 4


def test_equal_content_is_kept_once():
    """Two compute the same at the same time: the second's page is given back for the first's."""
    index = PrefixIndex(PagePool(8, 2))
    chains = [index.chain(ANYONE, 4) for _ in range(2)]
    own = [index.allocate(2) for _ in chains]
    for chain, pages in zip(chains, own, strict=True):
        chain.reach([1, 2, 3, 4], 2)
        index.add(chain, pages, range(2))
    assert own[0] == own[1]
    assert [index.pool.owners(page) for page in own[0]] == [2, 2]
    assert index.pool.num_free == 6


def test_nothing_grows_with_prompts_that_are_never_found():
    """Field cases K10 and K17: 300 distinct prompts of 500 tokens, then 500 short ones, twice."""
    index = PrefixIndex(PagePool(64, 16))
    sizes = []
    prompts = [[[number] * 500 for number in range(300)], *[[[n, 1] * 20 for n in range(500)] for _ in range(2)]]
    for batch in prompts:
        for tokens in batch:
            insert(index, tokens)
        maps = (index._page_of, index._digest_of, index._roots_of, index._roots, index._evicted)
        sizes.append([len(each) for each in maps])
    assert sizes[1] == sizes[2]
    assert all(size <= 2 * 64 for size in sizes[0])
    assert index.pool.num_free == 64


def test_a_refused_allocation_evicts_nothing():
    """Field case K10: what is larger than the pool does not push out the others."""
    index = PrefixIndex(PagePool(4, 2))
    insert(index, [1, 2, 3, 4])
    assert index.allocate(5) is None
    assert found(index, [1, 2, 3, 4, 5])[0] == 2


LONGROPE = {"short_factor": [1.0] * 2, "long_factor": [4.0] * 2, "original_max_position_embeddings": 8}


def test_long_factors_and_short_ones_share_nothing():
    """Field case F06 for reuse: prompts on both sides of the original length rotate their keys differently."""
    rope = RopeParameters(4, rope_type="longrope", max_position_embeddings=64, **LONGROPE)
    assert rope.goes_by_length
    index = PrefixIndex(PagePool(40, 2), length_kind=rope.length_kind)
    tokens = list(range(20))
    insert(index, tokens[:8])
    assert found(index, tokens[:7]) == (3, Miss.NONE)
    assert found(index, tokens[:12]) == (0, Miss.IDENTITY)
    insert(index, tokens[:12])
    assert found(index, tokens) == (6, Miss.UNKNOWN)
    # a short prompt that grew: its first 8 tokens went by short factors, as transformers has it for the prompt
    insert(index, tokens[:12], num_prompt=4)
    assert found(index, tokens[:8]) == (3, Miss.NONE)
    assert found(index, tokens, num_prompt=5) == (6, Miss.UNKNOWN)


@pytest.mark.parametrize(("length", "kind"), [(7, 0), (8, 0), (9, 9), (10, 10)])
def test_dynamic_rope_goes_by_every_length_beyond_the_context(length, kind):
    rope = RopeParameters(4, rope_type="dynamic", factor=2.0, max_position_embeddings=8)
    assert rope.length_kind(length) == kind


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_other_ropes_go_by_the_position_alone(kind):
    rope = RopeParameters(4, rope_type=kind, factor=2.0, max_position_embeddings=64, original_max_position_embeddings=8)
    assert not rope.goes_by_length
    assert rope.length_kind(63) == 0
