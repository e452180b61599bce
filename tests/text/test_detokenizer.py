"""Streaming and whole decoding agree with each other and with the libraries' own decoders."""

import random
import time
from itertools import pairwise

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vocabularies import byte_fallback, byte_level, metaspace, sentencepiece_model, word_level
from tokenizers import AddedToken, decoders

from umlm.text import Tokenizer
from umlm.text.backend import TokenizersBackend
from umlm.text.pieces import clean_up, settled_length
from umlm.text.sentencepiece_model import SentencePieceBackend


def own(tokenizer, **options):
    return Tokenizer(TokenizersBackend(tokenizer, **options))


def sentencepiece_tokenizer(algorithm="bpe", prefix=True):
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(algorithm, prefix))
    ids = list(range(processor.get_piece_size()))
    flags = zip(processor.is_byte(ids), processor.is_control(ids), processor.is_unknown(ids), strict=True)
    types = [6 if byte else 3 if control else 2 if unknown else 1 for byte, control, unknown in flags]
    return Tokenizer(SentencePieceBackend(processor, types)), processor


CLEANED = "Hello , world ! do n't stop . it 's we 've ' a ' I 'm you 're ? n v r x"
TOKENIZERS = {
    "byte_level": own(byte_level(("<|im_end|>",))),
    "byte_fallback": own(byte_fallback()),
    "byte_fallback_unstripped": own(byte_fallback(strip=False)),
    "metaspace": own(metaspace()),
    "word_level": own(word_level(CLEANED)),
    "cleaned": own(word_level(CLEANED), clean_up=True),
    "sentencepiece": sentencepiece_tokenizer()[0],
    "unigram": sentencepiece_tokenizer("unigram")[0],
}


def stream(tokenizer, ids, **options):
    detokenizer = tokenizer.detokenizer(**options)
    return [detokenizer.add(i) for i in ids] + [detokenizer.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_deltas_joined_are_the_whole_decode(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=40))
    for skip in (True, False):
        deltas = stream(tokenizer, ids, skip_special=skip)
        assert "".join(deltas) == tokenizer.decode(ids, skip_special=skip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 399), max_size=40))
def test_byte_level_decode_is_the_library_s_for_any_ids(ids):
    library = byte_level_library()
    assert TOKENIZERS["byte_level"].decode(ids) == library.decode(ids)


def byte_level_library(made=[]):  # noqa: B006  one for all examples
    if not made:
        made.append(byte_level(("<|im_end|>",)))
    return made[0]


@pytest.mark.parametrize(("algorithm", "prefix"), [("bpe", True), ("bpe", False), ("unigram", True)])
def test_sentencepiece_decode_is_the_library_s_for_any_ids(algorithm, prefix):
    tokenizer, processor = sentencepiece_tokenizer(algorithm, prefix)
    random_ids = random.Random(0)
    # Left out: the unknown piece, which shows as a mark of its own there; a space written as a byte piece, which no
    # encoder does; control pieces inside a text, which part the bytes of a character there and not in Hugging Face's.
    left_out = {"<unk>", "<0x20>", "<s>", "</s>", "[INST]", "[/INST]"}
    allowed = [i for i in range(processor.get_piece_size()) if processor.id_to_piece(i) not in left_out]
    for _ in range(300):
        ids = [1] * random_ids.randrange(2) + random_ids.choices(allowed, k=random_ids.randrange(1, 30))
        assert tokenizer.decode(ids) == processor.decode(ids)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_text_comes_back(text):
    text = text.encode("utf-8", "replace").decode()
    for name in ("byte_level", "sentencepiece"):
        tokenizer = TOKENIZERS[name]
        ids = tokenizer.encode(text, parse_special=False)
        marks = text.replace("▁", " ") if name == "sentencepiece" else text  # the library's own mark is a space
        assert "".join(stream(tokenizer, ids)) == marks


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet=" '.,?!ntmsverx", max_size=30), st.lists(st.integers(1, 4), max_size=30))
def test_clean_up_in_parts_is_clean_up_of_the_whole(text, sizes):
    held, out, position = "", "", 0
    for size in sizes:
        held += text[position : position + size]
        position += size
        cut = settled_length(held)
        out, held = out + clean_up(held[:cut]), held[cut:]
    assert out + clean_up(held + text[position:]) == clean_up(text)


def test_characters_split_over_tokens_are_never_shown_in_half():
    """T01: every non-ASCII byte is a token of its own."""
    tokenizer = TOKENIZERS["byte_level"]
    text = "ďáb 👋 字"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_bad_bytes_in_mid_stream_are_replaced_and_the_rest_goes_on():
    """T02: an unfinished character, then a word; a lone 0xFF, then a word."""
    library = byte_level()
    tokenizer = own(library)
    e5, x8f, xff = map(library.token_to_id, "åıÿ")  # their stand-ins in the byte-level alphabet
    ids = [e5, x8f, *tokenizer.encode(" x"), xff, *tokenizer.encode(" y")]
    assert "".join(stream(tokenizer, ids)) == "\ufffd x\ufffd y" == library.decode(ids)


