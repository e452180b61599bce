"""Streaming detokenizer: token ids one by one -> text that is safe to show."""

import codecs
from collections.abc import Callable, Collection

from umlm.text.pieces import JoinRules, clean_up, settled_length


class Detokenizer:
    """Turns a stream of token ids into text deltas in constant time per token.

    All deltas and finish(), joined, equal Tokenizer.decode of all ids. A character whose bytes are not complete is
    held back; bytes that are no UTF-8 become U+FFFD, those left at the end too (in finish(), once).
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        rules: JoinRules,
        skip_ids: Collection[int] = frozenset(),
    ) -> None:
        """token_bytes: id -> true bytes; skip_ids: ids that are not shown."""
        self._token_bytes = token_bytes
        self._rules = rules
        self._skip_ids = skip_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")(rules.errors)
        self._strip = rules.strip_leading
        self._held = ""

    def add(self, token_id: int) -> str:
        """The new text that is safe to show after this token; may be empty."""
        if token_id in self._skip_ids:
            return ""
        return self._settle(self._lead(self._utf8.decode(self._token_bytes(token_id))))

    def finish(self) -> str:
        """What was held back. The detokenizer then begins a new text."""
        text = self._held + self._lead(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        self._strip, self._held = self._rules.strip_leading, ""
        return clean_up(text) if self._rules.clean_up else text

    def _lead(self, text: str) -> str:
        """Drop the leading spaces that the decoder drops, counted over the whole text."""
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text

    def _settle(self, text: str) -> str:
        if not self._rules.clean_up:
            return text
        self._held += text
        cut = settled_length(self._held)
        text, self._held = self._held[:cut], self._held[cut:]
        return clean_up(text)
