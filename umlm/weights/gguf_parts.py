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
    number, count = _stated(header)
    if count > 1:
        raise header.metadata.error(
            f"is part {number} of {count} by its metadata; "
            f"name the parts NAME-{number:05}-of-{count:05}.gguf, or merge them with gguf-split"
        )
    return header


def _check_set(headers: list[GGUFHeader]) -> None:
    """Each part says that it is the part its name says, and no tensor is in two."""
    seen: dict[str, Path] = {}
    for number, header in enumerate(headers, 1):
        stated = _stated(header)
        if stated != (number, len(headers)):
            raise header.metadata.error(
                f"metadata says part {stated[0]} of {stated[1]}, the name says part {number} of {len(headers)}"
            )
        for name in header.tensors:
            if name in seen:
                raise header.metadata.error(f"tensor {name!r} is in {seen[name].name} too")
            seen[name] = header.file
    total = headers[0].metadata.typed("split.tensors.count", int, len(seen))
    if total != len(seen):
        raise headers[0].metadata.error(f"the set should hold {total} tensors, its parts hold {len(seen)}")


def _stated(header: GGUFHeader) -> tuple[int, int]:
    """(part, parts) by the metadata, from one on."""
    number = header.metadata.typed("split.no", int) or 0
    return number + 1, header.metadata.typed("split.count", int) or 1
