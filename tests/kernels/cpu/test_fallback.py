"""Without the compiled extension plain MLX operations serve, one warning says why, and `report` tells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_chat import SENTENCE

from umlm.kernels import cpu, report

ROOT = Path(__file__).parents[3]
# Python that makes the extension unusable in one way, before umlm is imported
HIDDEN = "import sys; sys.modules['umlm.kernels.cpu._ext'] = None"
OTHER_MLX = "import mlx.core; mlx.core.__version__ = '0.32.3'"
BROKEN = """
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "umlm.kernels.cpu._ext":
            return ModuleSpec(name, ExtensionFileLoader(name, {file!r}), origin={file!r})
sys.meta_path.insert(0, Finder())
"""
REASONS = {
    "hidden": (
        f"no CPU kernels are compiled for {Path(cpu.__file__).parents[3]}: with a C++20 compiler, "
        "reinstall umlm, in a clone with pip install -e ."
    ),
    "other mlx": f"the CPU kernels need mlx {cpu.MADE_FOR}, not 0.32.3: pip install 'mlx[cpu]=={cpu.MADE_FOR}'",
    "broken": r"the compiled CPU kernels do not load (FILE: file too short): reinstall umlm",
}
USE = """
import logging; logging.basicConfig(format="%(message)s")
import mlx.core as mx, numpy as np
from umlm import kernels
from umlm.kernels import Format, Packed
weight, scales, biases = mx.quantize(mx.array(np.eye(64, dtype=np.float32)), 64, 8)
packed = Packed(Format("affine", 8, 64), (64, 64), weight, scales, biases)
for _ in range(3):
    kernels.rms_norm(mx.ones((2, 8)), mx.ones((8,)), 1e-6)
    y = kernels.quantized_matmul(mx.ones((1, 64)), packed)
print(mx.allclose(y, mx.ones((1, 64)), atol=1e-2).item(), sorted(set(kernels.report().values())))
"""


def run(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UMLM_")}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **environment})


@pytest.fixture(params=REASONS)
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The code that spoils the extension, and the reason that umlm gives."""
    file = tmp_path / "_ext.so"
    file.write_bytes(b"")
    code = {"hidden": HIDDEN, "other mlx": OTHER_MLX, "broken": BROKEN.format(file=str(file))}[request.param]
    return code, REASONS[request.param].replace("FILE", str(file))


def test_the_extension_is_built_and_serves() -> None:
    assert cpu.extension is not None, cpu.why_not
    assert report()["quantized_matmul"] == "cpu"
    assert cpu.extension.isa() == cpu.extension.isas()[0]


def test_mlx_is_the_release_that_the_project_pins() -> None:
    pins = re.findall(r"mlx(?:\[cpu\])?==([\d.]+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert len(pins) == 3
    assert set(pins) == {cpu.MADE_FOR}


def test_plain_operations_serve_with_one_warning(unusable: tuple[str, str]) -> None:
    code, reason = unusable
    ended = run(code + "\n" + USE)
    assert ended.stdout.strip() == f"True {[f'reference ({reason})']}"
    assert ended.stderr.strip() == f"plain MLX operations serve, 30 to 1000 times slower: {reason}"


def test_plain_operations_by_choice_are_no_reason_to_warn() -> None:
    for code in ("", HIDDEN):
        ended = run(code + "\n" + USE, UMLM_KERNELS="reference")
        assert (ended.stdout.strip(), ended.stderr) == ("True ['reference']", "")


def test_a_forced_extension_that_is_missing_is_an_error() -> None:
    ended = run(HIDDEN + "\n" + USE, UMLM_KERNELS="cpu")
    assert ended.stderr.splitlines()[-1] == f"ValueError: UMLM_KERNELS='cpu': {REASONS['hidden']}"


GENERATE = "; import runpy, sys; sys.argv[0] = 'umlm'; runpy.run_module('umlm', run_name='__main__', alter_sys=True)"


def test_a_command_answers_without_the_extension_and_says_so_once(sentence_folder: Path) -> None:
    ended = run(HIDDEN + GENERATE, "generate", "--model", str(sentence_folder), "--prompt", "Hello")
    assert (ended.returncode, ended.stdout) == (0, SENTENCE + "\n")
    assert ended.stderr == (
        f"umlm generate: plain MLX operations serve, 30 to 1000 times slower: {REASONS['hidden']}\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("UMLM_NUM_THREADS", "0", "'0' is no number of threads: give one from 1 to 1024, or unset it"),
        ("UMLM_ACTIVATIONS", "bfloat16", "'bfloat16' is no precision of activations; use one of: exact, int16, int8"),
        ("UMLM_NUM_THREADS", "two", "'two' is no number of threads: give one from 1 to 1024, or unset it"),
        ("UMLM_NUM_THREADS", "99999999999", "is no number of threads: give one from 1 to 1024, or unset it"),
        ("UMLM_ISA", "mmx", "'mmx' is not an instruction set of this processor; use one of: "),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_one_line(sentence_folder: Path, name: str, value: str, said: str) -> None:
    words = ["generate", "--model", str(sentence_folder), "--prompt", "Hello"]
    ended = run("pass" + GENERATE, *words, **{name: value})
    assert (ended.returncode, ended.stdout.strip()) == (1, "")
    assert ended.stderr.startswith(f"umlm generate: {name}='{value}'") and ended.stderr.count("\n") == 1
    assert said in ended.stderr


def test_empty_settings_are_no_settings() -> None:
    ended = run(USE, UMLM_NUM_THREADS="", UMLM_ISA="", UMLM_KERNELS="")
    assert ended.returncode == 0 and ended.stderr == ""
