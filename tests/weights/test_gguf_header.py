"""GGUF headers: what must be read, and what must be refused before it costs anything."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import ARRAY, BOOL, F32, STRING, U8, U16, U32, U64, Tensor, gguf_file, pair, text, u32, u64
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umlm.weights.gguf_header import TENSOR_TYPES, read_header
from umlm.weights.gguf_metadata import GGUFError

ONE = Tensor(b"a", [4])


@pytest.fixture
def refused(tmp_path: Path):
    """Writes a file, expects GGUFError in time and memory bounds, returns its message."""

    def check(content: bytes) -> str:
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        tracemalloc.start()
        start = time.perf_counter()
        with pytest.raises(GGUFError) as caught:
            read_header(path)
        seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seconds < 1 and peak < 1 << 20
        message = str(caught.value)
        assert message.startswith(str(path)) and "\n" not in message
        return message

    return check


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType} == TENSOR_TYPES


def test_g01_fields_out_of_range_are_named(refused) -> None:
    """Field case G01: unchecked header fields led to overflows."""
    data = bytes(64)
    assert "'a': 5 dimensions; 1 to 4" in refused(gguf_file([], [Tensor(b"a", [1] * 5)], data))
    assert "'a': 0 dimensions" in refused(gguf_file([], [Tensor(b"a", [])], data))
    assert "'a': tensor type 255 is unknown" in refused(gguf_file([], [Tensor(b"a", [4], 255)], data))
    assert "'a': tensor type Q8_K is not supported" in refused(gguf_file([], [Tensor(b"a", [256], 15)], data))
    assert "metadata 'k': value type 99 is unknown" in refused(gguf_file([pair(b"k", 99, data)]))
    assert "element type 99 is unknown" in refused(gguf_file([pair(b"k", ARRAY, u32(99) + u64(1) + data)]))
    assert "version: GGUF version 1 is not supported; 2 and 3" in refused(gguf_file(version=u32(1)))
    assert "GGUF version 4" in refused(gguf_file(version=u32(4)))
    assert "begins with b'GGUG'" in refused(gguf_file(magic=b"GGUG"))
    assert "a big-endian file" in refused(gguf_file(version=struct.pack(">I", 3)))


@pytest.mark.parametrize("version", [2, 3])
def test_g01_versions_two_and_three_are_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_file([pair(b"k", U32, u32(7))], [ONE], bytes(16), version=u32(version)))
    header = read_header(path)
    assert header.version == version and header.metadata["k"] == 7 and header.tensors["a"].shape == (4,)


def test_files_that_are_something_else(refused, tmp_path: Path) -> None:
    assert "is empty" in refused(b"")
    assert "Git LFS pointer" in refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(FileNotFoundError, match=r"none\.gguf: no such file"):
        read_header(tmp_path / "none.gguf")


def test_g02_giant_counts_cost_nothing(refused) -> None:
    """Field case G02: tiny files that state giant lengths exhausted memory."""
    assert "a string needs 9223372036854775808 bytes" in refused(gguf_file([pair(b"k", STRING, u64(1 << 63))]))
    for kind in (U8, U64, STRING):
        numbers = pair(b"k", ARRAY, u32(kind) + u64(1 << 40))
        assert "metadata 'k': an array of 1099511627776" in refused(gguf_file([numbers]))
    nested = b"".join(u32(ARRAY) + u64(1) for _ in range(1000))
    assert "arrays of arrays" in refused(gguf_file([pair(b"k", ARRAY, nested)]))
    assert "1152921504606846976 keys" in refused(gguf_file(num_pairs=1 << 60))
    assert "1152921504606846976 tensors" in refused(gguf_file(num_tensors=1 << 60))
    assert "metadata key 1: a number needs 8 bytes, 0 are left" in refused(
        gguf_file([pair(b"k", U8, b"\0")], num_pairs=3, alignment=1)
    )
    strings = pair(b"k", ARRAY, u32(STRING) + u64(3) + text(b"one") + u64(1 << 50) + bytes(99))
    assert "an array of 3 strings runs beyond the end" in refused(gguf_file([strings]))


def test_g03_zero_sizes_doubles_and_bad_text(refused) -> None:
    """Field case G03: zero dimensions divided by zero, empty keys tripped an assert."""
    seven = u32(7)
    assert "'a': a dimension is zero: [0, 4]" in refused(gguf_file([], [Tensor(b"a", [0, 4])], bytes(64)))
    assert "the key is empty" in refused(gguf_file([pair(b"", U32, seven)]))
    assert "key 'k' is double" in refused(gguf_file([pair(b"k", U32, seven)] * 2))
    assert "name 'a' is double" in refused(gguf_file([], [ONE, Tensor(b"a", [4], F32, 32)], bytes(64)))
    assert "the name is empty" in refused(gguf_file([], [Tensor(b"", [4])], bytes(64)))
    assert "metadata key 0: text that is not UTF-8" in refused(gguf_file([pair(b"\xff\xfe", U32, seven)]))
    assert "metadata 'k': text that is not" in refused(gguf_file([pair(b"k", STRING, text(b"\xc3"))]))
    assert "tensor 0: text that is not UTF-8" in refused(gguf_file([], [Tensor(b"\xff", [4])], bytes(64)))
    assert "a bool must be 0 or 1, not 2" in refused(gguf_file([pair(b"k", BOOL, b"\2")]))


def test_bad_text_in_a_vocabulary_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    tokens = pair(b"tokens", ARRAY, u32(STRING) + u64(2) + text(b"ok") + text(b"\xff"))
    path.write_bytes(gguf_file([tokens]))
    with pytest.raises(GGUFError, match="'tokens' holds text that is not UTF-8"):
        read_header(path).metadata["tokens"]


def test_g04_sizes_that_wrap_around_are_refused(refused) -> None:
    """Field case G04: 64-bit products of sizes wrapped to small numbers and were accepted."""
    wraps = Tensor(b"a", [4, 1073741823, 1073741825, 1])
    assert "take 18446744073709551600 bytes" in refused(gguf_file([], [wraps], bytes(64)))
    assert "'a': [4398046511105] values of F32" in refused(gguf_file([], [Tensor(b"a", [2**42 + 1])], bytes(64)))
    huge = Tensor(b"a", [2**63, 2**63, 2**63, 2**63])
    assert "'a'" in refused(gguf_file([], [huge], bytes(64)))
    assert "'a'" in refused(gguf_file([], [Tensor(b"a", [4], F32, 2**64 - 32)], bytes(64)))


def test_data_beyond_the_end_or_over_other_data(refused) -> None:
    assert "its data ends at byte 80, the file has 79" in refused(gguf_file([], [ONE], bytes(15)))
    over = [Tensor(b"a", [16]), Tensor(b"b", [4], F32, 32)]
    assert "'b': its data overlaps the data of 'a'" in refused(gguf_file([], over, bytes(96)))
    assert "offset 4 is not a multiple" in refused(gguf_file([], [Tensor(b"a", [4], F32, 4)], bytes(64)))
    assert "Q4_0 rows hold multiples of 32" in refused(gguf_file([], [Tensor(b"a", [48, 2], 2)], bytes(64)))
    for bad in (0, 3, 48):
        pairs = [pair(b"general.alignment", U32, u32(bad))]
        assert f"power of two, not {bad}" in refused(gguf_file(pairs, [ONE], bytes(64)))


@pytest.mark.parametrize("alignment", [16, 64])
@pytest.mark.parametrize(("kind", "layout"), [(U16, "<H"), (U32, "<I"), (U64, "<Q")])
def test_g05_every_tensor_returns_its_own_bytes(tmp_path: Path, alignment: int, kind: int, layout: str) -> None:
    """Field case G05: the alignment, read as the wrong kind of integer, shifted every tensor silently."""
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    data = b"".join(row.tobytes() + bytes(-16 % alignment) for row in numbers)
    tensors = [Tensor(name, [4], F32, index * max(alignment, 16)) for index, name in enumerate((b"a", b"b", b"c"))]
    align = pair(b"general.alignment", kind, struct.pack(layout, alignment))
    for length in range(32):
        path = tmp_path / f"{length}.gguf"
        filler = pair(b"filler", STRING, text(b"x" * length))
        path.write_bytes(gguf_file([filler, align], tensors, data, alignment=alignment))
        header = read_header(path)
        for name, row in zip("abc", numbers, strict=True):
            np.testing.assert_array_equal(header.bytes_of(header.tensors[name]).view(np.float32), row)


def test_g14_padding_at_the_end_is_not_read(tmp_path: Path) -> None:
    """Field case G14: zeros after the last tensor were taken for another header."""
    data = np.arange(4, dtype=np.float32).tobytes()
    whole = gguf_file([], [ONE], data)
    for end in (0, 32, 4096):
        path = tmp_path / f"{end}.gguf"
        path.write_bytes(whole + bytes(-len(whole) % end if end else 0))
        header = read_header(path)
        assert header.bytes_of(header.tensors["a"]).tobytes() == data


def test_a_second_file_behind_the_first_is_refused(refused) -> None:
    one = gguf_file([], [ONE], bytes(32))
    assert "a second GGUF file begins" in refused(one + one)


@pytest.fixture(scope="module")
def vocabulary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """262,144 tokens with scores and types, the size of Gemma's vocabulary."""
    path = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_token_list([f"token{index}é" for index in range(1 << 18)])
    writer.add_token_scores([-float(index) for index in range(1 << 18)])
    writer.add_token_types([1] * (1 << 18))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_large_vocabulary_is_quick(vocabulary_file: Path) -> None:
    start = time.process_time()
    header = read_header(vocabulary_file)
    assert time.process_time() - start < 0.5
    tokens, scores = header.metadata["tokenizer.ggml.tokens"], header.metadata["tokenizer.ggml.scores"]
    assert len(tokens) == 1 << 18 and tokens[-1] == "token262143é" and tokens[0] == "token0é"
    assert scores.dtype == np.float32 and scores[5] == -5.0
    assert header.metadata["tokenizer.ggml.tokens"] is tokens


def test_reading_a_header_costs_less_than_the_file(vocabulary_file: Path) -> None:
    tracemalloc.start()
    read_header(vocabulary_file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vocabulary_file.stat().st_size


NAMES = st.text("abcdefgh.é", min_size=1, max_size=12)
VALUES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.text(max_size=20),
    st.floats(width=32, allow_nan=False),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    st.lists(st.text(max_size=9), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_what_the_gguf_package_writes_is_read(tmp_path: Path, values: dict, shape: list[int]) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    kinds = {bool: "bool", int: "uint32", str: "string", float: "float32", list: "array"}
    for key, value in values.items():
        getattr(writer, f"add_{kinds[type(value)]}")(f"x.{key}", value)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    writer.add_tensor("t", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    found = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in header.metadata.items()}
    # the writer leaves out empty texts
    assert found == {"general.architecture": "llama"} | {f"x.{k}": v for k, v in values.items() if v != ""}
    assert header.tensors["t"].shape == tuple(shape) and header.tensors["t"].ggml_type == "F16"
    np.testing.assert_array_equal(header.bytes_of(header.tensors["t"]).view(np.float16), array.reshape(-1))
