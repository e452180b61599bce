"""Norms, softmax and activations on every instruction set, over ragged sizes, mixed dtypes and odd strides."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from float64 import ACTIVATIONS, FLOATS, assert_near, draw, rms_norm, softmax, wide

from umlm import kernels

SIZES = [1, 3, 15, 17, 64, 511, 513, 1100]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weight_type", [*FLOATS, None])
def test_rms_norm_equals_float64(isa: str, dtype: mx.Dtype, weight_type: mx.Dtype | None) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES:
        x = draw(rng, 3, size, dtype=dtype)
        weight = None if weight_type is None else draw(rng, size, dtype=weight_type)
        expected = rms_norm(wide(x), None if weight is None else 1 + wide(weight), 1e-6)
        found = kernels.rms_norm(x, weight, 1e-6, offset=1) if weight is not None else kernels.rms_norm(x, None, 1e-6)
        assert_near(found, expected, dtype)
        np.testing.assert_array_equal(
            wide(kernels.rms_norm(x, None, 1e-6))[1:2], wide(kernels.rms_norm(x[1:2], None, 1e-6))
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_equals_float64(isa: str, dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(8)
    for size in SIZES:
        x = 5 * draw(rng, 4, size, dtype=dtype)
        found = kernels.softmax(x, 0.7)
        assert_near(found, softmax(0.7 * wide(x)), dtype)
        np.testing.assert_array_equal(wide(found)[1:2], wide(kernels.softmax(x[1:2], 0.7)))
        assert_near(kernels.softmax(x.T), softmax(wide(x).T), dtype)


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_activations_equal_float64(isa: str, name: str, dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(2)
    for size in SIZES:
        gate = 3 * draw(rng, 2, size, dtype=dtype)
        assert_near(kernels.activation(gate, name), ACTIVATIONS[name](wide(gate)), dtype)
        for up_type in FLOATS:
            up = draw(rng, 2, size, dtype=up_type)
            assert_near(kernels.gated_activation(gate, up, name), ACTIVATIONS[name](wide(gate)) * wide(up), dtype)


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activations_are_near_at_every_input(isa: str, name: str) -> None:
    """Each value by itself, not the norm of all; where the reference in float32 cancels, so may this."""
    x = np.concatenate([np.linspace(-12, 12, 4001), np.logspace(-30, 2, 99), -np.logspace(-30, 2, 99)]).astype(
        np.float32
    )
    found = wide(kernels.activation(mx.array(x), name))
    np.testing.assert_allclose(found, ACTIVATIONS[name](x.astype(np.float64)), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_nan_comes_through(isa: str, name: str) -> None:
    x = mx.array([np.nan] * 33)
    assert np.isnan(wide(kernels.activation(x, name))).all()


def test_any_strides_are_read_right(isa: str) -> None:
    rng = np.random.default_rng(3)
    x, weight = draw(rng, 6, 5, 40), draw(rng, 80)[::2]
    turned = x.transpose(1, 0, 2)[:, ::2]
    assert_near(kernels.rms_norm(turned, weight, 1e-6), rms_norm(wide(turned), wide(weight), 1e-6), mx.float32)
    gate, up = draw(rng, 7, 10), draw(rng, 10, 7).T
    assert_near(kernels.gated_activation(gate, up, "silu"), ACTIVATIONS["silu"](wide(gate)) * wide(up), mx.float32)
    assert_near(
        kernels.gated_activation(gate, up[:1], "relu"), ACTIVATIONS["relu"](wide(gate)) * wide(up)[:1], mx.float32
    )


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rounding_to_16_bits_equals_mlx(isa: str, dtype: mx.Dtype) -> None:
    """relu keeps a float32 product's bits: every exponent, ties, subnormals, infinities."""
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 2**31, 20_000, dtype=np.uint32)
    ties = (rng.integers(0, 2**15, 5000, dtype=np.uint32) << 16) | 0x8000
    special = np.array([0x7F800000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 1, 0x387FFFFF], np.uint32)
    factors = mx.array(np.concatenate([bits, ties, special]).view(np.float32))
    found = np.array(kernels.gated_activation(mx.ones(factors.shape, dtype=dtype), factors, "relu").view(mx.uint16))
    expected = factors.astype(dtype)
    known = ~np.isnan(np.array(factors))
    np.testing.assert_array_equal(found[known], np.array(expected.view(mx.uint16))[known])
    assert np.isnan(wide(mx.array(found).view(dtype))[~known]).all()


def assert_same_gradients(function: Callable, reference: Callable, *inputs: mx.array) -> None:
    c = draw(np.random.default_rng(7), *inputs[0].shape)
    everything = tuple(range(len(inputs)))
    ours = mx.grad(lambda *a: (function(*a) * c).sum(), argnums=everything)(*inputs)
    theirs = mx.grad(lambda *a: (reference(*a) * c).sum(), argnums=everything)(*inputs)
    for found, expected in zip(ours, theirs, strict=True):
        assert_near(found, wide(expected), mx.float32)


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activation_gradients_equal_the_reference_s(name: str) -> None:
    rng = np.random.default_rng(5)
    gate, up = draw(rng, 3, 17), draw(rng, 3, 17)
    gated, plain = kernels.gated_activation, kernels.activation
    assert_same_gradients(lambda g, u: gated(g, u, name), lambda g, u: gated.reference(g, u, name), gate, up)
    assert_same_gradients(lambda g: plain(g, name), lambda g: plain.reference(g, name), gate)


def test_rms_norm_gradients_with_an_offset() -> None:
    rng = np.random.default_rng(6)
    norm = kernels.rms_norm
    assert_same_gradients(
        lambda x, w: norm(x, w, 1e-5, offset=1),
        lambda x, w: norm.reference(x, w, 1e-5, 1.0),
        draw(rng, 3, 17),
        draw(rng, 17),
    )


def test_an_input_that_is_needed_again_is_left_alone() -> None:
    x = mx.array(np.arange(-8, 8, dtype=np.float32))
    y, z = kernels.activation(x, "relu"), kernels.rms_norm(x, None, 1e-6)
    mx.eval(y, z)
    assert x.tolist() == list(range(-8, 8))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rms_norm: the weight must be \[n\]"):
        kernels.rms_norm(mx.zeros((2, 8)), mx.zeros((7,)), 1e-6)
