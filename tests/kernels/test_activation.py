"""Activations against float64, at ordinary and at extreme inputs."""

import mlx.core as mx
import numpy as np
import pytest
from float64 import ACTIVATIONS, FLOATS, assert_near, draw, wide

from umlm import kernels

every_name = pytest.mark.parametrize("name", kernels.ACTIVATIONS)


def test_every_activation_has_its_formula() -> None:
    assert set(ACTIVATIONS) == set(kernels.ACTIVATIONS)


@every_name
@pytest.mark.parametrize("dtype", FLOATS)
def test_activation_equals_float64(name: str, dtype: mx.Dtype) -> None:
    x = draw(np.random.default_rng(1), 2, 5, 33, dtype=dtype) * 3
    assert_near(kernels.activation(x, name), ACTIVATIONS[name](wide(x)), dtype)


@every_name
@pytest.mark.parametrize("dtype", FLOATS)
def test_gated_activation_equals_float64(name: str, dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    gate, up = draw(rng, 1, 7, 96, dtype=dtype) * 3, draw(rng, 1, 7, 96, dtype=dtype)
    assert_near(kernels.gated_activation(gate, up, name), ACTIVATIONS[name](wide(gate)) * wide(up), dtype)


@every_name
def test_far_inputs_stay_finite(name: str) -> None:
    x = mx.array([-88.0, -30.0, -1e-30, 0.0, 1e-30, 30.0, 88.0])
    assert_near(kernels.activation(x, name), ACTIVATIONS[name](wide(x)), mx.float32)


def test_float16_is_computed_wide() -> None:
    x = mx.array([300.0, -300.0, 200.0], dtype=mx.float16)  # its cube and its square overflow float16
    assert_near(kernels.activation(x, "gelu_new"), ACTIVATIONS["gelu_new"](wide(x)), mx.float16)
