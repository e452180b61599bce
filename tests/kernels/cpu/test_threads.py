"""How many threads kernels use, and that what they compute depends on neither their number nor on company."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from umlm.kernels import Format, Packed, cpu, quantized_matmul

assert cpu.extension is not None, cpu.why_not
ext = cpu.extension


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    ext.set_num_threads(0)


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="utf-8")
    return str(root)


QUOTAS = [
    # v2: "QUOTA PERIOD" in the group or any group above it; the least one counts, rounded up
    ("0::/", {"cpu.max": "150000 100000"}, 2),
    ("0::/", {"cpu.max": "max 100000"}, 0),
    ("0::/", {}, 0),
    ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
    ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "300000 100000"}, 1),
    ("0::/a/b", {"a/b/cpu.max": "400000 100000", "cpu.max": "200000 100000"}, 2),
    ("0::/not/here", {"cpu.max": "200000 100000"}, 2),
    ("0::/../x", {"cpu.max": "nonsense"}, 0),
    # v1: files of their own, -1 for none; other controllers' groups say nothing
    ("3:cpu,cpuacct:/j", {"cpu,cpuacct/j/cpu.cfs_quota_us": "250000", "cpu,cpuacct/j/cpu.cfs_period_us": "100000"}, 3),
    ("3:cpu:/j", {"cpu/j/cpu.cfs_quota_us": "-1", "cpu/j/cpu.cfs_period_us": "100000"}, 0),
    ("3:cpuset:/j", {"cpu/j/cpu.cfs_quota_us": "100000", "cpu/j/cpu.cfs_period_us": "100000"}, 0),
    ("3:cpu:/j\n0::/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2),
    ("", {"cpu.max": "100000 100000"}, 0),
    ("broken\n0:x", {"cpu.max": "100000 100000"}, 0),
]


@pytest.mark.parametrize(("groups", "files", "expected"), QUOTAS)
def test_quotas_of_nested_groups(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    root = write(tmp_path / "root", files | {"own": groups})
    assert ext.quota_cpus(f"{root}/own", root) == expected


def counted(**settings: str) -> int:
    code = "from umlm.kernels import cpu; print(cpu.extension.num_threads())"
    environment = {name: v for name, v in os.environ.items() if name != "UMLM_NUM_THREADS"}
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment | settings)
    return int(ended.stdout)


def test_the_count_follows_the_setting_and_affinity() -> None:
    usable = os.sched_getaffinity(0)
    quota = ext.quota_cpus()
    assert counted() == min(len(usable), quota or len(usable))
    assert counted(UMLM_NUM_THREADS="7") == 7
    os.sched_setaffinity(0, {min(usable)})
    try:
        assert counted() == 1
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.parametrize("count", [-1, 1025])
def test_an_impossible_count_is_refused(threads: None, count: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 1024, or 0 for what the process may use, not {count}"):
        ext.set_num_threads(count)


def product(seed: int) -> tuple[mx.array, Packed]:
    draw = np.random.default_rng(seed)
    weight, scales, biases = mx.quantize(mx.array(draw.standard_normal((530, 128)).astype(np.float32)), 64, 4)
    mx.eval(weight, scales, biases)
    x = mx.array(draw.standard_normal((3, 128)).astype(np.float32))
    mx.eval(x)
    return x, Packed(Format("affine", 4, 64), (530, 128), weight, scales, biases)


def test_the_number_of_threads_changes_no_bit(threads: None) -> None:
    x, packed = product(0)
    results = []
    for count in (1, 2, 3, 16, 64, 5):
        ext.set_num_threads(count)
        assert ext.num_threads() == count
        results += [np.array(quantized_matmul(x, packed)) for _ in range(3)]
    assert all(np.array_equal(result, results[0]) for result in results)


def test_streams_of_several_threads_compute_at_once(threads: None) -> None:
    ext.set_num_threads(3)
    wanted = {seed: np.array(quantized_matmul(*product(seed))) for seed in range(4)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            x, packed = product(seed)
            for _ in range(100):
                if not np.array_equal(np.array(quantized_matmul(x, packed)), wanted[seed]):
                    wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in wanted]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_every_instruction_set_can_be_chosen() -> None:
    best = ext.isa()
    x, packed = product(1)
    exact = np.array(x, dtype=np.float64) @ np.array(
        mx.dequantize(packed.weight, packed.scales, packed.biases, 64, 4), dtype=np.float64
    ).T  # fmt: skip
    try:
        for name in ext.isas():
            ext.set_isa(name)
            assert ext.isa() == name
            difference = np.array(quantized_matmul(x, packed)) - exact
            assert np.linalg.norm(difference) < 1e-5 * np.linalg.norm(exact), name
    finally:
        ext.set_isa(best)
