"""Layers, and what they remember between calls."""

from umlm.nn.attention import Attention
from umlm.nn.block import FusedStack, PreNorm, Sandwich
from umlm.nn.linear import Embedding, Linear, Projecting
from umlm.nn.mlp import GatedMLP
from umlm.nn.norm import RMSNorm, UnitOffsetRMSNorm
from umlm.nn.rope import Rope, RopeParameters
from umlm.nn.state import AttentionSpec, DenseState, LayerState, LayerStates, StateSpec

__all__ = [
    "Attention",
    "AttentionSpec",
    "DenseState",
    "Embedding",
    "FusedStack",
    "GatedMLP",
    "LayerState",
    "LayerStates",
    "Linear",
    "PreNorm",
    "Projecting",
    "RMSNorm",
    "Rope",
    "RopeParameters",
    "Sandwich",
    "StateSpec",
    "UnitOffsetRMSNorm",
]
