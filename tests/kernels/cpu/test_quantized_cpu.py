"""The CPU kernels' products with quantized matrices: every layout and instruction set, against float64."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, dequantize, draw, wide
from gguf import GGMLQuantizationType
from gguf import dequantize as dequantize_blocks
from test_gguf_blocks import random_blocks

from umlm import kernels
from umlm.kernels import Format, Packed, cpu
from umlm.kernels.gguf_blocks import BLOCKS
from umlm.kernels.packed import CPU_BLOCKS

assert cpu.extension is not None, cpu.why_not
extension: ModuleType = cpu.extension

AFFINE = [Format("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
SMALL_FLOATS = [Format("mxfp4", 4, 32), Format("mxfp8", 8, 32), Format("nvfp4", 4, 16)]
GGUF = [Format("gguf", 0, BLOCKS[kind][0], kind) for kind in sorted(CPU_BLOCKS)]
# layouts whose products AVX512 forms in integers, and how near float32 rows must come then
IN_INTEGERS = {"avx512", "avx512bf16"}
NEAR_IN_INTEGERS = 2e-6
every_format = pytest.mark.parametrize("form", [*AFFINE, *SMALL_FLOATS, *GGUF], ids=str)


def unit(form: Format) -> int:
    """Columns come in multiples of this many; MLX quantizes multiples of 32 only."""
    return max(form.group_size, 32)


def pack(form: Format, rows: int, columns: int, scales: mx.Dtype = mx.float32) -> Packed:
    """A random matrix: quantized by MLX, or ggml blocks of random bits."""
    if form.ggml_type is not None:
        blocks = random_blocks(form.ggml_type, rows * columns // form.group_size, seed=rows + columns)
        if form.ggml_type == "MXFP4":  # its scales would leave float16's range
            blocks[:, 0] = blocks[:, 0] % 12 + 118
        return Packed(form, (rows, columns), mx.array(blocks.reshape(rows, -1)))
    values = draw(np.random.default_rng(rows + columns), rows, columns)
    weight, *others = mx.quantize(values, form.group_size, form.bits, form.mode)
    if form.mode == "affine":
        others = [array.astype(scales) for array in others]
    return Packed(form, (rows, columns), weight, *others)


def truth(packed: Packed) -> np.ndarray:
    """The matrix in float64."""
    form = packed.format
    if form.ggml_type is not None:
        return dequantize_blocks(np.array(packed.weight), GGMLQuantizationType[form.ggml_type]).astype(np.float64)
    assert packed.scales is not None
    return dequantize(form.mode, form.bits, form.group_size, packed.weight, packed.scales, packed.biases)


def assert_product(found: mx.array, expected: np.ndarray, form: Format, isa: str) -> None:
    """Within the bound of the dtype; integer products of float32 rows are nearer."""
    assert_near(found, expected, found.dtype)
    if isa in IN_INTEGERS and form.mode != "mxfp8" and found.dtype == mx.float32:
        gap = np.linalg.norm(wide(found) - expected) / np.linalg.norm(expected)
        assert gap <= NEAR_IN_INTEGERS, f"off by {gap:.1e} of the norm"


@every_format
def test_products_equal_float64(form: Format, isa: str) -> None:
    """One row, few, and more than a tile; rows and columns that fill no tile, block or step."""
    rng = np.random.default_rng(1)
    for count, rows, blocks in ((1, 37, 5), (9, 1, 1), (3, 5, 3), (7, 33, 4), (17, 20, 7), (40, 67, 2), (1, 6, 40)):
        packed = pack(form, rows, blocks * unit(form))
        for dtype in FLOATS:
            x = draw(rng, count, packed.shape[1], dtype=dtype)
            assert_product(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, form, isa)


@every_format
@pytest.mark.parametrize("count", [1, 5])
def test_one_value_far_above_the_others(form: Format, count: int, isa: str) -> None:
    """10,000 times the others: within 1e-5 of each row's norm."""
    packed = pack(form, 33, 6 * unit(form))
    x = np.array(draw(np.random.default_rng(12), count, packed.shape[1]))
    x[:, 70] = 1e4
    expected = x.astype(np.float64) @ truth(packed).T
    gaps = np.linalg.norm(wide(kernels.quantized_matmul(mx.array(x), packed)) - expected, axis=1)
    assert (gaps <= 1e-5 * np.linalg.norm(expected, axis=1)).all()


