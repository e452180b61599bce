"""Which backend serves an op, and what UMLM_KERNELS may say."""

from __future__ import annotations

import os
import subprocess
import sys

import mlx.core as mx
import pytest

from umlm import kernels

CODE = "import mlx.core as mx; from umlm import kernels; print(kernels.activation(mx.array([2.0]), 'relu').item())"


def fresh(value: str | None, code: str = CODE) -> subprocess.CompletedProcess[str]:
    """An op in a new process with UMLM_KERNELS set to `value`."""
    environment = {name: v for name, v in os.environ.items() if name != "UMLM_KERNELS"}
    environment |= {} if value is None else {"UMLM_KERNELS": value}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_report_names_a_backend_for_every_public_op() -> None:
    ops = {name for name in kernels.__all__ if hasattr(getattr(kernels, name), "reference")}
    assert {"attention", "embedding", "paged_attention", "quantized_matmul", "rms_norm", "rope"} <= ops
    assert set(kernels.report()) == ops
    assert set(kernels.report().values()) <= {"reference", "cpu", "metal"}


def test_blocks_are_computed_on_where_the_compiled_kernels_serve_and_have_the_type() -> None:
    code = "from umlm.kernels.quantized_matmul import computes_on; print(computes_on('Q4_1'), computes_on('IQ2_XXS'))"
    served = kernels.report()["quantized_matmul"] == "cpu"
    assert fresh(None, code).stdout.split() == [str(served), "False"]
    assert fresh("reference", code).stdout.split() == ["False", "False"]


@pytest.mark.parametrize("value", [None, "reference", ""])
def test_good_values_serve(value: str | None) -> None:
    assert fresh(value).stdout.strip() == "2.0"


@pytest.mark.parametrize("value", ["fast", "Reference", "cpu,metal"])
def test_an_unknown_backend_is_refused_with_the_known_ones(value: str) -> None:
    last = fresh(value).stderr.strip().splitlines()[-1]
    assert last == (f"ValueError: UMLM_KERNELS={value!r} is no backend; use one of: reference, cpu, metal, or unset it")


def test_a_forced_backend_serves_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMLM_KERNELS", "reference")
    assert set(kernels.report().values()) == {"reference"}
    monkeypatch.setenv("UMLM_KERNELS", "metal")
    if mx.metal.is_available():
        assert set(kernels.report().values()) <= {"metal", "reference"}
    else:
        with pytest.raises(ValueError, match="UMLM_KERNELS='metal': this machine has no Metal device"):
            kernels.report()
