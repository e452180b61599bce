"""What one step may take in of prompts, so that streams do not wait too long for it."""

from __future__ import annotations

from fractions import Fraction

STRETCH = Fraction(3, 2)  # how much more work than the same tokens at the start of a prompt


class Allowance:
    """The tokens of a step that are left, and the work that they may cost where streams wait for the step.

    A token at place p costs 1 + p / parity units of work: attention reads all that is before it. Chunks shrink as a
    prompt goes on, so that a step of them takes STRETCH times as long as one of new prompts, at most.
    max_chunk  most tokens of one prompt
    parity     tokens of context that cost as much as all else that is done for one token; None: work is not limited
    """

    def __init__(self, tokens: int, max_chunk: int, parity: int | None) -> None:
        self.tokens, self.max_chunk, self._parity = tokens, max_chunk, parity
        self._work = int(tokens * STRETCH) * (parity or 0)  # in units of 1 / parity
        self._taken = False

    def room(self, start: int, spare: int = 0) -> int:
        """Most tokens that a prompt may compute from place `start` on, with `spare` tokens left for others."""
        most = min(self.tokens - spare, self.max_chunk)
        if self._parity is None or most <= 0:
            return max(0, most)
        work = min(self._work, int(self.max_chunk * STRETCH) * self._parity)
        affordable = work // (self._parity + start)
        return min(most, max(affordable, 0 if self._taken else 1))

    def take(self, start: int, num_tokens: int) -> int:
        """Use up so many tokens from place `start` on; returns their number."""
        self.tokens -= num_tokens
        self._work -= num_tokens * ((self._parity or 0) + start)
        self._taken = True
        return num_tokens
