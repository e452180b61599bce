"""Products with and reads of quantized matrices, against float64 on values that numpy unpacks."""

from __future__ import annotations

import importlib

import gguf
import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, dequantize, draw, wide
from gguf import GGMLQuantizationType
from test_gguf_blocks import random_blocks

from umlm import kernels
from umlm.kernels import Format, Packed
from umlm.kernels.gguf_blocks import BLOCKS, row_bytes

AFFINE = [Format("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
SMALL_FLOATS = [Format("mxfp4", 4, 32), Format("mxfp8", 8, 32), Format("nvfp4", 4, 16)]
GGUF = [Format("gguf", 0, BLOCKS[kind][0], kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")]
ROWS, COLUMNS = 19, 256
MODULE = importlib.import_module("umlm.kernels.quantized_matmul")  # the package has an op of this name
every_format = pytest.mark.parametrize("form", [*AFFINE, *SMALL_FLOATS, *GGUF], ids=str)


def pack(form: Format, rows: int = ROWS, columns: int = COLUMNS, scales: mx.Dtype = mx.float32) -> Packed:
    """A random matrix in this format, quantized by MLX or the gguf package."""
    rng = np.random.default_rng(rows)
    if form.mode == "gguf":
        return Packed(form, (rows, columns), mx.array(_gguf_rows(form, rng, rows, columns)))
    weight, *others = mx.quantize(draw(rng, rows, columns), form.group_size, form.bits, form.mode)
    if form.mode == "affine":
        others = [array.astype(scales) for array in others]
    return Packed(form, (rows, columns), weight, *others)


def _gguf_rows(form: Format, rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    assert form.ggml_type is not None
    if form.ggml_type.endswith("_K"):  # the gguf package reads these but does not write them
        return random_blocks(form.ggml_type, rows * columns // 256, seed=3).reshape(rows, -1)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    return gguf.quantize(values, GGMLQuantizationType[form.ggml_type])


def truth(packed: Packed) -> np.ndarray:
    """The matrix in float64."""
    form = packed.format
    if form.ggml_type is not None:
        return gguf.dequantize(np.array(packed.weight), GGMLQuantizationType[form.ggml_type]).astype(np.float64)
    assert packed.scales is not None
    return dequantize(form.mode, form.bits, form.group_size, packed.weight, packed.scales, packed.biases)


@every_format
def test_dequantize_equals_the_unpacked_values(form: Format) -> None:
    packed = pack(form)
    assert_near(kernels.dequantize(packed), truth(packed), mx.float32)
    assert_near(kernels.dequantize(packed, mx.bfloat16), truth(packed), mx.bfloat16)


@pytest.mark.parametrize("form", [*AFFINE, *SMALL_FLOATS], ids=str)
def test_dequantize_equals_mlx(form: Format) -> None:
    packed = pack(form)
    assert packed.scales is not None
    theirs = mx.dequantize(
        packed.weight, packed.scales, packed.biases, form.group_size, form.bits, form.mode, dtype=mx.float32
    )
    np.testing.assert_allclose(np.array(kernels.dequantize(packed)), np.array(theirs), rtol=0, atol=1e-6)


@every_format
@pytest.mark.parametrize("dtype", FLOATS)
def test_product_equals_float64(form: Format, dtype: mx.Dtype) -> None:
    rng, packed = np.random.default_rng(5), pack(form)
    for shape in ((COLUMNS,), (1, 1, COLUMNS), (1, 7, COLUMNS), (2, 3, COLUMNS)):
        x = draw(rng, *shape, dtype=dtype)
        assert_near(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, dtype)


@pytest.mark.parametrize("form", [AFFINE[7], SMALL_FLOATS[0]], ids=str)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_long_sums_do_not_lose_bits(form: Format, dtype: mx.Dtype) -> None:
    x, packed = draw(np.random.default_rng(6), 1, 2, 4096, dtype=dtype), pack(form, 5, 4096, mx.float16)
    assert_near(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, dtype)


@pytest.mark.parametrize("scales", [mx.float16, mx.bfloat16])
def test_scales_of_16_bits_are_read_exactly(scales: mx.Dtype) -> None:
    packed = pack(Format("affine", 4, 64), scales=scales)
    assert_near(kernels.dequantize(packed), truth(packed), mx.float32)
    x = draw(np.random.default_rng(7), 1, 3, COLUMNS)
    assert_near(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, mx.float32)


@pytest.mark.parametrize("form", GGUF, ids=str)
@pytest.mark.parametrize("slice_rows", [1, 7, 18, 19, 100])
def test_blocks_are_computed_in_slices_of_rows(form: Format, slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SLICE_VALUES", slice_rows * COLUMNS)
    x, packed = draw(np.random.default_rng(8), 1, 2, COLUMNS), pack(form)
    assert_near(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, mx.float32)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_a_matrix_of_blocks_is_never_whole_in_memory(kind: str) -> None:
    rows, columns = 16384, 4096  # 256 MiB of float32
    form = Format("gguf", 0, 256, kind)
    packed = Packed(
        form, (rows, columns), mx.array(np.resize(random_blocks(kind, 256, 1), (rows, row_bytes(kind, columns))))
    )
    x = draw(np.random.default_rng(11), 1, 1, columns)
    mx.eval(x, packed.weight)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(kernels.quantized_matmul(x, packed))
    assert mx.get_peak_memory() - before < 128 << 20


@every_format
@pytest.mark.parametrize("ids", [[0], [18, 0, 3, 3], [[1, 2], [17, 5]]], ids=str)
def test_embedding_reads_rows(form: Format, ids: list) -> None:
    packed = pack(form)
    for dtype in FLOATS:
        assert_near(kernels.embedding(mx.array(ids), packed, dtype), truth(packed)[np.array(ids)], dtype)


def test_embedding_of_a_float_table() -> None:
    table = draw(np.random.default_rng(9), 11, 6, dtype=mx.bfloat16)
    assert_near(kernels.embedding(mx.array([[3, 10]]), table, mx.float32), wide(table)[[[3, 10]]], mx.float32)


@every_format
def test_gradient_reaches_x(form: Format) -> None:
    rng, packed = np.random.default_rng(10), pack(form)
    x, g = draw(rng, 1, 3, COLUMNS), draw(rng, 1, 3, ROWS)
    found = mx.grad(lambda x: (kernels.quantized_matmul(x, packed) * g).sum())(x)
    assert_near(found, wide(g) @ truth(packed), mx.float32)


def test_bytes_count_all_arrays() -> None:
    packed = pack(Format("affine", 4, 64), scales=mx.float16)
    assert packed.nbytes == ROWS * (COLUMNS // 2 + 2 * 2 * COLUMNS // 64)
    assert pack(Format("gguf", 0, 256, "Q4_K")).nbytes == ROWS * 144


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="quantization mode 'int4' is unknown; known: affine, mxfp4"):
        Format("int4", 4, 64)
