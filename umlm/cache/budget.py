"""How many pages of keys and values fit in memory, answered before anything is allocated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from umlm.cache.memory import Available

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])?(i?)b", re.IGNORECASE)  # 1.5GB, 8GiB, 100000B
AUTO_SHARE = 0.8
RESERVE = 64 << 20  # threads, the interpreter's and the allocator's own
_KEPT = 256 << 20  # most that kernels keep of smaller steps' buffers to use it again (kernels/cpu/core/memory.cpp)
_RESERVE_OF_WEIGHTS = 32  # tensors that are cast or put in another order while they are loaded


class KVSpec(Protocol):
    """What one layer keeps (see nn/state.py)."""

    def bytes_per_token(self, bytes_per_value: int, k_bits: int | None, v_bits: int | None) -> int: ...


class KVBits(NamedTuple):
    """In how many bits pages keep keys and values; None keeps the model's floats, 16 floats of 16 bits."""

    keys: int | None = None
    values: int | None = None


FLOATS = KVBits()
KV_BITS = {"none": FLOATS, "16": KVBits(16, 16), "8": KVBits(8, 8), "4": KVBits(4, 4), "k8v4": KVBits(8, 4)}


class KVMemory(NamedTuple):
    """What pages may take: so many bytes, or a share of what weights, activations and reserve leave."""

    nbytes: int | None = None
    share: float = AUTO_SHARE

    def of(self, rest: int) -> int:
        """Bytes for pages, of so many that are left."""
        return int(rest * self.share) if self.nbytes is None else self.nbytes


AUTO = KVMemory()


def parse_kv_memory(value: str | float) -> KVMemory:
    """What "auto" means, a share such as 0.8, or a size such as "8GiB" or "500MB". ValueError for anything else."""
    text = str(value).strip()
    if text == "auto":
        return AUTO
    if size := _SIZE.fullmatch(text):
        number, unit, binary = size.groups()
        power = " kmgt".index((unit or " ").lower())
        return KVMemory(nbytes=int(float(number) * (1024 if binary else 1000) ** power))
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(
            f"kv_memory must be auto, a share greater than 0 and at most 1, or a size such as 8GiB, not {value!r}"
        )
    return KVMemory(share=share)


class Demand(NamedTuple):
    """Bytes that are taken whatever the pages: what weights need, the largest step, and what is kept aside."""

    weights: int = 0
    activations: int = 0

    @property
    def reserve(self) -> int:
        """Bytes for what no one counts."""
        return RESERVE + min(self.activations, _KEPT) + self.weights // _RESERVE_OF_WEIGHTS

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.reserve


class PagePlan(NamedTuple):
    """The answer, and what it was cut from.

    page_bytes   of all layers
    grown_bytes  per page, of the one array that is in memory twice while page arrays grow
    limit        what the machine leaves
    """

    num_pages: int
    page_size: int
    page_bytes: int
    grown_bytes: int
    demand: Demand
    limit: Available

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.num_pages * self.page_size

    @property
    def pages(self) -> int:
        """Bytes of all pages, growing included."""
        return self.num_pages * (self.page_bytes + self.grown_bytes)

    @property
    def total(self) -> int:
        """Bytes that loading and running take at most, beside what the process had before."""
        return self.demand.total + self.pages


class Layout(NamedTuple):
    """How keys and values lie in pages: what a page costs."""

    specs: Sequence[KVSpec]
    page_size: int = 16
    bytes_per_value: int = 2
    bits: KVBits = FLOATS

    @property
    def page_bytes(self) -> int:
        return page_bytes(self.specs, self.page_size, self.bytes_per_value, self.bits)

    @property
    def grown_bytes(self) -> int:
        """Of one page in the widest layer: arrays grow one after another."""
        widest = max((spec.bytes_per_token(self.bytes_per_value, *self.bits) for spec in self.specs), default=0)
        return widest * self.page_size

    def pages_for(self, tokens: int, users: int = 1) -> int:
        """Pages of so many requests of so many tokens."""
        return users * -(-tokens // self.page_size)


def kv_bytes_per_token(specs: Iterable[KVSpec], bytes_per_value: int = 2, bits: KVBits = FLOATS) -> int:
    """Bytes of keys and values that one token adds over all layers: bytes_per_value counts where they stay floats."""
    return sum(spec.bytes_per_token(bytes_per_value, *bits) for spec in specs)


def page_bytes(specs: Iterable[KVSpec], page_size: int, bytes_per_value: int = 2, bits: KVBits = FLOATS) -> int:
    """Bytes of one page over all layers."""
    return page_size * kv_bytes_per_token(specs, bytes_per_value, bits)


def plan_pages(
    layout: Layout,
    demand: Demand,
    limit: Available,
    *,
    kv_memory: KVMemory = AUTO,
    num_pages: int | None = None,
    max_pages: int | None = None,
    min_pages: int = 1,
) -> PagePlan:
    """Cut what weights, activations and reserve leave of the limit into pages.

    num_pages  exactly so many, whatever kv_memory says
    max_pages  more are never used
    min_pages  fewer are of no use
    Raises ValueError with the numbers when they do not fit.
    """
    each = layout.page_bytes + layout.grown_bytes
    fitting = max(kv_memory.of(limit.nbytes - demand.total), 0) // max(each, 1)  # no attention keeps nothing
    wanted = num_pages if num_pages is not None else min(fitting, max_pages or fitting)
    plan = PagePlan(max(wanted, min_pages), layout.page_size, layout.page_bytes, layout.grown_bytes, demand, limit)
    if plan.total > limit.nbytes or wanted < min_pages:
        raise ValueError(refusal(plan, kv_memory))
    return plan


def refusal(plan: PagePlan, kv_memory: KVMemory = AUTO) -> str:
    """One line: what is needed for what, what is there, and what helps."""
    demand = plan.demand
    parts = {
        "weights": demand.weights,
        "activations": demand.activations,
        "reserve": demand.reserve,
        f"keys and values of {plan.num_tokens} tokens": plan.pages,
    }
    needed = ", ".join(f"{name} {in_units(nbytes)}" for name, nbytes in parts.items())
    share = "" if kv_memory == AUTO else f", of which pages may take {in_words(kv_memory)}"
    return (
        f"not enough memory: {in_units(plan.total)} needed ({needed}), {in_units(plan.limit.nbytes)} available "
        f"({plan.limit.limit}){share}; take a smaller context, fewer bits of keys and values (kv_bits), or a smaller "
        "or more quantized model"
    )


def in_words(kv_memory: KVMemory) -> str:
    """As it is shown to people."""
    return f"{kv_memory.share:.0%} of the rest" if kv_memory.nbytes is None else in_units(kv_memory.nbytes)


def in_units(nbytes: int) -> str:
    """Bytes as they are shown to people: 512.0 KiB, 92.1 MiB, 19.9 GiB."""
    power = 3 if nbytes >= 10 << 30 else 2 if nbytes >= 1 << 20 else 1
    return f"{nbytes / 1024**power:,.1f} {'KMG'[power - 1]}iB"
