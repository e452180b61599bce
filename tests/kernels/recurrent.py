"""Random packed rows for ops with a recurrent state, and one way to call all of these ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import recurrent64
from float64 import draw, wide

from umlm import kernels


@dataclass(frozen=True)
class Row:
    """A packed row: what each token has, what all share, and a state a request."""

    op: Callable[..., tuple[mx.array, mx.array]]
    expected: Callable[..., tuple[np.ndarray, np.ndarray]]  # of one request, in float64
    tokens: dict[str, mx.array]
    shared: dict[str, Any]
    states: mx.array
    starts: Sequence[int]

    def run(self, *, reference: bool = False) -> tuple[mx.array, mx.array]:
        """What the op, or its plain form, makes of the row."""
        op = self.op.reference if reference else self.op  # type: ignore[attr-defined]
        return op(**self.tokens, **self.shared, states=self.states, starts=self.starts)

    def part(self, begin: int, end: int, states: mx.array, starts: Sequence[int]) -> Row:
        """Tokens [begin, end) as a row of their own."""
        tokens = {name: array[begin:end] for name, array in self.tokens.items()}
        return replace(self, tokens=tokens, states=states, starts=starts)

    def request(self, r: int) -> Row:
        """One request alone."""
        begin, end = self.starts[r], self.starts[r + 1]
        return self.part(begin, end, self.states[r : r + 1], [0, end - begin])

    def in_float64(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and last states by the formula."""
        shared = {name: wide(value) if isinstance(value, mx.array) else value for name, value in self.shared.items()}
        parts = []
        for r in range(len(self.starts) - 1):
            alone = self.request(r)
            tokens = {name: wide(array) for name, array in alone.tokens.items()}
            parts.append(self.expected(**tokens, **shared, state=wide(alone.states)[0]))
        return np.concatenate([out for out, _ in parts]), np.stack([state for _, state in parts])


def gated_delta(
    rng: np.random.Generator,
    starts: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    *,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (6, 10),
    per_channel: bool = False,
    norm_eps: float | None = 1e-6,
) -> Row:
    """heads of k and v; dims of k and v. Keys are about as long as they are in models, also without norm_eps."""
    count, size = starts[-1], 1.0 if norm_eps is not None else dims[0] ** -0.5
    q, k = ((draw(rng, count, heads[0], dims[0]) * size).astype(dtype) for _ in range(2))
    tokens = {
        "q": q,
        "k": k,
        "v": draw(rng, count, heads[1], dims[1], dtype=dtype),
        "log_decay": -mx.abs(draw(rng, count, heads[1], *([dims[0]] if per_channel else []))),
        "beta": mx.sigmoid(draw(rng, count, heads[1])),
    }
    states = draw(rng, len(starts) - 1, heads[1], *dims)
    shared = {"scale": dims[0] ** -0.5, "norm_eps": norm_eps}
    return Row(kernels.gated_delta, recurrent64.gated_delta, tokens, shared, states, starts)


def mamba(
    rng: np.random.Generator,
    starts: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    *,
    channels: int = 37,
    size: int = 5,
    skip: bool = True,
) -> Row:
    count = starts[-1]
    tokens = {
        "x": draw(rng, count, channels, dtype=dtype),
        "dt": mx.abs(draw(rng, count, channels)),
        "B": draw(rng, count, size, dtype=dtype),
        "C": draw(rng, count, size, dtype=dtype),
    }
    shared = {"A": -mx.exp(draw(rng, channels, size)), "D": draw(rng, channels) if skip else None}
    states = draw(rng, len(starts) - 1, channels, size)
    return Row(kernels.selective_scan, recurrent64.selective_scan, tokens, shared, states, starts)


def mamba2(
    rng: np.random.Generator,
    starts: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    *,
    heads: int = 6,
    channels: int = 7,
    groups: int = 2,
    size: int = 20,
    skip: bool = True,
) -> Row:
    count = starts[-1]
    tokens = {
        "x": draw(rng, count, heads, channels, dtype=dtype),
        "dt": mx.abs(draw(rng, count, heads)),
        "B": draw(rng, count, groups, size, dtype=dtype),
        "C": draw(rng, count, groups, size, dtype=dtype),
    }
    shared = {"A": -mx.exp(draw(rng, heads)), "D": draw(rng, heads) if skip else None}
    states = draw(rng, len(starts) - 1, heads, channels, size)
    return Row(kernels.selective_scan, recurrent64.selective_scan, tokens, shared, states, starts)


def short_conv(
    rng: np.random.Generator,
    starts: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    *,
    channels: int = 70,
    taps: int = 4,
    biased: bool = True,
    state_type: mx.Dtype = mx.float32,
) -> Row:
    tokens = {"x": draw(rng, starts[-1], channels, dtype=dtype)}
    bias = draw(rng, channels, dtype=dtype) if biased else None
    shared = {"weight": draw(rng, channels, taps, dtype=dtype), "bias": bias}
    # the state holds inputs: values of x's dtype
    states = draw(rng, len(starts) - 1, taps - 1, channels, dtype=dtype).astype(state_type)
    return Row(kernels.short_conv, recurrent64.short_conv, tokens, shared, states, starts)


ROWS: dict[str, Callable[..., Row]] = {
    "gated_delta": gated_delta,
    "kimi_delta": lambda *a, **k: gated_delta(*a, **k, per_channel=True),
    "mamba": mamba,
    "mamba2": mamba2,
    "short_conv": short_conv,
}
