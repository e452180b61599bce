"""GGUF files byte by byte, for headers that no writer would make."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

U8, U16, U32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 7, 8, 9, 10
F32 = 0


class Tensor(NamedTuple):
    """An entry of the tensor list: sizes with the row length first, as in the file."""

    name: bytes
    sizes: Sequence[int]
    kind: int = F32
    offset: int = 0


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: bytes) -> bytes:
    return u64(len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry with a ready-made value."""
    return text(key) + u32(kind) + value


def tensor(entry: Tensor) -> bytes:
    sizes = b"".join(u64(size) for size in entry.sizes)
    return text(entry.name) + u32(len(entry.sizes)) + sizes + u32(entry.kind) + u64(entry.offset)


def gguf_file(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: bytes = u32(3),
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts can be made to lie."""
    counts = u64(len(tensors) if num_tensors is None else num_tensors)
    counts += u64(len(pairs) if num_pairs is None else num_pairs)
    header = magic + version + counts + b"".join(pairs) + b"".join(tensor(entry) for entry in tensors)
    return header + bytes(-len(header) % alignment) + data
