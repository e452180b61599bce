"""Llama 1 to 3 and what shares its shape; Mistral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.nn as nn

from umlm.models.config import FULL, SLIDING, ModelConfig
from umlm.models.decoder import Decoder
from umlm.nn import Attention, GatedMLP, PreNorm


class Llama(Decoder):
    """Llama. arXiv:2302.13971, 2407.21783"""

    attention_class: ClassVar[type[Attention]] = Attention

    def block(self, layer: int) -> nn.Module:
        return PreNorm(self.attention(layer), self.mlp(), self.norm)

    def attention(self, layer: int) -> Attention:
        c = self.config
        options = {"bias": c.attention_bias, "out_bias": c.attention_bias} | self.attention_options(layer)
        return self.attention_class(
            c.hidden_size,
            c.num_attention_heads,
            c.kv_heads,
            c.size_of_head,
            rope=self.rope(layer),
            window=c.window(layer),
            **options,
        )

    def attention_options(self, layer: int) -> dict[str, Any]:
        """What a family's attention has beyond Llama's."""
        return {}

    def mlp(self) -> nn.Module:
        c = self.config
        return GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, c.mlp_bias)


@dataclass(frozen=True, kw_only=True)
class MistralConfig(ModelConfig):
    """A sliding window, where there is one, counts for every layer. No biases."""

    attention_bias: bool = False

    def default_layer_types(self) -> list[str]:
        return [SLIDING if self.sliding_window else FULL] * self.num_hidden_layers


class Mistral(Llama):
    """Mistral, dense. arXiv:2310.06825"""

    Config = MistralConfig
