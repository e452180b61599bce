"""Arrays over a file's own pages: no copies, one map per file, and nobody ever writes into the file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import zoo
from gguf_files import write_gguf
from zoo_model import shapes

from umlm import kernels
from umlm.kernels import cpu
from umlm.models import build, config_from_dict

PAGE = 4096
NUMBERS = np.linspace(-5, 5, 1 << 18, dtype=np.float32)
OPERATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "abs": mx.abs,
    "exp": mx.exp,
    "add": lambda x: x + 1,
    "scatter": lambda x: x.at[0].add(100.0),
    "sort": lambda x: mx.sort(x, axis=0),
    "silu": lambda x: kernels.activation(x, "silu"),
    "rms_norm": lambda x: kernels.rms_norm(x, mx.ones((x.shape[-1],)), 1e-6),
    "compiled": mx.compile(lambda x: mx.exp(x) * 2),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.bin"
    NUMBERS.tofile(path)
    return path


def mapped(
    file: Path, offset: int = PAGE, shape: tuple[int, ...] = (128, 1024), dtype: mx.Dtype = mx.float32
) -> mx.array:
    assert cpu.extension is not None
    return cpu.extension.mapped(file, offset, shape, dtype)


def maps(file: Path) -> list[int]:
    """Where a file is mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.partition("-")[0], 16) for line in lines if line.endswith(str(file))]


def address(array: mx.array) -> int:
    return np.array(array, copy=False).ctypes.data


def test_an_array_is_the_map_s_own_memory(file: Path) -> None:
    """That MLX finds values eight bytes behind its buffer's pointer is not in its headers: this test says so."""
    before = mx.get_active_memory()
    array = mapped(file)
    assert mx.get_active_memory() == before
    np.testing.assert_array_equal(np.array(array), NUMBERS[1024 : 1024 + 128 * 1024].reshape(128, 1024))
    assert address(array) == maps(file)[0] + PAGE


def test_a_file_is_mapped_once_and_as_long_as_an_array_lives(file: Path) -> None:
    arrays = [mapped(file, PAGE * number, (7,), mx.uint8) for number in range(1, 9)]
    part = arrays[3][2:5]
    mx.eval(part)
    assert len(maps(file)) == 1
    arrays.clear()
    assert len(maps(file)) == 1 and part.tolist() == list(file.read_bytes()[4 * PAGE + 2 : 4 * PAGE + 5])
    del part
    assert maps(file) == []


@pytest.mark.parametrize("offset", [PAGE + 1, 4])
def test_places_that_no_array_can_lie_at_are_copied(file: Path, offset: int) -> None:
    array = mapped(file, offset, (9,))
    assert maps(file) == []
    np.testing.assert_array_equal(np.array(array), np.frombuffer(file.read_bytes(), np.float32, 9, offset))


def test_mlx_does_write_into_the_last_use_of_memory_of_its_own() -> None:
    """Else the next test would show nothing."""
    array = mx.array(NUMBERS)
    place, result = address(array), mx.abs(array)
    del array
    mx.eval(result)
    assert address(result) == place


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_writes_into_its_last_use(file: Path, name: str) -> None:
    """MLX gives an input's memory to the result when nobody else holds the input; a map is never given."""
    other, content = mapped(file), file.read_bytes()
    wanted = np.array(OPERATIONS[name](mx.array(np.array(other))))
    array = mapped(file)
    result = OPERATIONS[name](array)
    del array
    mx.eval(result)
    np.testing.assert_array_equal(np.array(result), wanted)
    np.testing.assert_array_equal(np.array(other).reshape(-1), NUMBERS[1024 : 1024 + 128 * 1024])
    assert file.read_bytes() == content and address(result) != address(other)


def test_writing_through_numpy_stays_in_this_process(file: Path) -> None:
    content, array = file.read_bytes(), mapped(file)
    np.array(array, copy=False)[:] = 7
    assert array[5, 5].item() == 7 and file.read_bytes() == content


def test_a_file_put_in_its_place_is_mapped_anew(file: Path) -> None:
    old = mapped(file)
    (-NUMBERS).tofile(file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)
    new = mapped(file)
    np.testing.assert_array_equal(np.array(new), -np.array(old))


def test_errors_name_the_file(file: Path, tmp_path: Path) -> None:
    cut = f"{file}: 4 bytes wanted from byte {NUMBERS.nbytes} on, the file has {NUMBERS.nbytes}"
    with pytest.raises(ValueError, match=re.escape(cut)):
        mapped(file, NUMBERS.nbytes, (1,))
    with pytest.raises(ValueError, match="from byte -1 on"):
        mapped(file, -1, (1,))
    with pytest.raises(ValueError, match="no array has such a shape"):
        mapped(file, 0, (2**31 - 1,) * 4)
    with pytest.raises(FileNotFoundError, match="absent"):
        mapped(tmp_path / "absent")
    with pytest.raises(OSError, match=str(tmp_path)):
        mapped(tmp_path, 0, (1,), mx.uint8)


# What a process holds, in KiB, before and after it loads a model and reads all of its weights
HOLDER = """
import sys
from pathlib import Path
import mlx.core as mx
from mlx.utils import tree_flatten
from umlm.weights.folder import open_checkpoint
from umlm.weights.load import load_model
def held(what): return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(what))
mx.eval(mx.ones(8) + 1)
checkpoint = open_checkpoint(Path(sys.argv[1]))
before = held("RssAnon"), held("RssFile")
model = load_model(checkpoint)
loaded = held("RssAnon"), held("RssFile")
mx.eval([mx.max(array) for _, array in tree_flatten(model.parameters())])
used = held("RssAnon"), held("RssFile")
print(*before, *loaded, *used, flush=True)
sys.stdin.readline()
"""
WIDE = zoo.CASES["qwen3"].config | {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 4096}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some 20 MB whose tensors need no change: no rows in another order, norms in float32."""
    weights = zoo.weights(WIDE, shapes(build(config_from_dict(WIDE))))
    return write_gguf(tmp_path_factory.mktemp("wide") / "m.gguf", WIDE, weights, type_of=lambda name: "Q8_0")


class Holder:
    """A process that has loaded a model and used every value of it."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", HOLDER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        numbers = list(map(int, self.process.stdout.readline().split()))
        self.before, self.loaded, self.used = numbers[:2], numbers[2:4], numbers[4:]

    def share(self, path: Path) -> float:
        """Of the file's pages that are in this process, the part that it has to answer for."""
        text = Path(f"/proc/{self.process.pid}/smaps").read_text()
        regions = [part for part in re.split(r"\n(?=[0-9a-f]+-)", text) if str(path) in part.splitlines()[0]]
        rss, pss = (sum(int(re.search(rf"^{key}:\s+(\d+)", r, re.M)[1]) for r in regions) for key in ("Rss", "Pss"))  # type: ignore[index]
        assert rss << 10 >= path.stat().st_size * 0.9
        return pss / rss

    def end(self) -> None:
        self.process.communicate("\n")


def test_loading_reads_headers_and_copies_nothing(model: Path) -> None:
    holder, size = Holder(model), model.stat().st_size >> 10
    holder.end()
    assert size > 15_000
    assert holder.loaded[0] - holder.before[0] < size / 8  # the modules that hold the arrays
    assert holder.loaded[1] - holder.before[1] < size / 8
    assert holder.used[1] - holder.before[1] > size * 0.9


def test_two_processes_share_one_copy(model: Path) -> None:
    one = Holder(model)
    alone = one.share(model)
    other = Holder(model)
    together = one.share(model), other.share(model)
    one.end(), other.end()
    assert alone > 0.9 and max(together) < 0.6
