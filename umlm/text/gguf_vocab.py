"""The tokenizer that a GGUF file carries in its metadata (keys `tokenizer.*`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.decoders import ByteFallback, ByteLevel, Fuse, Replace
from tokenizers.decoders import Sequence as DecoderSequence
from tokenizers.models import BPE as MergeModel

from umlm.text.backend import Backend, TokenizersBackend
from umlm.text.eos import end_of_turn_ids, flatten_ids
from umlm.text.gguf_pretokenizers import Kind, kind_of, pre_tokenizer
from umlm.text.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceBackend,
    Vocabulary,
    build_sentencepiece,
)
from umlm.text.sentencepiece_model import AddedToken as AddedPiece
from umlm.text.templates import ChatTemplate
from umlm.text.tokenizer import Tokenizer

_MODELS = ("gpt2", "llama", "gemma4", "t5")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file.

    metadata: GGUF key -> value (str, number, bool, or a sequence of them). Raises ValueError naming the key for a
    vocabulary that is missing, broken or of an unknown kind.
    """
    fields = _Fields(metadata)
    model = fields.text("model")
    if model not in _MODELS:
        raise ValueError(f"tokenizer.ggml.model: {model!r} is not supported; known: {', '.join(_MODELS)}")
    kind = kind_of(fields.text("pre", "default")) if model == "gpt2" else None
    backend = _merge_backend(fields, kind) if model in ("gpt2", "gemma4") else _spm_backend(fields, model)
    bos_id, eos_id = fields.token_id("bos_token_id"), fields.token_id("eos_token_id")
    template = _chat_template(metadata, fields)
    asks_bos = fields.flag("add_bos_token", kind.add_bos if kind else model != "t5")
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=_eos_ids(fields, backend, template),
        prefix_ids=[bos_id] if asks_bos and bos_id is not None else [],
        suffix_ids=[eos_id] if fields.flag("add_eos_token", model == "t5") and eos_id is not None else [],
        chat_template=template,
    )


