"""Which backend serves which op.

Backends: `reference` (plain MLX ops, on every device), `cpu` (C++ primitives, on CPU devices where the extension is
built), later `metal` (MSL). `UMLM_KERNELS=reference` forces the plain ops, `UMLM_KERNELS=cpu` makes a missing extension
an error; ops that a forced backend lacks go to the reference. Decided once per op, on first use.
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
    """Decorate a backend's form of an op; it may return NotImplemented for what it leaves to the reference."""
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
    reason = f" ({cpu.why_not})" if _lacks_kernels() else ""
    return {name: _backend(name) + reason for name in sorted(_implementations)}


def serving(name: str) -> str:
    """The backend that serves one op."""
    return _backend(name)


def check_settings() -> None:
    """Raise ValueError where UMLM_KERNELS, UMLM_ISA, UMLM_NUM_THREADS or UMLM_ACTIVATIONS cannot be obeyed."""
    _forced()
    cpu.check_settings()


def _choose(name: str) -> Callable[..., Any]:
    check_settings()
    _serving[name] = _implementations[name][_backend(name)]
    if _lacks_kernels():
        _warn()
    return _serving[name]


def _forced() -> str | None:
    """The backend that UMLM_KERNELS names."""
    forced = os.environ.get("UMLM_KERNELS") or None
    if forced is not None and forced not in BACKENDS:
        raise ValueError(f"UMLM_KERNELS={forced!r} is no backend; use one of: {', '.join(BACKENDS)}, or unset it")
    if forced == "cpu" and cpu.extension is None:
        raise ValueError(f"UMLM_KERNELS='cpu': {cpu.why_not}")
    if forced == "metal" and not mx.metal.is_available():
        raise ValueError("UMLM_KERNELS='metal': this machine has no Metal device; unset UMLM_KERNELS")
    return forced


def _backend(name: str) -> str:
    forced = _forced()
    if forced is not None:
        return forced if forced in _implementations[name] else "reference"
    if not _on_cpu() or "cpu" not in _implementations[name]:
        return "reference"
    return "reference" if cpu.extension is None else "cpu"


def _lacks_kernels() -> bool:
    """Whether plain ops serve because the extension is missing, not because someone asked for them."""
    return cpu.extension is None and _on_cpu() and not os.environ.get("UMLM_KERNELS")


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


@functools.cache
def _warn() -> None:
    log.warning("plain MLX operations serve, 30 to 1000 times slower: %s", cpu.why_not)
