"""rope against float64 and against MLX's own."""

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, rope, wide

from umlm import kernels


def frequencies(dims: int, theta: float = 10000.0) -> np.ndarray:
    return (theta ** -(np.arange(0, dims, 2) / dims)).astype(np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "head_dim", "dims"), [(1, 2, 2), (3, 16, 16), (2, 24, 10), (5, 80, 64)])
def test_equals_float64_at_any_positions(dtype: mx.Dtype, heads: int, head_dim: int, dims: int) -> None:
    rng = np.random.default_rng(1)
    for tokens in (1, 2, 13):
        x, inv_freq = draw(rng, 2, tokens, heads, head_dim, dtype=dtype), frequencies(dims)
        positions = rng.integers(0, 200, tokens).astype(np.int32)
        expected = rope(wide(x), positions[:, None] * inv_freq.astype(np.float64), 1.0)
        assert_near(kernels.rope(x, mx.array(positions), mx.array(inv_freq)), expected, dtype)


def test_far_positions_turn_by_the_float32_angle() -> None:
    """Angles are float32 products, as the models were trained; sine and cosine must hold at 131,071 rad."""
    rng = np.random.default_rng(2)
    x, inv_freq = draw(rng, 1, 9, 2, 32), frequencies(32)
    positions = rng.integers(100_000, 131_072, 9).astype(np.int32)
    angles = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)
    assert_near(kernels.rope(x, mx.array(positions), mx.array(inv_freq)), rope(wide(x), angles, 1.0), mx.float32)


def test_a_row_of_frequencies_for_each_token() -> None:
    rng = np.random.default_rng(3)
    x, positions = draw(rng, 1, 6, 2, 12), rng.integers(0, 100, 6).astype(np.int32)
    inv_freq = np.stack([frequencies(8, theta) for theta in (10, 100, 1e3, 1e4, 1e5, 1e6)])
    found = kernels.rope(x, mx.array(positions), mx.array(inv_freq))
    assert_near(found, rope(wide(x), positions[:, None] * inv_freq.astype(np.float64), 1.0), mx.float32)
    for t in range(6):
        alone = kernels.rope(x[:, t : t + 1], mx.array(positions[t : t + 1]), mx.array(inv_freq[t]))
        assert mx.array_equal(alone, found[:, t : t + 1])


def test_scale_leaves_the_dims_that_pass_through() -> None:
    rng = np.random.default_rng(4)
    x, positions, inv_freq = draw(rng, 1, 5, 2, 12), np.arange(5, dtype=np.int32), frequencies(8)
    found = kernels.rope(x, mx.array(positions), mx.array(inv_freq), scale=1.25)
    assert_near(found, rope(wide(x), positions[:, None] * inv_freq.astype(np.float64), 1.25), mx.float32)
    assert mx.array_equal(found[..., 8:], x[..., 8:])


@pytest.mark.parametrize("dims", [16, 10])
def test_equals_mlx_for_consecutive_positions(dims: int) -> None:
    x = draw(np.random.default_rng(5), 2, 7, 3, 16)
    found = kernels.rope(x, mx.arange(11, 18, dtype=mx.int32), mx.array(frequencies(dims)))
    mlx = mx.fast.rope(x.transpose(0, 2, 1, 3), dims, traditional=False, base=10000.0, scale=1.0, offset=11)
    np.testing.assert_allclose(np.array(found), np.array(mlx.transpose(0, 2, 1, 3)), atol=2e-5)


def test_gradient_is_the_turn_back() -> None:
    """The op is linear and, at scale 1, orthogonal: the gradient of y.g turns g by the opposite angles."""
    rng = np.random.default_rng(6)
    x, g, positions, inv_freq = draw(rng, 1, 4, 1, 8), draw(rng, 1, 4, 1, 8), np.arange(4), frequencies(8)
    places = mx.array(positions.astype(np.int32))
    found = mx.grad(lambda x: (kernels.rope(x, places, mx.array(inv_freq)) * g).sum())(x)
    assert_near(found, rope(wide(g), -positions[:, None] * inv_freq.astype(np.float64), 1.0), mx.float32)