class _Fields:
    """Typed access to the tokenizer.ggml keys."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens = [_as_text(token) for token in self.array("tokens")]
        self.types = [int(kind) for kind in self.array("token_type", [NORMAL] * len(self.tokens))]
        if not self.tokens or len(self.types) < len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml: {len(self.tokens)} tokens with {len(self.types)} types; the file is broken"
            )

    def array(self, name: str, default: Sequence[Any] | None = None) -> list[Any]:
        """A sequence; numpy arrays become lists."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if value is None:
            raise ValueError(f"tokenizer.ggml.{name}: missing; this GGUF file has no vocabulary, use another file")
        if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            raise ValueError(f"tokenizer.ggml.{name}: {value!r} is not an array; the file is broken")
        return value.tolist() if hasattr(value, "tolist") else list(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if value is None:
            raise ValueError(f"tokenizer.ggml.{name}: missing; this GGUF file has no tokenizer, use another file")
        return _as_text(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._metadata.get(f"tokenizer.ggml.{name}", default))

    def token_id(self, name: str) -> int | None:
        """A token id; None where it is missing or outside the vocabulary."""
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        return int(value) if value is not None and 0 <= int(value) < len(self.tokens) else None

    def ids_of(self, *kinds: int) -> list[int]:
        """Ids of all tokens of these types."""
        return [token_id for token_id, kind in enumerate(self.types[: len(self.tokens)]) if kind in kinds]


def _merge_backend(fields: _Fields, kind: Kind | None) -> TokenizersBackend:
    """BPE by merges: byte-level with a pre-tokenizer kind, or (kind None) raw text with byte fallback, as Gemma 4."""
    vocabulary = {token: token_id for token_id, token in enumerate(fields.tokens)}
    if len(vocabulary) < len(fields.tokens):
        raise ValueError("tokenizer.ggml.tokens: a token occurs twice; the file is broken")
    merges = _merges(fields.array("merges"))
    if not merges:
        raise ValueError("tokenizer.ggml.merges: empty; the file was converted wrongly, use another file")
    tokenizer = HFTokenizer(_merge_model(vocabulary, merges, kind))
    if kind is None:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = DecoderSequence([Replace("▁", " "), ByteFallback(), Fuse()])
    else:
        tokenizer.normalizer = normalizers.NFC() if kind.nfc else None
        tokenizer.pre_tokenizer = pre_tokenizer(kind)
        tokenizer.decoder = ByteLevel()
    tokenizer.add_tokens(_added(fields))
    return TokenizersBackend(tokenizer)


def _merge_model(vocabulary: dict[str, int], merges: list[tuple[str, str]], kind: Kind | None) -> MergeModel:
    try:
        if kind is None:
            return MergeModel(vocabulary, merges, byte_fallback=True, fuse_unk=True)
        return MergeModel(vocabulary, merges, ignore_merges=kind.whole_words)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer.ggml.merges: do not fit the tokens ({error}); the file is broken") from None


def _merges(values: list[Any]) -> list[tuple[str, str]]:
    """All merges; the usual form, two pieces with one space, is cut at C's speed."""
    pairs: list[Any] = [tuple(merge.split(" ")) if isinstance(merge, str) else () for merge in values]
    for index, pair in enumerate(pairs):
        if len(pair) != 2 or not pair[0]:
            pairs[index] = _merge(values[index])
    return pairs


def _merge(merge: Any) -> tuple[str, str]:
    """A merge written as a pair, or as two pieces with a space between (the first may begin with one)."""
    if isinstance(merge, list | tuple) and len(merge) == 2:
        return _as_text(merge[0]), _as_text(merge[1])
    text = _as_text(merge)
    cut = text.find(" ", 1)
    if cut < 0:
        raise ValueError(f"tokenizer.ggml.merges: {text!r} is not two pieces; the file is broken")
    return text[:cut], text[cut + 1 :]


def _added(fields: _Fields) -> list[AddedToken]:
    """Control tokens as special ones, user-defined ones as added ones, both matched in raw text."""
    special = set(fields.ids_of(CONTROL, UNKNOWN))
    return [
        AddedToken(fields.tokens[token_id], special=token_id in special, normalized=False)
        for token_id in fields.ids_of(CONTROL, UNKNOWN, USER_DEFINED)
        if fields.tokens[token_id]
    ]


def _spm_backend(fields: _Fields, model: str) -> SentencePieceBackend:
    """A sentencepiece vocabulary: scores and byte fallback (llama), or Unigram (t5)."""
    scores = [float(score) for score in fields.array("scores")]
    if len(scores) < len(fields.tokens):
        raise ValueError(f"tokenizer.ggml.scores: {len(scores)} for {len(fields.tokens)} tokens; the file is broken")
    types, pieces = _spm_types(fields), _spm_pieces(fields)
    add_prefix = fields.flag("add_space_prefix", True)
    processor = build_sentencepiece(
        Vocabulary(
            pieces,
            scores[: len(pieces)],
            types,
            algorithm=UNIGRAM if model == "t5" else BPE,
            add_space_prefix=add_prefix,
            remove_extra_spaces=fields.flag("remove_extra_whitespaces", False),
            charsmap=bytes(fields.array("precompiled_charsmap", ())),
        )
    )
    # With a space before every text, added tokens must be cut out first, or a lone space would come before them.
    cut_first = fields.ids_of(USER_DEFINED) if add_prefix else []
    return SentencePieceBackend(processor, types, {fields.tokens[i]: AddedPiece(i, False) for i in cut_first})


def _spm_types(fields: _Fields) -> list[int]:
    """Types in which exactly one token is the unknown one, as sentencepiece demands."""
    types = [kind if kind in range(1, 7) else NORMAL for kind in fields.types[: len(fields.tokens)]]
    unknown = fields.token_id("unknown_token_id")
    listed = fields.ids_of(UNKNOWN)
    chosen = unknown if unknown is not None else next(iter(listed), 0)
    for token_id in listed:
        types[token_id] = UNUSED
    types[chosen] = UNKNOWN
    return types


def _spm_pieces(fields: _Fields) -> list[str]:
    """Pieces with spaces marked; sentencepiece takes no piece twice or empty, so those get a name of their own."""
    seen: set[str] = set()
    pieces = []
    for token_id, token in enumerate(fields.tokens):
        piece = token.replace(" ", "▁")
        piece = piece if piece and piece not in seen else f"<unused-{token_id}>"
        seen.add(piece)
        pieces.append(piece)
    return pieces


def _eos_ids(fields: _Fields, backend: Backend, template: ChatTemplate | None) -> set[int]:
    ids = flatten_ids(*(fields.token_id(name) for name in ("eos_token_id", "eot_token_id", "eom_token_id")))
    return ids if template is None else ids | set(end_of_turn_ids(backend, template.sources.values()))


def _chat_template(metadata: Mapping[str, Any], fields: _Fields) -> ChatTemplate | None:
    """tokenizer.chat_template and tokenizer.chat_template.NAME."""
    prefix = "tokenizer.chat_template"
    sources = {
        "default" if key == prefix else key[len(prefix) + 1 :]: _as_text(value)
        for key, value in metadata.items()
        if key == prefix or key.startswith(prefix + ".")
    }
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
             "pad_token": "padding_token_id"}  # fmt: skip
    variables = {name: fields.tokens[i] for name, key in names.items() if (i := fields.token_id(key)) is not None}
    return ChatTemplate(sources, variables=variables) if sources else None


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
