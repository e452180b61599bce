"""Splitting a text at special tokens, for vocabularies whose libraries do not do it."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property


class SpecialSplit:
    """Cuts text into ordinary stretches and special tokens, longest match first."""

    def __init__(self, special: Mapping[str, int], always: Mapping[str, int]) -> None:
        """special: text -> id, matched on request; always: text -> id, matched in every text."""
        self._ids = {**special, **always}
        self._always = _alternatives(always)

    @cached_property
    def _all(self) -> re.Pattern[str]:
        # Some vocabularies have thousands of unused control tokens; this is made when it is first needed.
        return _alternatives(self._ids)

    def split(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """Ordinary stretches as text, special tokens as ids, in order."""
        begin = 0
        for match in (self._all if parse_special else self._always).finditer(text):
            if begin < match.start():
                yield text[begin : match.start()]
            yield self._ids[match[0]]
            begin = match.end()
        if begin < len(text):
            yield text[begin:]


def _alternatives(tokens: Mapping[str, int]) -> re.Pattern[str]:
    texts = sorted((text for text in tokens if text), key=lambda text: -len(text))
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")
