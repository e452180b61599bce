"""Draws against float64 numpy, written from the documented order: temperature, top_k, top_p, min_p, inversion."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from umlm import kernels
from umlm.kernels.sampling import Draw

KINDS = [
    {},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40, "top_p": 0.8},
    {"top_k": 100_000},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 300, "top_p": 0.95, "min_p": 0.02},
]


def made(
    temperature: float = 1.0, uniform: float = 0.5, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Draw:
    return Draw(temperature, top_k, top_p, min_p, uniform)


def distribution(row: np.ndarray, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Tokens in the order of the draw and the cumulative probabilities after each, in float64."""
    scaled = (row.astype(np.float64) - row.max()) / draw.temperature
    order = np.arange(row.size)
    if draw.top_k > 0 or draw.top_p < 1:
        order = np.argsort(-scaled, kind="stable")
    if draw.top_k > 0:
        order = order[: draw.top_k]
    shares = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
    if draw.top_p < 1:
        before = np.cumsum(shares) - shares
        order = order[(before < draw.top_p) | (np.arange(order.size) == 0)]
    with np.errstate(divide="ignore"):
        order = order[scaled[order] >= np.log(draw.min_p)]
    shares = np.exp(scaled[order])
    return order, np.cumsum(shares / shares.sum())


def allowed(row: np.ndarray, draw: Draw) -> set[int]:
    """The tokens that the number falls on when rounding shifts it a little either way.

    The plain form's running sums are float32 and lose shares below 2^-24: with many of them it may be off by more.
    """
    near = 2e-5 if kernels.report()["sample_rows"] == "cpu" else 3e-4
    order, cumulative = distribution(row, draw)
    first, last = np.searchsorted(cumulative, [draw.uniform - near, draw.uniform + near], side="right")
    return set(order[first : last + 1].tolist()) or {int(order[-1])}


@pytest.mark.parametrize("size", [1, 2, 31, 127, 128, 129, 3000, 50_001])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_every_draw_falls_where_float64_says(size: int, spread: float) -> None:
    rng = np.random.default_rng(1)
    draws = [made(t, float(rng.integers(0, 2**23)) / 2**23, **kind) for kind in KINDS for t in (0.3, 1.0, 2.5)]
    draws += [made(uniform=u, **kind) for kind in KINDS for u in (0.0, 1 - 2**-23)]
    logits = rng.normal(0, spread, (len(draws), size)).astype(np.float32)
    tokens, usable = kernels.sample_rows(mx.array(logits), draws)
    assert np.array(usable).all()
    for row, draw, token in zip(logits, draws, np.array(tokens).tolist(), strict=True):
        assert token in allowed(row, draw), draw


def test_greedy_rows_take_the_first_of_the_largest() -> None:
    rng = np.random.default_rng(2)
    logits = np.round(rng.normal(0, 1, (20, 700)), 1).astype(np.float32)
    tokens, usable = kernels.sample_rows(mx.array(logits), [None] * 20)
    assert tokens.tolist() == logits.argmax(axis=-1).tolist()
    assert usable.tolist() == [True] * 20


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_16_bit_logits_are_read_as_they_are(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(3)
    logits = mx.array(rng.normal(0, 2, (len(KINDS), 999)).astype(np.float32)).astype(dtype)
    draws = [made(uniform=0.37, **kind) for kind in KINDS]
    narrow, wide = (kernels.sample_rows(each, draws).tokens.tolist() for each in (logits, logits.astype(mx.float32)))
    assert narrow == wide


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_and_masked_tokens_are_never_drawn(kind: dict) -> None:
    logits = np.full((64, 400), -np.inf, np.float32)
    logits[:, [130, 131, 399]] = 1.0
    draws = [made(uniform=place / 64, **kind) for place in range(64)]
    tokens, usable = kernels.sample_rows(mx.array(logits), draws)
    assert set(tokens.tolist()) <= {130, 131, 399}
    assert np.array(usable).all()


@pytest.mark.parametrize("draw", [None, made(), made(top_k=3), made(top_p=0.5)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 130, 299])
def test_a_row_that_means_nothing_is_told(draw: Draw | None, bad: float, place: int) -> None:
    logits = np.zeros((3, 300), np.float32)
    logits[1, place] = bad
    logits[2] = -np.inf
    expected = [True, bad == -np.inf, False]
    assert kernels.sample_rows(mx.array(logits), [draw] * 3).usable.tolist() == expected


def test_tiny_and_huge_temperatures() -> None:
    logits = mx.array([[3e4, -3e4, 0.0, 2.9e4, 3e4]])
    assert kernels.sample_rows(logits, [made(1e-5, 0.9)]).tokens.item() == 4
    assert kernels.sample_rows(logits, [made(1e-5, 0.9, top_k=1)]).tokens.item() in (0, 4)
    assert kernels.sample_rows(logits, [made(100.0, 0.9, top_p=0.99)]).tokens.item() in (0, 4)
