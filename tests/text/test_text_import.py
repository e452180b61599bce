"""Importing the package costs nothing; its names come when they are asked for."""

import subprocess
import sys

import pytest

import umlm.text


def test_import_is_cheap():
    code = "import sys, umlm.text; print([m for m in ('tokenizers', 'jinja2', 'tiktoken', 'mlx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    for name in umlm.text.__all__:
        assert getattr(umlm.text, name).__name__ == name
    with pytest.raises(AttributeError, match="'nope'"):
        _ = umlm.text.nope
