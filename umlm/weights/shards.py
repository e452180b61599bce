"""Which safetensors files of a folder hold its tensors.

With model.safetensors.index.json: the files that it lists and no others. Without: all of `model*.safetensors`,
else all of `weights*.safetensors`, else the only `*.safetensors` that is no adapter; a name in two files is an
error, and so is a hole in a `-00001-of-00003` numbering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from umlm.weights.json_file import read_object
from umlm.weights.safetensors import Entry, Header, read_header

INDEX = "model.safetensors.index.json"
NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


class Located(NamedTuple):
    """An entry and the file that holds it."""

    file: Path
    entry: Entry


class Shards(NamedTuple):
    tensors: Mapping[str, Located]
    metadata: Mapping[str, str]


def open_shards(folder: Path) -> Shards:
    """Read the headers of a folder's weights; errors name the file that is missing, broken or ambiguous."""
    if (folder / INDEX).exists():
        return _indexed(folder, _weight_map(folder))
    return merge(_globbed(folder))


def merge(files: Iterable[Path]) -> Shards:
    """The tensors of several files; a name that two of them hold is an error."""
    tensors: dict[str, Located] = {}
    metadata: dict[str, str] = {}
    for header in map(read_header, files):
        metadata.update(header.metadata)
        for name, entry in header.entries.items():
            _add(tensors, name, Located(header.file, entry))
    return Shards(tensors, metadata)


def plain_path(folder: Path, name: str, source: Path) -> Path:
    """`folder / name` for a name that a file states; ValueError if it could lead out of the folder.

    Symbolic links are followed: the Hugging Face cache is made of them.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise ValueError(f"{source}: names the file {name!r}, which is not a plain name inside the folder")
    return folder / path


def _weight_map(folder: Path) -> dict[str, Path]:
    source = folder / INDEX
    table = read_object(source).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"{source}: weight_map must map tensor names to file names")
    return {name: plain_path(folder, file, source) for name, file in table.items()}


def _indexed(folder: Path, weight_map: Mapping[str, Path]) -> Shards:
    headers = {file: _listed_header(folder, file) for file in sorted(set(weight_map.values()))}
    tensors: dict[str, Located] = {}
    metadata: dict[str, str] = {}
    for name, file in weight_map.items():
        if name not in headers[file].entries:
            raise ValueError(f"{file}: tensor {name!r} is not in it, though {INDEX} says so; download it again")
        tensors[name] = Located(file, headers[file].entries[name])
    for header in headers.values():
        metadata.update(header.metadata)
        _add_unlisted(tensors, header, weight_map)
    return Shards(tensors, metadata)


def _listed_header(folder: Path, file: Path) -> Header:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: missing, though {folder / INDEX} lists it; download the model again")
    return read_header(file)


def _add_unlisted(tensors: dict[str, Located], header: Header, weight_map: Mapping[str, Path]) -> None:
    for name, entry in header.entries.items():
        if name not in weight_map:
            _add(tensors, name, Located(header.file, entry))


def _add(tensors: dict[str, Located], name: str, located: Located) -> None:
    if name in tensors:
        other = tensors[name].file
        raise ValueError(f"{located.file}: tensor {name!r} is in {other.name} too; remove the file that is stray")
    tensors[name] = located


def _globbed(folder: Path) -> list[Path]:
    for pattern in ("model*.safetensors", "weights*.safetensors"):
        if files := sorted(folder.glob(pattern)):
            _refuse_holes(files)
            return files
    files = [file for file in sorted(folder.glob("*.safetensors")) if "adapter" not in file.name]
    if len(files) == 1:
        return files
    if files:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{folder}: which of {names} holds the weights? Name it model.safetensors")
    raise FileNotFoundError(f"{folder}: {_without_weights(folder)}")


def _without_weights(folder: Path) -> str:
    if pickles := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        return f"only {pickles[0].name}, a pickle that can run code: convert it to safetensors and point there"
    return "no .safetensors or .gguf file in it; is the download complete?"


def _refuse_holes(files: list[Path]) -> None:
    """FileNotFoundError naming the first absent file of a set numbered -00001-of-00003."""
    for file in files:
        if match := NUMBERED.fullmatch(file.name):
            stem, _, count = match.groups()
            names = (f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1))
            if missing := next((name for name in names if file.with_name(name) not in files), None):
                raise FileNotFoundError(f"{file.with_name(missing)}: missing, one of {int(count)}; download it again")
