"""Rotary position embeddings of every kind that config.json can ask for.

A kind turns RopeParameters into inverse frequencies, float32 [dims / 2]. Kinds that depend on the length of the
sequence go by each token's own length, max(prompt length, position + 1): one rule for whole, chunked, packed
and resumed computation, equal to transformers' for a whole prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from umlm import kernels
from umlm.nn.state import LayerState
from umlm.options import check_fields

# Numbers that may be 0: lengths that only some kinds go by, and factors that are switched off.
AT_LEAST = {
    "dims": 0,
    "max_position_embeddings": 0,
    "original_max_position_embeddings": 0,
    "attention_factor": 0,
    "mscale": 0,
    "mscale_all_dim": 0,
}


@dataclass(frozen=True)
class RopeParameters:
    """One rotary embedding: the keys of `rope_parameters` in config.json, with `dims` = rotated dims of a head."""

    dims: int
    rope_theta: float = 10000.0
    rope_type: str = "default"
    max_position_embeddings: int = 0
    original_max_position_embeddings: int = 0
    factor: float | None = None
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: Sequence[float] | None = None
    long_factor: Sequence[float] | None = None
    factors: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_fields(self, at_least=AT_LEAST)
        if self.rope_type not in KINDS:
            raise ValueError(f"rope type {self.rope_type!r} is unknown; known: {', '.join(sorted(KINDS))}")
        if self.dims < 2 or self.dims % 2:
            raise ValueError(f"rope turns pairs of dims: {self.dims} rotated dims of a head is not even and > 0")
        for key in REQUIRED.get(self.rope_type, ()):
            if getattr(self, key) is None:
                raise ValueError(f"rope type {self.rope_type!r} needs the key {key!r} in rope_parameters")
        for key in ("short_factor", "long_factor", "factors"):
            values = getattr(self, key)
            if values is not None and len(values) != self.dims // 2:
                raise ValueError(f"rope {key} has {len(values)} values; {self.dims} rotated dims need {self.dims // 2}")

    @property
    def extension(self) -> float:
        """How many times longer the context is than the one trained on."""
        if self.factor is not None:
            return self.factor
        return self.max_position_embeddings / self.original_max_position_embeddings

    @property
    def goes_by_length(self) -> bool:
        """Whether keys depend on the length of the sequence, beside their position."""
        return self.rope_type in LENGTH_KINDS

    def length_kind(self, length: int) -> int:
        """What of a token's length its key depends on: equal numbers give equal keys."""
        return LENGTH_KINDS[self.rope_type](self, length) if self.goes_by_length else 0


class Rope:
    """Turns queries and keys by their positions."""

    def __init__(self, parameters: RopeParameters) -> None:
        self.parameters = parameters
        self.scale = _attention_factor(parameters)
        self._frequencies = KINDS[parameters.rope_type](parameters)

    def __call__(self, x: mx.array, state: LayerState) -> mx.array:
        """x [B, T, H, D] -> the same, with the first `dims` of D turned."""
        return kernels.rope(x, state.positions, self.inv_freq(state.lengths), scale=self.scale)

    def inv_freq(self, lengths: mx.array) -> mx.array:
        """float32 [dims / 2], or [T, dims / 2] for kinds that go by the lengths [T]."""
        return self._frequencies(lengths)


Frequencies = Callable[[mx.array], mx.array]


def _default(p: RopeParameters) -> Frequencies:
    return _fixed(_base(p))


def _linear(p: RopeParameters) -> Frequencies:
    return _fixed(_base(p) / p.extension)


def _factors(p: RopeParameters) -> Frequencies:
    """Explicit divisors, as GGUF files store them."""
    return _fixed(_base(p) / _array(p.factors))


def _dynamic(p: RopeParameters) -> Frequencies:
    """NTK-aware base that grows with the length past max_position_embeddings."""
    exponents = mx.array(np.arange(0, p.dims, 2, dtype=np.float32) / p.dims)

    def frequencies(lengths: mx.array) -> mx.array:
        stretch = mx.maximum(lengths.astype(mx.float32) / p.max_position_embeddings, 1.0)
        growth = (p.extension * stretch - (p.extension - 1)) ** (p.dims / (p.dims - 2))
        return 1.0 / (p.rope_theta * growth)[:, None] ** exponents

    return frequencies


def _llama3(p: RopeParameters) -> Frequencies:
    """Long waves slowed by `factor`, short ones kept, those between blended. Llama 3.1."""
    inv_freq, original = _base(p), p.original_max_position_embeddings
    rotations = original * inv_freq / (2 * math.pi)
    blend = np.clip((rotations - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor), 0, 1)
    return _fixed((1 - blend) * inv_freq / p.extension + blend * inv_freq)


def _yarn(p: RopeParameters) -> Frequencies:
    """arXiv:2309.00071"""
    inv_freq = _base(p)
    low, high = (_yarn_dim(p, rotations) for rotations in (p.beta_fast, p.beta_slow))
    if p.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, p.dims - 1)
    width = (high - low) or 0.001
    ramp = np.clip((np.arange(p.dims // 2, dtype=np.float32) - low) / width, 0, 1)
    return _fixed(inv_freq / p.extension * ramp + inv_freq * (1 - ramp))


def _yarn_dim(p: RopeParameters, rotations: float) -> float:
    """The dim that turns `rotations` times over the original context."""
    wavelength = p.original_max_position_embeddings / (rotations * 2 * math.pi)
    return p.dims * math.log(wavelength) / (2 * math.log(p.rope_theta))


def _longrope(p: RopeParameters) -> Frequencies:
    """arXiv:2402.13753. Long factors for tokens of sequences longer than the original context."""
    short, long = (mx.array(_base(p) / _array(f)) for f in (p.short_factor, p.long_factor))

    def frequencies(lengths: mx.array) -> mx.array:
        is_long = lengths > p.original_max_position_embeddings
        return mx.where(is_long[:, None], long, short)

    return frequencies


KINDS: dict[str, Callable[[RopeParameters], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "factors": _factors,
}
LENGTH_KINDS: dict[str, Callable[[RopeParameters, int], int]] = {
    "dynamic": lambda p, length: length if length > p.max_position_embeddings else 0,
    "longrope": lambda p, length: int(length > p.original_max_position_embeddings),
}
REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "factors": ("factors",),
}


def _base(p: RopeParameters) -> np.ndarray:
    exponents = np.arange(0, p.dims, 2, dtype=np.float32) / np.float32(p.dims)
    return (1.0 / np.float32(p.rope_theta) ** exponents).astype(np.float32)


def _array(values: Sequence[float] | None) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def _fixed(inv_freq: np.ndarray) -> Frequencies:
    constant = mx.array(inv_freq.astype(np.float32))
    return lambda lengths: constant


def _attention_factor(p: RopeParameters) -> float:
    """What cos and sin are multiplied by."""
    if p.rope_type not in ("yarn", "longrope"):
        return 1.0
    if p.attention_factor is not None:
        return p.attention_factor
    if p.extension <= 1:
        return 1.0
    if p.rope_type == "longrope":
        return math.sqrt(1 + math.log(p.extension) / math.log(p.original_max_position_embeddings))
    if p.mscale and p.mscale_all_dim:
        return _mscale(p.extension, p.mscale) / _mscale(p.extension, p.mscale_all_dim)
    return _mscale(p.extension, 1.0)


def _mscale(extension: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(extension) + 1.0
