"""Control tokens inside message content stay ordinary text.

A template writes control tokens as text, so after rendering nothing tells a real `<|im_end|>` from one that a user
typed. Before rendering, the first character of each control token's text in the content is therefore replaced by a
private-use stand-in; after rendering, stretches that hold stand-ins are restored and encoded with special tokens off.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from umlm.text.backend import ControlToken

_STAND_INS = range(0xF0000, 0xFFFFD, 256)
# Templates cut these out of an assistant's own earlier answer; they open no turn.
_READ_BY_TEMPLATES = frozenset({"<think>", "</think>"})


class StandIns(NamedTuple):
    """Two inverse str.translate tables over single characters."""

    hide: dict[int, str]
    restore: dict[int, str]


class ControlText:
    """Finds the text of control tokens, hides it in content, and cuts rendered text where it was hidden."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        tokens = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text))
        self._first_chars = sorted({token.text[0] for token in tokens})
        texts = [re.escape(token.text) for token in tokens]
        own = [re.escape(token.text) for token in tokens if token.text not in _READ_BY_TEMPLATES]
        self._anywhere = re.compile(f"(?=(?:{'|'.join(texts)}))." if texts else r"(?!)", re.DOTALL)
        self._in_answers = re.compile(f"(?=(?:{'|'.join(own)}))." if own else r"(?!)", re.DOTALL)
        self._real = re.compile("|".join(map(_with_spaces, tokens)) or r"(?!)")

    def hide(self, value: Any, stand_ins: StandIns, *, answer: bool = False) -> Any:
        """A copy of plain JSON data in which no string holds the text of a control token.

        answer: the data is an assistant's message, in which reasoning tags stay as they are.
        """
        pattern = self._in_answers if answer else self._anywhere
        if isinstance(value, str):
            return pattern.sub(lambda match: match[0].translate(stand_ins.hide), value)
        if isinstance(value, dict):
            return {
                self.hide(key, stand_ins, answer=answer): self.hide(item, stand_ins, answer=answer)
                for key, item in value.items()
            }
        return [self.hide(item, stand_ins, answer=answer) for item in value] if isinstance(value, list) else value

    def stand_ins(self, *values: Any) -> StandIns:
        """Characters that occur nowhere in the values, one for each first character of a control token."""
        text = json.dumps(values, ensure_ascii=False)
        for base in _STAND_INS:
            chosen = range(base, base + len(self._first_chars))
            if not any(chr(code) in text for code in chosen):
                return StandIns(
                    {ord(char): chr(code) for char, code in zip(self._first_chars, chosen, strict=True)},
                    {code: char for char, code in zip(self._first_chars, chosen, strict=True)},
                )
        raise ValueError("messages: the text uses the whole private-use plane 15; remove those characters")

    def pieces(self, text: str, stand_ins: StandIns) -> Iterator[tuple[str, bool]]:
        """Cut a rendered text into (text, whether it holds hidden control text), the hidden text restored.

        Cuts lie only beside real control tokens, where a tokenizer cuts too, so joining the ids of the pieces gives
        the ids of the whole.
        """
        done = begin = 0  # text[done:] is not yielded yet; text[begin:] follows the last control token
        for start, end in self._control_spans(text):
            ordinary = text[begin:start]
            restored = ordinary.translate(stand_ins.restore)
            if restored != ordinary:
                if done < begin:
                    yield text[done:begin], False
                yield restored, True
                done = start
            begin = end
        if done < len(text):
            yield text[done:], False

    def _control_spans(self, text: str) -> Iterable[tuple[int, int]]:
        yield from (match.span() for match in self._real.finditer(text))
        yield len(text), len(text)


def _with_spaces(token: ControlToken) -> str:
    left = r"\s*" if token.lstrip else ""
    right = r"\s*" if token.rstrip else ""
    return left + re.escape(token.text) + right
