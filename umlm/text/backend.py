"""The small protocol behind Tokenizer, and the tokenizers-library backend.

Others: sentencepiece_model.py (SPM vocabularies), tekken.py (Mistral's tekken.json through tiktoken).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.pre_tokenizers import Metaspace

from umlm.text.pieces import JoinRules, compile_decoder


class ControlToken(NamedTuple):
    """A special token: its text, its id, and whether it swallows white space beside it."""

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


class Backend(Protocol):
    """What Tokenizer needs from a vocabulary. Ids are ints; no special token is added by any method."""

    rules: JoinRules
    control: tuple[ControlToken, ...]

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""

    def encode(self, text: str, *, parse_special: bool = True, at_start: bool = True) -> list[int]:
        """Ids of a text; parse_special False: the text of a control token is ordinary text.

        at_start False: the text continues an earlier one, so no space is put before it where only a text's
        beginning gets one.
        """

    def token_to_id(self, text: str) -> int | None:
        """Id of a token by its text in the vocabulary."""

    def id_to_token(self, token_id: int) -> str | None:
        """Text of a token in the vocabulary; None for an id that it does not hold."""

    def token_bytes(self, token_id: int) -> bytes:
        """True bytes of a token; empty for an id that the vocabulary does not hold."""


class TokenizersBackend:
    """A `tokenizers.Tokenizer`. `prefix_ids` and `suffix_ids` are what its post-processor puts around a text."""

    def __init__(self, tokenizer: HFTokenizer, *, clean_up: bool = False) -> None:
        """clean_up: clean_up_tokenization_spaces of the configuration; it is ignored for BPE, where it would
        destroy true spaces (as transformers 5 does)."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._lock = Lock()  # encode_special_tokens is a switch on the shared object
        decoder = compile_decoder(_state(tokenizer.decoder), _state(tokenizer.pre_tokenizer))
        self._piece_bytes, self._byte_level = decoder.piece_bytes, decoder.byte_level
        is_bpe = type(tokenizer.model).__name__ == "BPE"
        self.rules = decoder.join._replace(clean_up=decoder.join.clean_up or (clean_up and not is_bpe))
        self._added = tokenizer.get_added_tokens_decoder()
        self.control = tuple(_control(i, token) for i, token in self._added.items() if token.special)
        self.prefix_ids, self.suffix_ids = _surroundings(tokenizer)
        self._start_scheme, self._inner_scheme = _metaspace_schemes(tokenizer.pre_tokenizer)
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, parse_special: bool = True, at_start: bool = True) -> list[int]:
        """See Backend."""
        with self._lock:
            self._tokenizer.encode_special_tokens = not parse_special
            if at_start or self._inner_scheme is None:
                return self._tokenizer.encode(text, add_special_tokens=False).ids
            self._tokenizer.pre_tokenizer = self._inner_scheme
            try:
                return self._tokenizer.encode(text, add_special_tokens=False).ids
            finally:
                self._tokenizer.pre_tokenizer = self._start_scheme

    def token_to_id(self, text: str) -> int | None:
        """See Backend."""
        return self._tokenizer.token_to_id(text)

    def id_to_token(self, token_id: int) -> str | None:
        """See Backend."""
        return self._tokenizer.id_to_token(token_id) if token_id >= 0 else None

    def token_bytes(self, token_id: int) -> bytes:
        """See Backend."""
        if token_id not in self._bytes:
            self._bytes[token_id] = self._compute_bytes(token_id)
        return self._bytes[token_id]

    def _compute_bytes(self, token_id: int) -> bytes:
        piece = self.id_to_token(token_id)
        if piece is None:
            return b""
        # An added token of a byte-level vocabulary is written as it is, not in stand-ins.
        if self._byte_level and token_id in self._added:
            return piece.encode("utf-8")
        return self._piece_bytes(piece)


def read_tokenizer_json(path: Path) -> HFTokenizer:
    """Read a tokenizer.json. Raises ValueError with the file and the reason."""
    try:
        return HFTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path}: not a readable tokenizer.json ({error}); download the file again") from None


def _state(component: Any) -> Mapping[str, Any] | None:
    """The JSON object of a tokenizers component, or None."""
    return None if component is None else json.loads(component.__getstate__())


def _control(token_id: int, token: AddedToken) -> ControlToken:
    return ControlToken(token.content, token_id, token.lstrip, token.rstrip)


def _surroundings(tokenizer: HFTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    extra = len(full) - len(bare)
    for begin in range(extra + 1):
        if full[begin : begin + len(bare)] == bare:
            return tuple(full[:begin]), tuple(full[begin + len(bare) :])
    return (), ()


def _metaspace_schemes(pre_tokenizer: Any) -> tuple[Any, Any]:
    """(as it is, one for text that continues) where only the first piece of a text gets a space; else (.., None)."""
    state = _state(pre_tokenizer)
    if state is None or state["type"] != "Metaspace" or state["prepend_scheme"] != "first":
        return pre_tokenizer, None
    inner = Metaspace(state["replacement"], prepend_scheme="never", split=state.get("split", True))
    return pre_tokenizer, inner
