"""Ops with a recurrent state: by their formulas, cut in chunks, packed with others, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import recurrent
from float64 import FLOATS, assert_near, wide
from recurrent import ROWS

STARTS = [0, 3, 3, 4, 9]  # a request without tokens among them


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWS)
def test_equals_float64(name: str, dtype: mx.Dtype, reference: bool) -> None:
    row = ROWS[name](np.random.default_rng(1), STARTS, dtype)
    expected, last = row.in_float64()
    y, states = row.run(reference=reference)
    assert_near(y, expected, dtype)
    assert_near(states, last, mx.float32)


@pytest.mark.parametrize("name", ROWS)
def test_chunked_is_whole_and_packed_is_alone_in_plain_operations(name: str) -> None:
    """To the last bits but one: some of MLX's operations round by an element's place in its array."""
    row = ROWS[name](np.random.default_rng(2), STARTS)
    y, after = row.run(reference=True)
    for r in range(len(STARTS) - 1):
        alone, last = row.request(r).run(reference=True)
        assert_near(alone, wide(y[STARTS[r] : STARTS[r + 1]]), mx.float32)
        assert_near(last[0], wide(after[r]), mx.float32)
    first, states = row.part(4, 6, row.states[3:], [0, 2]).run(reference=True)
    second, states = row.part(6, 9, states, [0, 3]).run(reference=True)
    assert_near(mx.concatenate([first, second]), wide(y[4:]), mx.float32)
    assert_near(states[0], wide(after[3]), mx.float32)


@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_the_plain_operations(name: str) -> None:
    row = ROWS[name](np.random.default_rng(3), [0, 2, 5])

    def loss(tokens: dict[str, mx.array], states: mx.array, reference: bool) -> mx.array:
        y, after = replace(row, tokens=tokens, states=states).run(reference=reference)
        return mx.square(y).sum() + mx.sin(after).sum()

    ours = mx.grad(loss, argnums=(0, 1))(row.tokens, row.states, False)
    theirs = mx.grad(loss, argnums=(0, 1))(row.tokens, row.states, True)
    for found, expected in zip([*ours[0].values(), ours[1]], [*theirs[0].values(), theirs[1]], strict=True):
        assert mx.abs(expected).max().item() > 0
        assert_near(found, wide(expected), mx.float32)


def test_gradients_reach_what_tokens_share() -> None:
    row = recurrent.mamba(np.random.default_rng(4), [0, 4])

    def loss(A: mx.array) -> mx.array:
        return replace(row, shared={**row.shared, "A": A}).run()[0].sum()

    slope = wide(mx.grad(loss)(row.shared["A"]))
    step = np.zeros(slope.shape)
    step[3, 2] = 1e-6
    shared = {**row.shared, "A": row.shared["A"]}
    tokens = {key: wide(array) for key, array in row.tokens.items()}
    sums = [
        row.expected(**tokens, A=wide(shared["A"]) + sign * step, D=wide(shared["D"]), state=wide(row.states)[0])[
            0
        ].sum()
        for sign in (-1, 1)
    ]
    assert slope[3, 2] == pytest.approx((sums[1] - sums[0]) / 2e-6, rel=1e-3)


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_no_tokens_and_no_requests(name: str, reference: bool) -> None:
    rng = np.random.default_rng(5)
    idle = ROWS[name](rng, [0, 0, 0])
    y, states = idle.run(reference=reference)
    assert y.shape[0] == 0
    np.testing.assert_array_equal(wide(states), wide(idle.states))
    y, states = ROWS[name](rng, [0]).run(reference=reference)
    assert (y.shape[0], states.shape[0]) == (0, 0)


def refused(row: recurrent.Row, message: str, **changes: Any) -> None:
    tokens = {key: changes.get(key, array) for key, array in row.tokens.items()}
    shared = {key: changes.get(key, value) for key, value in row.shared.items()}
    states, starts = changes.get("states", row.states), changes.get("starts", row.starts)
    for reference in (True, False):
        with pytest.raises(ValueError, match=message):
            replace(row, tokens=tokens, shared=shared, states=states, starts=starts).run(reference=reference)


@pytest.mark.parametrize("name", ROWS)
def test_starts_that_do_not_fit_are_refused(name: str) -> None:
    row = ROWS[name](np.random.default_rng(6), [0, 3, 5])
    refused(row, r"2 states need 3 starts, not \[0, 5\]", starts=[0, 5])
    for starts in ([1, 3, 5], [0, 3, 4], [0, 6, 5], [0, 3, 6]):
        refused(row, rf"starts must rise from 0 to the 5 tokens of the row, not \[{starts[0]}, ", starts=starts)


def test_shapes_of_gated_delta_are_checked() -> None:
    row = recurrent.gated_delta(np.random.default_rng(7), [0, 3, 5], heads=(2, 4), dims=(6, 10))
    refused(row, r"gated_delta: k must have 3 dimensions, not shape \(5, 12\)", k=mx.zeros((5, 12)))
    refused(row, r"4 heads of v are not a multiple of 3 heads of k", k=mx.zeros((5, 3, 6)))
    refused(row, r"q must have shape \(5, 2, 6\), not \(5, 2, 7\)", q=mx.zeros((5, 2, 7)))
    refused(row, r"v must have shape \(5, 4, 10\), not \(4, 4, 10\)", v=mx.zeros((4, 4, 10)))
    refused(row, r"log_decay must have shape \(5, 4, 6\), not \(5, 4, 10\)", log_decay=mx.zeros((5, 4, 10)))
    refused(row, r"log_decay must have shape \(5, 4\), not \(5, 2\)", log_decay=mx.zeros((5, 2)))
    refused(row, r"beta must have shape \(5, 4\), not \(5, 4, 1\)", beta=mx.zeros((5, 4, 1)))
    refused(row, r"states must have shape \(2, 4, 6, 10\), not \(2, 4, 10, 6\)", states=mx.zeros((2, 4, 10, 6)))
    refused(row, r"states must be float32, not .*bfloat16", states=row.states.astype(mx.bfloat16))


def test_shapes_of_selective_scan_are_checked() -> None:
    row = recurrent.mamba2(np.random.default_rng(8), [0, 3, 5], heads=6, channels=7, groups=2, size=20)
    refused(row, r"selective_scan: x must have 2 or 3 dimensions, not shape \(5,\)", x=mx.zeros((5,)))
    refused(row, r"6 heads are not a multiple of 4 groups of B", B=mx.zeros((5, 4, 20)))
    refused(row, r"dt must have shape \(5, 6\), not \(5, 7\)", dt=mx.zeros((5, 7)))
    refused(row, r"A must have shape \(6,\), not \(6, 20\)", A=mx.zeros((6, 20)))
    refused(row, r"B must have shape \(5, 2, 20\), not \(4, 2, 20\)", B=mx.zeros((4, 2, 20)))
    refused(row, r"C must have shape \(5, 2, 20\), not \(5, 2, 19\)", C=mx.zeros((5, 2, 19)))
    refused(row, r"D must have shape \(6,\), not \(7,\)", D=mx.zeros((7,)))
    refused(row, r"states must have shape \(2, 6, 7, 20\), not \(2, 6, 20, 7\)", states=mx.zeros((2, 6, 20, 7)))
    refused(row, r"states must be float32, not .*float16", states=row.states.astype(mx.float16))
    plain = recurrent.mamba(np.random.default_rng(9), [0, 5], channels=37, size=5)
    refused(plain, r"A must have shape \(37, 5\), not \(37,\)", A=mx.zeros((37,)))
    refused(plain, r"B must have 2 dimensions, not shape \(5, 1, 5\)", B=mx.zeros((5, 1, 5)))


def test_shapes_of_short_conv_are_checked() -> None:
    row = recurrent.short_conv(np.random.default_rng(10), [0, 3, 5], mx.bfloat16, channels=70, taps=4)
    refused(row, r"weight must have 2 dimensions, not shape \(70, 1, 4\)", weight=mx.zeros((70, 1, 4)))
    refused(row, r"weight must have shape \(70, 4\), not \(71, 4\)", weight=mx.zeros((71, 4)))
    refused(row, r"2 to 8 taps, not the 9 of weight \(70, 9\)", weight=mx.zeros((70, 9)))
    refused(row, r"2 to 8 taps, not the 1 of weight \(70, 1\)", weight=mx.zeros((70, 1)))
    refused(row, r"bias must have shape \(70,\), not \(1,\)", bias=mx.zeros((1,)))
    refused(row, r"states must have shape \(2, 3, 70\), not \(2, 4, 70\)", states=mx.zeros((2, 4, 70)))
    refused(row, r"states must be float32 or .*bfloat16 like x, not .*float16", states=row.states.astype(mx.float16))
