"""The scheduler's decisions, step by step: fixed examples, fairness, preemption, refusal."""

import pytest
from names import Names, scheduler

from umlm.engine.request import State


def test_a_finished_request_makes_room_in_the_next_step():
    """G11: at most 3 requests: A was prefilled, B has 4 tokens, C ends in the first step, D waits."""
    names = Names(scheduler(max_requests=3, token_budget=64))
    names.submit("B", 2)
    names.submit("C", 2, max_tokens=5)
    for _ in range(3):
        names.step()
    names.submit("A", 9)
    names.step()
    names.submit("D", 7)
    assert [names.requests[name].num_generated for name in "ABC"] == [1, 4, 4]
    assert names.step() == {"A": 1, "B": 1, "C": 1}
    assert names.requests["C"].finish_reason == "length"
    assert names.step() == {"A": 1, "B": 1, "D": 7}
    assert names.step() == {"A": 1, "B": 1, "D": 1}


@pytest.mark.parametrize(
    ("chunked", "steps"),
    [
        (False, [{"R1": 5, "R2": 5}, {"R1": 1, "R2": 1, "R3": 5, "R4": 5}]),
        (True, [{"R1": 5, "R2": 5, "R3": 2}, {"R1": 1, "R2": 1, "R3": 3, "R4": 5}]),
    ],
)
def test_batch_of_4_with_12_tokens_a_step(chunked, steps):
    """G12."""
    names = Names(scheduler(max_requests=4, token_budget=12, chunked=chunked))
    for number in range(1, 6):
        names.submit(f"R{number}", 5)
    assert [names.step(), names.step()] == steps


@pytest.mark.parametrize("length", [1000, 1024])
def test_24_streams_of_a_thousand_tokens_run_together(length):
    """G3."""
    names = Names(scheduler(num_pages=24576 // 16, max_requests=64, token_budget=100_000))
    for number in range(30):
        names.submit(str(number), length, max_tokens=1)
    assert len(names.step()) == 24


def test_the_prompt_is_cut_into_chunks_and_sampled_only_at_its_end():
    names = Names(scheduler(token_budget=512, max_chunk=5))
    request = names.submit("A", 12)
    plans = [names.plan() for _ in range(1)]
    sampled = []
    for _ in range(4):
        plan, shares = plans.pop() if plans else names.plan()
        sampled.append((shares["A"], plan.rows[0].sample))
        names.scheduler.commit(plan, [9] * len(plan.sampled))
    assert sampled == [(5, False), (5, False), (2, True), (1, True)]
    assert request.tokens[12:] == [9, 9]


def test_a_long_prompt_does_not_hold_up_a_decode():
    """Case B10: one decode and a prompt of 5,000 tokens in chunks of 256: one decode step per chunk."""
    names = Names(scheduler(token_budget=512, max_chunk=256))
    names.submit("stream", 3)
    names.step()
    names.submit("long", 5000)
    steps = [names.step() for _ in range(20)]
    assert all(step["stream"] == 1 for step in steps)
    assert [step["long"] for step in steps] == [256] * 19 + [5000 - 19 * 256]


@pytest.mark.parametrize("num_long", [1, 5])
def test_a_short_request_overtakes_running_prompts(num_long):
    """Case B09: four endless decodes and long prompts; 20 new tokens are answered in the next step."""
    names = Names(scheduler(num_pages=2000, token_budget=64, max_requests=16))
    for number in range(4):
        names.submit(f"decode{number}", 2)
    names.step()
    for number in range(num_long):
        names.submit(f"long{number}", 5000)
    for _ in range(7):
        names.step()
    short = names.submit("short", 20)
    assert names.step()["short"] == 20
    assert short.num_generated == 1


def test_running_prompts_are_served_in_turn():
    names = Names(scheduler(token_budget=32, max_requests=8))
    for number in range(4):
        names.submit(str(number), 500)
    served = [name for _ in range(24) for name in names.step()]
    assert all(served[-12:].count(str(number)) >= 2 for number in range(4))


@pytest.mark.parametrize("short", [32, 50])
def test_running_prompts_go_on_while_more_comes_than_can_be_done(short):
    names = Names(scheduler(token_budget=32, max_requests=8))
    long = names.submit("long", 600)
    waits, wait = [], 0
    for number in range(160):
        names.submit(f"short{number}", short, max_tokens=1)
        wait = 0 if "long" in names.step() else wait + 1
        waits.append(wait)
    assert max(waits) < 8
    assert long.computed > 160 / 8 * 16


def test_the_newest_is_preempted_and_nobody_is_admitted_then():
    names = Names(scheduler(num_pages=4, page_size=4, max_requests=8))
    old, new = names.submit("old", 8, max_tokens=8), names.submit("new", 7, max_tokens=9)
    names.step()
    later = names.submit("later", 1, max_tokens=1)
    plan, shares = names.plan()
    assert (plan.preempted, shares) == ([new], {"old": 1})
    assert (new.pages, new.computed, new.state) == ([], 0, State.WAITING)
    assert list(names.scheduler.waiting) == [new, later]
    names.scheduler.commit(plan, [5])
    assert (len(old.tokens), len(new.tokens)) == (10, 8)


@pytest.mark.parametrize(("prefix_cache", "again"), [(False, 8), (True, 4)])
def test_a_preempted_request_computes_again_what_is_gone(prefix_cache, again):
    """Its generated tokens too; with the prefix cache only the page that the other one took."""
    names = Names(scheduler(num_pages=4, page_size=4, prefix_cache=prefix_cache))
    names.submit("old", 8, max_tokens=3)
    new = names.submit("new", 7, max_tokens=9)
    names.step()
    names.step()
    assert new.state is State.WAITING
    names.step()
    assert names.step() == {"new": again}
    assert new.num_generated == 2


def test_what_can_never_fit_is_refused_with_the_numbers():
    names = Names(scheduler(num_pages=4, page_size=16))
    names.submit("fits", 60, max_tokens=5)  # the last token is never computed
    with pytest.raises(ValueError, match="up to 66 tokens needs 5 pages of 16 tokens, the pool has 4"):
        names.submit("large", 60, max_tokens=6)


def test_more_requests_than_budget_would_starve_decodes():
    with pytest.raises(ValueError, match=r"token_budget must be at least max_requests \(8\), not 4"):
        scheduler(token_budget=4, max_requests=8)


def test_cancelled_between_plan_and_commit():
    names = Names(scheduler(num_pages=8))
    request = names.submit("A", 20, max_tokens=9)
    plan, _ = names.plan()
    names.scheduler.cancel(request)
    assert names.scheduler.commit(plan, [5]) == []
    assert (request.tokens, request.finish_reason) == ([100] * 20, "abort")
    assert names.scheduler.pool.num_free == 8
    names.scheduler.cancel(request)
    assert request.finish_reason == "abort"


def test_without_chunks_a_prompt_beyond_the_budget_is_split_and_ends():
    names = Names(scheduler(token_budget=8, max_requests=4, chunked=False))
    long, other = names.submit("long", 30, max_tokens=2), names.submit("other", 8, max_tokens=2)
    for _ in range(12):
        names.step()
    assert (long.state, other.state) == (State.FINISHED, State.FINISHED)
