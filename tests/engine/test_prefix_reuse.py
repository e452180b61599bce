"""What the scheduler reuses and computes, step by step: golden numbers, sharing, deferral, priorities, guarantees."""

import pytest
from names import Names, scheduler

from umlm.cache.prefix import Identity, Miss
from umlm.engine.deferral import PATIENCE
from umlm.engine.request import State

SHARED = list(range(2000))


@pytest.mark.parametrize(
    ("page_size", "pages", "full", "hit", "computed", "new_pages"),
    [(16, 129, 128, 2000, 30, 2), (32, 65, 64, 1984, 46, 2)],
)
def test_g5_2000_shared_tokens(page_size, pages, full, hit, computed, new_pages):
    names = Names(scheduler(num_pages=300, page_size=page_size, token_budget=4096))
    first = names.submit("R1", [*SHARED, *range(5000, 5050)], max_tokens=2)
    names.step()
    assert (len(first.pages), first.indexed) == (pages, full)
    names.step()
    assert (names.scheduler.pool.num_idle, first.cached_tokens) == (full, 0)
    second = names.submit("R2", [*SHARED, *range(7000, 7030)], max_tokens=2)
    before = names.scheduler.pool.num_idle
    assert names.step() == {"R2": computed}
    assert (second.cached_tokens, second.miss) == (hit, Miss.UNKNOWN)
    shared = before - names.scheduler.pool.num_idle
    assert (shared, len(second.pages) - shared) == (hit // page_size, new_pages)
    stats = names.scheduler.prefixes.stats
    assert (stats.queried, stats.hit) == (2050 + 2030, hit)
    assert stats.missed == {Miss.UNKNOWN: 2050 + computed}


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48])
def test_g6_the_same_prompt_again(length):
    """Field cases K03 and K12: lengths at and around page borders; then with something after it."""
    names = Names(scheduler(token_budget=4096))
    tokens = list(range(length))
    assert names.run("cold", tokens).cached_tokens == 0
    warm = names.run("warm", tokens)
    assert warm.cached_tokens == (length - 1) // 16 * 16
    assert warm.miss is (Miss.NONE if length > 16 else Miss.SHORT)
    assert names.run("longer", [*tokens, 900, 901]).cached_tokens == length // 16 * 16


def test_g13_page_4_and_10_pages():
    names = Names(scheduler(num_pages=10, page_size=4))
    names.run("cached", [*range(10), 90, 91])
    request = names.submit("R", [*range(10), 70, 71, 72, 73], max_tokens=8)
    assert names.step() == {"R": 6}
    assert request.cached_tokens == 8


def test_answers_are_reused_too():
    """The next turn of a conversation: prompt, answer (token 5 always) and a new question."""
    names = Names(scheduler(page_size=4, token_budget=4096))
    names.run("turn 1", range(10), max_tokens=8)
    turn = names.submit("turn 2", [*range(10), *[5] * 8, 70, 71])
    assert names.step() == {"turn 2": 4}
    assert turn.cached_tokens == 16  # of 18: the last generated token was never computed


def test_k05_adapters_never_share():
    """Field case K05: A, B, A at another strength, base, and again."""
    identities = [Identity("A"), Identity("B"), Identity("A", 0.5), Identity()]
    names = Names(scheduler(page_size=4))
    cold = [names.run(f"cold {n}", range(9), identity=who) for n, who in enumerate(identities)]
    assert [(request.cached_tokens, request.miss) for request in cold] == [(0, Miss.UNKNOWN)] + [(0, Miss.IDENTITY)] * 3
    warm = [names.run(f"warm {n}", range(9), identity=who) for n, who in enumerate(identities)]
    assert [request.cached_tokens for request in warm] == [8] * 4


def test_a_salt_hides_that_others_asked_the_same():
    """A request is told "unknown"; the totals, which only the operator sees, tell the true reason."""
    names = Names(scheduler(page_size=4))
    names.run("one", range(9), identity=Identity(salt="s"))
    other = names.run("other", range(9), identity=Identity(salt="t"))
    adapted = names.run("adapted", range(9), identity=Identity("A", salt="t"))
    assert (other.miss, adapted.miss) == (Miss.UNKNOWN, Miss.IDENTITY)
    assert names.scheduler.prefixes.stats.missed == {Miss.UNKNOWN: 9, Miss.SALT: 9, Miss.IDENTITY: 9}


