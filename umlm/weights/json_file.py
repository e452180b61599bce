"""JSON objects from a model folder, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(file: Path) -> dict[str, Any]:
    """The object that a file holds. FileNotFoundError when absent, ValueError when it is something else."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; a model folder needs it")
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file}: a JSON object is needed, found {type(value).__name__}")
    return value


def read_optional(file: Path) -> dict[str, Any]:
    """Like read_object, but {} when the file is absent."""
    return read_object(file) if file.exists() else {}
