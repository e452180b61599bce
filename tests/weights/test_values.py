"""Values of every stored dtype at places of a file, over a memory map and copied, against numpy."""

from __future__ import annotations

import types
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from umlm.weights import values
from umlm.weights.values import DTYPES, read_array, read_values

BYTES = np.random.default_rng(0).integers(0, 256, 512, dtype=np.uint8)
NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


@pytest.fixture(params=["extension", "copies"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the extension, where there is one, and without."""
    if request.param == "copies":
        monkeypatch.setattr(values, "cpu", types.SimpleNamespace(extension=None))
    return request.param


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "values.bin"
    path.write_bytes((BYTES & 1).tobytes() + BYTES.tobytes())  # ones and zeros for bools, then any bytes
    return path


@pytest.mark.parametrize("start", [520, 523])
@pytest.mark.parametrize("dtype", NUMPY)
def test_values_are_numpy_s(file: Path, dtype: str, start: int) -> None:
    place = start - 512 if dtype == "BOOL" else start
    wanted = np.frombuffer(file.read_bytes(), NUMPY[dtype], 15, place).reshape(3, 5)
    with np.errstate(over="ignore"):
        found = read_values(file, place, (3, 5), dtype)
        wanted = wanted.astype(np.float32) if dtype == "F64" else wanted
    assert found.dtype == DTYPES[dtype][1] and found.shape == (3, 5)
    np.testing.assert_array_equal(np.array(found.view(mx.uint16) if dtype == "BF16" else found), wanted)


def test_shapes_without_values_and_without_axes(file: Path) -> None:
    assert read_array(file, 1024, (0, 4), mx.float32).shape == (0, 4)
    assert read_array(file, 512, (), mx.uint8).item() == BYTES[0]


def test_a_file_that_is_too_short_is_an_error(file: Path) -> None:
    with pytest.raises(ValueError):
        mx.eval(read_array(file, 1000, (7, 1), mx.float32))
