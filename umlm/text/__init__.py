"""Text: tokenizers, streaming detokenizer, chat templates, stop strings. Strings and integers; no arrays, no model.

Names are handed out on first use, so that `import umlm.text` loads neither tokenizers nor jinja2.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umlm.text.detokenizer import Detokenizer
    from umlm.text.folder import tokenizer_from_folder
    from umlm.text.gguf_vocab import tokenizer_from_gguf
    from umlm.text.stops import StopMatcher
    from umlm.text.templates import ChatTemplate
    from umlm.text.tokenizer import Tokenizer
    from umlm.text.tool_schema import function_schema

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatcher",
    "Tokenizer",
    "function_schema",
    "tokenizer_from_folder",
    "tokenizer_from_gguf",
]

_HOMES = {
    "ChatTemplate": "templates",
    "Detokenizer": "detokenizer",
    "StopMatcher": "stops",
    "Tokenizer": "tokenizer",
    "function_schema": "tool_schema",
    "tokenizer_from_folder": "folder",
    "tokenizer_from_gguf": "gguf_vocab",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"umlm.text.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'umlm.text' has no attribute {name!r}")
