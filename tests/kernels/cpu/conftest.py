"""The CPU kernels exist on Linux alone; elsewhere there is nothing to collect here."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from umlm.kernels import cpu

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(params=cpu.extension.isas() if cpu.extension else [])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this processor has kernels for; it serves while the test runs."""
    assert cpu.extension is not None
    before = cpu.extension.isa()
    cpu.extension.set_isa(request.param)
    yield request.param
    cpu.extension.set_isa(before)
