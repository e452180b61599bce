"""A scheduler whose requests have names, stepped by hand."""

from __future__ import annotations

from umlm.cache.pool import PagePool
from umlm.engine.params import SamplingParams
from umlm.engine.request import Request
from umlm.engine.scheduler import Scheduler


def scheduler(num_pages=1000, page_size=16, **limits):
    return Scheduler(PagePool(num_pages, page_size), **limits)


class Names:
    """Requests by name, and steps as {name: tokens}."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.requests = {}

    def submit(self, name, tokens, max_tokens=1000, **fields):
        """A prompt, or its length: then its tokens are its own, so that no prefix is shared."""
        number = len(self.requests)
        tokens = [100 + number] * tokens if isinstance(tokens, int) else list(tokens)
        request = Request(number, tokens, SamplingParams(), len(tokens) + max_tokens, **fields)
        self.requests[name] = request
        self.scheduler.submit(request)
        return request

    def plan(self):
        plan = self.scheduler.plan()
        names = {request: name for name, request in self.requests.items()}
        return plan, {names[row.request]: row.num_tokens for row in plan.rows}

    def run(self, name, tokens, max_tokens=1, **fields):
        """Submit, and step until it has ended; returns the request."""
        request = self.submit(name, tokens, max_tokens, **fields)
        while request.finish_reason is None:
            self.step()
        return request

    def step(self):
        plan, shares = self.plan()
        self.scheduler.commit(plan, [5] * len(plan.sampled))
        return shares