def test_a_scored_prompt_is_computed_whole_and_known_afterwards():
    names = Names(scheduler(page_size=4))
    names.run("plain", range(9))
    scored = names.submit("scored", range(9), scored=True)
    assert names.step() == {"scored": 9}
    assert (scored.cached_tokens, scored.miss) == (0, Miss.SCORED)
    assert scored.pages[:2] == names.scheduler.prefixes.share(scored.chain.digests, 2)


def test_the_reason_off():
    names = Names(scheduler(page_size=4, prefix_cache=False))
    for name in ("one", "two"):
        request = names.run(name, range(9))
        assert (request.cached_tokens, request.miss) == (0, Miss.OFF)
    assert names.scheduler.prefixes.num_pages == names.scheduler.pool.num_idle == 0


def test_a_new_shared_prefix_is_computed_once():
    """Eight come together: the first computes 40 tokens, the others wait and compute what is their own."""
    names = Names(scheduler(page_size=4, token_budget=64, max_chunk=16, max_requests=8))
    for number in range(8):
        names.submit(f"{number}", [*range(40), 100 + number, 100 + number], max_tokens=1)
    steps = [names.step() for _ in range(4)]
    assert steps == [{"0": 16}, {"0": 16}, {"0": 10}, {str(n): 2 for n in range(1, 8)}]
    assert names.scheduler.prefixes.stats.hit == 7 * 40


def test_who_waits_for_a_prefix_lets_others_pass():
    names = Names(scheduler(page_size=4, token_budget=32, max_chunk=8))
    names.submit("leader", range(40))
    names.submit("follower", [*range(40), 99])
    names.submit("other", 6)
    assert names.step() == {"leader": 8, "other": 6}
    assert names.requests["follower"].state is State.WAITING


@pytest.mark.parametrize("ends", ["cancel", "preempt"])
def test_who_waits_goes_on_when_the_leader_is_gone(ends):
    names = Names(scheduler(page_size=4, token_budget=32, max_chunk=8))
    leader = names.submit("leader", range(40))
    follower = names.submit("follower", [*range(40), 99])
    names.step()
    getattr(names.scheduler, ends)(leader)
    if ends == "preempt":
        assert names.step() == {"leader": 8}, "the oldest goes first, with what it had computed"
        assert leader.computed == 16
    else:
        assert names.step() == {"follower": 8}
        assert follower.cached_tokens == 8


def test_nobody_waits_for_a_leader_that_does_not_move():
    """A leader that fills no page in PATIENCE steps is not waited for any longer."""
    names = Names(scheduler(page_size=128, token_budget=4, max_requests=4, max_chunk=1))
    names.submit("leader", range(1000))
    follower = names.submit("follower", [*range(900), 99])
    steps = [names.step() for _ in range(PATIENCE + 2)]
    assert ["follower" in step for step in steps].index(True) == PATIENCE
    assert follower.cached_tokens == 0


def test_the_urgent_do_not_wait_for_others():
    names = Names(scheduler(page_size=4, token_budget=32, max_chunk=8))
    names.submit("leader", range(40))
    names.step()
    names.submit("urgent", [*range(40), 99], priority=1)
    assert "urgent" in names.step()


def test_greater_priority_is_admitted_first_and_served_first():
    names = Names(scheduler(token_budget=16, max_requests=2))
    names.submit("plain", 40)
    names.submit("later", 40)
    names.submit("urgent", 24, max_tokens=2, priority=5)
    assert names.step() == {"urgent": 16}
    assert names.step() == {"urgent": 8, "plain": 8}
    assert names.step()["urgent"] == 1


