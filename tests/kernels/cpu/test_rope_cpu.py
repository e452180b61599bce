"""rope of every instruction set: sine and cosine to the last bits, at angles up to a million."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, rope, wide

from umlm import kernels


def test_sine_and_cosine_are_within_2_units_of_the_last_place(isa: str) -> None:
    rng = np.random.default_rng(0)
    positions = np.concatenate([np.arange(1000), rng.integers(0, 1_000_000, 4000)]).astype(np.int32)
    inv_freq = np.concatenate([[1.0], rng.uniform(1e-6, 1.0, 30)]).astype(np.float32)
    half = len(inv_freq)
    ones = np.zeros((1, len(positions), 1, 2 * half), np.float32)
    ones[..., :half] = 1  # turned by an angle: its cosine, then its sine
    found = np.array(kernels.rope(mx.array(ones), mx.array(positions), mx.array(inv_freq)))[0, :, 0]
    angles = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)
    for part, exact in ((found[:, :half], np.cos(angles)), (found[:, half:], np.sin(angles))):
        units = np.abs(part - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        assert units.max() <= 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "dims", "turned"), [(1, 2, 2), (9, 64, 64), (2, 80, 32), (3, 17, 10)])
def test_equals_float64(isa: str, heads: int, dims: int, turned: int, dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(1)
    inv_freq = (10000.0 ** -(np.arange(0, turned, 2) / turned)).astype(np.float32)
    for batch, tokens in ((1, 1), (2, 300)):
        x, positions = draw(rng, batch, tokens, heads, dims, dtype=dtype), rng.integers(0, 131072, tokens)
        found = kernels.rope(x, mx.array(positions.astype(np.int32)), mx.array(inv_freq), scale=1.5)
        angles = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)
        assert_near(found, rope(wide(x), angles, 1.5), dtype)
        for t in (0, tokens - 1):
            alone = kernels.rope(x[:, t : t + 1], mx.array(positions[t : t + 1]), mx.array(inv_freq), scale=1.5)
            assert mx.array_equal(alone, found[:, t : t + 1])


def test_input_that_is_a_slice(isa: str) -> None:
    x = draw(np.random.default_rng(2), 1, 6, 4, 32)
    positions, inv_freq = mx.arange(6), mx.array(np.ones(8, np.float32))
    whole = kernels.rope(x, positions, inv_freq)
    assert mx.array_equal(kernels.rope(x[:, :, 1:3], positions, inv_freq), whole[:, :, 1:3])


@pytest.mark.parametrize("page_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_pages_hold_what_is_written_and_keep_the_rest(isa: str, dtype: mx.Dtype, page_dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(3)
    pages, values = draw(rng, 50, 3, 10, dtype=page_dtype), draw(rng, 20, 3, 10, dtype=dtype)
    slots = rng.permutation(50)[:20]
    expected = wide(pages)
    expected[slots] = wide(values.astype(page_dtype))
    found = kernels.write_pages(pages, mx.array(slots.astype(np.int32)), values)
    assert found is pages and found.dtype == page_dtype
    np.testing.assert_array_equal(wide(pages), expected)
