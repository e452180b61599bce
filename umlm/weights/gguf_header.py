"""The header of a GGUF file: metadata and tensor places, read over a memory map.

Every length is checked against the bytes that are left before anything is made of it, so a lying header costs
neither time nor memory. Versions 2 and 3, little endian. Source: the GGUF specification (ggml/docs/gguf.md).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from umlm.kernels.gguf_blocks import BLOCKS
from umlm.weights.gguf_metadata import MAX_NAME, Cursor, GGUFError, Metadata, read_metadata
from umlm.weights.values import DTYPES

MAGIC = b"GGUF"
# Types of tensors: number -> name, those that nobody can read any more or yet included.
TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
# Tensor types that are plain numbers.
PLAIN = frozenset(("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"))
# Far above any real file, low enough that a crafted one cannot fill memory with empty entries.
MAX_TENSORS = 1 << 17
MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` has rows before columns, `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """The header of one GGUF file. `end` is where the data of the last tensor ends."""

    file: Path
    view: mmap.mmap
    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    end: int

    def bytes_of(self, info: TensorInfo) -> np.ndarray:
        """The tensor's bytes as they lie in the memory map: uint8 [nbytes], no copy."""
        return np.frombuffer(self.view, np.uint8, info.nbytes, info.offset)


def read_header(file: Path) -> GGUFHeader:
    """Reads and checks the header of `file`. FileNotFoundError, or GGUFError naming file and field."""
    cursor = Cursor(file, _map(file))
    version = _read_version(cursor)
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    values = read_metadata(cursor, num_keys)
    alignment = _alignment(cursor, values)
    infos = _read_infos(cursor, num_tensors)
    start = _aligned(cursor.at, alignment)
    tensors, end = _place(cursor, infos, start, alignment)
    _refuse_joined(cursor, _aligned(end, alignment))
    return GGUFHeader(file, cursor.view, version, Metadata(file, cursor.view, values), tensors, end)


def _map(file: Path) -> mmap.mmap:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    with file.open("rb") as handle:
        head = handle.read(64)
        if head[:4] != MAGIC:
            raise GGUFError(f"{file}: {_not_gguf(head)}")
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


def _not_gguf(head: bytes) -> str:
    if not head:
        return "the file is empty"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model; fetch it with git lfs pull"
    return f"not a GGUF file (it begins with {head[:4]!r}, not {MAGIC!r})"


def _read_version(cursor: Cursor) -> int:
    cursor.at, cursor.where = 4, "version"
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise cursor.error("a big-endian file; convert it with gguf-convert-endian FILE little")
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version} is not supported; 2 and 3 are")
    return version


def _alignment(cursor: Cursor, values: Mapping[str, Any]) -> int:
    cursor.where = "metadata 'general.alignment'"
    value = values.get("general.alignment", 32)
    if not isinstance(value, int) or value <= 0 or value & (value - 1) or value > 1 << 31:
        raise cursor.error(f"must be a power of two, not {value!r}")
    return value


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _read_infos(cursor: Cursor, count: int) -> list[TensorInfo]:
    cursor.where = "tensors"
    if count > MAX_TENSORS:
        raise cursor.error(f"{count} tensors; at most {MAX_TENSORS} are allowed")
    cursor.need(33 * count, f"a list of {count} tensors")
    infos: dict[str, TensorInfo] = {}
    for index in range(count):
        cursor.where = f"tensor {index}"
        info = _read_info(cursor)
        if info.name in infos:
            raise cursor.error(f"name {info.name!r} is double")
        infos[info.name] = info
    return list(infos.values())


def _read_info(cursor: Cursor) -> TensorInfo:
    """One entry of the tensor list; its offset counts from the start of the data here."""
    name = cursor.text(MAX_NAME)
    if not name:
        raise cursor.error("the name is empty")
    cursor.where = f"tensor {name!r}"
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
    sizes = [cursor.u64() for _ in range(num_dimensions)]
    if 0 in sizes:
        raise cursor.error(f"a dimension is zero: {sizes}")
    ggml_type = _tensor_type(cursor, cursor.u32())
    nbytes = _num_bytes(cursor, sizes, ggml_type)
    return TensorInfo(name, tuple(reversed(sizes)), ggml_type, cursor.u64(), nbytes)


def _tensor_type(cursor: Cursor, number: int) -> str:
    name = TENSOR_TYPES.get(number)
    if name is None:
        raise cursor.error(f"tensor type {number} is unknown")
    if name not in BLOCKS and name not in PLAIN:
        raise cursor.error(f"tensor type {name} is not supported")
    return name


def _num_bytes(cursor: Cursor, sizes: list[int], ggml_type: str) -> int:
    """Bytes of a tensor, in Python integers, which cannot wrap around."""
    values, size = (1, DTYPES[ggml_type][0]) if ggml_type in PLAIN else BLOCKS[ggml_type]
    if sizes[0] % values:
        raise cursor.error(f"{ggml_type} rows hold multiples of {values} values, not {sizes[0]}")
    nbytes = sizes[0] // values * size
    for rows in sizes[1:]:
        nbytes *= rows
    if nbytes > cursor.size:
        raise cursor.error(f"{sizes} values of {ggml_type} take {nbytes} bytes, the file has {cursor.size}")
    return nbytes


def _place(cursor: Cursor, infos: list[TensorInfo], start: int, alignment: int) -> tuple[dict[str, TensorInfo], int]:
    """Offsets from the start of the file, each tensor inside of it and none over another."""
    end, before = start, ""
    for info in sorted(infos, key=lambda info: info.offset):
        cursor.where = f"tensor {info.name!r}"
        place = start + info.offset
        if info.offset % alignment:
            raise cursor.error(f"offset {info.offset} is not a multiple of the alignment {alignment}")
        if place < end:
            raise cursor.error(f"its data overlaps the data of {before!r}")
        end, before = place + info.nbytes, info.name
        if end > cursor.size:
            raise cursor.error(f"its data ends at byte {end}, the file has {cursor.size}: truncated?")
    placed = (TensorInfo(i.name, i.shape, i.ggml_type, start + i.offset, i.nbytes) for i in infos)
    return {info.name: info for info in placed}, end


def _refuse_joined(cursor: Cursor, end: int) -> None:
    """Bytes after the tensors are padding, except where a user joined the parts of a split set."""
    if cursor.view[end : end + 4] == MAGIC:
        cursor.where = f"byte {end}"
        raise cursor.error("a second GGUF file begins; keep the parts of a split set apart (or merge with gguf-split)")
