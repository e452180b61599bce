"""Which backend serves which op, decided once per op on first use.

Backends: `reference` (plain MLX ops, on every device), later `cpu` (C++ primitives) and `metal` (MSL).
`UMLM_KERNELS=reference` forces the plain ops.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

BACKENDS = ("reference", "cpu", "metal")

Function = TypeVar("Function", bound=Callable[..., Any])
_implementations: dict[str, dict[str, Callable[..., Any]]] = {}
_serving: dict[str, Callable[..., Any]] = {}


def op(reference: Function) -> Function:
    """Make `reference` the plain-ops form of an op, and return the function that dispatches to a backend."""
    name = reference.__name__
    _implementations[name] = {"reference": reference}

    @functools.wraps(reference)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        function = _serving.get(name) or _choose(name)
        return function(*args, **kwargs)

    dispatch.reference = reference  # type: ignore[attr-defined]
    return dispatch  # type: ignore[return-value]


def report() -> dict[str, str]:
    """Say which backend serves each op: {op name: backend}."""
    return {name: _backend(name) for name in sorted(_implementations)}


def _choose(name: str) -> Callable[..., Any]:
    _serving[name] = _implementations[name][_backend(name)]
    return _serving[name]


def _backend(name: str) -> str:
    forced = os.environ.get("UMLM_KERNELS") or None
    if forced is not None and forced not in BACKENDS:
        raise ValueError(f"UMLM_KERNELS={forced!r} is no backend; use one of: {', '.join(BACKENDS)}, or unset it")
    if forced is not None and forced not in _implementations[name]:
        raise ValueError(f"UMLM_KERNELS={forced!r}: the op {name} has no such backend; unset UMLM_KERNELS")
    return forced or "reference"
