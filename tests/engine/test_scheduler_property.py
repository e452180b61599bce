"""The scheduler and the page pool in random order: nothing is lost, doubly owned, wasted or starved."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from umlm.cache.pool import PagePool
from umlm.engine.params import SamplingParams
from umlm.engine.request import Request, State
from umlm.engine.scheduler import Scheduler

EOS = 0
STEPS = {"taken": 0}


class Machine(RuleBasedStateMachine):
    """Submits, plans, commits and cancels as it pleases; at the end everything must run dry."""

    @initialize(
        num_pages=st.integers(1, 12),
        page_size=st.integers(1, 5),
        max_requests=st.integers(1, 6),
        extra=st.integers(0, 12),
        max_chunk=st.none() | st.integers(1, 9),
        chunked=st.booleans(),
    )
    def begin(self, num_pages, page_size, max_requests, extra, max_chunk, chunked):
        self.pool = PagePool(num_pages, page_size)
        limits = {"token_budget": max_requests + extra, "max_requests": max_requests}
        self.scheduler = Scheduler(self.pool, **limits, max_chunk=max_chunk, chunked=chunked)
        self.requests = []
        self.planned = None

    @rule(num_tokens=st.integers(1, 40), max_tokens=st.integers(1, 30))
    def submit(self, num_tokens, max_tokens):
        request = Request(len(self.requests), [1] * num_tokens, SamplingParams(), num_tokens + max_tokens)
        request.stop_ids = frozenset({EOS})
        fits = self.pool.pages_for(num_tokens + max_tokens - 1) <= self.pool.num_pages
        try:
            self.scheduler.submit(request)
        except ValueError:
            assert not fits
        else:
            assert fits
            self.requests.append(request)

    @rule(data=st.data())
    def cancel(self, data):
        if self.requests:
            request = data.draw(st.sampled_from(self.requests))
            ended = request.finish_reason
            self.scheduler.cancel(request)
            assert request.finish_reason == (ended or "abort")

    @precondition(lambda self: self.planned is None)
    @rule()
    def plan(self):
        had_work, waiting = self.scheduler.has_work, list(self.scheduler.waiting)
        self.planned = plan = self.scheduler.plan()
        rows = {row.request: row.num_tokens for row in plan.rows}
        assert bool(rows) == had_work, "work without rows would spin for ever"
        assert len(rows) == len(plan.rows) <= self.scheduler.max_requests
        assert sum(rows.values()) <= self.scheduler.token_budget
        assert all(1 <= num <= request.remaining for request, num in rows.items())
        assert all(request.state is State.RUNNING for request in rows)
        decodes = [request for request in self.scheduler.running if request.remaining == 1]
        assert all(rows.get(request) == 1 for request in decodes), "a decode is never starved"
        admitted = [request for request in waiting if request.state is State.RUNNING]
        assert admitted == waiting[: len(admitted)], "the oldest waiting request is admitted first"
        assert not (admitted and plan.preempted)
        assert all(row.start == row.request.computed for row in plan.rows)
        assert all(len(row.request.pages) * self.pool.page_size >= row.start + row.num_tokens for row in plan.rows)

    @precondition(lambda self: self.planned is not None)
    @rule(end=st.integers(0, 7))
    def commit(self, end):
        before = {row.request: row.request.state for row in self.planned.rows}
        sampled = [EOS if (place + end) % 8 == 0 else 1 for place in range(len(self.planned.sampled))]
        finished = self.scheduler.commit(self.planned, sampled)
        assert all(request.finish_reason in ("stop", "length") for request in finished)
        assert all(before[request] is State.RUNNING for request in finished)
        self.planned = None

    @invariant()
    def pages_have_one_owner(self):
        STEPS["taken"] += 1
        owned = [page for request in self.requests for page in request.pages]
        assert len(owned) == len(set(owned))
        assert len(owned) + self.pool.num_free == self.pool.num_pages
        assert all(not request.pages for request in self.requests if request.state is not State.RUNNING)

    @invariant()
    def waste_stays_below_a_page_per_request(self):
        for request in self.requests:
            if request.state is State.RUNNING:
                slots = len(request.pages) * self.pool.page_size
                assert request.computed <= slots < len(request.tokens) + self.pool.page_size

    @invariant()
    def every_request_is_in_one_place(self):
        scheduler = self.scheduler
        places = [*scheduler.running, *scheduler.waiting]
        assert len(places) == len(set(places))
        assert set(places) == {request for request in self.requests if request.state is not State.FINISHED}
        assert len(scheduler.running) <= scheduler.max_requests

    def teardown(self):
        """Everything ends without more submissions, within a bound; the oldest running request always moves."""
        if not hasattr(self, "scheduler"):
            return
        if self.planned is not None:
            self.commit(1)
        for _ in range(sum(request.max_length for request in self.requests) * 40 + 1):
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.plan()
            self.scheduler.commit(plan, [1] * len(plan.sampled))
        assert all(request.finish_reason for request in self.requests)
        assert all(len(request.tokens) <= request.max_length for request in self.requests)
        assert self.pool.num_free == self.pool.num_pages


Machine.TestCase.settings = settings(
    max_examples=260,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestScheduler(Machine.TestCase):
    def runTest(self):
        STEPS["taken"] = 0
        super().runTest()
        assert STEPS["taken"] >= 10_000
