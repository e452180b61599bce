"""Which backend serves which op.

Backends: `reference` (plain MLX ops, on every device), `cpu` (C++ primitives, on CPU devices where the extension is
built), later `metal` (MSL). `UMLM_KERNELS=reference` forces the plain ops. Decided once per op, on first use.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx

from umlm.kernels import cpu

BACKENDS = ("reference", "cpu", "metal")

log = logging.getLogger("umlm.kernels")
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


def implement(operation: Function, backend: str) -> Callable[[Function], Function]:
    """Decorate a backend's form of an op; it may return NotImplemented for arguments that it leaves to the reference."""
    name = operation.__name__
    reference = _implementations[name]["reference"]

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def served(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return reference(*args, **kwargs) if result is NotImplemented else result

        _implementations[name][backend] = served
        return function

    return register


def report() -> dict[str, str]:
    """Say which backend serves each op, and why where it is not the compiled one: {op name: backend}."""
    reason = f" ({cpu.why_not})" if cpu.extension is None and _on_cpu() else ""
    return {
        name: _backend(name) + (reason if _backend(name) == "reference" else "") for name in sorted(_implementations)
    }


def _choose(name: str) -> Callable[..., Any]:
    _serving[name] = _implementations[name][_backend(name)]
    return _serving[name]


def _backend(name: str) -> str:
    forced = os.environ.get("UMLM_KERNELS") or None
    if forced is not None and forced not in BACKENDS:
        raise ValueError(f"UMLM_KERNELS={forced!r} is no backend; use one of: {', '.join(BACKENDS)}, or unset it")
    if forced == "cpu" and cpu.extension is None:
        raise ValueError(f"UMLM_KERNELS='cpu': {cpu.why_not}")
    if forced is not None:
        return forced if forced in _implementations[name] else "reference"
    if not _on_cpu() or "cpu" not in _implementations[name]:
        return "reference"
    if cpu.extension is None:
        _warn()
        return "reference"
    return "cpu"


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


@functools.cache
def _warn() -> None:
    log.warning("plain MLX operations serve, 30 to 1000 times slower: %s", cpu.why_not)
