"""Folders that appear whole or not at all, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its name when the block ends well, and is removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(target.parent, f".{target.name}.partial-") as partial:
        yield partial
        partial.chmod(0o777 & ~_umask())  # temporary folders are private; models may be shared
        os.replace(partial, target)


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new private folder that is removed at the end of the block, if it is still there."""
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    try:  # named before it is made: an interrupt right after mkdir finds what to remove
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
