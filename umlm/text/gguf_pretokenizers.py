"""The pre-tokenizer kinds of GGUF's byte-level BPE vocabularies (`tokenizer.ggml.pre`).

A kind is a name for the patterns of a family's tokenizer.json: each pattern cuts out its matches, one after the other.
"""

from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _REST
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _SYMBOLS
_QWEN2 = _WORDS + r"\p{N}" + _SYMBOLS
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _REST
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"


def _cased(after: str, lower: str = _LOWER, upper: str = _UPPER) -> str:
    """Words cut where lower case turns to upper, with what may follow a word."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"


_CASED_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _REST
_GPT4O = _cased(_CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _CASED_SYMBOLS
_TEKKEN = _cased("") + r"|\p{N}" + _CASED_SYMBOLS
_KIMI = (
    r"[\p{Han}]+|"
    + _cased(_CONTRACTIONS + "?", _LOWER[:-1] + r"&&[^\p{Han}]]", _UPPER[:-1] + r"&&[^\p{Han}]]")
    + r"|\p{N}{1,3}"
    + _SYMBOLS
)
_PUNCTUATED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _REST
)
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Letters of scripts with case, the way DeepSeek's first tokenizers list them; escapes for those that Unicode
# normalization would turn into others.
_CASED_LETTERS = (
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ\u1fd0-\u1fd3\u1fd6-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)


class Kind(NamedTuple):
    """Patterns in order, and what else differs from plain byte-level BPE."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is taken whole, without merges
    add_bos: bool = False  # when the file does not say
    nfc: bool = False  # the family's tokenizer.json normalizes text


_LLAMA3_KIND = Kind((_LLAMA3,), whole_words=True, add_bos=True)
_GPT2_KIND = Kind((_GPT2,))
_DIGITS_KIND = Kind((r"\p{N}", _GPT2))
_QWEN2_KIND = Kind((_QWEN2,), nfc=True)
_GPT4O_KIND = Kind((_GPT4O,), whole_words=True)
_DEEPSEEK3_KIND = Kind((r"\p{N}{1,3}", _CJK, _PUNCTUATED))
_BAILING_KIND = Kind(
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
)
_SEED_CODER_KIND = Kind((_WORDS + r"\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _REST,))

KINDS: dict[str, Kind] = {
    "default": Kind((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "a.x-4.0", "mellum",
                     "modern-bert", "trillion", "granite-docling"), _GPT2_KIND),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
                     "mellum2"), _DIGITS_KIND),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
                     "lfm2"), _LLAMA3_KIND),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Kind((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "megrez"), _QWEN2_KIND),
    **dict.fromkeys(("deepseek-r1-qwen", "hunyuan", "solar-open", "grok-2", "kormo"), Kind((_QWEN2,))),
    "qwen35": Kind((_QWEN35,), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_KIND),
    "tekken": Kind((_TEKKEN,), whole_words=True, add_bos=True),
    "kimi-k2": Kind((_KIMI,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3_KIND),
    "deepseek-llm": Kind(("[\r\n]", r"\s?" + _CASED_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟" + "\u3000-。]+", r"\s+$",
                          "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}+")),
    "deepseek-coder": Kind(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "falcon": Kind((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_KIND),
    "seed-coder": _SEED_CODER_KIND,
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Kind((_BLOOM,))),
    "viking": Kind((_BLOOM, r"\p{N}")),
}  # fmt: skip


def kind_of(name: str) -> Kind:
    """The kind of that name. Raises ValueError naming it and the known ones."""
    if name not in KINDS:
        raise ValueError(f"tokenizer.ggml.pre: unknown pre-tokenizer {name!r}; known: {', '.join(sorted(KINDS))}")
    return KINDS[name]


def pre_tokenizer(kind: Kind) -> PreTokenizer:
    """The pre-tokenizer of a kind; its pieces are in the byte-level alphabet."""
    cuts: list[PreTokenizer] = [Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
