"""Other engines, measured with the same workload: one object a peer, made and checked before anything runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from umlm.bench.workload import BATCH_PROMPT, Rates, Workload, by_name
from umlm.weights.hub import resolve

MLX_LM = Path(__file__).with_name("mlx_lm_rates.py")
KNOWN = "llama.cpp:PATH, mlx-lm or mlx-lm:PYTHON"


class Peer(Protocol):
    """name is how the report calls it, model what it runs."""

    name: str
    model: str

    def rates(self, work: Workload) -> Rates:
        """One round: tokens per second."""
        ...


def peer(asked: str, model: str, others: Sequence[str]) -> Peer:
    """The peer that `--peer` names.

    model   what umlm runs
    others  what `--peer-model` says: "NAME:MODEL"
    Raises ValueError or FileNotFoundError for a peer that is unknown, not installed, or cannot read the model.
    """
    name, _, where = asked.partition(":")
    if name not in ("llama.cpp", "mlx-lm"):
        raise ValueError(f"--peer {asked!r} is unknown; known: {KNOWN}")
    own = [each.partition(":")[2] for each in others if each.partition(":")[0] == name]
    path = resolve(own[-1] if own else model, download=False)
    return LlamaCpp(where, path) if name == "llama.cpp" else MlxLm(where, path)


class LlamaCpp:
    """llama-bench, and for batches llama-batched-bench where it lies beside it."""

    name = "llama.cpp"

    def __init__(self, where: str, model: Path) -> None:
        self.bench = _program(where)
        batched = self.bench.with_name("llama-batched-bench")
        self.batched = batched if batched.is_file() else None
        if model.suffix != ".gguf":
            raise ValueError(f"llama.cpp reads .gguf files, not {model}: name one with --peer-model llama.cpp:FILE")
        self.model = str(model)

    def rates(self, work: Workload) -> Rates:
        return by_name([*self._bench(work), *self._batches(work)])

    def _bench(self, work: Workload) -> Iterator[tuple[str, int, float]]:
        if work.prefill:
            for entry in self._entries(work, "-p", _list(work.prefill), "-n", "0"):
                yield "prefill", entry["n_prompt"], entry["avg_ts"]
        if work.decode:
            for entry in self._entries(work, "-p", "0", "-n", str(work.tokens), "-d", _list(work.decode)):
                yield "decode", entry.get("n_depth", 0), entry["avg_ts"]

    def _entries(self, work: Workload, *words: str) -> list[dict[str, Any]]:
        command = [str(self.bench), "-m", self.model, "-t", str(work.threads), "-r", "1", "-o", "json", *words]
        return json.loads(_output(command))

    def _batches(self, work: Workload) -> Iterator[tuple[str, int, float]]:
        if self.batched is None or not work.batch:
            return
        shape = ["-npp", str(BATCH_PROMPT), "-ntg", str(work.tokens), "-npl", _list(work.batch)]
        context = ["-c", str(max(work.batch) * (BATCH_PROMPT + work.tokens) + 256), "-t", str(work.threads)]
        lines = _output([str(self.batched), "-m", self.model, *shape, *context, "--output-format", "jsonl"])
        for line in lines.splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                yield "batch", entry["pl"], entry["speed_tg"]


class MlxLm:
    """mlx-lm in a process of its own, of this interpreter or of another one that has it."""

    name = "mlx-lm"

    def __init__(self, where: str, model: Path) -> None:
        self.python = where or sys.executable
        probe = [self.python, "-c", "import mlx_lm"]
        if shutil.which(self.python) is None:
            raise FileNotFoundError(f"mlx-lm: no interpreter {self.python!r}: give one as --peer mlx-lm:PYTHON")
        if subprocess.run(probe, capture_output=True).returncode:
            raise ValueError(
                f"mlx-lm is not installed for {self.python}: pip install mlx-lm, or name an interpreter that has it "
                "with --peer mlx-lm:PYTHON"
            )
        if not model.is_dir():
            raise ValueError(f"mlx-lm reads folders, not {model}: name one with --peer-model mlx-lm:FOLDER")
        self.model = str(model)

    def rates(self, work: Workload) -> Rates:
        words = [_list(work.prefill), _list(work.decode), _list(work.batch), str(work.tokens), str(BATCH_PROMPT)]
        found = json.loads(_output([self.python, str(MLX_LM), self.model, *words]).splitlines()[-1])
        return by_name((kind, size, rate) for kind, size, rate in found)


def _program(where: str) -> Path:
    """llama-bench: a path to it, or to a folder that has it, also in bin/ or build/bin/."""
    if not where:
        raise ValueError("--peer llama.cpp needs a path: llama.cpp:PATH of llama-bench or of the folder that has it")
    path = Path(where).expanduser()
    places = [path] if path.is_file() else [path / folder / "llama-bench" for folder in ("", "bin", "build/bin")]
    for place in places:
        if place.is_file():
            return place.resolve()
    raise FileNotFoundError(f"--peer llama.cpp: there is no llama-bench at {where}")


def _output(command: list[str]) -> str:
    """What a program prints; ValueError with the last line of its complaint when it fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ValueError(f"{command[0]} cannot be run: {error.strerror}") from None
    if ended.returncode:
        complaint = (ended.stderr.strip() or ended.stdout.strip() or "no message").splitlines()[-1]
        raise ValueError(f"{Path(command[0]).name} ended with {ended.returncode}: {complaint}")
    return ended.stdout


def _list(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
