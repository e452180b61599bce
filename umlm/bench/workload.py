"""What is measured, for umlm and its peers alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

BATCH_PROMPT = 32  # tokens of every prompt of a batch


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens.

    prefill  prompts whose computation is timed
    decode   contexts after which `tokens` more are generated, timed from the first of them to the last
    batch    how many requests generate `tokens` together
    threads  that peers are told to use, as umlm does
    """

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    batch: tuple[int, ...]
    tokens: int
    threads: int

    @property
    def context(self) -> int:
        """Most tokens that one request holds."""
        longest = [length + 1 for length in self.prefill]
        longest += [max(1, length) + self.tokens for length in self.decode]
        return max(*longest, BATCH_PROMPT + self.tokens if self.batch else 2, 2)


Rates = Mapping[str, Mapping[int, float]]
KINDS = ("prefill", "decode", "batch")


@dataclass
class Samples:
    """Tokens per second, round by round: kind -> length or number of requests -> rates."""

    taken: dict[str, dict[int, list[float]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def add(self, rates: Rates) -> None:
        """Take one round's rates."""
        for kind, values in rates.items():
            for size, rate in values.items():
                self.taken[kind].setdefault(size, []).append(rate)

    def medians(self) -> dict[str, dict[int, float]]:
        return {kind: {size: median(rates) for size, rates in sizes.items()} for kind, sizes in self.taken.items()}


def ratios(ours: Rates, theirs: Rates) -> dict[str, dict[int, float]]:
    """How many times as fast we are, where both have a rate."""
    return {
        kind: {size: ours[kind][size] / rate for size, rate in theirs[kind].items() if size in ours[kind]}
        for kind in KINDS
    }


def by_name(rates: Iterable[tuple[str, int, float]]) -> dict[str, dict[int, float]]:
    """Rates from (kind, size, tokens per second)."""
    found: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    for kind, size, rate in rates:
        found[kind][size] = rate
    return found
