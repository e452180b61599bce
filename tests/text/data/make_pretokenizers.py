"""Make pretokenizers.json: how the tokenizer.json of published models cut sample texts, by GGUF kind.

Run by hand: python tests/text/data/make_pretokenizers.py KIND=TOKENIZER_JSON ...
The stored file was made from Llama 3.1 (llama-bpe), Qwen 3 (qwen2), DeepSeek V3 (deepseek-v3), gpt-oss (gpt-4o).
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

TEXTS = [
    "Hello, world! I'LL don't they'Ve 12345 3.14\n\n\n  x  = foo(bar);\t\tend   ",
    "Über naïve café – 東京タワー🗼 привет мир ١٢٣ ½ e\u0301 नमस्ते 안녕 สวัสดี",
    "a b  c   d\r\n\r\n e's 'S   !!! ???...---",
    "中文测试，标点。！？ 123456789 ABCdefGHI HTTPServer parseXML2JSON",
    "kkkk____----====////\\\\ $x^2+y_3 <html> &amp; ﬁ ℝ ǅ",
    " ", "\n \n  \n", "   lead\n/path//\n#", "don'T 's\u3000x\u00a0y\u2028z",
]  # fmt: skip


def main() -> None:
    """Write the file."""
    kinds = {}
    for argument in sys.argv[1:]:
        kind, path = argument.split("=", 1)
        cut = Tokenizer.from_file(path).pre_tokenizer.pre_tokenize_str
        kinds[kind] = [[piece for piece, _ in cut(text)] for text in TEXTS]
    data = {"texts": TEXTS, "kinds": kinds}
    target = Path(__file__).with_name("pretokenizers.json")
    target.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
