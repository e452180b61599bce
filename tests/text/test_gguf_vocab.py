"""Vocabularies from GGUF metadata: byte-level BPE and its pre-tokenizer kinds, special tokens, broken metadata."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from small_vocabularies import CHATML, byte_level, sentencepiece_model
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from umlm.text import tokenizer_from_gguf
from umlm.text.gguf_pretokenizers import KINDS, kind_of, pre_tokenizer

STORED = json.loads((Path(__file__).parent / "data" / "pretokenizers.json").read_text("utf-8"))
TEXTS = STORED["texts"]


def metadata_of(library, **fields):
    """A trained byte-level tokenizer as GGUF states it; its added tokens are control tokens."""
    state = json.loads(library.to_str())
    tokens = sorted(library.get_vocab(), key=library.get_vocab().get)
    special = {token["content"] for token in state["added_tokens"]}
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token in special else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in state["model"]["merges"]],
        **fields,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.mark.parametrize("kind", STORED["kinds"])
def test_kinds_cut_as_published_tokenizers_do(kind):
    """Llama 3.1, Qwen 3, DeepSeek V3 and gpt-oss (data/make_pretokenizers.py)."""
    cut = pre_tokenizer(kind_of(kind)).pre_tokenize_str
    for text, pieces in zip(TEXTS, STORED["kinds"][kind], strict=True):
        assert [piece for piece, _ in cut(text)] == pieces


PARTS = pre_tokenizers
LIBRARY_KINDS = {
    "gpt-2": [PARTS.ByteLevel(add_prefix_space=False)],
    "smollm": [PARTS.Digits(individual_digits=True), PARTS.ByteLevel(add_prefix_space=False)],
    "starcoder": [PARTS.Digits(individual_digits=True), PARTS.ByteLevel(add_prefix_space=False)],
    "falcon": [
        PARTS.Punctuation("contiguous"),
        PARTS.ByteLevel(add_prefix_space=False),
        PARTS.Digits(individual_digits=False),
        PARTS.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ],
}


@pytest.mark.parametrize("kind", LIBRARY_KINDS)
def test_kinds_cut_as_the_library_s_own_parts_do(kind):
    """Families whose tokenizer.json uses named parts instead of patterns."""
    ours = pre_tokenizer(kind_of(kind)).pre_tokenize_str
    library = pre_tokenizers.Sequence(LIBRARY_KINDS[kind]).pre_tokenize_str
    ascii_only = [text for text in TEXTS if text.isascii()]
    # In Falcon's file digits are cut after the byte-level step, which hides digits beyond ASCII.
    for text in ascii_only if kind == "falcon" else TEXTS:
        assert [piece for piece, _ in ours(text)] == [piece for piece, _ in library(text)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_loses_text(kind):
    cut = pre_tokenizer(kind_of(kind)).pre_tokenize_str
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    for text in TEXTS:
        assert "".join(piece for piece, _ in cut(text)) == "".join(piece for piece, _ in whole(text))


def test_unknown_kind_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre: unknown pre-tokenizer 'nope'; known: a\.x-4\.0"):
        tokenizer_from_gguf(metadata_of(byte_level(), pre="nope"))


@pytest.mark.parametrize("form", ["strings", "pairs", "numpy", "bytes"])
def test_ids_equal_the_library_s(form):
    """T17: a vocabulary written to GGUF and read back; merges in either spelling."""
    library = byte_level(CHATML)
    metadata = metadata_of(library)
    if form == "pairs":
        metadata["tokenizer.ggml.merges"] = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    if form == "numpy":
        metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    if form == "bytes":
        metadata["tokenizer.ggml.tokens"] = [token.encode() for token in metadata["tokenizer.ggml.tokens"]]
    tokenizer = tokenizer_from_gguf(metadata)
    for text in [*TEXTS, "the<|im_end|>dog", "Hello! do not stop"]:
        ids = library.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == library.decode(ids)
    assert tokenizer.vocab_size == library.get_vocab_size()


def test_missing_pre_is_the_default_kind():
    tokenizer = tokenizer_from_gguf(metadata_of(byte_level(), pre=None))
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


def test_token_types():
    """Control tokens are special, user-defined ones are matched and shown, unused ones are neither."""
    library = byte_level()
    metadata = metadata_of(library)
    metadata["tokenizer.ggml.tokens"] += ["<ctl>", "<usr>", "<pad9>"]
    metadata["tokenizer.ggml.token_type"] += [3, 4, 5]
    tokenizer = tokenizer_from_gguf(metadata)
    size = library.get_vocab_size()
    ids = tokenizer.encode("a<ctl><usr><pad9>")
    assert size in ids and size + 1 in ids and size + 2 not in ids
    assert tokenizer.decode(ids) == "a<usr><pad9>"
    assert tokenizer.special_ids == {size}
    assert size not in tokenizer.encode("<ctl>", parse_special=False)


@pytest.mark.parametrize(
    ("pre", "add_bos", "want"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("gpt-2", False, False), ("llama-bpe", None, True),
     ("llama-bpe", False, False), ("tekken", None, True), ("qwen2", None, False)],
)  # fmt: skip
def test_bos_only_when_asked(pre, add_bos, want):
    """T10: byte-level vocabularies get a BOS if the file, or its kind where the file is silent, asks for one."""
    library = byte_level(CHATML)
    bos = library.token_to_id("<|im_start|>")
    tokenizer = tokenizer_from_gguf(metadata_of(library, pre=pre, bos_token_id=bos, add_bos_token=add_bos))
    assert tokenizer.add_bos is want
    assert tokenizer.encode("x").count(bos) == int(want)
    assert tokenizer.encode("<|im_start|>x").count(bos) == 1


def test_end_ids_and_templates():
    """T08: eos, eot and eom ids, and the end-of-turn token that the template writes; named templates."""
    library = byte_level(("<e>", "<t>", "<m>", *CHATML))
    ids = {name: library.token_to_id(text) for name, text in (("eos", "<e>"), ("eot", "<t>"), ("eom", "<m>"))}
    metadata = metadata_of(
        library,
        add_eos_token=True,
        bos_token_id=99_999,
        **{f"{name}_token_id": token_id for name, token_id in ids.items()},
    )
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}{{ eos_token }}<|im_end|>"
    metadata["tokenizer.chat_template.rag"] = "rag"
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.eos_ids == {*ids.values(), tokenizer.token_to_id("<|im_end|>")}
    assert tokenizer.bos_id is None and tokenizer.encode("x")[-1] == ids["eos"]
    assert tokenizer.render([{"role": "user", "content": "x"}]) == "x<e><|im_end|>"
    assert tokenizer.render([{"role": "user", "content": "x"}], template_name="rag") == "rag"


def test_whole_words_win_over_merges():
    """Llama 3 takes a word that is a token without merging, as its tokenizer.json says (ignore_merges)."""
    library = byte_level()
    metadata = metadata_of(library, pre="llama-bpe")
    metadata["tokenizer.ggml.tokens"].append("zzqzz")
    metadata["tokenizer.ggml.token_type"].append(1)
    assert tokenizer_from_gguf(metadata).encode("zzqzz") == [library.get_vocab_size()]
    metadata["tokenizer.ggml.pre"] = "gpt-2"
    assert len(tokenizer_from_gguf(metadata).encode("zzqzz")) > 1


def test_gemma4_style_merges():
    """Merges over raw text with space marks and byte pieces, as the library's own BPE does it."""
    pieces = ["<unk>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcd", "ab", "▁c", "▁cd"]
    merges = [("a", "b"), ("▁", "c"), ("▁c", "d")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    library = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [2, 3, *[6] * 256, *[1] * 8],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = tokenizer_from_gguf(metadata)
    for text in ("ab cd", " ab  字\n", "<unk"):
        assert tokenizer.encode(text) == [1, *library.encode(text).ids]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def spm_metadata(**fields):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    keys = {
        "model": "llama",
        "tokens": pieces,
        "scores": [0.0] * 259 + [-4.0, -3.0, -2.0, -1.0],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * 4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **fields,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def test_spm_oddities():
    """User-defined tokens get no space before them; duplicate or empty pieces and a missing unknown are survived."""
    base = spm_metadata()
    more = {
        "tokenizer.ggml.tokens": [*base["tokenizer.ggml.tokens"], "<|x|>", "a", "", "<extra>"],
        "tokenizer.ggml.scores": [*base["tokenizer.ggml.scores"], 0.0, 0.0, 0.0, 0.0],
        "tokenizer.ggml.token_type": [1, 3, 3, *[6] * 256, *[1] * 4, 4, 1, 1, 3],
    }
    tokenizer = tokenizer_from_gguf({**base, **more})
    x = tokenizer.token_to_id("<|x|>")
    assert tokenizer.encode("<|x|>a") == [1, x, tokenizer.token_to_id("▁a")]
    assert tokenizer.decode(tokenizer.encode("a<|x|>字")) == "a<|x|> 字"
    assert tokenizer.vocab_size == len(more["tokenizer.ggml.tokens"])


def test_t5_unigram_equals_sentencepiece():
    """A Unigram vocabulary, with an EOS behind every text."""
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model("unigram"))
    ids = list(range(library.get_piece_size()))
    flags = zip(library.is_control(ids), library.is_unknown(ids), library.is_byte(ids), strict=True)
    types = [3 if c else 2 if u else 6 if b else 1 for c, u, b in flags]
    types[library.piece_to_id("<tag>")] = 4
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": library.id_to_piece(ids),
        "tokenizer.ggml.scores": library.get_score(ids),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = tokenizer_from_gguf(metadata)
    for text in ("the quick brown fox", "Hello! 字", " spaces   many "):
        assert tokenizer.encode(text) == [*library.encode(text), 2]


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, r"tokenizer\.ggml\.tokens: missing"),
        ({"tokenizer.ggml.tokens": ["a"]}, r"tokenizer\.ggml\.model: missing"),
        (metadata_of(byte_level(), model="bert"), "'bert' is not supported; known: gpt2, llama"),
        (metadata_of(byte_level(), merges=[]), "merges: empty"),
        (metadata_of(byte_level(), merges=None), "merges: missing"),
        (metadata_of(byte_level(), merges=["ab"]), "'ab' is not two pieces"),
        (metadata_of(byte_level(), merges=["字 字"]), "do not fit the tokens"),
        (metadata_of(byte_level(), tokens=["a", "a"]), "occurs twice"),
        (metadata_of(byte_level(), token_type=[1]), "tokens with 1 types"),
        (metadata_of(byte_level(), tokens="abc"), "is not an array"),
        (metadata_of(byte_level(), tokens=[]), "0 tokens"),
        (spm_metadata(scores=None), "scores: missing"),
        (spm_metadata(scores=[0.0]), "1 for 263 tokens"),
    ],
)
def test_broken_metadata_is_named(metadata, complaint):
    with pytest.raises(ValueError, match=complaint):
        tokenizer_from_gguf(metadata)
