"""A new prefix that several requests share is computed once: the others wait for the one that computes it."""

from __future__ import annotations

from collections.abc import Iterable

from umlm.engine.request import Request

PATIENCE = 64  # steps without a new page after which a request stops waiting and computes the prefix itself


class Deferral:
    """Which running request computes which page of a prompt, by the page's digest."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Request] = {}

    def announce(self, request: Request, digests: Iterable[bytes]) -> None:
        """A request begins to compute these pages."""
        self._leaders.update(dict.fromkeys(digests, request))

    def withdraw(self, request: Request) -> None:
        """A request computes none of its pages any more."""
        self.finish(request, request.chain.digests[request.indexed :])

    def finish(self, request: Request, digests: Iterable[bytes]) -> None:
        """These pages are computed, or will not be by this request."""
        for digest in digests:
            if self._leaders.get(digest) is request:
                del self._leaders[digest]

    def holds_back(self, request: Request, depth: int, limit: int, step: int) -> bool:
        """Whether a waiting request, of which `depth` of `limit` pages are known, should wait for the next of them.

        Nobody waits for a request of lower priority, nor for one that has made no new page for PATIENCE steps.
        """
        leader = self._leaders.get(request.chain.digests[depth]) if depth < limit else None
        if leader is None or leader.priority < request.priority:
            return False
        known, since = request.held_back
        if depth > known:
            request.held_back = (depth, step)
            return True
        return step - since < PATIENCE
