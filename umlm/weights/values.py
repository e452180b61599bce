"""Values in files: the dtypes that are stored, and arrays that lie over the file's own pages.

With the CPU extension an array is a memory map of its file: nothing is read before it is used, and processes that
load one file share one copy of it. Without, the values are copied. A file must not be cut while it is mapped: the
system ends a process that reads pages which are gone (SIGBUS). Writing a new file in its place is safe.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from umlm.kernels import cpu

# dtype name -> (bytes of one value, dtype that the bytes are viewed as)
DTYPES: dict[str, tuple[int, mx.Dtype]] = {
    "BOOL": (1, mx.bool_),
    "U8": (1, mx.uint8),
    "I8": (1, mx.int8),
    "F8_E4M3": (1, mx.uint8),
    "F8_E5M2": (1, mx.uint8),
    "U16": (2, mx.uint16),
    "I16": (2, mx.int16),
    "F16": (2, mx.float16),
    "BF16": (2, mx.bfloat16),
    "U32": (4, mx.uint32),
    "I32": (4, mx.int32),
    "F32": (4, mx.float32),
    "U64": (8, mx.uint64),
    "I64": (8, mx.int64),
    "F64": (8, mx.float32),
}
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


def read_values(file: Path, start: int, shape: tuple[int, ...], dtype: str) -> mx.array:
    """The values of `shape` and a dtype of DTYPES that begin at byte `start` of a file, evaluated.

    F64 comes as float32; F8_E4M3 as bfloat16 and F8_E5M2 as float16, both exact; the rest as stored. Only these
    are copied, and what is not aligned to its dtype.
    """
    if dtype == "F64":
        doubles = read_array(file, start, (*shape, 8), mx.uint8)
        return mx.array(np.asarray(doubles).view("<f8").reshape(shape).astype(np.float32))
    stored = read_array(file, start, shape, DTYPES[dtype][1])
    if dtype == "F8_E4M3":
        return evaluated(mx.from_fp8(stored, mx.bfloat16))
    if dtype == "F8_E5M2":
        # the upper half of a float16
        return evaluated(mx.left_shift(stored.astype(mx.uint16), 8).view(mx.float16))
    return stored


def read_array(file: Path, start: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """An array over the bytes of a file from `start` on. ValueError if the file is shorter than that."""
    if cpu.extension is not None:
        return cpu.extension.mapped(file, start, shape, dtype)
    size = dtype.size
    for length in shape:
        size *= length
    if size == 0:
        return mx.zeros(shape, dtype)
    raw = np.memmap(file, np.uint8, "r", start, (size,))
    return evaluated(mx.array(raw).view(dtype).reshape(shape))


def evaluated(array: mx.array) -> mx.array:
    """The array, computed: a lazy one can be evaluated only in the thread that made it."""
    mx.eval(array)
    return array
