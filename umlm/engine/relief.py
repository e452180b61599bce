"""Gives memory back between steps when the machine runs short of it: cached pages that nobody uses go first."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from umlm.cache.memory import Pressure


class Shrinkable(Protocol):
    """What must be known of cached pages for their memory to be given back (cache/prefix.py)."""

    def shrink(self, num_pages: int) -> int:
        """Forget up to so many cached pages that nobody owns, those first that would be handed out first."""
        ...

    @property
    def num_reached(self) -> int:
        """1 + the highest page id that is owned or cached; 0 for none."""
        ...


class Store(Protocol):
    """What holds the pages' memory (cache/store.py)."""

    def shrink(self, num_pages: int) -> None: ...


class Relief:
    """Asked before every step; looks at the machine's memory as often as `pressure` does."""

    def __init__(self, pressure: Pressure, cached: Shrinkable, store: Store, page_bytes: int) -> None:
        self.pressure, self.cached, self.store, self.page_bytes = pressure, cached, store, page_bytes

    def __call__(self) -> int:
        """Give back what is short; returns how many cached pages were forgotten for it."""
        short = self.pressure.pressure()
        if not short:
            return 0
        mx.clear_cache()
        forgotten = self.cached.shrink(-(-short // max(self.page_bytes, 1)))
        if forgotten:
            self.store.shrink(self.cached.num_reached)
        return forgotten
