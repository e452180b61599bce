"""Gemma 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from umlm.models.config import FULL, SLIDING, ModelConfig, nullable
from umlm.models.llama import Llama
from umlm.nn import RopeParameters, Sandwich, UnitOffsetRMSNorm


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(ModelConfig):
    """Published files leave out keys whose values are the family's defaults."""

    vocab_size: int = 256000
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 16
    head_dim: int | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    use_bidirectional_attention: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_bidirectional_attention:
            raise ValueError("use_bidirectional_attention true is not supported; only causal models generate text")


class Gemma(Llama):
    """Gemma: scaled embeddings, norms by 1 + weight. arXiv:2403.08295"""

    Config = GemmaConfig

    def norm(self) -> UnitOffsetRMSNorm:
        return UnitOffsetRMSNorm(self.config.hidden_size, self.config.rms_norm_eps)

    def embed(self, tokens: mx.array) -> mx.array:
        x = super().embed(tokens)
        # the published models were trained with the factor rounded to the activations' dtype
        return x * mx.array(self.config.hidden_size**0.5, dtype=x.dtype)

    @staticmethod
    def adapt(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Early files say "gelu" and mean the tanh form."""
        return {**mapping, "hidden_act": "gelu_pytorch_tanh"} if mapping.get("hidden_act") == "gelu" else mapping


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(GemmaConfig):
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    attn_logit_softcapping: float | None = nullable(50.0)
    final_logit_softcapping: float | None = nullable(30.0)

    def default_layer_types(self) -> list[str]:
        return [FULL if layer % 2 else SLIDING for layer in range(self.num_hidden_layers)]


class Gemma2(Gemma):
    """Gemma 2: norms around each part, capped logits, every other layer windowed. arXiv:2408.00118"""

    Config = Gemma2Config
    config: Gemma2Config

    def block(self, layer: int) -> nn.Module:
        return Sandwich(self.attention(layer), self.mlp(), self.norm)

    def attention_options(self, layer: int) -> dict[str, Any]:
        c = self.config
        return {"scale": c.query_pre_attn_scalar**-0.5, "softcap": c.attn_logit_softcapping}

    def head(self, x: mx.array) -> mx.array:
        logits, cap = super().head(x), self.config.final_logit_softcapping
        return logits if cap is None else cap * mx.tanh(logits / cap)

    @staticmethod
    def adapt(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """The activation's key is hidden_activation here."""
        return {**mapping, "hidden_act": mapping.get("hidden_activation")}


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = 10_000.0
    sliding_window_pattern: int = 6
    attn_logit_softcapping: float | None = nullable(None)
    final_logit_softcapping: float | None = nullable(None)

    def default_layer_types(self) -> list[str]:
        layers = range(1, self.num_hidden_layers + 1)
        return [SLIDING if layer % self.sliding_window_pattern else FULL for layer in layers]

    def rope(self, layer_type: str) -> RopeParameters:
        """Windowed layers have a base of their own and are never scaled, unless listed by type."""
        local = layer_type == SLIDING and SLIDING not in (self.rope_parameters or {})
        if local:
            return RopeParameters(dims=self.size_of_head, rope_theta=self.rope_local_base_freq)
        return super().rope(layer_type)


class Gemma3(Gemma2):
    """Gemma 3, text: q/k norms, five windowed layers to a full one. arXiv:2503.19786"""

    Config = Gemma3Config
    config: Gemma3Config

    def attention_options(self, layer: int) -> dict[str, Any]:
        c = self.config
        norm = lambda: UnitOffsetRMSNorm(c.size_of_head, c.rms_norm_eps)
        return {"scale": c.query_pre_attn_scalar**-0.5, "q_norm": norm(), "k_norm": norm()}
