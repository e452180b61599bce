"""A request as the scheduler knows it: integers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from umlm.cache.prefix import ANYONE, Chain, Identity, Miss
from umlm.engine.params import SamplingParams

NEVER = (-1, 0)  # of Request.held_back


class State(Enum):
    """Where a request stands; it goes back from RUNNING to WAITING when it is preempted."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """A sequence of tokens that grows until it ends. There are no phases: `computed` catches up with the tokens.

    tokens      prompt and generated ones
    num_prompt  how many of them are the prompt
    max_length  it ends with "length" when it has so many tokens
    stop_ids    tokens that end it
    seed, index what its draws depend on: the seed, and its place among the n answers to one prompt
    priority    greater goes first
    identity    with whom it may share pages
    scored      every prompt token is computed: their log-probabilities are wanted
    computed    tokens whose keys and values lie in `pages`
    indexed     how many of `pages`, from the first on, the prefix index knows
    served      the last step that gave it a share
    turn        its place among waiting requests, the least first
    held_back   while another request computes its prefix: pages that were known, and in which step that was new
    cached_tokens, miss  tokens that were found when it first ran (None before), and why not more
    reading     what is read at every place of its prompt (engine/reading.py), or None
    reads_only  it ends when its prompt is read, without an answer: what is sampled then means nothing
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    max_length: int
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    index: int = 0
    priority: int = 0
    identity: Identity = ANYONE
    scored: bool = False
    num_prompt: int = field(init=False)
    chain: Chain = field(init=False, repr=False)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    indexed: int = 0
    drafts: list[int] = field(default_factory=list)
    served: int = -1
    turn: tuple[int, int] = (0, 0)
    held_back: tuple[int, int] = NEVER
    cached_tokens: int | None = None
    miss: Miss | None = None
    reading: Any = None
    reads_only: bool = False
    state: State = State.WAITING
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    counts: Counter[int] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        if self.params.repetition_penalty != 1:
            self.seen.update(self.tokens)

    @property
    def num_generated(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - self.num_prompt

    @property
    def length(self) -> int:
        """Tokens that a step may have to hold: known ones and drafts."""
        return len(self.tokens) + len(self.drafts)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return self.length - self.computed

    @property
    def forbidden_ids(self) -> frozenset[int]:
        """Tokens that may not be sampled now: those that would end it before min_tokens."""
        return self.stop_ids if self.num_generated < self.params.min_tokens else frozenset()

    def append(self, token: int) -> None:
        """Take a sampled token; sets finish_reason when the token or the length ends the request."""
        self.tokens.append(token)
        self.counts[token] += 1
        if self.params.repetition_penalty != 1:
            self.seen.add(token)
        if token in self.stop_ids:
            self.finish_reason = "stop"
            self.stop_reason = token if token in (self.params.stop_token_ids or ()) else None
        elif len(self.tokens) >= self.max_length:
            self.finish_reason = "length"
