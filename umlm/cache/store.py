"""The arrays behind the pages: keys and values of every layer, and the states that layers see."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from umlm import kernels
from umlm.cache.batch import Batch
from umlm.nn import LayerState, StateSpec


class PageStore:
    """The only holder of page arrays, which keeps writes in place.

    Per layer: keys [num_pages * page_size, kv_heads, head_dim] and values [.., kv_heads, v_head_dim] in `dtype`.
    Token i of a request lies in slot page_ids[i // page_size] * page_size + i % page_size.
    """

    def __init__(self, specs: Sequence[StateSpec], num_pages: int, page_size: int, dtype: mx.Dtype) -> None:
        slots = num_pages * page_size
        self.page_size = page_size
        self.keys = [mx.zeros((slots, spec.num_kv_heads, spec.head_dim), dtype) for spec in specs]
        self.values = [mx.zeros((slots, spec.num_kv_heads, spec.v_head_dim), dtype) for spec in specs]

    def states(self, batch: Batch) -> list[LayerState]:
        """One state per layer for one call of the model on this batch."""
        return [PagedState(self, layer, batch) for layer in range(len(self.keys))]

    @property
    def nbytes(self) -> int:
        return sum(pages.nbytes for pages in (*self.keys, *self.values))


class PagedState:
    """One layer's pages during one call: writes the new tokens, then attends over the pages."""

    def __init__(self, store: PageStore, layer: int, batch: Batch) -> None:
        self.store, self.layer, self.batch = store, layer, batch
        self.positions, self.lengths = batch.positions, batch.lengths

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
        store, layer, batch = self.store, self.layer, self.batch
        store.keys[layer] = kernels.write_pages(store.keys[layer], batch.slots, k[0])
        store.values[layer] = kernels.write_pages(store.values[layer], batch.slots, v[0])
        return kernels.paged_attention(
            q,
            store.keys[layer],
            store.values[layer],
            batch.positions,
            batch.page_table,
            batch.starts,
            batch.contexts,
            page_size=store.page_size,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
