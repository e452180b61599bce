"""The files of one GGUF model: a single file, or a split set named NAME-00001-of-0000N.gguf."""

from __future__ import annotations

import re
from pathlib import Path

from umlm.weights.gguf_header import GGUFHeader, read_header
from umlm.weights.gguf_metadata import GGUFError

PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_parts(path: Path) -> list[GGUFHeader]:
    """The headers of the model at `path`: a file, any part of a split set, or a folder with one model.

    Part names come from the given one alone, in its own folder. FileNotFoundError names a missing part,
    GGUFError what does not fit together.
    """
    file = _only_model(path) if path.is_dir() else path
    match = PART.fullmatch(file.name)
    if match is None:
        return [_whole(read_header(file))]
    headers = [read_header(part) for part in _siblings(file, match)]
    _check_set(headers)
    return headers


def _only_model(folder: Path) -> Path:
    """The one model in a folder; image encoders (mmproj) lie beside many and are not it."""
    files = sorted(f for f in folder.glob("*.gguf") if not f.name.startswith("mmproj"))
    if not files:
        raise FileNotFoundError(f"{folder}: holds no .gguf file")
    models = {match["stem"] if (match := PART.fullmatch(f.name)) else f.name for f in files}
    if len(models) > 1:
        names = ", ".join(f.name for f in files)
        raise GGUFError(f"{folder}: holds several models; name one of them: {names}")
    return files[0]


def _siblings(file: Path, match: re.Match[str]) -> list[Path]:
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise GGUFError(f"{file}: part {int(match['number'])} of {count} cannot be; was the file renamed?")
    parts = [file.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for number, part in enumerate(parts, 1):
        if not part.is_file():
            raise FileNotFoundError(f"{part}: part {number} of {count} is missing")
    return parts


def _whole(header: GGUFHeader) -> GGUFHeader:
    """A file without a part's name must not be a part."""
    count = header.metadata.get("split.count", 1)
    if count > 1:
        number = header.metadata.get("split.no", 0) + 1
        raise GGUFError(
            f"{header.file}: is part {number} of {count} by its metadata; "
            f"name the parts NAME-{number:05}-of-{count:05}.gguf, or merge them with gguf-split"
        )
    return header


def _check_set(headers: list[GGUFHeader]) -> None:
    """Each part says that it is the part its name says, and no tensor is in two."""
    seen: dict[str, Path] = {}
    for number, header in enumerate(headers):
        found = (header.metadata.get("split.no", 0), header.metadata.get("split.count", 1))
        if found != (number, len(headers)):
            raise GGUFError(
                f"{header.file}: metadata says part {found[0] + 1} of {found[1]}, "
                f"the name says part {number + 1} of {len(headers)}"
            )
        for name in header.tensors:
            if name in seen:
                raise GGUFError(f"{header.file}: tensor {name!r} is in {seen[name].name} too")
            seen[name] = header.file
    stated = headers[0].metadata.get("split.tensors.count", len(seen))
    if stated != len(seen):
        raise GGUFError(f"{headers[0].file}: the set should hold {stated} tensors, its parts hold {len(seen)}")
