"""Feed-forward layers."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.nn.linear import Linear, Projecting
from umlm.nn.norm import RMSNorm


class GatedMLP(nn.Module):
    """down(f(gate(x)) * up(x)). arXiv:2002.05202"""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = Linear(hidden_size, intermediate_size, bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def parts(self) -> list[nn.Module]:
        """All that a fused half is made of."""
        return [self["gate_proj"], self["up_proj"], self["down_proj"]]

    def half(self, norm: RMSNorm, post: RMSNorm | None) -> Any:
        """y = x + post(self(norm(x))) as one operation of x; None where it is not."""
        layers = self.parts()
        if not all(isinstance(layer, Projecting) for layer in layers):
            return None
        gate, up, down = (layer.projection() for layer in layers)
        after = None if post is None else post.norm()
        return kernels.feed_forward_half(norm.norm(), gate, up, down, self.activation, after)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(kernels.gated_activation(self.gate_proj(x), self.up_proj(x), self.activation))
