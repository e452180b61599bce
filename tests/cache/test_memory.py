"""How much memory there is, by the system's and the control groups' own files, and how pressure is noticed."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import psutil
import pytest

from umlm.cache import memory
from umlm.cache.memory import Available, Pressure, available_memory, cgroup_rest, peak_memory, resident_memory


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_2_control_group_and_its_parents(tmp_path: Path) -> None:
    write(tmp_path, membership="0::/slice/job\n")
    write(tmp_path / "root/slice", memory__max="1000\n", memory__current="600\n", memory__stat="inactive_file 100\n")
    write(tmp_path / "root/slice/job", memory__max="max\n", memory__current="500\n", memory__stat="inactive_file 0\n")
    assert cgroup_rest(tmp_path / "root", tmp_path / "membership") == 500


def test_version_1_control_group(tmp_path: Path) -> None:
    write(tmp_path, membership="5:cpu,cpuacct:/\n4:memory:/job\n")
    files = {"memory__limit_in_bytes": "1000", "memory__usage_in_bytes": "1200"}
    write(tmp_path / "root/memory/job", **files, memory__stat="cache 1\ntotal_inactive_file 100")
    assert cgroup_rest(tmp_path / "root", tmp_path / "membership") == 0


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_rest(tmp_path, tmp_path / "none") is None


def test_the_least_limit_counts_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, membership="0::/job\n")
    write(tmp_path / "root/job", memory__max="3000", memory__current="1000", memory__stat="")
    assert available_memory(tmp_path / "root", tmp_path / "membership") == Available(2000, "control group")
    monkeypatch.setattr(memory, "device_rest", lambda: 1500)
    assert available_memory(tmp_path / "root", tmp_path / "membership") == Available(1500, "Metal working set")
    found = available_memory(tmp_path, tmp_path / "none")
    assert found.limit == "Metal working set"


def test_without_other_limits_system_memory_counts(tmp_path: Path) -> None:
    found = available_memory(tmp_path, tmp_path / "none")
    assert 0 < found.nbytes <= psutil.virtual_memory().total
    assert found.limit == "system memory"


@pytest.mark.parametrize(("info", "rest"), [({"max_recommended_working_set_size": 10**12}, 10**12), ({}, None)])
def test_metal_s_working_set_less_what_is_used(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, int], rest: int | None
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 1000)
    assert memory.device_rest() == (None if rest is None else rest - 1000)


def test_peak_and_resident_memory_are_this_process_s() -> None:
    assert 0 < resident_memory() <= peak_memory() * 1.01


class Machine:
    """Free memory and time as a test sets them."""

    def __init__(self) -> None:
        self.free, self.now, self.looks = 1000, 0.0, 0

    def available(self) -> Available:
        self.looks += 1
        return Available(self.free, "system memory")


def test_pressure_is_what_is_missing_of_what_should_stay_free() -> None:
    machine = Machine()
    pressure = Pressure(300, every=1.0, available=machine.available, clock=lambda: machine.now)
    machine.now = 1.0
    assert pressure.pressure() == 0
    machine.now, machine.free = 2.0, 100
    assert pressure.pressure() == 200


def test_pressure_looks_now_and_then() -> None:
    machine = Machine()
    pressure = Pressure(300, every=1.0, available=machine.available, clock=lambda: machine.now)
    machine.free = 0
    for _ in range(1000):
        machine.now += 0.01
        pressure.pressure()
    assert 9 <= machine.looks <= 10
