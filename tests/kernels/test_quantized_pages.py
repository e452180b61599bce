"""Pages of 8 and 4 bits: the bytes against the format in numpy, the error's bound, in place, what is refused."""

from __future__ import annotations

import float64
import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide

from umlm import kernels
from umlm.kernels import QuantizedPages
from umlm.kernels.quantized_pages import dequantize_rows, quantize_rows

DIMS = [64, 80, 96, 128, 256, 1, 7, 33, 47]
MIB = 1 << 20


def uneven(rng: np.random.Generator, *shape: int) -> mx.array:
    """Numbers whose last axis has channels of very different sizes and centres, as keys have."""
    sizes, centres = np.exp(1.5 * rng.standard_normal(shape[-1])), 2 * rng.standard_normal(shape[-1])
    return mx.array((rng.standard_normal(shape) * sizes + centres).astype(np.float32))


def written(values: mx.array, bits: int) -> QuantizedPages:
    """Pages with these values [T, H, D] in their slots in reverse."""
    count, heads, dims = values.shape
    pages = kernels.empty_pages(count, heads, dims, mx.float32, bits)
    slots = mx.arange(count - 1, -1, -1, dtype=mx.int32)
    assert isinstance(pages, QuantizedPages)
    assert kernels.write_pages(pages, slots, values) is pages
    return pages


def test_sizes() -> None:
    """Bytes of a row: 4 for each group of 32, a byte or half a byte for each dim."""
    sizes = {(64, 8): 72, (64, 4): 40, (80, 8): 92, (80, 4): 52, (96, 8): 108, (128, 8): 144, (128, 4): 80}
    assert {shape: kernels.row_bytes(*shape) for shape in sizes} == sizes
    assert (kernels.row_bytes(256, 8), kernels.row_bytes(256, 4), kernels.row_bytes(7, 4)) == (288, 160, 12)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dims", DIMS)
def test_rows_hold_what_the_format_says(dims: int, bits: int) -> None:
    """Offset: the least value rounded down; scale: rounded up; codes: the nearest; so no value is half a step off."""
    values = uneven(np.random.default_rng(dims), 40, 2, dims)
    pages, exact, most = written(values, bits), wide(values)[::-1], 2**bits - 1
    scales, offsets, codes = float64.kept_groups(pages.rows, bits, dims)
    for group in range(scales.shape[-1]):
        part = slice(32 * group, min(32 * group + 32, dims))
        least, scale, offset = exact[..., part].min(axis=-1), scales[..., group], offsets[..., group]
        assert (offset <= least).all() and (least - offset <= np.abs(least) * 2**-7).all()
        needed = (exact[..., part].max(axis=-1) - offset) / most
        assert (scale >= needed * (1 - 1e-6)).all() and (scale <= needed * (1 + 2**-7) + 1e-30).all()
        error = np.abs(float64.kept(pages.rows, bits, dims) - exact)[..., part]
        assert (error <= scale[..., None] * 0.5001).all()
    assert codes.max() <= most


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dims", DIMS)
def test_plain_operations_store_and_read_the_same(dims: int, bits: int) -> None:
    values = uneven(np.random.default_rng(dims), 30, 3, dims)
    rows = quantize_rows(values, bits)
    np.testing.assert_array_equal(np.array(rows)[::-1], np.array(written(values, bits).rows))
    assert_near(dequantize_rows(rows, bits, dims), float64.kept(rows, bits, dims), mx.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_of_any_dtype(dtype: mx.Dtype) -> None:
    values = draw(np.random.default_rng(0), 9, 2, 40, dtype=dtype)
    widened = values.astype(mx.float32)
    np.testing.assert_array_equal(np.array(written(values, 8).rows), np.array(written(widened, 8).rows))


def test_groups_that_end_at_zero_of_either_sign() -> None:
    rows = np.array([[0.0, 1.0], [-0.0, 1.0], [-1.0, -0.0], [-0.0, -0.0]], np.float32)[:, None]
    pages = written(mx.array(rows), 8)
    np.testing.assert_allclose(float64.kept(pages.rows, 8, 2)[::-1], rows, atol=0.003)
    np.testing.assert_array_equal(np.array(quantize_rows(mx.array(rows), 8))[::-1], np.array(pages.rows))


def test_extreme_groups() -> None:
    """All the same, tiny, huge, with outliers: codes reach the ends, and nothing that is finite becomes another."""
    rows = [np.zeros(32), np.full(32, -3.7), np.linspace(0, 1e-35, 32), np.linspace(-1e30, 1e30, 32)]
    rows += [np.r_[1000.0, np.linspace(-1, 1, 31)], np.linspace(-1e-3, 0, 32)]
    values = mx.array(np.array(rows, np.float32)[::-1, None].copy())
    for bits in (8, 4):
        found = float64.kept(written(values, bits).rows, bits, 32)[:, 0]
        ranges = np.ptp(np.array(rows), axis=1) + 2**-7 * np.abs(np.array(rows)).max(axis=1)
        assert (np.abs(found - rows).max(axis=1) <= 0.51 * 1.01 * ranges / (2**bits - 1) + 1e-30).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(bad: float) -> None:
    """A group with such a number is NaN as a whole; its neighbours are as they were."""
    values = np.ones((1, 2, 64), np.float32)
    values[0, 1, 40] = bad
    for bits in (8, 4):
        found = float64.kept(written(mx.array(values), bits).rows, bits, 64)
        assert np.isnan(found[0, 1, 32:]).all()
        assert np.isfinite(found[0, 0]).all() and np.isfinite(found[0, 1, :32]).all()
        assert np.isnan(wide(dequantize_rows(quantize_rows(mx.array(values), bits), bits, 64))[0, 1, 32:]).all()


def test_writes_are_in_place_while_the_pages_have_one_owner() -> None:
    """64 MiB of them; a write's highest use beyond stays below 1 MiB."""
    pages = kernels.empty_pages(233_016, 4, 64, mx.float32, 8)
    mx.eval(pages.rows)
    assert pages.nbytes > 64 * 10**6
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for slot in range(3):
        kernels.write_pages(pages, mx.array([slot]), mx.full((1, 4, 64), slot + 1.0))
        mx.eval(pages.rows)
    assert mx.get_peak_memory() - before < MIB
    np.testing.assert_allclose(float64.kept(pages.rows[:4], 8, 64)[:, 0, 0], [1, 2, 3, 0])


def test_more_pages_keep_what_they_hold() -> None:
    values = draw(np.random.default_rng(1), 5, 2, 16)
    pages = written(values, 4)
    longer = kernels.more_pages(pages, 3)
    assert isinstance(longer, QuantizedPages) and longer.rows.shape == (8, 2, 12)
    np.testing.assert_array_equal(np.array(longer.rows)[:5], np.array(pages.rows))
    assert not np.array(longer.rows)[5:].any()


def test_pages_of_16_bits_are_floats() -> None:
    for dtype, kept in ((mx.float32, mx.float16), (mx.bfloat16, mx.bfloat16), (mx.float16, mx.float16)):
        pages = kernels.empty_pages(4, 1, 64, dtype, 16)
        assert isinstance(pages, mx.array) and pages.dtype == kept


@pytest.mark.parametrize("bits", [0, 2, 3, 5, 32])
def test_bits_that_there_are_not(bits: int) -> None:
    with pytest.raises(ValueError, match=f"pages of {bits} bits do not exist: use 16, 8 or 4 bits, or none"):
        kernels.empty_pages(4, 1, 64, mx.float32, bits)
