"""softmax against float64, and at the edges of its range."""

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, softmax, wide

from umlm import kernels


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1.0, 0.3, -2.0])
@pytest.mark.parametrize("shape", [(1,), (64,), (3, 7), (1, 5, 576), (2, 3, 4, 80), (1, 0, 16), (3, 0)])
def test_equals_float64(dtype: mx.Dtype, scale: float, shape: tuple[int, ...]) -> None:
    x = 4 * draw(np.random.default_rng(1), *shape, dtype=dtype)
    assert_near(kernels.softmax(x, scale), softmax(scale * wide(x)), dtype)


@pytest.mark.parametrize("reference", [True, False])
def test_large_values_neither_overflow_nor_vanish(reference: bool) -> None:
    function = kernels.softmax.reference if reference else kernels.softmax
    x = mx.array([[1e30, 1e30, -1e30], [-3e38, -3e38, -np.inf]])
    assert function(x).tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0]]


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("bad", [[np.nan, 1], [np.inf, 1], [-np.inf, -np.inf]])
def test_what_has_no_softmax_is_nan(reference: bool, bad: list[float]) -> None:
    function = kernels.softmax.reference if reference else kernels.softmax
    assert np.isnan(wide(function(mx.array(bad)))[0])


def test_gradients_equal_mlx_s() -> None:
    rng = np.random.default_rng(2)
    x, c = draw(rng, 3, 8), draw(rng, 3, 8)
    ours = mx.grad(lambda x: (kernels.softmax(x, 0.5) * c).sum())(x)
    theirs = mx.grad(lambda x: (mx.softmax(0.5 * x, axis=-1) * c).sum())(x)
    assert_near(ours, wide(theirs), mx.float32)
