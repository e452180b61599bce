"""Residual shapes of a transformer block, with Hugging Face's names for the parts."""

from __future__ import annotations

import itertools
import operator
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
_values = operator.methodcaller("values")


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
        return self._mlp(self._attention(x, state, fuses), fuses)

    def _attention(self, x: mx.array, state: LayerState, fuses: bool) -> mx.array:
        attention, around = self["self_attn"], self.around_attention()
        half = self._attention_half.of(attention, around) if fuses and _calls(attention, Attention) else None
        if half is None:
            return x + _after(around, attention(around.pre(x), state))
        inv_freq = None if attention.rope is None else attention.rope.inv_freq(state.lengths)
        return half(x, inv_freq, state.pages)

    def _mlp(self, x: mx.array, fuses: bool) -> mx.array:
        mlp, around = self["mlp"], self.around_mlp()
        half = self._mlp_half.of(mlp, around) if fuses and _calls(mlp, GatedMLP) else None
        return x + _after(around, mlp(around.pre(x))) if half is None else half(x)


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
        self._made_of: list[Any] = []
        self._identities: list[int] = []
        self._half: Any = None

    def of(self, part: Any, around: Around) -> Any:
        """The operation for this part and its norms, None where they are of no common kind."""
        modules = [*part.parts(), *(norm for norm in around if norm is not None)]
        made_of = list(itertools.chain.from_iterable(map(_values, modules)))
        identities = list(map(id, made_of))
        if identities != self._identities:
            self._made_of = made_of  # holds the arrays, so that no other can take their identity
            self._identities = identities
            self._half = _make(part, around)
        return self._half


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
