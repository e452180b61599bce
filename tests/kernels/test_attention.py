"""attention against float64, one query and head at a time, and against MLX's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import float64
import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide

from umlm import kernels

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3},
    "window of one": {"window": 1},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": True},
    "all": {"window": 4, "softcap": 1.5, "sinks": True},
}


@dataclass
class Drawn:
    """Random operands: the newest `queries` tokens of sequences of `keys` tokens."""

    q: mx.array
    k: mx.array
    v: mx.array
    q_positions: np.ndarray
    k_positions: np.ndarray


def drawn(
    seed: int, queries: int, keys: int, *, batch: int = 1, heads: int = 4, kv_heads: int = 2, dims: int = 16,
    v_dims: int | None = None, dtype: mx.Dtype = mx.float32,
) -> Drawn:  # fmt: skip
    rng = np.random.default_rng(seed)
    return Drawn(
        draw(rng, batch, queries, heads, dims, dtype=dtype),
        draw(rng, batch, keys, kv_heads, dims, dtype=dtype),
        draw(rng, batch, keys, kv_heads, v_dims or dims, dtype=dtype),
        np.arange(keys - queries, keys, dtype=np.int32),
        np.arange(keys, dtype=np.int32),
    )


def check(d: Drawn, *, scale: float = 0.3, sinks: bool = False, **options: Any) -> None:
    logits = draw(np.random.default_rng(9), d.q.shape[2]) if sinks else None
    found = kernels.attention(
        d.q, d.k, d.v, mx.array(d.q_positions), mx.array(d.k_positions), scale=scale, sinks=logits, **options
    )
    expected = float64.attention(
        wide(d.q), wide(d.k), wide(d.v), d.q_positions, d.k_positions,
        scale=scale, sinks=None if logits is None else wide(logits), **options,
    )  # fmt: skip
    assert_near(found, expected, d.q.dtype)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_float64(options: dict[str, Any], dtype: mx.Dtype) -> None:
    for seed, (queries, keys) in enumerate([(1, 1), (1, 9), (5, 5), (3, 11)]):
        check(drawn(seed, queries, keys, dtype=dtype), **options)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (5, 1), (8, 4)])
def test_grouped_heads(heads: int, kv_heads: int) -> None:
    check(drawn(1, 4, 7, batch=2, heads=heads, kv_heads=kv_heads), sinks=True)


@pytest.mark.parametrize(("dims", "v_dims"), [(1, 1), (80, 80), (24, 16), (64, 128)])
def test_head_dims_and_values_of_another_size(dims: int, v_dims: int) -> None:
    check(drawn(2, 3, 6, dims=dims, v_dims=v_dims), scale=dims**-0.5)


@pytest.mark.parametrize("seed", range(20))
def test_ragged_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads, group, keys = (int(rng.integers(1, high)) for high in (4, 4, 24))
    d = drawn(
        seed, int(rng.integers(1, keys + 1)), keys, batch=int(rng.integers(1, 3)),
        heads=kv_heads * group, kv_heads=kv_heads, dims=int(rng.integers(1, 40)), v_dims=int(rng.integers(1, 40)),
    )  # fmt: skip
    window = int(rng.integers(1, keys + 3)) if seed % 2 else None
    check(d, window=window, softcap=2.0 if seed % 3 else None, sinks=seed % 5 == 0)


def test_keys_need_no_order() -> None:
    """What a query sees goes by positions alone."""
    d = drawn(3, 4, 9)
    order = np.random.default_rng(4).permutation(9)
    shuffled = Drawn(d.q, d.k[:, mx.array(order)], d.v[:, mx.array(order)], d.q_positions, d.k_positions[order])
    check(shuffled, window=5)


def test_large_scores_do_not_overflow() -> None:
    d = drawn(5, 3, 8, dtype=mx.float16)
    check(Drawn(d.q * 100, d.k * 100, d.v, d.q_positions, d.k_positions), scale=1.0)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("sinks", [False, True])
def test_equals_mlx(window: int | None, sinks: bool) -> None:
    d = drawn(6, 6, 10, batch=2, dims=32)
    logits = draw(np.random.default_rng(7), 4) if sinks else None
    distance = d.q_positions[:, None] - d.k_positions
    mask = mx.array((distance >= 0) & (distance < (window or 99)))
    heads_first = [array.transpose(0, 2, 1, 3) for array in (d.q, d.k, d.v)]
    theirs = mx.fast.scaled_dot_product_attention(*heads_first, scale=0.2, mask=mask, sinks=logits)
    ours = kernels.attention(
        d.q, d.k, d.v, mx.array(d.q_positions), mx.array(d.k_positions), scale=0.2, window=window, sinks=logits
    )
    assert_near(ours, wide(theirs.transpose(0, 2, 1, 3)), mx.float32)


def test_gradients_equal_mlx() -> None:
    d = drawn(8, 6, 6, heads=2, kv_heads=1)
    places = mx.array(d.q_positions)

    def ours(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.square(kernels.attention(q, k, v, places, places, scale=0.25)).sum()

    def theirs(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        heads_first = [array.transpose(0, 2, 1, 3) for array in (q, k, v)]
        return mx.square(mx.fast.scaled_dot_product_attention(*heads_first, scale=0.25, mask="causal")).sum()

    found, expected = (mx.grad(f, argnums=(0, 1, 2))(d.q, d.k, d.v) for f in (ours, theirs))
    for a, b in zip(found, expected, strict=True):
        assert_near(a, wide(b), mx.float32)
