"""Feed-forward layers."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.nn.linear import Linear


class GatedMLP(nn.Module):
    """down(f(gate(x)) * up(x)). arXiv:2002.05202"""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = Linear(hidden_size, intermediate_size, bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(kernels.gated_activation(self.gate_proj(x), self.up_proj(x), self.activation))
