"""Which requests compute how many tokens in the next step: integers only, no arrays.

Every step, in this order: requests that decode get one token each; running prompts share what is left of the token
budget, the least recently served first; waiting requests are admitted, oldest first. While one waits, running
prompts leave it up to half of the rest, so a short prompt is answered in the step after a slot is free for it,
and a long prompt never holds up a decode. Greater priority goes before all of that.

A request begins with the pages that the prefix index knows of it, so `computed` is not 0 then; one whose next pages
are being computed by a running request waits for them and lets others pass.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from umlm.cache.pool import PagePool
from umlm.cache.prefix import LengthKind, Miss, PrefixIndex
from umlm.engine.allowance import Allowance
from umlm.engine.deferral import Deferral
from umlm.engine.request import NEVER, Request, State


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

    max_chunk     most tokens of one prompt in a step (None: the budget)
    chunked       False: a prompt is split only if it is longer than the budget
    prefix_cache  False: only the answers to one prompt share pages, and none is kept
    guaranteed    True: a request is admitted when the pages of its greatest length are free, so none is preempted
    parity        tokens of context that cost as much as all else for one token (engine/allowance.py)
    source, length_kind  see PrefixIndex
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        token_budget: int = 512,
        max_requests: int = 32,
        max_chunk: int | None = None,
        chunked: bool = True,
        prefix_cache: bool = True,
        guaranteed: bool = False,
        parity: int | None = None,
        source: str = "",
        length_kind: LengthKind | None = None,
    ) -> None:
        if token_budget < max_requests:
            raise ValueError(f"token_budget must be at least max_requests ({max_requests}), not {token_budget}")
        self.pool = pool
        self.prefixes = PrefixIndex(pool, source=source, keep=prefix_cache, length_kind=length_kind)
        self.token_budget = token_budget
        self.max_requests = max_requests
        self.max_chunk = min(max_chunk or token_budget, token_budget)
        self.chunked, self.guaranteed, self.parity = chunked, guaranteed, parity
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._deferral = Deferral()
        self._turns = itertools.count(1)
        self._step = 0

    @property
    def has_work(self) -> bool:
        """Whether a plan would have rows."""
        return bool(self.running or self.waiting)

    def check_fits(self, request: Request) -> None:
        """Raise ValueError when the whole pool could not hold the request. Reads constants only: any thread may ask."""
        needed = self._most_pages(request)
        if needed > self.pool.num_pages:
            raise ValueError(
                f"a request of up to {request.max_length} tokens needs {needed} pages of {self.pool.page_size} tokens, "
                f"the pool has {self.pool.num_pages}; shorten the prompt or lower max_tokens"
            )

    def submit(self, request: Request) -> None:
        """Queue a request; raises ValueError when it can never run."""
        self.check_fits(request)
        request.chain = self.prefixes.chain(request.identity, request.num_prompt)
        self._queue(request, next(self._turns))

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
        request.state = State.WAITING
        self._queue(request, -next(self._turns))

    def plan(self) -> Plan:
        """Give every request its share of the next step. Nobody is admitted in a step that preempts."""
        shares: dict[Request, int] = {}
        preempted: list[Request] = []
        self._share_decodes(shares, preempted)
        allowance = Allowance(self.token_budget - len(shares), self.max_chunk, self.parity if shares else None)
        self._share_prompts(shares, allowance)
        if not preempted:
            self._admit(shares, allowance)
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
            self._index_pages(request)
            if request in tokens:
                request.append(tokens[request])
            if request.finish_reason is not None:
                self.finish(request, request.finish_reason)
                finished.append(request)
        return finished

    def _queue(self, request: Request, turn: int) -> None:
        request.turn = (-request.priority, turn)
        insort(self.waiting, request, key=lambda waiting: waiting.turn)

    def _share_decodes(self, shares: dict[Request, int], preempted: list[Request]) -> None:
        decodes = [request for request in self.running if request.remaining == 1]
        for request in sorted(decodes, key=lambda request: -request.priority):
            if request.state is State.RUNNING and self._grow(request, preempted):
                shares[request] = 1

    def _share_prompts(self, shares: dict[Request, int], allowance: Allowance) -> None:
        """Their pages were taken when they were admitted."""
        prompts = [request for request in self.running if request.remaining > 1]
        spare = self._reserve(allowance.tokens, prompts)
        for request in sorted(prompts, key=lambda request: (-request.priority, request.served)):
            num_tokens = min(request.remaining, allowance.room(request.computed, spare))
            if num_tokens:
                shares[request] = allowance.take(request.computed, num_tokens)

    def _admit(self, shares: dict[Request, int], allowance: Allowance) -> None:
        for request, depth in self._candidates():
            num_tokens = self._first_chunk(request, depth, allowance)
            if not num_tokens or not self._fits(request, depth):
                return
            self._begin(request, depth)
            shares[request] = allowance.take(request.computed, num_tokens)

    def _candidates(self) -> Iterator[tuple[Request, int]]:
        """Waiting requests that may be admitted, the first one first, each with how many of its pages are known."""
        for request in tuple(self.waiting):
            if len(self.running) >= self.max_requests:
                return
            limit = self._reusable(request)
            depth = self.prefixes.depth(request.chain.reach(request.tokens, limit), limit)
            if not self._deferral.holds_back(request, depth, limit, self._step):
                yield request, depth

    def _reusable(self, request: Request) -> int:
        """Pages that need not be computed if they are known; the last token always is."""
        return 0 if request.scored else (len(request.tokens) - 1) // self.pool.page_size

    def _reserve(self, left: int, prompts: Sequence[Request]) -> int:
        """Tokens that running prompts leave to the first waiting request that can be admitted."""
        request, depth = next(self._candidates(), (None, 0))
        if request is None or not self._fits(request, depth):
            return 0
        if any(prompt.priority > request.priority for prompt in prompts):
            return 0
        return min(request.length - depth * self.pool.page_size, self.max_chunk, left // 2)

    def _first_chunk(self, request: Request, depth: int, allowance: Allowance) -> int:
        """How many of its tokens a waiting request may compute now; 0 for none."""
        start = depth * self.pool.page_size
        need = request.length - start
        if self.chunked or need > self.token_budget:
            return min(need, allowance.room(start))
        return need if need <= allowance.tokens else 0

    def _fits(self, request: Request, depth: int) -> bool:
        """Whether there are pages for every known token, and if guaranteed for all that will come."""
        wanted = self.pool.pages_for(request.length)
        if self.guaranteed:
            wanted = max(wanted, self._most_pages(request))
            wanted += sum(max(0, self._most_pages(running) - len(running.pages)) for running in self.running)
        return wanted - depth + self.prefixes.num_idle(request.chain.digests, depth) <= self.pool.num_free

    def _most_pages(self, request: Request) -> int:
        return self.pool.pages_for(max(1, request.max_length - 1))  # the last token is never computed

    def _begin(self, request: Request, depth: int) -> None:
        """Admit a request that fits, with `depth` known pages."""
        self.waiting.remove(request)
        self.running.append(request)
        request.state = State.RUNNING
        request.pages = self.prefixes.share(request.chain.digests, depth)
        self._take_pages(request)
        request.computed, request.indexed = depth * self.pool.page_size, depth
        full = len(request.tokens) // self.pool.page_size
        if request.cached_tokens is None:
            self._report(request, depth)
        self._deferral.announce(request, request.chain.reach(request.tokens, full)[depth:full])

    def _report(self, request: Request, depth: int) -> None:
        """Note what a request found when it first ran."""
        miss = Miss.SCORED if request.scored else self.prefixes.miss(request.chain, depth, self._reusable(request))
        request.cached_tokens = depth * self.pool.page_size
        request.miss = Miss.UNKNOWN if miss is Miss.SALT else miss
        self.prefixes.count(request.num_prompt, request.cached_tokens, miss)

    def _index_pages(self, request: Request) -> None:
        """Make the pages known that a request has filled."""
        full = min(request.computed, len(request.tokens)) // self.pool.page_size
        if full == request.indexed:
            return
        digests = request.chain.reach(request.tokens, full)
        self.prefixes.add(request.chain, request.pages, range(request.indexed, full))
        self._deferral.finish(request, digests[request.indexed : full])
        request.indexed = full

    def _grow(self, request: Request, preempted: list[Request]) -> bool:
        """Get a page for a running request, from the newest of the least priority if need be; False if it is that."""
        while not self._take_pages(request):
            victim = min(reversed(self.running), key=lambda running: running.priority)
            preempted.append(victim)
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def _take_pages(self, request: Request) -> bool:
        """Own pages for every known token: a prompt that has begun never waits for pages half-way."""
        pages = self.prefixes.allocate(max(0, self.pool.pages_for(request.length) - len(request.pages)))
        request.pages += pages or []
        return pages is not None

    def _release(self, request: Request) -> None:
        self._deferral.withdraw(request)
        self.prefixes.release(request.pages)
        request.pages, request.computed, request.indexed, request.held_back = [], 0, 0, NEVER

    def _row(self, request: Request, num_tokens: int) -> Row:
        start, known = request.computed, len(request.tokens)
        return Row(request, num_tokens, start, start < known <= start + num_tokens)
