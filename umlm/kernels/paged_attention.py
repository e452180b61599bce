"""Attention over keys and values that lie in pages, for a packed row of requests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from umlm.kernels import cpu
from umlm.kernels.attention import FLOATS, attention
from umlm.kernels.backends import implement, op
from umlm.kernels.quantized_pages import KeptPages, QuantizedPages, dequantize_rows, quantize_rows


@op
def write_pages(pages: KeptPages, slots: mx.array, values: mx.array) -> KeptPages:
    """Put values [T, H, D] into the slots [T] of pages [num_slots, H, D], quantized where the pages are.

    In place while the pages' array has one owner: it holds the result afterwards, and `pages` is returned.
    """
    if isinstance(pages, QuantizedPages):
        pages.rows[slots] = quantize_rows(values, pages.bits)
    else:
        pages[slots] = values.astype(pages.dtype)
    return pages


@implement(write_pages, "cpu")
def _cpu_write_pages(pages: KeptPages, slots: mx.array, values: mx.array) -> Any:
    if not _kernels_know(pages) or values.dtype not in FLOATS:
        return NotImplemented
    assert cpu.extension is not None
    cpu.extension.write_pages(array_of(pages), slots, values, bits_of(pages))
    return pages


class PageTable(list[Sequence[int]]):
    """The page ids of a packed row's requests, and what a backend makes of them once for all layers."""

    def __init__(self, page_table: Sequence[Sequence[int]], starts: Sequence[int], contexts: Sequence[int]) -> None:
        super().__init__(page_table)
        self.starts, self.contexts = starts, contexts

    @functools.cached_property
    def compiled(self) -> Any:
        """The C++ kernels' own form."""
        assert cpu.extension is not None
        return cpu.extension.PageTable(list(self), list(self.starts), list(self.contexts))


@op
def paged_attention(
    q: mx.array,
    k_pages: KeptPages,
    v_pages: KeptPages,
    positions: mx.array,
    page_table: Sequence[Sequence[int]],
    starts: Sequence[int],
    contexts: Sequence[int],
    *,
    page_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Causal attention of each request's new tokens to all of its tokens. arXiv:2309.06180

    q [1, T, H, D]; k_pages, v_pages [num_slots, Hkv, D], the new tokens' own included, each of floats or quantized;
    positions [T];
    request r owns q[:, starts[r]:starts[r + 1]], its tokens 0 .. contexts[r] lie in page_table[r].
    Returns [1, T, H, Dv]. The rest as in `attention`. page_table may be a PageTable of these starts and contexts,
    which saves work where several calls share it.
    """
    outputs = []
    for row, pages in enumerate(page_table):
        segment = slice(starts[row], starts[row + 1])
        context = contexts[row]
        first = first_visible(context, segment.stop - segment.start, window, page_size)
        slots = _slots(pages, first, context, page_size)
        out = attention(
            q[:, segment],
            _values(k_pages, slots)[None],
            _values(v_pages, slots)[None],
            positions[segment],
            mx.arange(first, context, dtype=mx.int32),
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
        outputs.append(out)
    return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)


@implement(paged_attention, "cpu")
def _cpu_paged_attention(
    q: mx.array,
    k_pages: KeptPages,
    v_pages: KeptPages,
    positions: mx.array,
    page_table: Sequence[Sequence[int]],
    starts: Sequence[int],
    contexts: Sequence[int],
    *,
    page_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> Any:
    if q.dtype not in FLOATS or not (_kernels_know(k_pages) and _kernels_know(v_pages)):
        return NotImplemented
    table = page_table if isinstance(page_table, PageTable) else PageTable(page_table, starts, contexts)
    assert cpu.extension is not None
    return cpu.extension.paged_attention(
        q,
        array_of(k_pages),
        array_of(v_pages),
        positions,
        table.compiled,
        page_size,
        scale,
        window or 0,
        softcap or 0.0,
        sinks,
        bits_of(k_pages),
        bits_of(v_pages),
        v_pages.head_dim if isinstance(v_pages, QuantizedPages) else v_pages.shape[-1],
    )


def array_of(pages: KeptPages) -> mx.array:
    """The one array that holds them."""
    return pages.rows if isinstance(pages, QuantizedPages) else pages


def bits_of(pages: KeptPages) -> int:
    """Bits of a code, 0 for floats."""
    return pages.bits if isinstance(pages, QuantizedPages) else 0


def _kernels_know(pages: KeptPages) -> bool:
    return isinstance(pages, QuantizedPages) or pages.dtype in FLOATS


def _values(pages: KeptPages, slots: mx.array) -> mx.array:
    if isinstance(pages, QuantizedPages):
        return dequantize_rows(pages.rows[slots], pages.bits, pages.head_dim)
    return pages[slots]


def first_visible(context: int, num_new: int, window: int | None, page_size: int) -> int:
    """The first token that any of the newest `num_new` tokens can see, rounded down to a page."""
    if window is None:
        return 0
    return max(0, context - num_new - window + 1) // page_size * page_size


def _slots(pages: Sequence[int], first: int, context: int, page_size: int) -> mx.array:
    ids = np.asarray(pages, dtype=np.int32)[first // page_size : -(-context // page_size)]
    slots = (ids[:, None] * page_size + np.arange(page_size, dtype=np.int32)).reshape(-1)
    return mx.array(slots[: context - first])
