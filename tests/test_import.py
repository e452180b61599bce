"""`import umlm` is cheap: names are handed out when asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import umlm

HEAVY = {"mlx", "numpy", "tokenizers", "jinja2", "sentencepiece", "tiktoken", "gguf", "huggingface_hub", "rich"}


def fresh(code: str) -> str:
    """What a new interpreter prints for `code`."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_umlm_loads_nothing_heavy() -> None:
    loaded = json.loads(fresh("import sys, json, umlm; print(json.dumps(sorted(sys.modules)))"))
    assert "umlm" in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()
    assert [name for name in loaded if name.startswith("umlm.")] == []


def test_a_verb_loads_only_what_every_answer_needs() -> None:
    """Progress bars, asyncio, sentencepiece vocabularies and downloads load their libraries when they begin."""
    code = "import sys; bare = set(sys.modules); import umlm.generate; print(*sorted(set(sys.modules) - bare))"
    loaded = set(fresh(code).split())
    assert "umlm.llm" in loaded
    assert loaded & {"rich", "asyncio", "sentencepiece", "importlib.metadata", "huggingface_hub"} == set()


def test_names_are_listed_and_found_when_asked_for() -> None:
    code = "import umlm; print(all(hasattr(umlm, n) and n in dir(umlm) for n in umlm.__all__), len(umlm.__all__))"
    assert fresh(code).split() == ["True", "6"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        umlm.lod  # noqa: B018
