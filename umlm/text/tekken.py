"""Mistral's tekken.json through tiktoken.

The file holds the bytes of each token in merge order; the special tokens come first in the id space.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiktoken

from umlm.text.backend import ControlToken
from umlm.text.pieces import JoinRules

# Files before version 8 do not list their special tokens; these are the first ids of those models.
_OLD_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


class TekkenBackend:
    """A tiktoken encoding whose ids begin after the special tokens."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """data: the parsed file. Raises KeyError or ValueError where it lacks what it must have."""
        config = data["config"]
        num_special = config["default_num_special_tokens"]
        num_ordinary = config["default_vocab_size"] - num_special
        names = _special_names(data.get("special_tokens"), num_special)
        self.control = tuple(ControlToken(name, token_id) for token_id, name in enumerate(names))
        ranks = {
            base64.b64decode(token["token_bytes"]): token["rank"] + num_special
            for token in data["vocab"]
            if token["rank"] < num_ordinary
        }
        self._special = {token.text: token.id for token in self.control}
        self._encoding = tiktoken.Encoding(
            "tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens=self._special
        )
        self.rules = JoinRules()

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return self._encoding.n_vocab

    def encode(self, text: str, *, parse_special: bool = True, at_start: bool = True) -> list[int]:
        """See Backend."""
        allowed = self._encoding.special_tokens_set if parse_special else set()
        return self._encoding.encode(text, allowed_special=allowed, disallowed_special=())

    def token_to_id(self, text: str) -> int | None:
        """See Backend."""
        try:
            return self._encoding.encode_single_token(text)
        except KeyError:
            return None

    def id_to_token(self, token_id: int) -> str | None:
        """See Backend. A token that is no whole text shows U+FFFD."""
        known = 0 <= token_id < self.vocab_size
        return self.token_bytes(token_id).decode("utf-8", "replace") if known else None

    def token_bytes(self, token_id: int) -> bytes:
        """See Backend."""
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except (KeyError, OverflowError):
            return b""


def read_tekken(path: Path) -> TekkenBackend:
    """Read a tekken.json. Raises ValueError with the file and the reason."""
    try:
        return TekkenBackend(json.loads(path.read_text("utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a tekken.json ({error!r}); download the file again") from None


def _special_names(listed: Any, count: int) -> list[str]:
    """The texts of the special tokens by id; ids without a name get one that no text is likely to hold."""
    names = {token["rank"]: token["token_str"] for token in listed} if listed else dict(enumerate(_OLD_SPECIAL))
    return [names.get(token_id, f"<SPECIAL_{token_id}>") for token_id in range(count)]
