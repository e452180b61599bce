"""The selective scan of state space models: states that forget and take up by each token's own step size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from umlm.kernels import cpu, segments
from umlm.kernels.backends import implement, op


@op
def selective_scan(
    x: mx.array,
    dt: mx.array,
    A: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array | None,
    states: mx.array,
    starts: Sequence[int],
) -> tuple[mx.array, mx.array]:
    """h = exp(dt A) h + dt x B; y = h . C + D x, over a packed row of requests.

    Mamba, arXiv:2312.00752: x, dt [T, channels], A [channels, N], B, C [T, N], D [channels], states [R, channels, N].
    Mamba-2, arXiv:2405.21060: x [T, H, P], dt [T, H], A [H], B, C [T, G, N], D [H], states [R, H, P, N]; H is a
    multiple of G, and each group of B and C serves H / G consecutive heads.
    dt is the step size itself, after bias, softplus and limits; A is negative; D may be None. states are float32, one
    a request: request r owns tokens starts[r]:starts[r + 1], which may be none.
    Returns y in x's shape and dtype, and the states after the last tokens, in new memory. Computed in float32.
    """
    _check(x, dt, A, B, C, D, states, starts)
    if x.ndim == 2:
        y, after = _scan(x[:, :, None], dt, A, B[:, None], C[:, None], D, states[:, :, None], starts)
        return y[:, :, 0], after[:, :, 0]
    return _scan(x, dt, A, B, C, D, states, starts)


def _scan(
    x: mx.array,
    dt: mx.array,
    A: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array | None,
    states: mx.array,
    starts: Sequence[int],
) -> tuple[mx.array, mx.array]:
    """x [T, H, P], dt [T, H], A [H] or [H, N], B, C [T, G, N], states [R, H, P, N]."""
    repeats = x.shape[1] // B.shape[1]
    wide, dt, A = (array.astype(mx.float32) for array in (x, dt, A))
    B, C = (mx.repeat(array.astype(mx.float32), repeats, axis=1)[:, :, None] for array in (B, C))  # [T, H, 1, N]
    decay = mx.exp(dt[:, :, None] * A.reshape(x.shape[1], -1))[:, :, None]  # [T, H, 1, 1 or N]
    taken = (dt[:, :, None] * wide)[..., None] * B  # [T, H, P, N]

    def step(t: int, state: mx.array) -> tuple[mx.array, mx.array]:
        state = decay[t] * state + taken[t]
        y = (state * C[t]).sum(axis=-1)
        return y if D is None else y + D.astype(mx.float32)[:, None] * wide[t], state

    return segments.walk(states, starts, step, like=x)


@implement(selective_scan, "cpu")
def _cpu_selective_scan(
    x: mx.array,
    dt: mx.array,
    A: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array | None,
    states: mx.array,
    starts: Sequence[int],
) -> Any:
    _check(x, dt, A, B, C, D, states, starts)
    if not segments.kernels_serve([x, B, C], [dt, A, D, states]):
        return NotImplemented
    assert cpu.extension is not None
    scan = cpu.extension.selective_scan
    if x.ndim == 2:
        y, after = scan(x[:, :, None], dt, A, B[:, None], C[:, None], D, states[:, :, None], starts)
        return y.reshape(x.shape), after.reshape(states.shape)
    return scan(x, dt, A, B, C, D, states, starts)


def _check(
    x: mx.array,
    dt: mx.array,
    A: mx.array,
    B: mx.array,
    C: mx.array,
    D: mx.array | None,
    states: mx.array,
    starts: Sequence[int],
) -> None:
    name = "selective_scan"
    segments.check_dimensions(name, x=(x, (2, 3)), B=(B, (x.ndim,)), states=(states, (x.ndim + 1,)))
    tokens, heads = x.shape[:2]
    size = B.shape[-1]
    if x.ndim == 3:
        segments.check_group(name, "heads", heads, "groups of B", B.shape[1])
    segments.check_shapes(
        name,
        dt=(dt, (tokens, heads)),
        A=(A, (heads, size) if x.ndim == 2 else (heads,)),
        B=(B, (tokens, *B.shape[1:])),
        C=(C, B.shape),
        states=(states, (states.shape[0], *x.shape[1:], size)),
        **({} if D is None else {"D": (D, (heads,))}),
    )
    segments.check_float32(name, states=states)
    segments.check_starts(name, starts, tokens, states.shape[0])
