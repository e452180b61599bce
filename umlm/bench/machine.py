"""What a measurement ran on: hardware, versions, and how fast the machine reads memory."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import psutil

import umlm
from umlm import kernels
from umlm.kernels import cpu

READ_BYTES = 512 << 20  # larger than any cache


def hardware() -> dict[str, str]:
    """Processor, cores, memory, device and versions, for the head of a report."""
    return {
        "processor": _processor(),
        "cores": f"{_cores()} usable of {os.cpu_count()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": platform.platform(),
        "device": str(mx.default_device()),
        "kernels": ", ".join(sorted(set(kernels.report().values()))) + _instructions(),
        "versions": f"umlm {umlm.__version__}, mlx {version('mlx')}, python {platform.python_version()}",
    }


def read_bandwidth(passes: int = 5) -> float:
    """Bytes per second of reading memory on the default device, the best of some passes."""
    read = _reader_mlx() if mx.default_device().type == mx.gpu else _reader_cpu()
    return READ_BYTES / min(_seconds(read) for _ in range(passes))


def _reader_mlx() -> Callable[[], object]:
    data = mx.ones((READ_BYTES // 4,))
    mx.eval(data)
    return lambda: mx.eval(data.sum())


def _reader_cpu() -> Callable[[], object]:
    """numpy's maximum on every core: it lets other threads run, and waits for memory rather than for arithmetic."""
    parts = np.array_split(np.ones(READ_BYTES // 8, dtype=np.uint64), _cores())

    def read() -> object:
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(np.max, parts))

    return read


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _instructions() -> str:
    extension = cpu.extension
    return "" if extension is None else f" ({extension.isa()}, {extension.num_threads()} threads)"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    if platform.system() == "Darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True
        ).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