@every_format
@pytest.mark.parametrize("count", [1, 5])
def test_values_of_all_magnitudes(form: Format, count: int, isa: str) -> None:
    """Zeros, whole zero steps, and values from 1e-30 to 1e30 in rows of their own."""
    packed = pack(form, 33, 9 * unit(form))
    x = np.array(draw(np.random.default_rng(13), count, packed.shape[1]))
    x[:, ::3] = 0
    x[:, :130] = 0
    for scale in (1e-30, 1e-10, 1.0, 1e10, 1e30):
        scaled = (x * np.float32(scale)).astype(np.float32)
        expected = scaled.astype(np.float64) @ truth(packed).T
        gap = np.linalg.norm(wide(kernels.quantized_matmul(mx.array(scaled), packed)) - expected)
        assert gap <= 1e-5 * np.linalg.norm(expected), scale
    zeros = kernels.quantized_matmul(mx.zeros(x.shape), packed)
    assert (np.array(zeros) == 0).all()


@every_format
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("count", [1, 5])
def test_what_is_not_finite_stays_so(form: Format, value: float, count: int, isa: str) -> None:
    """In that row's outputs, all of which have it as a term, and in no other's."""
    packed = pack(form, 33, 9 * unit(form))
    x = np.array(draw(np.random.default_rng(14), count, packed.shape[1]))
    x[0, 31] = value
    found = np.array(kernels.quantized_matmul(mx.array(x), packed))
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("form", [AFFINE[6], AFFINE[15]], ids=str)
@pytest.mark.parametrize("scales", FLOATS)
def test_scales_of_every_dtype(form: Format, scales: mx.Dtype, isa: str) -> None:
    packed = pack(form, 21, 224, scales)
    x = draw(np.random.default_rng(2), 3, 224)
    assert_near(kernels.quantized_matmul(x, packed), wide(x) @ truth(packed).T, mx.float32)


@every_format
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_row_alone_equals_the_row_in_a_batch(form: Format, dtype: mx.Dtype, isa: str) -> None:
    """Bit for bit: what a request gets must not depend on those that it is computed with."""
    packed = pack(form, 39, 9 * unit(form))
    x = draw(np.random.default_rng(3), 17, packed.shape[1], dtype=dtype)
    alone = np.concatenate([np.array(kernels.quantized_matmul(x[i : i + 1], packed).view(mx.uint8)) for i in range(17)])
    for count in range(2, 18):
        together = np.array(kernels.quantized_matmul(x[:count], packed).view(mx.uint8))
        np.testing.assert_array_equal(together, alone[:count])


@every_format
def test_threads_change_nothing(form: Format, isa: str) -> None:
    packed = pack(form, 150, 3 * unit(form))
    x = draw(np.random.default_rng(4), 9, packed.shape[1])
    threads, found = extension.num_threads(), []
    for count in (1, 2, 5):
        extension.set_num_threads(count)
        found.append(np.array(kernels.quantized_matmul(x, packed)))
    extension.set_num_threads(threads)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@every_format
def test_transposed_products_equal_float64(form: Format, isa: str) -> None:
    """The gradient with respect to x: rows of all lengths, in each dtype."""
    rng = np.random.default_rng(5)
    for count, rows, blocks in ((1, 37, 9), (5, 8, 1), (19, 21, 3)):
        packed = pack(form, rows, blocks * unit(form))
        for dtype in FLOATS:
            x, g = draw(rng, count, packed.shape[1], dtype=dtype), draw(rng, count, rows, dtype=dtype)
            _, (found,) = mx.vjp(partial(kernels.quantized_matmul, packed=packed), [x], [g])
            assert_near(found, wide(g) @ truth(packed), dtype)


