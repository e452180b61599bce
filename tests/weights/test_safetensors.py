"""The safetensors reader: broken files end in one line, sound ones read as the reference library reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_safetensors import decoded, raw_file, tensor
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from umlm.weights.safetensors import read_header, read_tensor
from umlm.weights.values import DTYPES


def reference_accepts(file: Path) -> bool:
    try:
        with safe_open(file, "np") as opened:
            return opened.keys() is not None
    except (SafetensorError, OSError):
        return False


def refused(file: Path, *words: str) -> None:
    """One line that names the file and says these words."""
    with pytest.raises(ValueError, match=re.escape(str(file))) as caught:
        read_header(file)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


BROKEN_PREFIXES: dict[str, tuple[bytes, list[str]]] = {
    "a terabyte stated in 10 bytes": ((2**40).to_bytes(8, "little") + b"{}", [str(2**40), "100000000"]),
    "longer than the file": ((99).to_bytes(8, "little") + b"{}", ["99", "2 found"]),
    "empty": (b"", ["0 bytes"]),
    "seven bytes": (b"1234567", ["7 bytes"]),
    "an array": ((2).to_bytes(8, "little") + b"[]", ["not a JSON object"]),
    "not JSON": ((2).to_bytes(8, "little") + b"{x", ["not valid JSON"]),
    "deeply nested": ((100_000).to_bytes(8, "little") + b"[" * 100_000, ["not valid JSON"]),
    "not UTF-8": ((4).to_bytes(8, "little") + b"{\xff\xff}", ["not valid JSON"]),
}


@pytest.mark.parametrize("name", BROKEN_PREFIXES)
def test_header_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    """W01: header lengths beyond the limit or the file, and headers that are no JSON object."""
    content, words = BROKEN_PREFIXES[name]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert not reference_accepts(file)
    refused(file, *words)


LYING_HEADERS: dict[str, tuple[dict[str, Any], int]] = {
    "large shape, 4 bytes": ({"a": tensor("F32", [1000, 1000], 0, 4)}, 4),
    "same range twice": ({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 0, 4)}, 4),
    "overlap": ({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [2], 4, 12)}, 12),
    "end before start": ({"a": tensor("F32", [1], 4, 0)}, 4),
    "gap": ({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 8, 12)}, 12),
    "gap at the front": ({"a": tensor("F32", [1], 4, 8)}, 8),
    "shape of 2^62": ({"a": tensor("F32", [2**62, 4], 0, 4)}, 4),
    "shape that wraps to 4 bytes": ({"a": tensor("F32", [2**62 + 1, 2**62 + 1], 0, 4)}, 4),
    "negative size": ({"a": tensor("F32", [-1, -1], 0, 4)}, 4),
    "true as size": ({"a": tensor("F32", [True], 0, 4)}, 4),  # type: ignore[list-item]
    "three offsets": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, 4),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, 4),
    "beyond the end": ({"a": tensor("F32", [2], 0, 8)}, 4),
    "trailing bytes": ({"a": tensor("F32", [1], 0, 4)}, 20),
    "unknown dtype": ({"a": tensor("Q4", [1], 0, 4)}, 4),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, 0),
}


@pytest.mark.parametrize("name", LYING_HEADERS)
def test_header_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    """W04, W05: offsets against shapes, overlaps, gaps, and bytes after the last tensor."""
    header, size = LYING_HEADERS[name]
    file = raw_file(tmp_path / "model.safetensors", header, bytes(size))
    assert not reference_accepts(file)
    refused(file)


def test_name_twice_is_refused(tmp_path: Path) -> None:
    entry = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    refused(raw_file(tmp_path / "m.safetensors", b'{"a":' + entry + b',"a":' + entry + b"}"), "'a' appears twice")


@pytest.mark.parametrize("keep", ["all but the last byte", "half of the header", "nothing"])
def test_half_a_download_is_named_with_both_sizes(keep: str, tmp_path: Path) -> None:
    """W06: a shard that was cut."""
    file = tmp_path / "model-00002-of-00002.safetensors"
    save_file({"a": np.ones((3, 5), np.float32)}, file)
    whole = file.read_bytes()
    cut = {"all but the last byte": len(whole) - 1, "half of the header": 30, "nothing": 0}[keep]
    file.write_bytes(whole[:cut])
    words = [f"{len(whole)} bytes expected, {cut} found"] if keep == "all but the last byte" else []
    refused(file, "download", *words)


def test_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    """W06: Git LFS pointer text in place of the weights."""
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4321\n")
    refused(file, "Git LFS pointer", "4321 bytes", "git lfs pull")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors: no such file"):
        read_header(tmp_path / "absent.safetensors")


def test_empty_files_and_scalars_read(tmp_path: Path) -> None:
    """W02: metadata without tensors, zero-size tensors, a scalar."""
    save_file({}, tmp_path / "none.safetensors", {"format": "pt"})
    header = read_header(tmp_path / "none.safetensors")
    assert dict(header.entries) == {} and header.metadata == {"format": "pt"}
    save_file(
        {"scalar": np.array(2.5, np.float32), "none": np.zeros((0, 3), np.float16)}, tmp_path / "some.safetensors"
    )
    entries = read_header(tmp_path / "some.safetensors").entries
    scalar, none = (read_tensor(tmp_path / "some.safetensors", entries[name]) for name in ("scalar", "none"))
    assert scalar.shape == () and scalar.item() == 2.5
    assert none.shape == (0, 3) and none.dtype == mx.float16


NUMPY = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16}
NUMPY |= {"U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64, "F64": np.float64}


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 0, 4), (1, 2, 3, 4)])
def test_values_are_those_that_were_saved(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """W12: every dtype on the CPU, at any alignment (the one byte before shifts all that follow)."""
    values = np.asarray(np.random.default_rng(3).integers(0, 100, shape)).astype(NUMPY[dtype])
    file = tmp_path / "m.safetensors"
    save_file({"zz": np.ones(1, np.uint8), "a": values}, file)
    entry = read_header(file).entries["a"]
    found = read_tensor(file, entry)
    assert entry.dtype == dtype and found.shape == shape and found.dtype == DTYPES[dtype][1]
    np.testing.assert_array_equal(np.array(found), values)


@pytest.mark.parametrize(("dtype", "bits"), [("BF16", 16), ("F8_E4M3", 8), ("F8_E5M2", 8)])
def test_every_code_of_the_small_floats(dtype: str, bits: int, tmp_path: Path) -> None:
    """W12: all codes against the formats' definition; E4M3 0x7E is 448 and 0x7F is NaN."""
    codes = np.arange(2**bits, dtype=np.uint16 if bits == 16 else np.uint8)
    file = raw_file(tmp_path / "m.safetensors", {"a": tensor(dtype, [2**bits], 0, codes.nbytes)}, codes.tobytes())
    values = read_tensor(file, read_header(file).entries["a"]).astype(mx.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs become quiet ones
        found = np.array(values).astype(np.float64)
    exponent_bits = {"BF16": 8, "F8_E4M3": 4, "F8_E5M2": 5}[dtype]
    np.testing.assert_array_equal(found, decoded(codes.astype(np.int64), bits, exponent_bits, dtype == "F8_E4M3"))


def test_reading_one_tensor_takes_its_own_memory_only(tmp_path: Path) -> None:
    """Lazy reading: a small tensor of a 64 MB file."""
    save_file({"big": np.zeros(1 << 24, np.float32), "small": np.ones(1000, np.float32)}, tmp_path / "m.safetensors")
    header = read_header(tmp_path / "m.safetensors")
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    read_tensor(header.file, header.entries["small"])
    assert mx.get_peak_memory() - before < 1 << 16


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_files_are_refused_or_read_like_the_reference(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Bytes changed, cut or added at random: what we accept, the reference library accepts too."""
    file = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.int8)}, file, {"format": "pt"})
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        header = read_header(file)
    except ValueError as error:
        assert str(file) in str(error)
        return
    assert reference_accepts(file)
    for entry in header.entries.values():
        assert read_tensor(file, entry).shape == entry.shape
