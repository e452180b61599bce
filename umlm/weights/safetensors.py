"""The safetensors file format: a strict header reader and a lazy tensor reader.

Layout: 8 bytes little-endian header length N, N bytes of JSON, then the buffer. Every header entry is
{"dtype", "shape", "data_offsets": [begin, end]} with offsets counted from the start of the buffer.
Source: the format section of https://github.com/huggingface/safetensors, whose library is the test oracle.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from umlm.weights.values import DTYPES, read_values

MAX_HEADER_BYTES = 100_000_000  # the reference library's limit
LFS_PREFIX = b"version https://git-lfs.github.com/spec/"


class Entry(NamedTuple):
    """One tensor of a file; `start` and `end` are byte offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    file: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def read_header(file: str | Path) -> Header:
    """Read and check a file's header; the tensors' bytes are not touched.

    ValueError names the file and what is wrong: the same rules as the reference library, so lengths, offsets
    and shapes agree, tensors fill the buffer without gap or overlap, and nothing trails.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    size = file.stat().st_size
    length, text = _read_json_bytes(file, size)
    table = _parse_table(file, text)
    metadata = _checked_metadata(file, table.pop("__metadata__", None) or {})  # MLX writes null for none
    begin = 8 + length
    entries = {name: _entry(file, name, value, begin) for name, value in table.items()}
    _check_layout(file, entries, begin, size)
    return Header(file, entries, metadata)


def read_tensor(file: str | Path, entry: Entry) -> mx.array:
    """The values of one tensor, evaluated; see `read_values` for dtypes and for what is copied."""
    return read_values(Path(file), entry.start, entry.shape, entry.dtype)


def _read_json_bytes(file: Path, size: int) -> tuple[int, bytes]:
    with file.open("rb") as stream:
        head = stream.read(1024)
        _refuse_pointer(file, head, size)
        if size < 8:
            raise _broken(file, f"{size} bytes, a safetensors file has at least 8")
        length = int.from_bytes(head[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise _broken(file, f"header of {length} bytes stated, the limit is {MAX_HEADER_BYTES}")
        if length > size - 8:
            raise _broken(file, f"header of {length} bytes stated, {size - 8} found")
        stream.seek(8)
        return length, stream.read(length)


def _refuse_pointer(file: Path, head: bytes, size: int) -> None:
    if not head.startswith(LFS_PREFIX):
        return
    stated = re.search(rb"^size (\d+)$", head, re.MULTILINE)
    wanted = f"{int(stated[1])} bytes" if stated else "weights"
    raise ValueError(
        f"{file}: a Git LFS pointer ({size} bytes) in place of {wanted}: run `git lfs pull` or download it again"
    )


def _parse_table(file: Path, text: bytes) -> dict[str, Any]:
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(file, f"header is not valid JSON ({error})") from None
    if not isinstance(table, dict) or not text.startswith(b"{"):
        raise _broken(file, "header is not a JSON object")
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return table


def _checked_metadata(file: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _broken(file, "__metadata__ is not a map of strings")
    return value


def _entry(file: Path, name: str, value: Any, begin: int) -> Entry:
    where = f"tensor {name!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _broken(file, f"{where} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{file}: {where} has dtype {dtype!r}, which cannot be read; known: {', '.join(DTYPES)}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise _broken(file, f"{where} has shape {shape} and offsets {offsets}")
    _check_size(file, where, dtype, shape, offsets)
    return Entry(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**64 for item in value)


def _check_size(file: Path, where: str, dtype: str, shape: list[int], offsets: list[int]) -> None:
    wanted = math.prod(shape) * DTYPES[dtype][0]
    found = offsets[1] - offsets[0]
    if wanted != found:
        raise _broken(file, f"{where} {dtype} {shape} needs {wanted} bytes, its offsets {offsets} hold {found}")


def _check_layout(file: Path, entries: Mapping[str, Entry], begin: int, size: int) -> None:
    """The tensors, in order of offset, fill the buffer exactly."""
    place = begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != place:
            kind = "overlaps the tensor before it" if entry.start < place else "leaves a gap before it"
            raise _broken(file, f"tensor {name!r} {kind}: starts at {entry.start - begin}, not {place - begin}")
        place = entry.end
    if place > size:
        raise _broken(file, f"{place} bytes expected, {size} found")
    if place < size:
        raise _broken(file, f"{size - place} bytes after the last tensor ({place} bytes expected, {size} found)")


def _broken(file: Path, what: str) -> ValueError:
    return ValueError(f"{file}: broken safetensors file: {what}; download or write it again")
