"""Wheels of a few bytes, and pip pointed at a folder of them instead of an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    tamper: Mapping[str, bytes] | None = None,
) -> Path:
    """A wheel of these files with a true RECORD; `tamper` puts other content in place after RECORD was made."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
    metadata = head + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    tag = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tag}
    record = "".join(f"{path},sha256={digest(content)},{len(content)}\n" for path, content in members.items())
    members |= {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode(), **(tamper or {})}
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in members.items():
            archive.writestr(path, content)
    return wheel


def use_only(monkeypatch: pytest.MonkeyPatch, wheels: Path, cache: Path) -> None:
    """pip finds these wheels and nothing else; the cache is a folder of the test."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UMLM_CACHE", str(cache))
    for name in ("PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
