"""Qwen 2 and 3, dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from umlm.models.config import FULL, SLIDING, ModelConfig
from umlm.models.llama import Llama
from umlm.nn import RMSNorm


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(ModelConfig):
    """The sliding window counts with use_sliding_window only, from layer max_window_layers on."""

    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    max_window_layers: int = 28

    def default_layer_types(self) -> list[str]:
        layers = range(self.num_hidden_layers)
        return [SLIDING if self.slides and layer >= self.max_window_layers else FULL for layer in layers]

    @property
    def slides(self) -> bool:
        return self.use_sliding_window and bool(self.sliding_window)

    def window(self, layer: int) -> int | None:
        return super().window(layer) if self.slides else None


class Qwen2(Llama):
    """Qwen 2 and 2.5. arXiv:2407.10671"""

    Config = Qwen2Config

    def attention_options(self, layer: int) -> dict[str, Any]:
        return {"bias": True, "out_bias": False}


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    head_dim: int | None = 128


class Qwen3(Llama):
    """Qwen 3. arXiv:2505.09388"""

    Config = Qwen3Config

    def attention_options(self, layer: int) -> dict[str, Any]:
        size, eps = self.config.size_of_head, self.config.rms_norm_eps
        return {"q_norm": RMSNorm(size, eps), "k_norm": RMSNorm(size, eps)}
