"""Activation functions of feed-forward layers, by the names that config.json uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from umlm.kernels import cpu
from umlm.kernels.backends import implement, op


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))


def _gelu_tanh(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def _relu2(x: mx.array) -> mx.array:
    return mx.square(mx.maximum(x, 0))


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
}


@op
def activation(x: mx.array, name: str) -> mx.array:
    """f(x) elementwise, f one of ACTIVATIONS, in x's dtype; computed in float32."""
    return ACTIVATIONS[name](x.astype(mx.float32)).astype(x.dtype)


@implement(activation, "cpu")
def _cpu_activation(x: mx.array, name: str) -> Any:
    assert cpu.extension is not None
    return cpu.extension.activate(x, None, name)


@op
def gated_activation(gate: mx.array, up: mx.array, name: str) -> mx.array:
    """f(gate) * up elementwise (arXiv:2002.05202), in gate's dtype; computed in float32."""
    return (ACTIVATIONS[name](gate.astype(mx.float32)) * up.astype(mx.float32)).astype(gate.dtype)


@implement(gated_activation, "cpu")
def _cpu_gated_activation(gate: mx.array, up: mx.array, name: str) -> Any:
    if gate.shape != up.shape:
        return NotImplemented
    assert cpu.extension is not None
    return cpu.extension.activate(gate, up, name)
