"""Which pages hold which tokens, so that a prompt's known beginning is not computed again: integers only.

Every full page has a digest of its own tokens and of the page before it, beginning with who computed it. Equal
digests mean equal keys and values. A page of the index has all pages before it in the index too, and whoever owns
it owns those: pages are added in the order of their sequence, a second page of equal content is given back for the
first, and the tail of a sequence is evicted before its head.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from umlm.cache.pool import PagePool

LengthKind = Callable[[int], Hashable]


class Identity(NamedTuple):
    """What keys and values depend on beside the tokens and the model, and who may share them.

    adapter, scale  the adapter's own name (its content, not where it lies) and its strength
    salt            a secret of those who share: others neither use their pages nor learn that they exist
    group           set where only the answers to one prompt may share
    """

    adapter: str | None = None
    scale: float = 1.0
    salt: str | None = None
    group: int | None = None


ANYONE = Identity()


class Miss(str, Enum):
    """Why a prompt was not, or not to its end, found."""

    OFF = "off"  # prefix_cache is off
    SCORED = "scored"  # the log-probabilities of the prompt are wanted
    SHORT = "short"  # no full page before the last token, which is always computed
    IDENTITY = "identity"  # the tokens are known for another adapter, scale, rope length or state of the model
    SALT = "salt"  # the tokens are known for another salt: for totals only, a request is told "unknown"
    EVICTED = "evicted"  # the next page was known, others needed its memory
    UNKNOWN = "unknown"  # nobody has computed these tokens
    NONE = "none"  # all that can be reused was


@dataclass
class PrefixStats:
    """Totals since the start, in tokens of prompts; hit + all of missed == queried.

    missed   tokens not found, by reason; the last ones of a prompt that was found to its end count as "none"
    evicted  pages given to others
    """

    queried: int = 0
    hit: int = 0
    missed: Counter[Miss] = field(default_factory=Counter)
    evicted: int = 0


class Chain:
    """The digests of one sequence's full pages, made once, as far as they are wanted.

    length_kind  for models whose keys depend on the length of the sequence: what of a length they depend on
    """

    def __init__(
        self, source: str, identity: Identity, page_size: int, num_prompt: int, length_kind: LengthKind | None = None
    ) -> None:
        self.identity, self.page_size, self.num_prompt, self.length_kind = identity, page_size, num_prompt, length_kind
        self.digests: list[bytes] = []
        self._last = _digest(repr((source, tuple(identity))).encode())
        self._root = b""

    @property
    def roots(self) -> tuple[bytes, bytes]:
        """What the first page holds whoever computed it: for those of this salt, and for all."""
        return _digest(self._root + repr(self.identity.salt).encode()), self._root

    def reach(self, tokens: Sequence[int], num_pages: int) -> list[bytes]:
        """The digests of at least so many pages of a sequence that only ever grows."""
        size = self.page_size
        for page in range(len(self.digests), num_pages):
            content = array("I", tokens[page * size : (page + 1) * size]).tobytes()
            if page == 0:
                self._root = _digest(content)
            self._last = _digest(self._last + content + self._kinds(page))
            self.digests.append(self._last)
        return self.digests

    def _kinds(self, page: int) -> bytes:
        """Each token goes by its own length, max(prompt length, position + 1), as in nn/rope.py."""
        if self.length_kind is None:
            return b""
        ends = range(page * self.page_size + 1, (page + 1) * self.page_size + 1)
        return repr([self.length_kind(max(self.num_prompt, end)) for end in ends]).encode()


class PrefixIndex:
    """The full pages of a pool by what they hold; pages of requests are taken and given up through it.

    source  what computes keys and values: the model's revision, dtypes, the kind of pages
    keep    whether pages stay known without owner
    """

    def __init__(
        self, pool: PagePool, *, source: str = "", keep: bool = True, length_kind: LengthKind | None = None
    ) -> None:
        self.pool, self.source, self.keep, self.length_kind = pool, source, keep, length_kind
        self.stats = PrefixStats()
        self._generation = 0
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._roots_of: dict[int, tuple[bytes, bytes]] = {}  # of pages that begin a sequence
        self._roots: Counter[bytes] = Counter()
        self._evicted: dict[bytes, None] = {}  # no more than the pool has pages, oldest first

    @property
    def num_pages(self) -> int:
        """Pages that are known, with or without owner."""
        return len(self._page_of)

    def chain(self, identity: Identity, num_prompt: int) -> Chain:
        """The digests of a new sequence."""
        return Chain(f"{self._generation} {self.source}", identity, self.pool.page_size, num_prompt, self.length_kind)

    def renew(self) -> None:
        """The model has changed: new sequences find nothing of what is known now; its pages go as memory is needed."""
        self._generation += 1

    def depth(self, digests: Sequence[bytes], limit: int) -> int:
        """How many of the first `limit` pages of a chain are known."""
        return bisect_left(range(limit), True, key=lambda page: digests[page] not in self._page_of)

    def num_idle(self, digests: Sequence[bytes], depth: int) -> int:
        """How many of the first `depth` pages, all known, have no owner."""
        owners, page_of = self.pool.owners, self._page_of
        return depth - bisect_left(range(depth), True, key=lambda page: not owners(page_of[digests[page]]))

    def share(self, digests: Sequence[bytes], depth: int) -> list[int]:
        """Own the first `depth` pages, all known."""
        pages = [self._page_of[digest] for digest in digests[:depth]]
        self.pool.share(pages)
        return pages

    def allocate(self, num_pages: int) -> list[int] | None:
        """Own pages to write to, or None; what idle pages among them held is forgotten."""
        pages = self.pool.allocate(num_pages)
        for page in pages or ():
            if page in self._digest_of:
                self._note_eviction(self._forget(page))
        return pages

    @property
    def num_reached(self) -> int:
        """1 + the highest page that is owned or known; 0 for none."""
        return self.pool.num_reached

    def shrink(self, num_pages: int) -> int:
        """Forget up to so many pages without owner, those first that would be handed out first; returns how many."""
        pages = self.pool.empty_idle(num_pages)
        for page in pages:
            self._note_eviction(self._forget(page))
        return len(pages)

    def release(self, pages: Sequence[int]) -> None:
        """Give up the pages of a sequence, in its order."""
        self.pool.free(pages, self._digest_of if self.keep else ())
        if not self.keep:
            for page in pages:
                if page in self._digest_of and not self.pool.owners(page):
                    self._forget(page)

    def add(self, chain: Chain, pages: list[int], places: Iterable[int]) -> None:
        """Make pages known that are computed now: `places` in the sequence, in order.

        Where equal content is known already, pages[place] becomes that page and its own is given back.
        """
        for place in places:
            digest = chain.digests[place]
            known = self._page_of.get(digest)
            if known is None:
                self._remember(digest, pages[place])
                if place == 0:
                    self._roots_of[pages[place]] = chain.roots
                    self._roots.update(chain.roots)
            else:
                self.pool.share([known])
                self.pool.free([pages[place]])
                pages[place] = known

    def miss(self, chain: Chain, depth: int, limit: int) -> Miss:
        """Why page `depth` is not known, of a chain of which `limit` pages could be reused."""
        if depth == limit:
            return Miss.NONE if limit else Miss.SHORT
        if not self.keep:
            return Miss.OFF
        if chain.digests[depth] in self._evicted:
            return Miss.EVICTED
        salted, plain = chain.roots
        if depth == 0 and self._roots[salted]:
            return Miss.IDENTITY
        return Miss.SALT if depth == 0 and self._roots[plain] else Miss.UNKNOWN

    def count(self, num_prompt: int, hit: int, miss: Miss) -> None:
        """Add a prompt to the totals."""
        self.stats.queried += num_prompt
        self.stats.hit += hit
        self.stats.missed[miss] += num_prompt - hit

    def _remember(self, digest: bytes, page: int) -> None:
        self._page_of[digest] = page
        self._digest_of[page] = digest
        self._evicted.pop(digest, None)

    def _forget(self, page: int) -> bytes:
        digest = self._digest_of.pop(page)
        del self._page_of[digest]
        for root in self._roots_of.pop(page, ()):
            self._roots[root] -= 1
            if not self._roots[root]:
                del self._roots[root]
        return digest

    def _note_eviction(self, digest: bytes) -> None:
        self.stats.evicted += 1
        self._evicted[digest] = None
        if len(self._evicted) > self.pool.num_pages:
            del self._evicted[next(iter(self._evicted))]


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
