"""rms_norm against float64 and against MLX's own."""

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, rms_norm, wide

from umlm import kernels


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(1,), (64,), (3, 7), (1, 5, 576), (2, 3, 4, 80), (1, 0, 16)])
def test_equals_float64(dtype: mx.Dtype, weighted: bool, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, weight = draw(rng, *shape, dtype=dtype), draw(rng, shape[-1]) if weighted else None
    expected = rms_norm(wide(x), None if weight is None else wide(weight), 1e-6)
    assert_near(kernels.rms_norm(x, weight, 1e-6), expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_mlx(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 4, 96, dtype=dtype), draw(rng, 96, dtype=dtype)
    assert_near(kernels.rms_norm(x, weight, 1e-5), rms_norm(wide(x), wide(weight), 1e-5), dtype)
    gap = mx.abs(kernels.rms_norm(x, weight, 1e-5) - mx.fast.rms_norm(x, weight, 1e-5)).max().item()
    assert gap <= {mx.float32: 1e-6, mx.float16: 2**-7, mx.bfloat16: 2**-4}[dtype]


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_float16_squares_neither_vanish_nor_overflow(size: float) -> None:
    x = (draw(np.random.default_rng(3), 3, 256) * size).astype(mx.float16)
    assert_near(kernels.rms_norm(x, None, 1e-12), rms_norm(wide(x), None, 1e-12), mx.float16)


def test_weight_of_another_dtype_leaves_x_s_dtype() -> None:
    rng = np.random.default_rng(4)
    x, weight = draw(rng, 3, 32, dtype=mx.bfloat16), draw(rng, 32)
    assert_near(kernels.rms_norm(x, weight, 1e-6), rms_norm(wide(x), wide(weight), 1e-6), mx.bfloat16)


def test_gradients_reach_x_and_weight() -> None:
    rng = np.random.default_rng(5)
    x, weight = draw(rng, 3, 8), draw(rng, 8)
    ours = mx.grad(lambda x, w: mx.square(kernels.rms_norm(x, w, 1e-6)).sum(), argnums=(0, 1))(x, weight)
    theirs = mx.grad(lambda x, w: mx.square(mx.fast.rms_norm(x, w, 1e-6)).sum(), argnums=(0, 1))(x, weight)
    for found, expected in zip(ours, theirs, strict=True):
        assert_near(found, wide(expected), mx.float32)
