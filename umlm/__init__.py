"""umlm: run, quantize, fine-tune and serve large language models on MLX arrays in unified memory.

Names are handed out lazily: `import umlm` loads no MLX.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "GenerationError": "umlm.engine.results",
    "LLM": "umlm.llm",
    "Score": "umlm.engine.results",
    "load": "umlm.llm",
    "SamplingParams": "umlm.engine.params",
}
__all__ = ["LLM", "GenerationError", "SamplingParams", "Score", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'umlm' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
