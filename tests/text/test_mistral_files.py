"""The tokenizer files that mistral-common ships: real sentencepiece and tekken vocabularies, and its own encoders."""

from functools import cache
from pathlib import Path

import mistral_common
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer

from umlm.text import tokenizer_from_folder, tokenizer_from_gguf

FILES = Path(mistral_common.__file__).parent / "data"
MODELS = sorted(path.name for path in FILES.glob("*.model.v*"))
V3 = "mistral_instruct_tokenizer_240323.model.v3"
TEXTS = [
    "Hello, world! 12345 don't\n\n  indented\tcode {}  ",
    "Über naïve café – 東京タワー🗼 привет مرحبا नमस्ते 안녕",
    " leading", "trailing ", "", " ", "\n", "a\u00a0b\u3000c e\u0301", "    four   three  two", "ℝ∑\x00\x07",
    "aaaaaaaaaaaaaaa bbbbbb =========", "<unused> [INST] text",
]  # fmt: skip


@cache
def from_file(tmp: Path, name: str):
    folder = tmp / name
    folder.mkdir()
    (folder / ("tekken.json" if "tekken" in name else "tokenizer.model")).symlink_to(FILES / name)
    return tokenizer_from_folder(folder)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("mistral")


def test_the_files_are_there():
    assert len(MODELS) >= 4


@pytest.mark.parametrize("name", MODELS)
def test_sentencepiece_files_equal_the_library(tmp, name):
    tokenizer = from_file(tmp, name)
    library = sentencepiece.SentencePieceProcessor(model_file=str(FILES / name))
    for text in TEXTS:
        ids = library.encode(text)
        assert tokenizer.encode(text, bos=False, parse_special=False) == ids
        assert tokenizer.encode(text, parse_special=False) == [1, *ids]
        assert tokenizer.decode(ids) == library.decode(ids)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (library.get_piece_size(), 1, {2})


def test_control_pieces_are_parsed_on_request(tmp):
    """mistral-common itself puts these ids between separately encoded texts."""
    tokenizer = from_file(tmp, V3)
    library = sentencepiece.SentencePieceProcessor(model_file=str(FILES / V3))
    inst, end = library.piece_to_id("[INST]"), library.piece_to_id("[/INST]")
    want = [1, inst, *library.encode(" hi"), end]
    assert tokenizer.encode("<s>[INST] hi[/INST]") == want
    assert inst not in tokenizer.encode("[INST] hi", parse_special=False)


def gguf_of(name):
    """The vocabulary as a GGUF file states it."""
    library = sentencepiece.SentencePieceProcessor(model_file=str(FILES / name))
    ids = list(range(library.get_piece_size()))
    flags = zip(library.is_control(ids), library.is_unknown(ids), library.is_byte(ids), strict=True)
    return library, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": library.id_to_piece(ids),
        "tokenizer.ggml.scores": library.get_score(ids),
        "tokenizer.ggml.token_type": [3 if c else 2 if u else 6 if b else 1 for c, u, b in flags],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@cache
def rebuilt():
    library, metadata = gguf_of(V3)
    return library, tokenizer_from_gguf(metadata)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=60), st.text("ab \n.字é_", max_size=60)))
def test_gguf_spm_vocabulary_equals_the_library(text):
    """Pieces, scores and types are enough to get the ids of the original model, for any text."""
    text = text.encode("utf-8", "replace").decode()
    library, tokenizer = rebuilt()
    ids = library.encode(text)
    assert tokenizer.encode(text, bos=False, parse_special=False) == ids
    assert tokenizer.decode(ids) == library.decode(ids)


def test_gguf_spm_without_space_prefix():
    _, metadata = gguf_of(V3)
    tokenizer = tokenizer_from_gguf({**metadata, "tokenizer.ggml.add_space_prefix": False})
    a = tokenizer.encode("hello there", bos=False)
    assert [tokenizer.id_to_token(i) for i in a] == ["hello", "▁there"]
    assert tokenizer.decode(tokenizer.encode(" x", bos=False)) == " x"


@cache
def tekken(tmp):
    library = Tekkenizer.from_file(FILES / "tekken_240911.json")
    return library, from_file(tmp, "tekken_240911.json")


def test_tekken_equals_mistral_common(tmp):
    library, tokenizer = tekken(tmp)
    for text in TEXTS:
        ids = library.encode(text, bos=False, eos=False)
        assert tokenizer.encode(text, bos=False, parse_special=False) == ids
        assert tokenizer.encode(text, parse_special=False) == [1, *ids]
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    for token_id in (0, 1, 2, 3, 17, 19, 20, 999):
        assert tokenizer.id_to_token(token_id) == library.id_to_piece(token_id)
    for token_id in (1000, 1232, 5000, 130_000):
        assert tokenizer.token_bytes(token_id) == library.id_to_byte_piece(token_id, SpecialTokenPolicy.RAISE)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (library.n_words, 1, {2})
    assert tokenizer.token_bytes(131_072) == tokenizer.token_bytes(-1) == b""


def test_tekken_streams_and_parses_special(tmp):
    _, tokenizer = tekken(tmp)
    ids = tokenizer.encode("[INST]字 👋[/INST]")
    assert ids[:2] == [1, 3] and ids[-1] == 4
    detokenizer = tokenizer.detokenizer()
    assert "".join([*map(detokenizer.add, ids), detokenizer.finish()]) == "字 👋"
