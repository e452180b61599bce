"""Which requests compute how many tokens in the next step: integers only, no arrays.

Every step, in this order: requests that decode get one token each; running prompts share what is left of the token
budget, the least recently served first; waiting requests are admitted, oldest first. While one waits, running
prompts leave it up to half of the rest, so a short prompt is answered in the step after a slot is free for it,
and a long prompt never holds up a decode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from umlm.cache.pool import PagePool
from umlm.engine.request import Request, State


class Row(NamedTuple):
    """The tokens start .. start + num_tokens of a request; with the last of them known, the next is sampled."""

    request: Request
    num_tokens: int
    start: int
    sample: bool


class Plan(NamedTuple):
    """One step: what to compute, and who lost its pages for it."""

    rows: list[Row]
    preempted: list[Request]

    @property
    def sampled(self) -> list[Request]:
        """The requests that get a token, in the order of the rows."""
        return [row.request for row in self.rows if row.sample]


class Scheduler:
    """Plans steps under a token budget and a page pool, and commits their results.

    max_chunk  most tokens of one prompt in a step (None: the budget)
    chunked    False: a prompt is split only if it is longer than the budget
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        token_budget: int = 512,
        max_requests: int = 32,
        max_chunk: int | None = None,
        chunked: bool = True,
    ) -> None:
        if token_budget < max_requests:
            raise ValueError(f"token_budget must be at least max_requests ({max_requests}), not {token_budget}")
        self.pool = pool
        self.token_budget = token_budget
        self.max_requests = max_requests
        self.max_chunk = min(max_chunk or token_budget, token_budget)
        self.chunked = chunked
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._step = 0

    @property
    def has_work(self) -> bool:
        """Whether a plan would have rows."""
        return bool(self.running or self.waiting)

    def check_fits(self, request: Request) -> None:
        """Raise ValueError when the whole pool could not hold the request. Reads constants only: any thread may ask."""
        needed = self.pool.pages_for(max(1, request.max_length - 1))  # the last token is never computed
        if needed > self.pool.num_pages:
            raise ValueError(
                f"a request of up to {request.max_length} tokens needs {needed} pages of {self.pool.page_size} tokens, "
                f"the pool has {self.pool.num_pages}; shorten the prompt or lower max_tokens"
            )

    def submit(self, request: Request) -> None:
        """Queue a request; raises ValueError when it can never run."""
        self.check_fits(request)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """End a request at any moment, also between plan and commit."""
        self.finish(request, "abort")

    def finish(self, request: Request, reason: str) -> None:
        """End a request and free its pages; does nothing to one that has ended."""
        if request.state is State.FINISHED:
            return
        (self.running if request.state is State.RUNNING else self.waiting).remove(request)
        self._release(request)
        request.state = State.FINISHED
        request.finish_reason = reason

    def preempt(self, request: Request) -> None:
        """Take all pages from a running request; it waits at the head of the queue and computes them again."""
        self.running.remove(request)
        self._release(request)
        request.computed = 0
        request.state = State.WAITING
        self.waiting.appendleft(request)

    def plan(self) -> Plan:
        """Give every request its share of the next step. Nobody is admitted in a step that preempts."""
        shares: dict[Request, int] = {}
        preempted: list[Request] = []
        self._share_decodes(shares, preempted)
        self._share_prompts(shares)
        if not preempted:
            self._admit(shares)
        self._step += 1
        for request in shares:
            request.served = self._step
        return Plan([self._row(request, num) for request, num in shares.items()], preempted)

    def commit(self, plan: Plan, sampled: Sequence[int]) -> list[Request]:
        """Record that a plan was computed: one sampled token per `plan.sampled`. Returns the requests that ended.

        Rows whose request has ended meanwhile are passed over.
        """
        tokens = dict(zip(plan.sampled, sampled, strict=True))
        finished = []
        for request, num_tokens, _, _ in plan.rows:
            if request.state is not State.RUNNING:
                continue
            request.computed += num_tokens
            if request in tokens:
                request.append(tokens[request])
            if request.finish_reason is not None:
                self.finish(request, request.finish_reason)
                finished.append(request)
        return finished

    def _share_decodes(self, shares: dict[Request, int], preempted: list[Request]) -> None:
        for request in [request for request in self.running if request.remaining == 1]:
            if request.state is State.RUNNING and self._grow(request, preempted):
                shares[request] = 1

    def _share_prompts(self, shares: dict[Request, int]) -> None:
        """Their pages were taken when they were admitted."""
        limit = self.token_budget - self._reserve(self._left(shares))
        prompts = [request for request in self.running if request.remaining > 1]
        for request in sorted(prompts, key=lambda request: request.served):
            num_tokens = self._chunk(request, limit - sum(shares.values()))
            if num_tokens:
                shares[request] = num_tokens

    def _admit(self, shares: dict[Request, int]) -> None:
        while self.waiting and len(self.running) < self.max_requests:
            request = self.waiting[0]
            num_tokens = self._chunk(request, self._left(shares))
            if not num_tokens or not self._take_pages(request):
                return
            self.running.append(self.waiting.popleft())
            request.state = State.RUNNING
            shares[request] = num_tokens

    def _left(self, shares: dict[Request, int]) -> int:
        return self.token_budget - sum(shares.values())

    def _reserve(self, left: int) -> int:
        """Tokens that running prompts leave to the oldest waiting request."""
        if not self.waiting or len(self.running) >= self.max_requests:
            return 0
        return min(self.waiting[0].remaining, self.max_chunk, left // 2)

    def _chunk(self, request: Request, room: int) -> int:
        """How many of its tokens a request may compute in so much room; 0 for none."""
        need = request.remaining
        if self.chunked or request.computed or need > self.token_budget:
            return max(0, min(need, self.max_chunk, room))
        return need if need <= room else 0

    def _grow(self, request: Request, preempted: list[Request]) -> bool:
        """Get a page for a running request, from the newest ones if need be; False if it is the newest itself."""
        while not self._take_pages(request):
            newest = self.running[-1]
            preempted.append(newest)
            self.preempt(newest)
            if newest is request:
                return False
        return True

    def _take_pages(self, request: Request) -> bool:
        """Own pages for every known token: a prompt that has begun never waits for pages half-way."""
        pages = self.pool.allocate(max(0, self.pool.pages_for(request.length) - len(request.pages)))
        request.pages += pages or []
        return pages is not None

    def _release(self, request: Request) -> None:
        self.pool.free(request.pages)
        request.pages = []

    def _row(self, request: Request, num_tokens: int) -> Row:
        start, known = request.computed, len(request.tokens)
        return Row(request, num_tokens, start, start < known <= start + num_tokens)
