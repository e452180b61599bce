"""How the pieces of a vocabulary become text.

Every known decoder is two things: a function from one piece to its true bytes, and what is done to the joined text
(one leading space dropped, punctuation spacing cleaned). That is what makes streaming exact: bytes go through one
incremental UTF-8 decoder, and nothing already shown can change.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ONE_MARK_PER_BYTE = "umlm-one-mark-per-byte"


def _one_mark_per_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_ONE_MARK_PER_BYTE, _one_mark_per_byte)


class JoinRules(NamedTuple):
    """What happens to the joined bytes of a text."""

    errors: str = "replace"  # codec error handler for bytes that are no UTF-8
    strip_leading: int = 0  # how many leading spaces the decoder drops
    clean_up: bool = False  # undo the spaces that word-level vocabularies put before punctuation

    def text(self, data: bytes) -> str:
        """The text of all bytes at once."""
        text = self.strip(data.decode("utf-8", self.errors))
        return clean_up(text) if self.clean_up else text

    def strip(self, text: str) -> str:
        """Drop at most `strip_leading` spaces from the start."""
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self.strip_leading) :]


BYTE_FALLBACK_ERRORS = _ONE_MARK_PER_BYTE  # sentencepiece shows one U+FFFD for each bad byte


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's map of printable stand-ins to bytes: printable Latin-1 is itself, the others follow from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_LEVEL = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """True bytes of a byte-level piece; a piece with other characters stands for itself."""
    try:
        return bytes(BYTE_LEVEL[char] for char in piece)
    except KeyError:
        return piece.encode("utf-8")


def byte_fallback_bytes(piece: str) -> bytes:
    """True bytes of a sentencepiece piece after its spaces were restored: `<0x0A>` is one byte."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.encode("utf-8")


class PieceRules(NamedTuple):
    """A compiled decoder: piece -> bytes, and the rules for the joined text."""

    piece_bytes: Callable[[str], bytes]
    join: JoinRules
    byte_level: bool = False


def compile_decoder(decoder: Mapping[str, Any] | None, pre_tokenizer: Mapping[str, Any] | None) -> PieceRules:
    """Compile the decoder of a tokenizer.json.

    decoder, pre_tokenizer: their JSON objects, or None. A byte-level pre-tokenizer decides alone: some files pair it
    with a sentencepiece-shaped decoder that would leave the stand-ins of spaces in the text.
    Raises ValueError for a decoder that is not known.
    """
    steps = _flatten(decoder, "decoders")
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds or any(p["type"] == "ByteLevel" for p in _flatten(pre_tokenizer, "pretokenizers")):
        return PieceRules(byte_level_bytes, JoinRules(), byte_level=True)
    if not steps:  # tokenizers joins pieces with a space where no decoder is set
        return PieceRules(lambda piece: b" " + piece.encode("utf-8"), JoinRules(strip_leading=1))
    edits = [edit for step in steps if (edit := _piece_edit(step)) is not None]
    to_bytes = byte_fallback_bytes if "ByteFallback" in kinds else _utf8
    join = JoinRules(
        errors=BYTE_FALLBACK_ERRORS if "ByteFallback" in kinds else "replace",
        strip_leading=max(map(_leading_spaces, steps)),
        clean_up=any(step["type"] == "WordPiece" and step.get("cleanup", True) for step in steps),
    )
    return PieceRules(lambda piece: to_bytes(_apply(edits, piece)), join)


def _utf8(piece: str) -> bytes:
    return piece.encode("utf-8")


def _apply(edits: Sequence[Callable[[str], str]], piece: str) -> str:
    for edit in edits:
        piece = edit(piece)
    return piece


def _flatten(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for child in part[key] for step in _flatten(child, key)]
    return [part]


def _piece_edit(step: Mapping[str, Any]) -> Callable[[str], str] | None:
    """What one decoder step does to a piece, or None for steps that act on the joined text only."""
    kind = step["type"]
    if kind == "Replace" and "String" in step["pattern"]:
        old, new = step["pattern"]["String"], step["content"]
        return lambda piece: piece.replace(old, new)
    if kind == "Replace":
        pattern, new = re.compile(step["pattern"]["Regex"]), step["content"]
        return lambda piece: pattern.sub(lambda _: new, piece)
    if kind == "Metaspace":
        mark = step.get("replacement", "▁")
        return lambda piece: piece.replace(mark, " ")
    if kind == "WordPiece":
        prefix = step.get("prefix", "##")
        return lambda piece: piece[len(prefix) :] if piece.startswith(prefix) else " " + piece
    if kind in ("ByteFallback", "Fuse") or (kind == "Strip" and not step.get("stop")):
        return None
    raise ValueError(
        f"tokenizer.json: decoder {kind!r} is not supported; known: ByteFallback, ByteLevel, Fuse, Metaspace, "
        "Replace, Sequence, Strip (start only), WordPiece"
    )


def _leading_spaces(step: Mapping[str, Any]) -> int:
    """How many leading spaces of the whole text a decoder step drops."""
    if step["type"] == "Strip" and step["content"] == " ":
        return step["start"]
    if step["type"] == "Metaspace":
        return 0 if step.get("prepend_scheme", "always") == "never" else 1
    return 1 if step["type"] == "WordPiece" else 0


_CLEAN_UPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
# Text up to here cannot change any more: every clean-up is a space and at most three characters after it.
_SETTLED = re.compile(r".*(?:\S{4}|[^\s'nvr](?= ))", re.DOTALL)


def clean_up(text: str) -> str:
    """Undo the spaces before punctuation (`clean_up_tokenization_spaces` of Hugging Face's tokenizers)."""
    for old, new in _CLEAN_UPS:
        text = text.replace(old, new)
    return text


def settled_length(text: str) -> int:
    """How many leading characters of an unfinished text can be cleaned now, whatever follows."""
    match = _SETTLED.match(text)
    return match.end() if match else 0
