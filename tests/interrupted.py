"""Start Python programs that a SIGINT interrupts, also where this process was started with SIGINT ignored."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

HEAR = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A process that runs `code` with these sys.argv[1:]; its three streams are text pipes unless options say else."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", HEAR + code, *arguments]
    return subprocess.Popen(command, encoding="utf-8", **{**streams, **options})


def run(code: str, *arguments: str, timeout: float = 60) -> str:
    """What `code` prints; AssertionError with its stderr when it fails."""
    process = start(code, *arguments)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out
