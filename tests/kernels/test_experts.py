"""Products with routed experts, against float64; and the CPU kernels' on every instruction set in cpu/."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide
from test_quantized_matmul import AFFINE, GGUF, SMALL_FLOATS, pack, truth

from umlm import kernels
from umlm.kernels import Format, Packed

EXPERTS, ROWS, COLUMNS = 5, 19, 256
every_format = pytest.mark.parametrize("form", [AFFINE[7], AFFINE[16], *SMALL_FLOATS, GGUF[0], GGUF[5]], ids=str)


def stack(form: Format, experts: int = EXPERTS) -> tuple[Packed, np.ndarray]:
    """A stack of different matrices, and their values [experts, rows, columns]."""
    # rows are cut from one matrix, so that no two experts are alike
    whole = pack(form, experts * ROWS, COLUMNS)
    scales, biases = (None if a is None else a.reshape(experts, ROWS, -1) for a in (whole.scales, whole.biases))
    packed = Packed(form, (experts, ROWS, COLUMNS), whole.weight.reshape(experts, ROWS, -1), scales, biases)
    return packed, truth(whole).reshape(experts, ROWS, COLUMNS)


def expected(x: np.ndarray, ids: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
    return np.einsum("...k,...nk->...n", rows, matrices[ids])


@every_format
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_float64(form: Format, dtype: mx.Dtype) -> None:
    rng, (packed, matrices) = np.random.default_rng(1), stack(form)
    for leading, width, k in (((1, 7), 1, 2), ((1, 7), 3, 3), ((4,), 1, 5), ((1, 1), 1, 1)):
        x = draw(rng, *leading, width, COLUMNS, dtype=dtype)
        ids = rng.integers(0, EXPERTS, (*leading, k))
        found = kernels.expert_matmul(x, packed, mx.array(ids))
        assert_near(found, expected(wide(x), ids, matrices), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_weights(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    x, weight = draw(rng, 6, 1, 24), draw(rng, 4, 10, 24, dtype=dtype)
    ids = rng.integers(0, 4, (6, 2))
    assert_near(kernels.expert_matmul(x, weight, mx.array(ids)), expected(wide(x), ids, wide(weight)), mx.float32)


@every_format
@pytest.mark.parametrize("width", [1, 3])
def test_gradient_reaches_x(form: Format, width: int) -> None:
    rng, (packed, matrices) = np.random.default_rng(3), stack(form)
    ids = rng.integers(0, EXPERTS, (1, 4, 3))
    x, g = draw(rng, 1, 4, width, COLUMNS), draw(rng, 1, 4, 3, ROWS)
    found = mx.grad(lambda x: (kernels.expert_matmul(x, packed, mx.array(ids)) * g).sum())(x)
    each = np.einsum("...n,...nk->...k", wide(g), matrices[ids])
    assert_near(found, each if width == 3 else each.sum(axis=-2, keepdims=True), mx.float32)


@every_format
def test_no_tokens(form: Format) -> None:
    packed, _ = stack(form)
    ids = mx.zeros((0, 2), dtype=mx.int32)
    assert kernels.expert_matmul(mx.zeros((0, 1, COLUMNS)), packed, ids).shape == (0, 2, ROWS)
