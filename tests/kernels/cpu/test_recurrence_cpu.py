"""Ops with a recurrent state on every instruction set: ragged sizes, whole vectors, strides, and bits that stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import recurrent
from float64 import FLOATS, assert_near, wide
from recurrent import ROWS

from umlm import kernels
from umlm.kernels import cpu

STARTS = [0, 7, 7, 8, 33]

# whole vectors of every instruction set, parts of them, several blocks, and single values
SIZES: dict[str, list[dict[str, Any]]] = {
    "gated_delta": [
        {"heads": (1, 1), "dims": (1, 1)},
        {"heads": (1, 3), "dims": (16, 64)},
        {"heads": (2, 2), "dims": (17, 85)},
        {"heads": (2, 4), "dims": (128, 128), "norm_eps": None},
        {"heads": (1, 2), "dims": (33, 16)},
    ],
    "mamba": [
        {"channels": 1, "size": 1},
        {"channels": 64, "size": 16},
        {"channels": 35, "size": 16, "skip": False},
        {"channels": 70, "size": 21},
    ],
    "mamba2": [
        {"heads": 1, "channels": 1, "groups": 1, "size": 1},
        {"heads": 4, "channels": 64, "groups": 2, "size": 128},
        {"heads": 6, "channels": 5, "groups": 3, "size": 32, "skip": False},
        {"heads": 3, "channels": 33, "groups": 1, "size": 19},
    ],
    "short_conv": [{"channels": c, "taps": t} for c in (1, 16, 64, 131) for t in (2, 3, 4, 8)]
    + [{"channels": 20, "taps": 5, "biased": False}],
}
SIZES["kimi_delta"] = SIZES["gated_delta"]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    assert cpu.extension is not None
    cpu.extension.set_num_threads(request.param)
    yield request.param
    cpu.extension.set_num_threads(0)


def assert_same_bits(found: mx.array, expected: mx.array) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(wide(found), wide(expected))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWS)
def test_equals_float64(isa: str, name: str, dtype: mx.Dtype) -> None:
    assert kernels.report()[ROWS[name](np.random.default_rng(0), [0]).op.__name__] == "cpu"
    for seed, sizes in enumerate(SIZES[name]):
        row = ROWS[name](np.random.default_rng(seed), STARTS, dtype, **sizes)
        expected, last = row.in_float64()
        y, states = row.run()
        assert_near(y, expected, dtype)
        assert_near(states, last, mx.float32)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("name", ROWS)
def test_chunked_is_whole_and_packed_is_alone(isa: str, name: str, dtype: mx.Dtype) -> None:
    for seed, sizes in enumerate(SIZES[name]):
        row = ROWS[name](np.random.default_rng(seed), STARTS, dtype, **sizes)
        y, after = row.run()
        for r in range(len(STARTS) - 1):
            alone, last = row.request(r).run()
            assert_same_bits(alone, y[STARTS[r] : STARTS[r + 1]])
            assert_same_bits(last[0], after[r])
        at, states = STARTS[3], row.states[3:]
        for end in [9, 10, 27, 33]:  # one token and many
            chunk, states = row.part(at, end, states, [0, end - at]).run()
            assert_same_bits(chunk, y[at:end])
            at = end
        assert_same_bits(states[0], after[3])


@pytest.mark.parametrize("name", ROWS)
def test_threads_change_nothing(threads: int, name: str) -> None:
    row = ROWS[name](np.random.default_rng(1), STARTS, mx.bfloat16, **SIZES[name][1])
    y, states = row.run()
    for r in range(len(STARTS) - 1):
        alone, last = row.request(r).run()
        assert_same_bits(alone, y[STARTS[r] : STARTS[r + 1]])
        assert_same_bits(last[0], states[r])


@pytest.mark.parametrize("name", ROWS)
def test_any_strides_are_read_right(isa: str, name: str) -> None:
    """Tokens that lie apart or backwards, values that lie apart, and turned axes."""
    row = ROWS[name](np.random.default_rng(2), STARTS, mx.float16)
    expected = row.run()
    apart = {key: mx.repeat(array, 2, axis=0)[::2] for key, array in row.tokens.items()}
    spaced = {key: mx.repeat(array, 2, axis=-1)[..., 1::2] for key, array in row.tokens.items()}
    turned = {key: mx.contiguous(array.swapaxes(0, -1)).swapaxes(0, -1) for key, array in row.tokens.items()}
    backwards = {key: mx.contiguous(array[::-1])[::-1] for key, array in row.tokens.items()}
    states = mx.repeat(row.states, 2, axis=-1)[..., ::2]
    for tokens in (apart, spaced, turned, backwards):
        for found, wanted in zip(replace(row, tokens=tokens, states=states).run(), expected, strict=True):
            assert_same_bits(found, wanted)


def test_slices_of_one_projection_are_read_right(isa: str) -> None:
    """q, k and v as models have them: side by side in one array."""
    row = recurrent.gated_delta(np.random.default_rng(3), STARTS, mx.bfloat16, heads=(2, 4), dims=(16, 32))
    flat = [row.tokens[key].reshape(33, -1) for key in "qkv"]
    whole = mx.concatenate(flat, axis=-1)
    parts = [
        part.reshape(33, -1, dim) for part, dim in zip(mx.split(whole, [32, 64], axis=-1), (16, 16, 32), strict=True)
    ]
    tokens = {**row.tokens, **dict(zip("qkv", parts, strict=True))}
    for found, wanted in zip(replace(row, tokens=tokens).run(), row.run(), strict=True):
        assert_same_bits(found, wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_conv_s_state_in_x_s_dtype_changes_nothing(isa: str, dtype: mx.Dtype) -> None:
    row = recurrent.short_conv(np.random.default_rng(4), STARTS, dtype, state_type=dtype)
    y, states = row.run()
    wanted, last = replace(row, states=row.states.astype(mx.float32)).run()
    assert states.dtype == dtype
    assert_same_bits(y, wanted)
    assert_same_bits(states.astype(mx.float32), last)


def test_mixed_dtypes(isa: str) -> None:
    """Each of the arrays may be of another dtype; y has x's, or v's."""
    row = recurrent.gated_delta(np.random.default_rng(5), STARTS, mx.float16)
    tokens = {**row.tokens, "q": row.tokens["q"].astype(mx.bfloat16), "v": row.tokens["v"].astype(mx.float32)}
    mixed = replace(row, tokens={**tokens, "beta": row.tokens["beta"].astype(mx.float16)})
    assert_near(mixed.run()[0], mixed.in_float64()[0], mx.float32)
    scan = recurrent.mamba2(np.random.default_rng(6), STARTS)
    tokens = {**scan.tokens, "B": scan.tokens["B"].astype(mx.bfloat16), "x": scan.tokens["x"].astype(mx.float16)}
    mixed = replace(scan, tokens=tokens)
    assert_near(mixed.run()[0], mixed.in_float64()[0], mx.float16)


@pytest.mark.parametrize("name", ["gated_delta", "kimi_delta", "mamba", "mamba2"])
def test_strong_decay_forgets_and_none_keeps(isa: str, name: str) -> None:
    row = ROWS[name](np.random.default_rng(7), [0, 1])
    shared, tokens = dict(row.shared), dict(row.tokens)
    if "log_decay" in tokens:
        tokens["beta"] = mx.zeros_like(tokens["beta"])
        kept, lost = mx.zeros_like(tokens["log_decay"]), mx.full(tokens["log_decay"].shape, -np.inf)
        cases = [({**tokens, "log_decay": kept}, shared, 1), ({**tokens, "log_decay": lost}, shared, 0)]
    else:
        tokens["B"] = mx.zeros_like(tokens["B"])
        lost = mx.full(shared["A"].shape, -np.inf)
        cases = [({**tokens, "dt": mx.zeros_like(tokens["dt"])}, shared, 1), (tokens, {**shared, "A": lost}, 0)]
    for each, others, factor in cases:
        _, states = replace(row, tokens=each, shared=others).run()
        np.testing.assert_array_equal(wide(states), factor * wide(row.states))


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_decays_are_near_at_every_input(isa: str, name: str) -> None:
    """Each value by itself: states of ones that take up nothing become exp(A), by place or by head."""
    logs = np.concatenate([np.linspace(-85, 85, 1999), -np.logspace(-30, 1, 99), [88.7, -0.0]]).astype(np.float32)
    A = np.concatenate([logs, np.array([-np.inf, -1e30, -104, 89, 1e30, np.inf, np.nan], np.float32)])
    sizes = {"channels": 1, "size": len(A)} if name == "mamba" else {"heads": len(A), "groups": 1, "size": 1}
    row = ROWS[name](np.random.default_rng(9), [0, 1], **sizes)
    tokens = {**row.tokens, "dt": mx.ones_like(row.tokens["dt"]), "B": mx.zeros_like(row.tokens["B"])}
    shared = {**row.shared, "A": mx.array(A).reshape(row.shared["A"].shape)}
    _, states = replace(row, tokens=tokens, shared=shared, states=mx.ones(row.states.shape)).run()
    found = wide(states).reshape(len(A), -1)[:, 0]
    np.testing.assert_allclose(found[: len(logs)], np.exp(logs.astype(np.float64)), rtol=3e-7)
    np.testing.assert_array_equal(found[len(logs) :], [0, 0, 0, np.inf, np.inf, np.inf, np.nan])


@pytest.mark.parametrize("name", ROWS)
def test_the_old_states_are_left_alone(name: str) -> None:
    row = ROWS[name](np.random.default_rng(8), STARTS)
    before = wide(row.states)
    mx.eval(*row.run())
    np.testing.assert_array_equal(wide(row.states), before)
