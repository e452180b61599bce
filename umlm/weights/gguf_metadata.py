"""GGUF metadata: keys and values, read over a memory map with every length checked first.

Source: the GGUF specification (ggml/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

# Types of metadata values: number -> code, which struct and numpy share. 8 is a string, 9 an array.
NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
# Far above any real file, low enough that a crafted one cannot fill memory with empty entries.
MAX_KEYS = 1 << 16
MAX_NAME = 1 << 16

T = TypeVar("T")


class GGUFError(ValueError):
    """A GGUF file that cannot be read: one line with the file and the field."""


@dataclass(frozen=True)
class _Strings:
    """An array of strings that is decoded when first asked for: `starts` are the places of its lengths."""

    starts: array[int]
    end: int


class Metadata(Mapping[str, Any]):
    """GGUF metadata: numbers, bools and strings as Python values, number arrays as numpy views, string
    arrays as lists of str made at first use."""

    def __init__(self, file: Path, view: mmap.mmap, values: dict[str, Any]) -> None:
        self._file, self._view, self._values = file, view, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Strings):
            value = self._values[key] = self._decode(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def error(self, message: str) -> GGUFError:
        return GGUFError(f"{self._file}: {message}")

    def typed(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """The value of a key that must be of one kind where it is there at all; GGUFError names it."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"metadata {key!r} must be of type {kind.__name__}, not {type(value).__name__}")
        return value

    def _decode(self, key: str, strings: _Strings) -> list[str]:
        starts, first = strings.starts, strings.starts[0] if strings.starts else 0
        text = self._view[first : strings.end]
        ends = chain(starts[1:], (strings.end,))
        try:
            return [text[start - first + 8 : end - first].decode() for start, end in zip(starts, ends, strict=True)]
        except UnicodeDecodeError:
            raise GGUFError(f"{self._file}: metadata {key!r} holds text that is not UTF-8") from None


class Cursor:
    """Reads the header front to back; `where` names the field being read, for errors."""

    def __init__(self, file: Path, view: mmap.mmap) -> None:
        self.file, self.view, self.size = file, view, len(view)
        self.at, self.where = 0, "header"

    def error(self, message: str) -> GGUFError:
        return GGUFError(f"{self.file}: {self.where}: {message}")

    def need(self, count: int, what: str) -> None:
        left = self.size - self.at
        if count > left:
            raise self.error(f"{what} needs {count} bytes, {left} are left (file of {self.size} bytes)")

    def number(self, code: str) -> Any:
        size = struct.calcsize(code)
        self.need(size, "a number")
        self.at += size
        return struct.unpack_from(code, self.view, self.at - size)[0]

    def u32(self) -> int:
        return self.number("<I")

    def u64(self) -> int:
        return self.number("<Q")

    def text(self, limit: int | None = None) -> str:
        length = self.u64()
        self.need(length, "a string")
        if limit is not None and length > limit:
            raise self.error(f"a name of {length} bytes; at most {limit} are allowed")
        start, self.at = self.at, self.at + length
        try:
            return self.view[start : self.at].decode()
        except UnicodeDecodeError:
            raise self.error("text that is not UTF-8") from None

    def value(self) -> Any:
        kind = self.u32()
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if kind not in NUMBERS:
            raise self.error(f"value type {kind} is unknown")
        if kind == BOOL:
            return self.flag()
        return self.number(NUMBERS[kind])

    def flag(self) -> bool:
        byte = self.number("<B")
        if byte > 1:
            raise self.error(f"a bool must be 0 or 1, not {byte}")
        return bool(byte)

    def array(self) -> np.ndarray | _Strings:
        kind, count = self.u32(), self.u64()
        if kind == STRING:
            return self.strings(count)
        if kind == ARRAY:
            raise self.error("arrays of arrays are not supported")
        if kind not in NUMBERS:
            raise self.error(f"array element type {kind} is unknown")
        dtype = np.dtype(NUMBERS[kind])
        self.need(count * dtype.itemsize, f"an array of {count} numbers")
        values = np.frombuffer(self.view, dtype, count, self.at)
        self.at += count * dtype.itemsize
        return values

    def strings(self, count: int) -> _Strings:
        """Walks an array of strings without making any: vocabularies have hundreds of thousands."""
        self.need(8 * count, f"an array of {count} strings")
        view, at, end, length = self.view, self.at, self.size - 8, struct.Struct("<Q").unpack_from
        starts = array("Q", bytes(8 * count))
        for index in range(count):
            if at > end:
                break
            starts[index] = at
            at += 8 + length(view, at)[0]
        else:
            self.need(at - self.at, f"an array of {count} strings")
            self.at = at
            return _Strings(starts, at)
        raise self.error(f"an array of {count} strings runs beyond the end of the file")


def read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    cursor.where = "metadata"
    if count > MAX_KEYS:
        raise cursor.error(f"{count} keys; at most {MAX_KEYS} are allowed")
    values: dict[str, Any] = {}
    for index in range(count):
        cursor.where = f"metadata key {index}"
        key = cursor.text(MAX_NAME)
        if not key or key in values:
            raise cursor.error(f"key {key!r} is double" if key else "the key is empty")
        cursor.where = f"metadata {key!r}"
        values[key] = cursor.value()
    return values
