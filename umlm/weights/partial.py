"""Folders that appear whole or not at all, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its name when the block ends well, and is removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())  # mkdtemp makes private folders; models may be shared
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold `file` against other processes and threads; the system frees the lock when the holder dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
