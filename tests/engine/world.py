"""A scheduler with pages that remember what was written to them, and everything that must hold between two steps."""

from __future__ import annotations

from collections import Counter

from umlm.cache.pool import PagePool
from umlm.cache.prefix import Identity
from umlm.engine.params import SamplingParams
from umlm.engine.request import Request, State
from umlm.engine.scheduler import Plan, Scheduler

EOS = 0
ENDINGS = ("stop", "length", "abort", "error", "timeout")


class World:
    """Requests on their way through a scheduler, with a model that only notes which token lies in which slot."""

    def __init__(self, num_pages: int, page_size: int, **limits) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.scheduler = Scheduler(self.pool, **limits)
        self.slots: list[object] = [None] * (num_pages * page_size)
        self.alive: list[Request] = []
        self.written: dict[Request, list[int]] = {}  # what must lie in each request's slots
        self.parents: dict[bytes, bytes | None] = {}
        self.prompts: list[list[int]] = [[1]]
        self.planned: Plan | None = None
        self.submitted = 0
        self.steps = 0

    def submit(self, tokens: list[int], max_tokens: int, identity: Identity, priority: int, scored: bool) -> None:
        request = Request(
            self.submitted, list(tokens), SamplingParams(), len(tokens) + max_tokens, frozenset({EOS}),
            priority=priority, identity=identity, scored=scored,
        )  # fmt: skip
        fits = self.pool.pages_for(len(tokens) + max_tokens - 1) <= self.pool.num_pages
        try:
            self.scheduler.submit(request)
        except ValueError:
            assert not fits
            return
        assert fits
        self.submitted += 1
        self.prompts = [*self.prompts[-30:], list(tokens)]
        self.alive.append(request)
        self.written[request] = []

    def end(self, request: Request, reason: str) -> None:
        self.scheduler.finish(request, reason)
        assert request.finish_reason == reason

    def preempt(self, request: Request) -> None:
        self.scheduler.preempt(request)
        first = self.scheduler.waiting[0]
        assert first is request or first.priority > request.priority

    def plan(self) -> None:
        scheduler = self.scheduler
        had_work, waiting = scheduler.has_work, list(scheduler.waiting)
        self.planned = plan = scheduler.plan()
        rows = {row.request: row.num_tokens for row in plan.rows}
        assert bool(rows) == had_work, "work without rows would spin for ever"
        assert len(rows) == len(plan.rows) <= scheduler.max_requests
        assert sum(rows.values()) <= scheduler.token_budget
        assert not (scheduler.guaranteed and plan.preempted)
        decodes = [request for request in scheduler.running if request.remaining == 1]
        assert all(rows.get(request) == 1 for request in decodes), "a decode is never starved"
        self._check_admissions(waiting, plan)
        for row in plan.rows:
            self._check_row(*row)

    def _check_admissions(self, waiting: list[Request], plan: Plan) -> None:
        admitted = [request for request in waiting if request.state is State.RUNNING]
        assert not (admitted and plan.preempted)
        last = waiting.index(admitted[-1]) if admitted else 0
        for passed in waiting[:last]:
            assert passed.state is State.RUNNING or passed.held_back[0] >= 0, "only a deferred one is overtaken"

    def _check_row(self, request: Request, num_tokens: int, start: int, sample: bool) -> None:
        assert request.state is State.RUNNING
        assert start == request.computed
        assert 1 <= num_tokens <= request.remaining
        assert sample == (start + num_tokens == len(request.tokens))
        size = self.pool.page_size
        assert len(request.pages) * size >= start + num_tokens
        known = self.scheduler.prefixes._digest_of
        for page in request.pages[start // size : (start + num_tokens - 1) // size + 1]:
            assert self.pool.owners(page) == 1 and page not in known, "written pages belong to one request alone"

    def commit(self, token_of) -> None:
        """token_of(place in the plan's samples) -> the token that is sampled."""
        assert self.planned is not None
        before = {row.request: row.request.state for row in self.planned.rows}
        for request, num_tokens, start, _ in self.planned.rows:
            if before[request] is State.RUNNING:  # pages of one that has ended may belong to another by now
                for place in range(start, start + num_tokens):
                    self.slots[self._slot(request, place)] = self._content(request, place)
        sampled = [token_of(place) for place in range(len(self.planned.sampled))]
        finished = self.scheduler.commit(self.planned, sampled)
        assert all(request.finish_reason in ("stop", "length") for request in finished)
        assert all(before[request] is State.RUNNING for request in finished)
        self.planned = None

    def _slot(self, request: Request, place: int) -> int:
        size = self.pool.page_size
        return request.pages[place // size] * size + place % size

    def _content(self, request: Request, place: int) -> int:
        """A number for the token at a place and all before it, and for who computed them."""
        known = self.written[request]
        for next_place in range(len(known), place + 1):
            before = known[-1] if known else hash(request.identity)
            known.append(hash((before, request.tokens[next_place])))
        return known[place]

    def check(self) -> None:
        """What holds at any moment."""
        self.steps += 1
        self._note_parents()
        self.alive = [request for request in self.alive if not self._has_ended(request)]
        self._check_owners()
        self._check_index()
        self._check_places()
        for request in self.scheduler.running:
            slots = len(request.pages) * self.pool.page_size
            assert request.computed <= slots < len(request.tokens) + self.pool.page_size, "a page or more is wasted"
            self._check_contents(request)

    def _has_ended(self, request: Request) -> bool:
        if request.state is not State.FINISHED:
            return False
        assert request.finish_reason in ENDINGS
        assert not request.pages
        assert len(request.tokens) <= request.max_length
        del self.written[request]
        return True

    def _note_parents(self) -> None:
        for request in self.alive:
            for before, digest in zip([None, *request.chain.digests], request.chain.digests, strict=False):
                assert self.parents.setdefault(digest, before) == before

    def _check_owners(self) -> None:
        owners = Counter(page for request in self.alive for page in request.pages)
        assert [self.pool.owners(page) for page in range(self.pool.num_pages)] == [
            owners[page] for page in range(self.pool.num_pages)
        ]
        assert len(owners) + self.pool.num_free == self.pool.num_pages
        assert not set(self.pool._idle) & set(self.pool._empty)
        assert all(not request.pages for request in self.alive if request.state is not State.RUNNING)

    def _check_index(self) -> None:
        index = self.scheduler.prefixes
        assert index._page_of == {digest: page for page, digest in index._digest_of.items()}
        assert not set(self.pool._empty) & set(index._digest_of), "an empty page is known"
        assert set(self.pool._idle) <= set(index._digest_of), "an idle page is unknown"
        assert all(self.parents[digest] in (None, *index._page_of) for digest in index._page_of), "a head without tail"
        assert sum(index._roots.values()) == 2 * len(index._roots_of)
        assert len(index._evicted) <= self.pool.num_pages
        stats = index.stats
        assert stats.hit + sum(stats.missed.values()) == stats.queried

    def _check_places(self) -> None:
        scheduler = self.scheduler
        places = [*scheduler.running, *scheduler.waiting]
        assert len(places) == len(set(places)) == len(self.alive)
        assert set(places) == set(self.alive)
        assert len(scheduler.running) <= scheduler.max_requests
        assert [request.turn for request in scheduler.waiting] == sorted(r.turn for r in scheduler.waiting)
        assert set(scheduler._deferral._leaders.values()) <= set(scheduler.running), "a leader that does not run"

    def _check_contents(self, request: Request) -> None:
        """Reused or computed: what lies in the pages is what this request would have computed."""
        if request.computed:
            self._content(request, request.computed - 1)
        expected = self.written[request][: request.computed]
        assert [self.slots[self._slot(request, place)] for place in range(request.computed)] == expected

    def run_dry(self) -> None:
        """Everything ends without more submissions, within a bound, and leaves nothing behind."""
        if self.planned is not None:
            self.commit(lambda place: 1)
        for _ in range(sum(request.max_length for request in self.alive) * 40 + 1):
            if not self.scheduler.has_work:
                break
            self.plan()
            self.commit(lambda place: 1)
            self.check()
        self.check()
        assert not self.alive
        assert not self.scheduler._deferral._leaders
        assert self.pool.num_free == self.pool.num_pages
        assert self.pool.num_idle == self.scheduler.prefixes.num_pages
        assert self.pool.num_idle == 0 or self.scheduler.prefixes.keep
