"""Multi-head attention with grouped heads, asked of the layer's state."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.nn.linear import Linear, Projecting
from umlm.nn.norm import RMSNorm
from umlm.nn.rope import Rope
from umlm.nn.state import AttentionSpec, LayerState


class Attention(nn.Module):
    """o(softmax(q k^T) v) with rotary positions and grouped heads. arXiv:1706.03762, 2305.13245

    q_norm, k_norm  norms over each head's dims before rope, or None
    window          tokens a query sees, itself included; None sees all before it
    softcap         scores become softcap * tanh(scores / softcap)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        rope: Rope | None,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        bias: bool = False,
        out_bias: bool = False,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.rope, self.window, self.softcap = rope, window, softcap
        self.scale = head_dim**-0.5 if scale is None else scale
        self.add_projections(hidden_size, bias)
        self.o_proj = Linear(num_heads * head_dim, hidden_size, out_bias)
        if q_norm is not None:
            self.q_norm = q_norm
        if k_norm is not None:
            self.k_norm = k_norm

    def add_projections(self, hidden_size: int, bias: bool) -> None:
        self.q_proj = Linear(hidden_size, self.num_heads * self.head_dim, bias)
        self.k_proj = Linear(hidden_size, self.num_kv_heads * self.head_dim, bias)
        self.v_proj = Linear(hidden_size, self.num_kv_heads * self.head_dim, bias)

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """x [B, T, hidden] -> q [B, T, H * D], k and v [B, T, Hkv * D]."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def __call__(self, x: mx.array, state: LayerState) -> mx.array:
        q, k, v = (self._split_heads(part) for part in self.project(x))
        q, k = self._position(q, "q_norm", state), self._position(k, "k_norm", state)
        out = state.attend(q, k, v, scale=self.scale, window=self.window, softcap=self.softcap)
        return self.o_proj(out.reshape(*x.shape[:-1], -1))

    def projections(self) -> list[nn.Module]:
        """The layers that make q, k and v: one each, or one whose outputs are these one after another."""
        return [self["q_proj"], self["k_proj"], self["v_proj"]]

    def parts(self) -> list[nn.Module]:
        """All that a fused half is made of."""
        norms = [self[name] for name in ("q_norm", "k_norm") if name in self]
        return [*self.projections(), self["o_proj"], *norms]

    def half(self, norm: RMSNorm, post: RMSNorm | None) -> Any:
        """y = x + post(self(norm(x))) as one operation of x, lengths-dependent rope and pages; None where it is not."""
        layers = [*self.projections(), self.o_proj]
        if not all(isinstance(layer, Projecting) for layer in layers):
            return None
        *projections, o = (layer.projection() for layer in layers)
        return kernels.attention_half(
            norm.norm(),
            projections,
            o,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            rope_scale=1.0 if self.rope is None else self.rope.scale,
            window=self.window,
            softcap=self.softcap,
            q_norm=self.q_norm.norm() if "q_norm" in self else None,
            k_norm=self.k_norm.norm() if "k_norm" in self else None,
            post=None if post is None else post.norm(),
        )

    def state_spec(self) -> AttentionSpec:
        return AttentionSpec(self.num_kv_heads, self.head_dim, self.head_dim, self.window)

    def _split_heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)

    def _position(self, x: mx.array, norm: str, state: LayerState) -> mx.array:
        if norm in self:
            x = self[norm](x)
        return x if self.rope is None else self.rope(x, state)
