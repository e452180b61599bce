"""Residual shapes of a transformer block, with Hugging Face's names for the parts."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from umlm.nn.state import LayerState

MakeNorm = Callable[[], nn.Module]


class PreNorm(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, norm: MakeNorm) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()

    def __call__(self, x: mx.array, state: LayerState) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), state)
        return x + self.mlp(self.post_attention_layernorm(x))


class Sandwich(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, norm: MakeNorm) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()

    def __call__(self, x: mx.array, state: LayerState) -> mx.array:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), state))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
