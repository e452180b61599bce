"""Stop strings over a stream of text deltas."""

from collections.abc import Sequence


class StopMatcher:
    """Cuts a text before the first stop string, wherever token borders lie.

    The stop that is complete first wins; of two that are complete at the same character, the one that begins
    first. So the result does not depend on how the text was cut into deltas. Only a suffix that is a true prefix
    of a stop is ever held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: non-empty strings. Raises ValueError for an empty one."""
        if isinstance(stops, str):
            stops = [stops]
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise ValueError(f"stop: {stop!r} is not a non-empty string; leave it out")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None  # the stop that ended the text

    def add(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop is complete). What follows a stop is dropped."""
        if self.matched is not None:
            return "", True
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            begin, self.matched = found
            self._held = ""
            return text[:begin], True
        safe = len(text) - self._prefix_length(text)
        self._held = text[safe:]
        return text[:safe], False

    def finish(self) -> str:
        """The text held back when the stream ends without a stop."""
        text, self._held = self._held, ""
        return text

    def _first_match(self, text: str) -> tuple[int, str] | None:
        ends = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        return min(ends)[1:] if ends else None

    def _prefix_length(self, text: str) -> int:
        """Length of the longest suffix of text that a stop begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
