"""The decoder that all families share: embed, blocks, norm, head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.models.config import ModelConfig
from umlm.nn import Embedding, FusedStack, LayerState, LayerStates, Linear, RMSNorm, Rope, StateSpec
from umlm.nn.state import DenseState


class Trunk(nn.Module):
    """The parts under Hugging Face's `model.` prefix."""

    def __init__(self, embed_tokens: nn.Module, layers: list[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens, self.layers, self.norm = embed_tokens, layers, norm


class Decoder(nn.Module):
    """A causal language model. A family says what a block is; parameter names are Hugging Face's."""

    Config: ClassVar[type[ModelConfig]] = ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._stack = FusedStack()
        self._rope_of = cache(lambda layer_type: Rope(config.rope(layer_type)))
        blocks = [self.block(layer) for layer in range(config.num_hidden_layers)]
        self.model = Trunk(Embedding(config.vocab_size, config.hidden_size), blocks, self.norm())
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations: what the embedding gives."""
        return self.model.embed_tokens.dtype

    @staticmethod
    def adapt(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn a config.json of this family into the keys of its Config, where they differ."""
        return mapping

    def block(self, layer: int) -> nn.Module:
        """The block of this layer, called as block(x, state) -> x."""
        raise NotImplementedError

    def norm(self) -> nn.Module:
        """A norm over the hidden size."""
        return RMSNorm(self.config.hidden_size, self.config.rms_norm_eps)

    def rope(self, layer: int) -> Rope:
        """The rotary embedding of this layer; layers of one type share it."""
        return self._rope_of(self.config.types[layer])

    def embed(self, tokens: mx.array) -> mx.array:
        """tokens [B, T] -> [B, T, hidden]."""
        return self.model.embed_tokens(tokens)

    def head(self, x: mx.array) -> mx.array:
        """x [..., hidden] -> logits [..., vocab]."""
        return self.model.embed_tokens.as_linear(x) if self.config.tie_word_embeddings else self.lm_head(x)

    def __call__(
        self, tokens: mx.array, states: Sequence[LayerState] | None = None, at: mx.array | None = None
    ) -> mx.array:
        """Logits of the next token at every place: tokens int32 [B, T] -> [B, T, vocab].

        states  one per layer; None: every row is a whole sequence of its own
        at      int32 [S], places in a packed row (B = 1) whose logits are wanted: -> [S, vocab]
        """
        x = self._through(self.embed(tokens), states or self._dense(tokens))
        return self.head(self.model.norm(x if at is None else x[0, at]))

    def final(self, tokens: mx.array, states: Sequence[LayerState] | None = None) -> mx.array:
        """The last hidden states, after the final norm: tokens int32 [B, T] -> [B, T, hidden]; `head` makes logits."""
        return self.model.norm(self._through(self.embed(tokens), states or self._dense(tokens)))

    def _through(self, x: mx.array, states: Sequence[LayerState]) -> mx.array:
        layers = self.model.layers
        if isinstance(states, LayerStates) and kernels.halves_serve() and (stack := self._stack.of(layers)):
            return stack(x, states.pages)
        for layer, state in zip(layers, states, strict=True):
            x = layer(x, state)
        return x

    def hidden_states(
        self, tokens: mx.array, layers: Iterable[int], states: Sequence[LayerState] | None = None
    ) -> dict[int, mx.array]:
        """Hidden states [B, T, hidden] by number, as transformers counts them.

        0 is the embedding, i the output of the i-th block, and the last one has passed the final norm.
        """
        wanted, last = set(layers), self.config.num_hidden_layers
        unknown = [number for number in wanted if not 0 <= number <= last]
        if unknown:
            raise ValueError(f"hidden state {unknown[0]} does not exist; this model has 0 to {last}")
        x = self.embed(tokens)
        found = {0: x}
        for number, (layer, state) in enumerate(
            zip(self.model.layers, states or self._dense(tokens), strict=True), start=1
        ):
            x = layer(x, state)
            found[number] = x
        found[last] = self.model.norm(x)
        return {number: found[number] for number in sorted(wanted)}

    def state_specs(self) -> list[StateSpec]:
        """What each layer remembers, in layer order."""
        return [layer.self_attn.state_spec() for layer in self.model.layers]

    def _dense(self, tokens: mx.array) -> list[LayerState]:
        state = DenseState(tokens.shape[1])
        return [state] * self.config.num_hidden_layers
