"""Phi 3, 3.5 and 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.models.llama import Llama, MistralConfig
from umlm.nn import Attention, Linear


@dataclass(frozen=True, kw_only=True)
class Phi3Config(MistralConfig):
    """A sliding window counts for every layer. Rope types "su" and "yarn" are old names of longrope."""

    rms_norm_eps: float = 1e-5
    original_max_position_embeddings: int | None = 4096

    def rope_dict(self, layer_type: str) -> dict[str, Any]:
        values = super().rope_dict(layer_type)
        kind = values.get("rope_type", values.get("type"))
        return {**values, "rope_type": "longrope"} if kind == "yarn" else values


class FusedAttention(Attention):
    """Attention whose q, k, v are the rows of one matrix, in this order."""

    def add_projections(self, hidden_size: int, bias: bool) -> None:
        heads = self.num_heads + 2 * self.num_kv_heads
        self.qkv_proj = Linear(hidden_size, heads * self.head_dim, bias)

    def projections(self) -> list[nn.Module]:
        return [self["qkv_proj"]]

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q, k, v = mx.split(self.qkv_proj(x), [queries, queries + keys], axis=-1)
        return q, k, v


class FusedGatedMLP(nn.Module):
    """down(f(gate) * up), gate and up the rows of one matrix, in this order."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(kernels.gated_activation(gate, up, self.activation))


class Phi3(Llama):
    """Phi 3: q, k, v in one matrix, gate and up in another. arXiv:2404.14219"""

    Config = Phi3Config
    attention_class = FusedAttention

    def attention_options(self, layer: int) -> dict[str, Any]:
        return {"bias": False, "out_bias": False}

    def mlp(self) -> nn.Module:
        c = self.config
        return FusedGatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act)
