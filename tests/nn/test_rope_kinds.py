"""Every rope kind's inverse frequencies against float64 formulas written from the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from umlm.nn import DenseState, Rope, RopeParameters
from umlm.nn.rope import KINDS


def plain(dims: int, theta: float = 10000.0) -> np.ndarray:
    """theta^(-2i / dims). arXiv:2104.09864"""
    return theta ** (-2 * np.arange(dims // 2) / dims)


def frequencies(lengths: Sequence[int] = (1,), **parameters: Any) -> np.ndarray:
    """What umlm turns tokens of sequences of these lengths by: [dims / 2] or [T, dims / 2]."""
    return np.array(Rope(RopeParameters(**parameters)).inv_freq(mx.array(list(lengths))))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=2e-6)


@pytest.mark.parametrize("dims", [2, 6, 64, 80, 256])
@pytest.mark.parametrize("theta", [10000.0, 1e6, 500000.0])
def test_default(dims: int, theta: float) -> None:
    assert_close(frequencies(dims=dims, rope_theta=theta), plain(dims, theta))


def test_linear_stretches_positions() -> None:
    """arXiv:2306.15595: position / factor."""
    assert_close(frequencies(dims=16, rope_type="linear", factor=4.0), plain(16) / 4)


def test_explicit_factors_divide() -> None:
    assert_close(frequencies(dims=6, rope_type="factors", factors=[1.0, 2.0, 8.0]), plain(6) / [1, 2, 8])


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 1000])
def test_dynamic_stretches_the_base_past_the_trained_length(length: int) -> None:
    """NTK-aware scaling: the base grows by (s L / L0 - (s - 1))^(d / (d - 2)), only beyond L0."""
    stretch = 3.0 * max(length, 32) / 32 - 2.0
    expected = plain(16, 10000.0 * stretch ** (16 / 14))
    found = frequencies([length], dims=16, rope_type="dynamic", factor=3.0, max_position_embeddings=32)
    assert_close(found, expected[None])


def llama3(dims: int, theta: float, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """By wavelength: longer than original / low are slowed, shorter than original / high kept. arXiv:2407.21783"""
    expected = []
    for f in plain(dims, theta):
        wavelength = 2 * math.pi / f
        smooth = (original / wavelength - low) / (high - low)
        kept = wavelength < original / high
        slowed = wavelength > original / low
        expected.append(f if kept else f / factor if slowed else (1 - smooth) * f / factor + smooth * f)
    return np.array(expected)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (2.0, 0.5, 9.0)])
def test_llama3(theta: float, factor: float, low: float, high: float) -> None:
    found = frequencies(
        dims=64, rope_type="llama3", rope_theta=theta, factor=factor, low_freq_factor=low, high_freq_factor=high,
        original_max_position_embeddings=512,
    )  # fmt: skip
    assert_close(found, llama3(64, theta, factor, low, high, 512))


def test_f02_llama3_worked_example() -> None:
    """Field case F02: the published llama3 block must load; the fourth frequency lies in the smooth zone."""
    found = frequencies(
        dims=8, rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )  # fmt: skip
    np.testing.assert_allclose(found, [1, 0.1, 0.01, 0.00021361], rtol=0, atol=5e-9)


def yarn(dims: int, theta: float, factor: float, original: int, fast: float, slow: float, truncate: bool) -> np.ndarray:
    """arXiv:2309.00071: dims that turn more than `fast` times over the original length are kept, fewer than
    `slow` times interpolated, and between them a ramp over the dim's index."""

    def index(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = index(fast), index(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    ramp = [min(max((i - first) / (last - first), 0), 1) for i in range(dims // 2)]
    return np.array([f * (1 - r) + f / factor * r for f, r in zip(plain(dims, theta), ramp, strict=True)])


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (16.0, 2.0)])
@pytest.mark.parametrize(("dims", "theta", "original"), [(64, 10000.0, 4096), (128, 1e6, 32768), (16, 10000.0, 64)])
def test_yarn(dims: int, theta: float, original: int, fast: float, slow: float, truncate: bool) -> None:
    found = frequencies(
        dims=dims, rope_type="yarn", rope_theta=theta, factor=4.0, beta_fast=fast, beta_slow=slow,
        truncate=truncate, original_max_position_embeddings=original,
    )  # fmt: skip
    assert_close(found, yarn(dims, theta, 4.0, original, fast, slow, truncate))


def test_yarn_without_factor_takes_the_ratio_of_the_lengths() -> None:
    found = frequencies(dims=64, rope_type="yarn", max_position_embeddings=16384, original_max_position_embeddings=4096)
    assert_close(found, yarn(64, 10000.0, 4.0, 4096, 32.0, 1.0, True))


LONGROPE: dict[str, Any] = {
    "dims": 6,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [4.0, 8.0, 16.0],
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
}


def test_longrope_goes_by_each_token_s_length() -> None:
    """arXiv:2402.13753. Long factors only for sequences longer than the original length (field case F06)."""
    short, long = plain(6) / [1, 1.5, 2], plain(6) / [4, 8, 16]
    assert_close(frequencies([1, 16, 17, 64], **LONGROPE), np.array([short, short, long, long]))


def test_lengths_decide_token_by_token_in_a_packed_row() -> None:
    lengths = [40, 3, 33, 1000, 32]
    parameters: dict[str, Any] = {"dims": 8, "rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 32}
    together = frequencies(lengths, **parameters)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(together[row], frequencies([length], **parameters)[0])


SCALES: dict[str, tuple[dict[str, Any], float]] = {
    "default": ({}, 1.0),
    "linear": ({"factor": 4.0}, 1.0),
    "yarn": ({"factor": 4.0}, 0.1 * math.log(4) + 1),
    "yarn given": ({"factor": 4.0, "attention_factor": 1.7}, 1.7),
    "yarn given zero": ({"factor": 4.0, "attention_factor": 0.0}, 0.0),
    "yarn not longer": ({"factor": 1.0}, 1.0),
    "yarn mscale": (
        {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.3},
        (0.07 * math.log(40) + 1) / (0.13 * math.log(40) + 1),
    ),
    "longrope": ({}, math.sqrt(1 + math.log(4) / math.log(16))),
    "longrope factor": ({"factor": 32.0}, math.sqrt(1 + math.log(32) / math.log(16))),
    "longrope given": ({"attention_factor": 1.1}, 1.1),
    "longrope not longer": ({"max_position_embeddings": 16}, 1.0),
}


@pytest.mark.parametrize("name", SCALES)
def test_what_cos_and_sin_are_multiplied_by(name: str) -> None:
    given, expected = SCALES[name]
    kind = name.split()[0]
    base: dict[str, Any] = {"dims": 6, "rope_type": kind, "original_max_position_embeddings": 16}
    rope = Rope(RopeParameters(**{**base, **(LONGROPE if kind == "longrope" else {}), **given}))
    assert rope.scale == pytest.approx(expected, rel=1e-12)


def test_the_layer_turns_by_position_and_scale() -> None:
    """At frequencies of 1 a token at p is turned by p radians, cos and sin scaled; further dims pass through."""
    rope = Rope(RopeParameters(dims=2, rope_type="yarn", attention_factor=1.5, factor=1.0, rope_theta=10.0,
                               original_max_position_embeddings=8))  # fmt: skip
    x = mx.array([[[[1.0, 0.0, 7.0]]] * 4]).reshape(1, 4, 1, 3)
    found = np.array(rope(x, DenseState(4)))[0, :, 0]
    angles = np.arange(4)
    expected = np.stack([1.5 * np.cos(angles), 1.5 * np.sin(angles), np.full(4, 7.0)], axis=-1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_list_of_kinds_is_tested_whole() -> None:
    assert set(KINDS) == {"default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors"}


BAD: dict[str, dict[str, Any]] = {
    "rope type 'ntk' is unknown; known: default, dynamic, factors": {"rope_type": "ntk"},
    "5 rotated dims of a head is not even and > 0": {"dims": 5},
    "0 rotated dims of a head is not even and > 0": {"dims": 0},
    "rope type 'linear' needs the key 'factor'": {"rope_type": "linear"},
    "rope type 'longrope' needs the key 'short_factor'": {"rope_type": "longrope", "long_factor": [1.0] * 4},
    "rope factors has 3 values; 8 rotated dims need 4": {"rope_type": "factors", "factors": [1.0] * 3},
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_parameters_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        RopeParameters(**{"dims": 8, **BAD[message]})
