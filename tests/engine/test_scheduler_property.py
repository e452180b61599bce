"""Scheduler, page pool and prefix index in random order: nothing is lost, doubly owned, wrong, wasted or starved."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from world import ENDINGS, EOS, World

from umlm.cache.prefix import Identity
from umlm.engine.request import State

IDENTITIES = [Identity(), Identity(), Identity(salt="a"), Identity("adapter", 0.5), Identity("adapter", 2.0)]


class Machine(RuleBasedStateMachine):
    """Submits, plans, commits, preempts, cancels and fails as it pleases; at the end everything must run dry."""

    @initialize(
        num_pages=st.integers(1, 12),
        page_size=st.integers(1, 5),
        max_requests=st.integers(1, 6),
        extra=st.integers(0, 12),
        max_chunk=st.none() | st.integers(1, 9),
        chunked=st.booleans(),
        prefix_cache=st.booleans(),
        guaranteed=st.booleans(),
        parity=st.none() | st.integers(1, 20),
    )
    def begin(self, num_pages, page_size, max_requests, extra, **limits):
        self.world = World(num_pages, page_size, token_budget=max_requests + extra, max_requests=max_requests, **limits)

    @rule(
        data=st.data(),
        new=st.lists(st.integers(1, 2), max_size=12),
        max_tokens=st.integers(1, 30),
        identity=st.sampled_from(IDENTITIES),
        priority=st.integers(0, 1),
        scored=st.integers(0, 9).map(lambda chance: chance == 0),
    )
    def submit(self, data, new, max_tokens, identity, priority, scored):
        old = data.draw(st.sampled_from(self.world.prompts))
        tokens = [*old[: data.draw(st.integers(0, len(old)))], *new] or [1]
        self.world.submit(tokens, max_tokens, identity, priority, scored)

    @rule(data=st.data(), reason=st.sampled_from(ENDINGS))
    def end(self, data, reason):
        if self.world.alive:
            self.world.end(data.draw(st.sampled_from(self.world.alive)), reason)

    @precondition(lambda self: self.world.planned is None and not self.world.scheduler.guaranteed)
    @rule(data=st.data())
    def preempt(self, data):
        if self.world.scheduler.running:
            self.world.preempt(data.draw(st.sampled_from(self.world.scheduler.running)))

    @precondition(lambda self: self.world.planned is None)
    @rule()
    def plan(self):
        self.world.plan()

    @precondition(lambda self: self.world.planned is not None)
    @rule(end=st.integers(0, 7))
    def commit(self, end):
        self.world.commit(lambda place: EOS if (place + end) % 8 == 0 else 1)

    @invariant()
    def everything_holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.run_dry()


Machine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestScheduler = Machine.TestCase

WORLDS = 250
STEPS = 400


def random_world(chance: random.Random) -> World:
    requests = chance.randint(1, 6)
    return World(
        chance.randint(1, 24),
        chance.randint(1, 5),
        max_requests=requests,
        token_budget=requests + chance.randint(0, 12),
        max_chunk=chance.choice([None, 1, 3, 9]),
        chunked=chance.random() < 0.8,
        prefix_cache=chance.random() < 0.8,
        guaranteed=chance.random() < 0.2,
        parity=chance.choice([None, 2, 20]),
    )


def act(world: World, chance: random.Random) -> None:
    """One random thing; mostly steps, so that requests live and end."""
    scheduler = world.scheduler
    kind = chance.random()
    if kind < 0.2 and len(world.alive) < 20:
        old = chance.choice(world.prompts)
        tokens = old[: chance.randint(0, len(old))] + [chance.randint(1, 2) for _ in range(chance.randint(1, 8))]
        identity, priority = chance.choice(IDENTITIES), int(chance.random() < 0.2)
        world.submit(tokens[-40:], chance.randint(1, 15), identity, priority, chance.random() < 0.1)
    elif kind < 0.24 and world.alive:
        world.end(chance.choice(world.alive), chance.choice(ENDINGS))
    elif world.planned is not None:
        world.commit(lambda place: EOS if chance.random() < 0.1 else chance.randint(1, 2))
    elif kind < 0.28 and scheduler.running and not scheduler.guaranteed:
        world.preempt(chance.choice(scheduler.running))
    else:
        world.plan()
    world.check()


@pytest.mark.parametrize("part", range(4))
def test_100_000_random_steps(part):
    """Field cases B11 and K17 too: whatever is cancelled when, nothing stays behind, and no map grows for ever."""
    taken = preempted = hit = deferred = evicted = 0
    for seed in range(part, WORLDS, 4):
        chance = random.Random(seed)
        world = random_world(chance)
        for _ in range(STEPS):
            act(world, chance)
            taken += 1
            preempted += bool(world.planned and world.planned.preempted)
            deferred += any(request.held_back[0] >= 0 for request in world.alive if request.state is State.WAITING)
        world.run_dry()
        hit += world.scheduler.prefixes.stats.hit
        evicted += world.scheduler.prefixes.stats.evicted
    assert taken >= WORLDS // 4 * STEPS
    assert min(preempted, hit, deferred, evicted) > 100, "the steps must meet what they are about"
