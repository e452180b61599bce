"""How much memory there is for a model, asked of the system before anything is allocated and watched afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import psutil

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CGROUP_FILES = [
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
]
_WORKING_SET = "max_recommended_working_set_size"


class Available(NamedTuple):
    """Bytes that may still be taken, and what limits them: "system memory", "control group" or "Metal working set"."""

    nbytes: int
    limit: str


def available_memory(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Available:
    """The least of what system memory, this process's control groups and the device leave."""
    rests = {
        "system memory": psutil.virtual_memory().available,  # MemAvailable on Linux
        "control group": cgroup_rest(root, membership),
        "Metal working set": device_rest(),
    }
    nbytes, limit = min((rest, limit) for limit, rest in rests.items() if rest is not None)
    return Available(nbytes, limit)


def device_rest() -> int | None:
    """Bytes of Metal's recommended working set that MLX does not use yet; None where the device is not Metal's."""
    if not mx.metal.is_available():
        return None
    limit = mx.device_info().get(_WORKING_SET)
    return None if limit is None else max(int(limit) - mx.get_active_memory(), 0)


def peak_memory() -> int:
    """Most bytes that this process has had in memory since it began, pages of mapped files included."""
    if sys.platform != "linux":
        return max(mx.get_peak_memory(), resident_memory())
    status = _text(Path("/proc/self/status"))
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def resident_memory() -> int:
    """Bytes that this process has in memory now, pages of mapped files included."""
    return psutil.Process().memory_info().rss


def cgroup_rest(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that this process's control groups (version 2 or 1) and their parents leave; None without a limit.

    Cached file pages count as used there though the kernel drops them on demand: they are added back.
    """
    rests = [_rest_of(folder) for folder in _cgroup_folders(root, membership)]
    return min((rest for rest in rests if rest is not None), default=None)


class Pressure:
    """Says now and then by how many bytes the free memory has fallen below what should stay free.

    keep_free  bytes that others and the system's own work need
    every      seconds between two looks; in between the answer is 0
    """

    def __init__(
        self,
        keep_free: int,
        every: float = 1.0,
        available: Callable[[], Available] = available_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keep_free, self.every = keep_free, every
        self._available, self._clock = available, clock
        self._next = clock() + every

    def pressure(self) -> int:
        """Bytes to give back; 0 when there is enough, or when it was asked less than `every` seconds ago."""
        now = self._clock()
        if now < self._next:
            return 0
        self._next = now + self.every
        return max(self.keep_free - self._available().nbytes, 0)


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