def test_the_gradient_has_a_gradient() -> None:
    packed = pack(AFFINE[7], 24, 128)
    x, weights = draw(np.random.default_rng(6), 2, 128), truth(pack(AFFINE[7], 24, 128))

    def loss(x: mx.array) -> mx.array:
        return (kernels.quantized_matmul(x, packed) ** 3).sum()

    found = mx.grad(lambda x: (mx.grad(loss)(x) ** 2).sum())(x)
    y = wide(x) @ weights.T
    inner = (3 * y**2) @ weights
    assert_near(found, ((2 * inner) @ weights.T * 6 * y) @ weights, mx.float32)


def test_activations_that_do_not_lie_in_rows(isa: str) -> None:
    packed = pack(AFFINE[6], 10, 64)
    x = draw(np.random.default_rng(7), 64, 5, 2)
    moved = x.transpose(2, 1, 0)
    assert_near(kernels.quantized_matmul(moved, packed), wide(moved) @ truth(packed).T, mx.float32)
    every_second = draw(np.random.default_rng(8), 6, 64)[::2]
    assert_near(kernels.quantized_matmul(every_second, packed), wide(every_second) @ truth(packed).T, mx.float32)


def test_weights_that_do_not_lie_in_rows() -> None:
    packed = pack(AFFINE[6], 20, 64)
    assert packed.scales is not None and packed.biases is not None
    half = Packed(packed.format, (10, 64), packed.weight[::2], packed.scales[::2], packed.biases[::2])
    x = draw(np.random.default_rng(9), 3, 64)
    assert_near(kernels.quantized_matmul(x, half), wide(x) @ truth(packed)[::2].T, mx.float32)


def test_no_rows() -> None:
    assert kernels.quantized_matmul(mx.zeros((0, 64)), pack(AFFINE[6], 20, 64)).shape == (0, 20)


def test_misuse_is_refused() -> None:
    packed = pack(AFFINE[6], 20, 64)
    with pytest.raises(ValueError, match="rows of 64 values"):
        kernels.quantized_matmul(mx.zeros((2, 63)), packed)
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        kernels.quantized_matmul(mx.zeros((2, 64), dtype=mx.int32), packed)
    with pytest.raises(ValueError, match="layout 'Q9_9'"):
        extension.quantized_matmul(mx.zeros((2, 64)), packed.weight, None, None, "Q9_9", 32, 64)


# Relative to the norm of the result: rounding steps of 128 Gaussian values to 16 and to 8 bits gives 3e-5 and 7e-3.
PRECISIONS = {"int16": 6e-5, "int8": 1.5e-2}


@pytest.mark.parametrize("rows", [1, 2, 3, 13])
@pytest.mark.parametrize("precision", PRECISIONS)
@every_format
def test_activations_may_be_rounded(form: Format, precision: str, rows: int, isa: str) -> None:
    """By choice: within the rounding that is stated, on units that multiply integers; a row does not see the others."""
    packed = pack(form, 39, 9 * unit(form))
    x = draw(np.random.default_rng(11), rows, packed.shape[1])
    extension.set_precision(precision)
    try:
        found = kernels.quantized_matmul(x, packed)
        alone = kernels.quantized_matmul(x[-1:], packed)
        mx.eval(found, alone)
    finally:
        extension.set_precision("exact")
    expected = wide(x) @ truth(packed).T
    error = np.linalg.norm(np.array(found) - expected) / np.linalg.norm(expected)
    assert error < PRECISIONS[precision]
    if isa.startswith("avx512") and form.mode != "mxfp8":
        assert error > 1e-6, "nothing was rounded"
    np.testing.assert_array_equal(np.array(found)[-1:], np.array(alone))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="'int4' is no precision of activations; use one of: exact, int16, int8"):
        extension.set_precision("int4")
    assert extension.precision() == "exact"
