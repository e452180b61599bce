"""Residual shapes of a transformer block, with Hugging Face's names for the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.nn.attention import Attention
from umlm.nn.mlp import GatedMLP
from umlm.nn.norm import RMSNorm
from umlm.nn.state import LayerState

MakeNorm = Callable[[], nn.Module]


class Around(NamedTuple):
    """The norms before and after a part of a block; no norm after it for None."""

    pre: nn.Module
    post: nn.Module | None


class Block(nn.Module):
    """x + post(attention(pre(x))), then x + post(mlp(pre(x))).

    Where the parts are of the common kinds and the state has pages, each line is one fused operation.
    """

    def __init__(self, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self._attention_half, self._mlp_half = FusedHalf(), FusedHalf()

    def around_attention(self) -> Around:
        raise NotImplementedError

    def around_mlp(self) -> Around:
        raise NotImplementedError

    def __call__(self, x: mx.array, state: LayerState) -> mx.array:
        fuses = state.pages is not None and kernels.halves_serve()
        attention, mlp = self.halves() if fuses else (None, None)
        return self._mlp(self._attention(x, state, attention), mlp)

    def halves(self) -> tuple[Any, Any]:
        """Both halves as fused operations, None for one that is of no common kind."""
        attention, mlp = self["self_attn"], self["mlp"]
        return (
            self._attention_half.of(attention, self.around_attention()) if _calls(attention, Attention) else None,
            self._mlp_half.of(mlp, self.around_mlp()) if _calls(mlp, GatedMLP) else None,
        )

    def _attention(self, x: mx.array, state: LayerState, half: Any) -> mx.array:
        attention, around = self["self_attn"], self.around_attention()
        if half is None:
            return x + _after(around, attention(around.pre(x), state))
        inv_freq = None if attention.rope is None else attention.rope.inv_freq(state.lengths)
        return half(x, inv_freq, state.pages)

    def _mlp(self, x: mx.array, half: Any) -> mx.array:
        around = self.around_mlp()
        return x + _after(around, self["mlp"](around.pre(x))) if half is None else half(x)


class PreNorm(Block):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, norm: MakeNorm) -> None:
        super().__init__(self_attn, mlp)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()

    def around_attention(self) -> Around:
        return Around(self["input_layernorm"], None)

    def around_mlp(self) -> Around:
        return Around(self["post_attention_layernorm"], None)


class Sandwich(Block):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, self_attn: nn.Module, mlp: nn.Module, norm: MakeNorm) -> None:
        super().__init__(self_attn, mlp)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()

    def around_attention(self) -> Around:
        return Around(self["input_layernorm"], self["post_attention_layernorm"])

    def around_mlp(self) -> Around:
        return Around(self["pre_feedforward_layernorm"], self["post_feedforward_layernorm"])


class FusedHalf:
    """A fused half of one block, made when it is first used and again when one of its arrays is another."""

    def __init__(self) -> None:
        self._watch: Any = None
        self._half: Any = None

    def of(self, part: Any, around: Around) -> Any:
        """The operation for this part and its norms, None where they are of no common kind."""
        if self._watch is None or not self._watch.unchanged():
            self._watch = kernels.watch([part, *part.parts(), *(norm for norm in around if norm is not None)])
            self._half = _make(part, around)
        return self._half


class FusedStack:
    """All blocks of a decoder as one operation, made when it is first used and again when an array is another."""

    def __init__(self) -> None:
        self._watch: Any = None
        self._layers: list[nn.Module] = []
        self._run: Callable[[mx.array, kernels.StackPages], mx.array] | None = None

    def of(self, layers: list[nn.Module]) -> Callable[[mx.array, kernels.StackPages], mx.array] | None:
        """The operation x, pages -> x through all layers; None where a layer is no block of two fused halves."""
        same = list(map(id, layers)) == list(map(id, self._layers))
        if self._watch is None or not same or not self._watch.unchanged():
            self._layers = list(layers)  # holds them, so that no other can take their identity
            self._watch = kernels.watch([module for layer in layers for module in layer.modules()])
            self._run = _stack(layers)
        return self._run


def _stack(layers: list[nn.Module]) -> Callable[[mx.array, kernels.StackPages], mx.array] | None:
    pairs: list[tuple[Any, Any]] = [
        layer.halves() if isinstance(layer, Block) and _calls(layer, Block) else (None, None) for layer in layers
    ]
    if any(None in pair for pair in pairs):
        return None
    stack = kernels.BlockStack(pairs)
    ropes = [layer.self_attn.rope for layer in layers]
    kinds = {id(rope): rope for rope in ropes if rope is not None}

    def run(x: mx.array, pages: kernels.StackPages) -> mx.array:
        inv_freqs = {kind: rope.inv_freq(pages.lengths) for kind, rope in kinds.items()}
        return stack(x, [inv_freqs.get(id(rope)) for rope in ropes], pages)

    return run


def _make(part: Any, around: Around) -> Any:
    pre, post = around
    if not isinstance(pre, RMSNorm) or not isinstance(post, RMSNorm | None):
        return None
    return part.half(pre, post)


def _calls(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the part computes what this kind computes."""
    return type(part).__call__ is kind.__call__


def _after(around: Around, y: mx.array) -> mx.array:
    return y if around.post is None else around.post(y)
