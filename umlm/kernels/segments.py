"""Requests in a packed row: checks, and a walk over their tokens for the plain forms of recurrent ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.attention import FLOATS


def check_starts(op: str, starts: Sequence[int], tokens: int, requests: int) -> None:
    """Raise ValueError unless request r owns tokens starts[r]:starts[r + 1] of a row of so many tokens."""
    if len(starts) != requests + 1:
        raise ValueError(f"{op}: {requests} states need {requests + 1} starts, not {list(starts)}")
    if starts[0] != 0 or starts[-1] != tokens or any(a > b for a, b in itertools.pairwise(starts)):
        raise ValueError(f"{op}: starts must rise from 0 to the {tokens} tokens of the row, not {list(starts)}")


def check_shapes(op: str, **arrays: tuple[mx.array, tuple[int, ...]]) -> None:
    """Raise ValueError naming the first array that has not its expected shape."""
    for name, (array, shape) in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{op}: {name} must have shape {shape}, not {array.shape}")


def check_dimensions(op: str, **arrays: tuple[mx.array, tuple[int, ...]]) -> None:
    """Raise ValueError naming the first array that has none of its expected numbers of dimensions."""
    for name, (array, counts) in arrays.items():
        if array.ndim not in counts:
            wanted = " or ".join(map(str, counts))
            raise ValueError(f"{op}: {name} must have {wanted} dimensions, not shape {array.shape}")


def check_group(op: str, of: str, heads: int, by: str, groups: int) -> None:
    """Raise ValueError unless each of `groups` serves equally many of `heads`."""
    if groups == 0 or heads % groups:
        raise ValueError(f"{op}: {heads} {of} are not a multiple of {groups} {by}")


def check_float32(op: str, **arrays: mx.array) -> None:
    """Raise ValueError naming the first array of another dtype: states gather errors, and are carried in float32."""
    for name, array in arrays.items():
        if array.dtype != mx.float32:
            raise ValueError(f"{op}: {name} must be float32, not {array.dtype}")


def kernels_serve(rows: Sequence[mx.array], others: Sequence[mx.array | None] = ()) -> bool:
    """Whether the C++ kernels take these: rows of the kernels' dtypes, and gradients are asked of none.

    Gradients are taken through the plain operations.
    """
    assert cpu.extension is not None
    present = [*rows, *(array for array in others if array is not None)]
    return all(array.dtype in FLOATS for array in rows) and not cpu.extension.traced(present)


def walk(
    states: mx.array, starts: Sequence[int], step: Callable[[int, mx.array], tuple[mx.array, mx.array]], like: mx.array
) -> tuple[mx.array, mx.array]:
    """Let step(token, state) -> (output, state) go over the tokens of each request in order.

    Returns the outputs, with the dtype and shape of `like`, and the states after the last tokens.
    """
    outputs, finals = [], []
    for request in range(len(starts) - 1):
        state = states[request]
        for token in range(starts[request], starts[request + 1]):
            output, state = step(token, state)
            outputs.append(output)
        finals.append(state)
    y = mx.stack(outputs).astype(like.dtype) if outputs else like
    return y, mx.stack(finals) if finals else states
