"""How many pages of keys and values fit in memory, answered before anything is allocated."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import mlx.core as mx
import psutil

_CGROUP_FILES = [
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
]
_GIB = 2**30


class KVSpec(Protocol):
    """What one layer keeps (see nn/state.py)."""

    def bytes_per_token(self, bytes_per_value: int, k_bits: int | None, v_bits: int | None) -> int: ...


class KVBits(NamedTuple):
    """In how many bits pages keep keys and values; None keeps the model's floats, 16 floats of 16 bits."""

    keys: int | None = None
    values: int | None = None


FLOATS = KVBits()
KV_BITS = {"none": FLOATS, "16": KVBits(16, 16), "8": KVBits(8, 8), "4": KVBits(4, 4), "k8v4": KVBits(8, 4)}


class PagePlan(NamedTuple):
    """The answer: pages, what each costs, and what they were cut from (all in bytes but the first two)."""

    num_pages: int
    page_size: int
    page_bytes: int
    memory: int
    weights: int
    activations: int

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.num_pages * self.page_size


def kv_bytes_per_token(specs: Iterable[KVSpec], bytes_per_value: int = 2, bits: KVBits = FLOATS) -> int:
    """Bytes of keys and values that one token adds over all layers: bytes_per_value counts where they stay floats."""
    return sum(spec.bytes_per_token(bytes_per_value, *bits) for spec in specs)


def page_bytes(specs: Iterable[KVSpec], page_size: int, bytes_per_value: int = 2, bits: KVBits = FLOATS) -> int:
    """Bytes of one page over all layers."""
    return page_size * kv_bytes_per_token(specs, bytes_per_value, bits)


def available_memory(device_limit: int | None = None) -> int:
    """Bytes that may still be taken: the least of system memory, the control group's rest, the device's limit."""
    limits = [psutil.virtual_memory().available, cgroup_rest(), device_limit]
    return min(limit for limit in limits if limit is not None)


def peak_memory() -> int:
    """Most bytes that this process has had in memory since it began, pages of mapped files included."""
    if sys.platform != "linux":
        return max(mx.get_peak_memory(), psutil.Process().memory_info().rss)
    status = _text(Path("/proc/self/status"))
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def cgroup_rest(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes that this process's control groups (version 2 or 1) and their parents leave; None without a limit.

    Cached file pages count as used there though the kernel drops them on demand: they are added back.
    """
    rests = [_rest_of(folder) for folder in _cgroup_folders(root, membership)]
    return min((rest for rest in rests if rest is not None), default=None)


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    """The folders that may limit this process; in a container its own path may not be visible, the root is."""
    folders = []
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            own = Path(path.lstrip("/"))
            mount = root / controllers if controllers else root
            folders += [mount / parent for parent in (own, *own.parents)]
    return folders


def _rest_of(folder: Path) -> int | None:
    for limit_name, use_name, cached_name in _CGROUP_FILES:
        limit, use = _number(_text(folder / limit_name)), _number(_text(folder / use_name))
        if limit is not None and use is not None:
            stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
            return max(limit - use + int(stat.get(cached_name, 0)), 0)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None  # version 2 writes "max" for no limit


def plan_pages(
    specs: Sequence[KVSpec],
    *,
    weights_bytes: int = 0,
    activation_bytes: int = 0,
    bytes_per_value: int = 2,
    bits: KVBits = FLOATS,
    page_size: int = 16,
    memory: int | None = None,
    fraction: float = 0.8,
    max_tokens: int | None = None,
) -> PagePlan:
    """Cut memory x fraction, less weights and activations, into pages; at most enough for `max_tokens`.

    Weights that are loaded already count as 0: they are missing from the available memory.
    Raises ValueError with the numbers when not even one page fits.
    """
    memory = available_memory() if memory is None else memory
    each = page_bytes(specs, page_size, bytes_per_value, bits)
    rest = int(memory * fraction) - weights_bytes - activation_bytes
    if rest < each:
        raise ValueError(
            f"the model does not fit: weights {weights_bytes / _GIB:.2f} GiB + activations "
            f"{activation_bytes / _GIB:.2f} GiB + one page {each / _GIB:.4f} GiB exceed {fraction:.0%} of "
            f"{memory / _GIB:.2f} GiB available; use a smaller or more quantized model"
        )
    num_pages = rest // max(each, 1)  # a model without attention keeps no keys and values
    if max_tokens is not None:
        num_pages = min(num_pages, -(-max_tokens // page_size))
    return PagePlan(num_pages, page_size, each, memory, weights_bytes, activation_bytes)
