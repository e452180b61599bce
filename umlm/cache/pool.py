"""Who owns which page: integers only, the arrays are in cache/store.py."""

from __future__ import annotations

from collections.abc import Sequence


class PagePool:
    """Hands out page ids; every page has at most one owner.

    A page holds `page_size` tokens of every layer of one sequence.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                f"a page pool needs at least one page of one token, not {num_pages} pages of {page_size} tokens"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._owned: set[int] = set()

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens of one sequence."""
        return -(-num_tokens // self.page_size)

    def allocate(self, num_pages: int) -> list[int] | None:
        """Take pages, or none at all: None when fewer are free."""
        if num_pages > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(num_pages)]
        self._owned.update(pages)
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back. The first of them is handed out last: a sequence's tail goes first."""
        for page in pages:
            assert page in self._owned, f"page {page} is freed but not owned"
            self._owned.remove(page)
            self._free.append(page)
