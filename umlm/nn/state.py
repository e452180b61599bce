"""What a layer remembers between calls, and the one question that attention asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from umlm.kernels import Pages, StackPages, attention, row_bytes


@dataclass(frozen=True)
class AttentionSpec:
    """Keys and values of one attention layer, per token.

    window  tokens a query sees, itself included; None sees all before it
    """

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None

    def bytes_per_token(self, bytes_per_value: int, k_bits: int | None = None, v_bits: int | None = None) -> int:
        """Bytes kept for one token: bytes_per_value a number where keys or values have no bits of their own."""

        def row(dims: int, bits: int | None) -> int:
            if bits is None or bits == 16:
                return dims * (bytes_per_value if bits is None else 2)
            return row_bytes(dims, bits)

        return self.num_kv_heads * (row(self.head_dim, k_bits) + row(self.v_head_dim, v_bits))


StateSpec = AttentionSpec  # latent (MLA) and recurrent kinds join this union with their layers


class LayerState(Protocol):
    """The memory of one layer during one call of the model.

    positions  int32 [T], the place of each token in its own sequence
    lengths    int32 [T], max(prompt length, position + 1): what length-dependent rope goes by
    """

    positions: mx.array
    lengths: mx.array
    # the pages, for operations that write and read them by themselves; None where there are none
    pages: Pages | None

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attend q [B, T, H, D] to all keys so far; k, v [B, T, Hkv, D] are the tokens' own.

        Returns [B, T, H, Dv]. B is 1 for packed rows.
        """
        ...


class LayerStates(Sequence[LayerState]):
    """One state per layer, and the pages of all of them for operations that go through all layers by themselves."""

    pages: StackPages


class DenseState:
    """No memory: every sequence is whole in the call, [B, T] with equal lengths. Training, scoring."""

    pages: Pages | None = None

    def __init__(self, num_tokens: int) -> None:
        self.positions = mx.arange(num_tokens, dtype=mx.int32)
        self.lengths = mx.full((num_tokens,), num_tokens, dtype=mx.int32)

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        return attention(
            q, k, v, self.positions, self.positions, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
