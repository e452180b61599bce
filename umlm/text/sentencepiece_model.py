"""SPM vocabularies through the sentencepiece library: `.model` files, and vocabularies given piece by piece.

GGUF files hold the pieces, scores and types of a sentencepiece model, not the model; `model_proto` writes them back
in sentencepiece's own format (sentencepiece_model.proto), so the library itself does the encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from umlm.text.backend import ControlToken
from umlm.text.pieces import BYTE_FALLBACK_ERRORS, JoinRules, byte_fallback_bytes
from umlm.text.special_split import SpecialSplit

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
_SCORE = struct.Struct("<Bf")  # field 2, a float
_KINDS = [bytes((0x18, kind)) for kind in range(BYTE + 1)]  # field 3, an enum


class Vocabulary(NamedTuple):
    """A sentencepiece vocabulary piece by piece. `types` are the numbers above (GGUF uses the same)."""

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    algorithm: int = BPE
    add_space_prefix: bool = True
    remove_extra_spaces: bool = False
    charsmap: bytes = b""


class AddedToken(NamedTuple):
    """A token that the model adds to its sentencepiece vocabulary."""

    id: int
    special: bool


class SentencePieceBackend:
    """A sentencepiece model; control tokens are found in text on request, added ones always."""

    def __init__(
        self,
        processor: SentencePieceProcessor,
        types: Sequence[int],
        added: Mapping[str, AddedToken] | None = None,
    ) -> None:
        """types: one per piece; added: text -> token beyond or over the vocabulary."""
        self._processor = processor
        self._types = types
        self._added = dict(added or {})
        self._added_texts = {token.id: text for text, token in self._added.items()}
        self.control = tuple(self._control_tokens())
        special = {token.text: token.id for token in self.control}
        always = {text: token.id for text, token in self._added.items() if not token.special}
        self._split = SpecialSplit(special, always)
        adds_space = processor.encode("a", out_type=str)[:1] in (["▁a"], ["▁"])
        self.rules = JoinRules(BYTE_FALLBACK_ERRORS, strip_leading=int(adds_space))

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return max(self._processor.get_piece_size(), *(token_id + 1 for token_id in self._added_texts), 0)

    def encode(self, text: str, *, parse_special: bool = True, at_start: bool = True) -> list[int]:
        """See Backend. Each stretch between special tokens is encoded by itself, as sentencepiece models are used."""
        ids: list[int] = []
        for part in self._split.split(text, parse_special):
            ids += [part] if isinstance(part, int) else self._processor.encode(part)
        return ids

    def token_to_id(self, text: str) -> int | None:
        """See Backend."""
        if text in self._added:
            return self._added[text].id
        token_id = self._processor.piece_to_id(text)
        return token_id if self._processor.id_to_piece(token_id) == text else None

    def id_to_token(self, token_id: int) -> str | None:
        """See Backend."""
        if token_id in self._added_texts:
            return self._added_texts[token_id]
        return self._processor.id_to_piece(token_id) if 0 <= token_id < len(self._types) else None

    def token_bytes(self, token_id: int) -> bytes:
        """See Backend."""
        piece = self.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._added_texts:
            return piece.encode("utf-8")
        piece = piece.replace("▁", " ")
        return byte_fallback_bytes(piece) if self._types[token_id] == BYTE else piece.encode("utf-8")

    def _control_tokens(self) -> Iterable[ControlToken]:
        for token_id, kind in enumerate(self._types):
            if kind in (CONTROL, UNKNOWN) and token_id not in self._added_texts:
                yield ControlToken(self._processor.id_to_piece(token_id), token_id)
        yield from (ControlToken(text, token.id) for text, token in self._added.items() if token.special)


def read_sentencepiece(path: Path, added: Mapping[str, AddedToken] | None = None) -> SentencePieceBackend:
    """Read a `.model` file. Raises ValueError with the file and the reason."""
    content = path.read_bytes()
    try:
        processor = _processor(content)
    except RuntimeError as error:
        raise ValueError(f"{path}: not a sentencepiece model ({error}); download the file again") from None
    if not content:  # the library takes empty content for no model at all
        raise ValueError(f"{path}: the file is empty; download it again")
    ids = list(range(processor.get_piece_size()))
    flags = zip(
        processor.is_control(ids), processor.is_unknown(ids), processor.is_byte(ids), processor.is_unused(ids),
        strict=True,
    )  # fmt: skip
    types = [CONTROL if c else UNKNOWN if u else BYTE if b else UNUSED if n else NORMAL for c, u, b, n in flags]
    return SentencePieceBackend(processor, types, added)


def build_sentencepiece(vocabulary: Vocabulary) -> SentencePieceProcessor:
    """A processor for a vocabulary given piece by piece. Raises ValueError where sentencepiece refuses it."""
    try:
        return _processor(model_proto(vocabulary))
    except RuntimeError as error:
        raise ValueError(f"tokenizer: sentencepiece refuses this vocabulary ({error})") from None


def _processor(proto: bytes) -> SentencePieceProcessor:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=proto)


def model_proto(vocabulary: Vocabulary) -> bytes:
    """The vocabulary as a serialized sentencepiece ModelProto."""
    pieces = b"".join(map(_piece, vocabulary.pieces, vocabulary.scores, vocabulary.types))
    byte_fallback = sum(kind == BYTE for kind in vocabulary.types) == 256
    trainer = _number(3, vocabulary.algorithm) + _number(35, int(byte_fallback))
    normalizer = (
        _message(1, b"identity")
        + _message(2, vocabulary.charsmap)
        + _number(3, int(vocabulary.add_space_prefix))
        + _number(4, int(vocabulary.remove_extra_spaces))
        + _number(5, 1)
    )
    return pieces + _message(2, trainer) + _message(3, normalizer)


def _piece(text: str, score: float, kind: int) -> bytes:
    """A SentencePiece message, field 1 of the model. Written out, as a vocabulary has hundreds of thousands."""
    data = text.encode("utf-8")
    body = b"\x0a" + _varint(len(data)) + data + _SCORE.pack(0x15, score) + _KINDS[kind]
    return b"\x0a" + _varint(len(body)) + body


def _message(field: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    """A varint protobuf field."""
    return _varint(field << 3) + _varint(value)


@lru_cache(maxsize=4096)
def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)
