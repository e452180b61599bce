"""The arrays behind the pages: keys and values of every layer, and the states that layers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import mlx.core as mx

from umlm import kernels
from umlm.cache.batch import Batch
from umlm.cache.budget import FLOATS, KVBits
from umlm.nn import LayerState, LayerStates, StateSpec

FIRST_TOKENS = 1024


class PageStore:
    """The only holder of page arrays, which keeps writes in place.

    Per layer: keys [num_pages * page_size, kv_heads, head_dim] and values [.., kv_heads, v_head_dim], in `dtype`, or
    quantized to `bits` (kernels/quantized_pages.py).
    Token i of a request lies in slot page_ids[i // page_size] * page_size + i % page_size.
    The arrays begin small and double up to num_pages as higher page ids come into use, one layer at a time.
    """

    def __init__(
        self, specs: Sequence[StateSpec], num_pages: int, page_size: int, dtype: mx.Dtype, bits: KVBits = FLOATS
    ) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.allocated = min(num_pages, max(1, FIRST_TOKENS // page_size))
        slots = self.allocated * page_size
        empty = kernels.empty_pages
        self.keys = [empty(slots, spec.num_kv_heads, spec.head_dim, dtype, bits.keys) for spec in specs]
        self.values = [empty(slots, spec.num_kv_heads, spec.v_head_dim, dtype, bits.values) for spec in specs]

    def states(self, batch: Batch) -> LayerStates:
        """One state per layer for one call of the model on this batch."""
        self._reach(max(max(pages) for pages in batch.page_table))
        table = kernels.PageTable(batch.page_table, batch.starts, batch.contexts)
        return PagedStates(self, batch, table)

    @property
    def nbytes(self) -> int:
        """Bytes in use now; at most those of num_pages."""
        return sum(pages.nbytes for pages in (*self.keys, *self.values))

    def shrink(self, num_pages: int) -> None:
        """Give back the memory of the pages from num_pages on; nobody may own them. They come again when reached."""
        kept = max(num_pages, min(self.num_pages, max(1, FIRST_TOKENS // self.page_size)))
        if kept >= self.allocated:
            return
        for arrays in (self.keys, self.values):
            for layer, pages in enumerate(arrays):
                arrays[layer] = _first(pages, kept * self.page_size)
        self.allocated = kept

    def _reach(self, page_id: int) -> None:
        if page_id < self.allocated:
            return
        allocated = min(self.num_pages, max(page_id + 1, 2 * self.allocated))
        more = (allocated - self.allocated) * self.page_size
        for arrays in (self.keys, self.values):
            for layer, pages in enumerate(arrays):
                arrays[layer] = kernels.more_pages(pages, more)
                # one array at a time, so that never more than one is in memory twice
                mx.eval(arrays[layer])
        self.allocated = allocated


def _first(pages: kernels.KeptPages, num_slots: int) -> kernels.KeptPages:
    """The first slots in memory of their own, evaluated: the longer array can go."""
    array = pages.rows if isinstance(pages, kernels.QuantizedPages) else pages
    part = mx.contiguous(array[:num_slots])
    mx.eval(part)
    return pages._replace(rows=part) if isinstance(pages, kernels.QuantizedPages) else part


class PagedStates(LayerStates):
    """All layers' pages during one call."""

    def __init__(self, store: PageStore, batch: Batch, table: kernels.PageTable) -> None:
        self._store, self._batch, self._table = store, batch, table
        self.pages = kernels.StackPages(
            store.keys, store.values, batch.positions, batch.lengths, batch.slots, table, store.page_size
        )

    def __len__(self) -> int:
        return len(self._store.keys)

    @overload
    def __getitem__(self, layer: int) -> LayerState: ...
    @overload
    def __getitem__(self, layer: slice) -> list[LayerState]: ...
    def __getitem__(self, layer: int | slice) -> LayerState | list[LayerState]:
        if isinstance(layer, slice):
            return [self[i] for i in range(len(self))[layer]]
        return PagedState(self._store, range(len(self))[layer], self._batch, self._table)


class PagedState:
    """One layer's pages during one call: writes the new tokens, then attends over the pages."""

    def __init__(self, store: PageStore, layer: int, batch: Batch, table: kernels.PageTable) -> None:
        self.store, self.layer, self.batch, self.table = store, layer, batch, table
        self.positions, self.lengths = batch.positions, batch.lengths
        self.pages: kernels.Pages | None = kernels.Pages(
            store.keys[layer],
            store.values[layer],
            batch.positions,
            batch.lengths,
            batch.slots,
            table,
            store.page_size,
        )

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
            self.table,
            batch.starts,
            batch.contexts,
            page_size=store.page_size,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