def test_the_newest_of_the_least_priority_is_preempted():
    names = Names(scheduler(num_pages=6, page_size=4, max_requests=8))
    low = names.submit("low", 8, max_tokens=8)
    high = names.submit("high", 7, max_tokens=9, priority=1)
    low2 = names.submit("low 2", 7, max_tokens=9)
    names.step()
    plan, _ = names.plan()
    assert plan.preempted == [low2]
    assert (low.state, high.state) == (State.RUNNING, State.RUNNING)
    assert list(names.scheduler.waiting) == [low2]


def test_a_preempted_request_finds_what_nobody_took():
    names = Names(scheduler(num_pages=8, page_size=4, token_budget=64))
    names.submit("old", 8, max_tokens=6)
    new = names.submit("new", 22, max_tokens=8)
    names.step()
    names.step()
    assert (new.state, names.scheduler.pool.num_free) == (State.WAITING, 5)
    assert new.cached_tokens == 0, "what it was told at first stays"
    while new.state is State.WAITING:
        names.step()
    assert new.computed == 23


def test_guaranteed_admission_counts_the_greatest_length():
    """6 pages of 4: two requests of up to 12 computed tokens fit, the third waits though pages are free."""
    names = Names(scheduler(num_pages=6, page_size=4, guaranteed=True))
    for name in "ABC":
        names.submit(name, 4, max_tokens=9)
    preempted, steps = [], []
    for _ in range(10):
        plan, shares = names.plan()
        preempted += plan.preempted
        steps.append("".join(shares))
        names.scheduler.commit(plan, [5] * len(plan.sampled))
    assert (preempted, steps) == ([], ["AB"] * 9 + ["C"])


def test_guaranteed_admission_counts_shared_pages_once():
    names = Names(scheduler(num_pages=6, page_size=4, guaranteed=True, token_budget=64))
    names.submit("A", range(9), max_tokens=4)
    names.submit("B", [*range(8), 50], max_tokens=4)
    names.submit("C", [*range(8), 60], max_tokens=4)
    names.submit("D", [*range(8), 70], max_tokens=12)
    assert [names.step(), names.step()] == [{"A": 9}, {"A": 1, "B": 1, "C": 1}]
    assert len({page for name in "ABC" for page in names.requests[name].pages}) == 5


def cost(shares, starts, parity):
    """The work of a step in tokens at the start of a prompt."""
    return sum(num * (1 + starts[name] / parity) for name, num in shares.items() if name != "stream")


def test_a_long_prompt_leaves_streams_half_of_their_speed():
    """100,000 tokens, chunks of 256, attention as dear as all else at 3,000 tokens of context.

    A stream's step takes at most 1.5 times as long as beside a prompt that has just begun, to the very end.
    """
    parity = 3000
    names = Names(scheduler(num_pages=7000, token_budget=512, max_chunk=256, parity=parity))
    names.submit("stream", 3, max_tokens=100_000)
    names.step()
    long = names.submit("long", 100_000, max_tokens=1)
    steps = 0
    while long.finish_reason is None:
        starts = {"long": long.computed}
        shares = names.step()
        assert shares["stream"] == 1
        assert cost(shares, starts, parity) <= 1.5 * 256
        steps += 1
    assert steps < 100_000 / 256 * (1 + 100_000 / parity) / 1.5, "and no shorter chunks than that takes"


def test_several_long_prompts_share_what_streams_can_bear():
    parity = 100
    names = Names(scheduler(num_pages=7000, token_budget=64, max_requests=8, parity=parity))
    names.submit("stream", 3, max_tokens=100_000)
    names.step()
    long = {name: names.submit(name, 2000, max_tokens=1) for name in "ABC"}
    costs = []
    for _ in range(200):
        starts = {name: request.computed for name, request in long.items()}
        shares = names.step()
        costs.append(cost(shares, starts, parity))
        assert "stream" in shares
    assert max(costs) <= 1.5 * 63
    moved = [request.computed for request in long.values()]
    assert min(moved) > 0.8 * max(moved) > 0


def test_without_streams_chunks_stay_whole():
    names = Names(scheduler(token_budget=64, max_requests=8, parity=1))
    names.submit("long", 500, max_tokens=1)
    assert [names.step()["long"] for _ in range(8)] == [64] * 7 + [52]
