"""Dense products against float64."""

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide

from umlm import kernels


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(8,), (1, 1, 8), (1, 13, 65), (2, 3, 5, 33), (1, 0, 8)])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_equals_float64(dtype: mx.Dtype, shape: tuple[int, ...], rows: int) -> None:
    rng = np.random.default_rng(1)
    x, weight, bias = draw(rng, *shape, dtype=dtype), draw(rng, rows, shape[-1], dtype=dtype), draw(rng, rows)
    assert_near(kernels.matmul(x, weight), wide(x) @ wide(weight).T, dtype)
    expected = wide(x) @ wide(weight).T + wide(bias)
    assert_near(kernels.matmul(x, weight, bias.astype(mx.float32)), expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_long_sums_do_not_lose_bits(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 1, 3, 4096, dtype=dtype), draw(rng, 5, 4096, dtype=dtype)
    assert_near(kernels.matmul(x, weight), wide(x) @ wide(weight).T, dtype)


def test_answers_in_x_s_dtype() -> None:
    rng = np.random.default_rng(3)
    x, weight = draw(rng, 1, 3, 16), draw(rng, 5, 16, dtype=mx.bfloat16)
    assert_near(kernels.matmul(x, weight), wide(x) @ wide(weight).T, mx.float32)