def test_unfinished_character_at_the_end_is_flushed_once():
    """T03: the same tail in the stream and in the whole text."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("hi 👋")[:-2]
    deltas = stream(tokenizer, ids)
    assert deltas[-1] == "\ufffd" and "".join(deltas) == tokenizer.decode(ids) == "hi \ufffd"


def test_leading_space_is_the_decoder_s():
    """T04: byte-level keeps a leading space; the sentencepiece chain drops exactly one."""
    tokenizer = TOKENIZERS["byte_level"]
    assert "".join(stream(tokenizer, tokenizer.encode(" hello"))) == " hello"
    library = byte_fallback()
    ids = [library.token_to_id(piece) for piece in ("▁", "▁leading", "▁x")]
    assert "".join(stream(own(library), ids)) == " leading x" == library.decode(ids)


def test_byte_level_vocabulary_with_a_sentencepiece_decoder():
    """T05: no stand-in letter ever reaches the text."""
    library = byte_level()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    tokenizer = own(library)
    text = "Hello! How can I help?\n"
    assert "".join(stream(tokenizer, tokenizer.encode(text))) == text


def test_text_without_spaces_flows_steadily():
    """T07: 200 characters, three tokens each; something every third token."""
    tokenizer = TOKENIZERS["byte_level"]
    text = "字" * 200
    deltas = stream(tokenizer, tokenizer.encode(text))
    shown = [i for i, delta in enumerate(deltas) if delta]
    assert "".join(deltas) == text
    assert max(b - a for a, b in pairwise(shown)) <= 3


def test_added_tokens_that_only_look_special_stay():
    """T12: special=False stays in the text, whatever its shape."""
    library = byte_level()
    library.add_tokens([AddedToken("<fcel>", special=False), AddedToken("<eos>", special=True)])
    tokenizer = own(library)
    ids = tokenizer.encode("<fcel>A<fcel>B<eos>")
    assert tokenizer.decode(ids) == "".join(stream(tokenizer, ids)) == "<fcel>A<fcel>B"
    assert tokenizer.decode(ids, skip_special=False) == "<fcel>A<fcel>B<eos>"


def test_metaspace_keeps_inner_spaces_of_the_first_token():
    """T14: one prefix space goes, as in sentencepiece; the tokenizers library drops the inner one too."""
    library = metaspace()
    ids = [library.token_to_id("▁in▁the"), library.token_to_id("▁house")]
    assert own(library).decode(ids) == "".join(stream(own(library), ids)) == "in the house"


def test_byte_fallback_pieces_are_bytes():
    """T15: whole characters from byte pieces; one mark for each byte of a broken run."""
    library = byte_fallback()
    tokenizer = own(library)
    for pieces, text in (
        (["▁잠", "▁", "<0xEA>", "<0xB9>", "<0xB0>", "▁수"], "잠 깰 수"),
        (["▁a", "<0xE5>", "<0x8F>"], "a\ufffd\ufffd"),
    ):
        ids = [library.token_to_id(piece) for piece in pieces]
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == library.decode(ids) == text


def test_clean_up_of_spaces_loses_nothing():
    """T18: word-level text is cleaned as in transformers (expected text from transformers' clean_up_tokenization)."""
    tokenizer = TOKENIZERS["cleaned"]
    ids = tokenizer.encode("Hello , world ! do n't stop .")
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "Hello, world! don't stop."


def test_clean_up_is_ignored_for_bpe():
    """A clean_up_tokenization_spaces flag on BPE would eat true spaces; transformers 5 ignores it too."""
    tokenizer = own(byte_level(), clean_up=True)
    assert tokenizer.decode(tokenizer.encode("a !== b ,")) == "a !== b ,"


def test_ten_thousand_tokens_are_quick():
    """Time per token does not grow with the text."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("字a" * 10_000)
    begin = time.perf_counter()
    assert "".join(stream(tokenizer, ids)) == "字a" * 10_000
    assert time.perf_counter() - begin < 2


def test_token_bytes_are_true_bytes():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode(" the 👋")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " the 👋".encode()
    fallback = TOKENIZERS["byte_fallback"]
    assert fallback.token_bytes(fallback.token_to_id("<0x0A>")) == b"\n"
    assert fallback.token_bytes(fallback.token_to_id("▁a")) == b" a"
    assert fallback.token_bytes(10**6) == b"" == fallback.token_bytes(-1)
