"""Dense products on every instruction set: against float64, and the same numbers however rows are batched."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide

from umlm import kernels
from umlm.kernels import cpu

# columns, outputs: whole vectors and less than one, whole tiles and less, one panel of columns and several
SIZES = [(1, 1), (7, 3), (33, 5), (64, 31), (96, 32), (100, 66), (1030, 33), (2100, 20)]
ROWS = [1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 24, 47, 95, 96, 97, 200]
TYPES = list(itertools.product(FLOATS, FLOATS))


@pytest.mark.parametrize(("x_type", "weight_type"), TYPES)
def test_equals_float64(isa: str, x_type: mx.Dtype, weight_type: mx.Dtype) -> None:
    rng = np.random.default_rng(1)
    for (columns, outputs), rows in zip(SIZES * 2, ROWS, strict=True):
        x, weight = draw(rng, rows, columns, dtype=x_type), draw(rng, outputs, columns, dtype=weight_type)
        bias = draw(rng, outputs, dtype=weight_type)
        assert_near(kernels.matmul(x, weight, bias), wide(x) @ wide(weight).T + wide(bias), x_type)


@pytest.mark.parametrize(("x_type", "weight_type"), TYPES)
def test_a_row_is_the_same_alone_and_in_any_batch(isa: str, x_type: mx.Dtype, weight_type: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    for columns, outputs in SIZES:
        x, weight = draw(rng, 100, columns, dtype=x_type), draw(rng, outputs, columns, dtype=weight_type)
        alone = np.concatenate([wide(kernels.matmul(x[row : row + 1], weight)) for row in range(100)])
        for rows in [*range(2, 18), 48, 95, 96, 97, 100]:
            np.testing.assert_array_equal(wide(kernels.matmul(x[100 - rows :], weight)), alone[100 - rows :])


def test_threads_change_nothing(isa: str) -> None:
    assert cpu.extension is not None
    rng = np.random.default_rng(3)
    x, weight = draw(rng, 100, 640), draw(rng, 1000, 640)
    threads = cpu.extension.num_threads()
    found = []
    for count in (1, 2, 5):
        cpu.extension.set_num_threads(count)
        found.append(wide(kernels.matmul(x, weight)))
    cpu.extension.set_num_threads(threads)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_any_strides_are_read_right(isa: str) -> None:
    rng = np.random.default_rng(4)
    x, weight, bias = draw(rng, 40, 3, 5), draw(rng, 40, 9), draw(rng, 18)
    turned, every_other = x.transpose(2, 1, 0), bias[::2]
    expected = wide(turned) @ wide(weight) + wide(every_other)
    assert_near(kernels.matmul(turned, weight.T, every_other), expected, mx.float32)
    broadcast = mx.broadcast_to(x[0, 0], (4, 5))
    assert_near(kernels.matmul(broadcast, weight[:5, :].T), wide(broadcast) @ wide(weight)[:5], mx.float32)


def test_nan_and_infinity_stay_in_their_row(isa: str) -> None:
    x = np.ones((14, 70), np.float32)
    x[3, 69], x[7, 0] = np.nan, np.inf
    for dtype in FLOATS:
        y = wide(kernels.matmul(mx.array(x).astype(dtype), mx.ones((9, 70), dtype=dtype)))
        assert np.isnan(y[3]).all() and np.isposinf(y[7]).all()
        assert (np.delete(y, [3, 7], axis=0) == 70).all()


@pytest.mark.parametrize("shape", [(37,), (1, 37), (2, 3, 37)])
def test_gradients_reach_x_weight_and_bias(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    x, weight, bias, c = draw(rng, *shape), draw(rng, 21, 37), draw(rng, 21), draw(rng, *shape[:-1], 21)
    found = mx.grad(lambda *a: (kernels.matmul(*a) * c).sum(), argnums=(0, 1, 2))(x, weight, bias)
    c2, x2 = wide(c).reshape(-1, 21), wide(x).reshape(-1, 37)
    expected = (wide(c) @ wide(weight), c2.T @ x2, c2.sum(axis=0))
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, mx.float32)


def test_gradients_of_gradients() -> None:
    rng = np.random.default_rng(6)
    x, weight = draw(rng, 3, 8), draw(rng, 5, 8)

    def slope(function) -> mx.array:
        return mx.grad(lambda x: mx.square(mx.grad(lambda x: (function(x) ** 3).sum())(x)).sum())(x)

    ours, theirs = slope(lambda x: kernels.matmul(x, weight)), slope(lambda x: x @ weight.T)
    assert_near(ours, wide(theirs), mx.float32)


@pytest.mark.parametrize(
    ("x", "weight", "bias"), [((3, 8), (5, 7), None), ((3, 8), (5, 8), (4,)), ((3, 8), (5, 8), (1,))]
)
def test_shapes_that_do_not_fit_are_refused(x: tuple, weight: tuple, bias: tuple | None) -> None:
    with pytest.raises(ValueError, match=r"matmul: (x|the bias) must be \["):
        kernels.matmul(mx.zeros(x), mx.zeros(weight), None if bias is None else mx.zeros(bias))
