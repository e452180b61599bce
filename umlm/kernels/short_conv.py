"""Short causal convolutions, a filter of a few taps for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from umlm.kernels import cpu, segments
from umlm.kernels.backends import implement, op

TAPS = range(2, 9)


@op
def short_conv(
    x: mx.array, weight: mx.array, bias: mx.array | None, states: mx.array, starts: Sequence[int]
) -> tuple[mx.array, mx.array]:
    """y[t] = bias + sum_j weight[:, j] x[t - K + 1 + j] by channel, over a packed row of requests.

    x [T, C], weight [C, K] with K from 2 to 8, bias [C] or None; states [R, K - 1, C], the inputs before the first
    token of each request, in float32 or x's dtype, which holds them without rounding; zeros at the beginning. Request
    r owns tokens starts[r]:starts[r + 1], which may be none.
    Returns y [T, C] in x's dtype, and the states after the last tokens, in new memory and the states' dtype. Computed
    in float32. An activation is the caller's.
    """
    _check(x, weight, bias, states, starts)
    taps = weight.shape[1]
    wide, filters = (array.astype(mx.float32) for array in (x, weight))

    def step(t: int, state: mx.array) -> tuple[mx.array, mx.array]:
        window = mx.concatenate([state, wide[t : t + 1]])  # [K, C]
        y = mx.zeros(x.shape[1]) if bias is None else bias.astype(mx.float32)
        for j in range(taps):
            y = y + filters[:, j] * window[j]
        return y, window[1:]

    y, after = segments.walk(states.astype(mx.float32), starts, step, like=x)
    return y, after.astype(states.dtype)


@implement(short_conv, "cpu")
def _cpu_short_conv(
    x: mx.array, weight: mx.array, bias: mx.array | None, states: mx.array, starts: Sequence[int]
) -> Any:
    _check(x, weight, bias, states, starts)
    others = [weight, states] if bias is None else [weight, states, bias]
    if not segments.kernels_serve([x, *others]):
        return NotImplemented
    assert cpu.extension is not None
    return cpu.extension.short_conv(x, weight, bias, states, starts)


def _check(x: mx.array, weight: mx.array, bias: mx.array | None, states: mx.array, starts: Sequence[int]) -> None:
    name = "short_conv"
    segments.check_dimensions(name, x=(x, (2,)), weight=(weight, (2,)), states=(states, (3,)))
    channels, taps = x.shape[1], weight.shape[1]
    if taps not in TAPS:
        raise ValueError(
            f"short_conv: a filter has {TAPS[0]} to {TAPS[-1]} taps, not the {taps} of weight {weight.shape}"
        )
    segments.check_shapes(
        name,
        weight=(weight, (channels, taps)),
        states=(states, (states.shape[0], taps - 1, channels)),
        **({} if bias is None else {"bias": (bias, (channels,))}),
    )
    if states.dtype not in (mx.float32, x.dtype):
        raise ValueError(f"short_conv: states must be float32 or {x.dtype} like x, not {states.dtype}")
    segments.check_starts(name, starts, x.shape[0], states.shape[0])
