"""Who owns which page: integers only, the arrays are in cache/store.py, what pages hold is in cache/prefix.py."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence


class PagePool:
    """Hands out page ids and counts the owners of each.

    A page holds `page_size` tokens of every layer of one sequence. It is empty, or it has owners, or it is idle:
    without owner, kept because what it holds may be wanted again. Idle pages are handed out when no empty one is
    left; of those the one whose last owner left first, and of one owner's pages the last of its sequence.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                f"a page pool needs at least one page of one token, not {num_pages} pages of {page_size} tokens"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self._empty = list(range(num_pages - 1, -1, -1))
        self._idle: dict[int, None] = {}  # in the order in which they are handed out
        self._owners = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that can be handed out: empty ones and idle ones."""
        return len(self._empty) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Pages that are kept without owner."""
        return len(self._idle)

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens of one sequence."""
        return -(-num_tokens // self.page_size)

    def owners(self, page: int) -> int:
        """How many own this page."""
        return self._owners[page]

    def allocate(self, num_pages: int) -> list[int] | None:
        """Own pages that nobody else owns, or none at all: None when fewer are free."""
        if num_pages > self.num_free:
            return None
        pages = [self._empty.pop() if self._empty else self._evict() for _ in range(num_pages)]
        for page in pages:
            self._owners[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Own pages that others own too, or that are idle."""
        for page in pages:
            assert self._owners[page] or page in self._idle, f"page {page} is shared but empty"
            self._idle.pop(page, None)
            self._owners[page] += 1

    def free(self, pages: Sequence[int], keep: Container[int] = ()) -> None:
        """Give up the pages of a sequence, in its order; those in `keep` become idle when no owner is left.

        The last page of the sequence is handed out first.
        """
        empty = []
        for page in reversed(pages):
            assert self._owners[page], f"page {page} is freed but not owned"
            self._owners[page] -= 1
            if self._owners[page]:
                continue
            if page in keep:
                self._idle[page] = None
            else:
                empty.append(page)
        self._empty += reversed(empty)

    @property
    def num_reached(self) -> int:
        """1 + the highest page that is owned or idle; 0 for none."""
        owned = (page for page, owners in enumerate(self._owners) if owners)
        return 1 + max(itertools.chain(owned, self._idle), default=-1)

    def empty_idle(self, num_pages: int) -> list[int]:
        """Make up to so many idle pages empty, those first that would be handed out first; returns them.

        The lowest empty pages are handed out next, so that the highest come out of use.
        """
        pages = [self._evict() for _ in range(min(num_pages, len(self._idle)))]
        self._empty = sorted(self._empty + pages, reverse=True)
        return pages

    def _evict(self) -> int:
        page = next(iter(self._idle))
        del self._idle[page]
        return page
