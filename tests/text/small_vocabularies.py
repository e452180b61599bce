"""Small vocabularies of every decoder shape, made by the libraries that published tokenizers are made with."""

import io
from functools import cache

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog and the other dog sleeps in the house",
    "Hello! How can I help? Hello, world! do not stop. system user assistant obey",
    "one two three four five six seven eight nine ten 0 1 2 3 4 5 6 7 8 9 {} [] () <> / | _ -",
]
CHATML = ("<|im_start|>", "<|im_end|>")


def byte_level(special: tuple[str, ...] = (), corpus: tuple[str, ...] = tuple(CORPUS)) -> Tokenizer:
    """Byte-level BPE trained on ASCII: every other byte is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(list(corpus), trainer)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def byte_fallback(strip: bool = True) -> Tokenizer:
    """Sentencepiece-shaped BPE in the tokenizers library: space marks and byte pieces."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "x", "수", "잠", ".", ",", "'"]
    pieces += ["▁a", "▁x", "▁수", "▁잠", "▁leading"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return tokenizer


def metaspace(scheme: str = "first") -> Tokenizer:
    """BPE over space marks, where text gets a mark in front."""
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyz<>|_\n", "▁in", "▁the", "in", "th", "the", "▁in▁the", "▁house", "▁t"]
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("▁", "in"), ("▁", "the"), ("▁in", "▁the")]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


def word_level(words: str) -> Tokenizer:
    """One token a word; the library joins them with spaces."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["[UNK]", *words.split()]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    return tokenizer


@cache
def sentencepiece_model(algorithm: str = "bpe", prefix: bool = True) -> bytes:
    """A trained sentencepiece model with byte fallback and control pieces, as file content."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4 + ["aaaa aaaaaaa aaa aa", "    spaces     many  "]),
        model_writer=out,
        vocab_size=360,
        model_type=algorithm,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        control_symbols=["[INST]", "[/INST]"],
        user_defined_symbols=["<tag>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return out.getvalue()
