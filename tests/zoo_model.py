"""The zoo's cases as umlm models, and token sequences run whole, in chunks, and packed with others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import zoo
from mlx.utils import tree_flatten
from safetensors.numpy import save_file

from umlm.cache.batch import Batch
from umlm.cache.budget import FLOATS, KVBits
from umlm.cache.store import PageStore
from umlm.models import Decoder, build, config_from_dict

PAGE_SIZE = 4


def load(config: Mapping[str, Any], parameters: Mapping[str, tuple[int, ...]], seed: int = 0) -> Decoder:
    """The umlm model of a config, with the zoo's float32 weights for these Hugging Face parameters."""
    model = build(config_from_dict(config))
    values = zoo.weights(config, parameters, seed)
    model.load_weights([(name, mx.array(value)) for name, value in values.items()], strict=True)
    return model


@lru_cache(maxsize=4)
def load_case(name: str) -> Decoder:
    return load(zoo.CASES[name].config, zoo.golden(name).parameters, zoo.CASES[name].seed)


def load_changed(name: str, **keys: Any) -> Decoder:
    """A case's model with other config keys; a key of None stands for null, `...` for an absent one."""
    config = {key: value for key, value in {**zoo.CASES[name].config, **keys}.items() if value is not ...}
    return load(config, shapes(build(config_from_dict(config))), zoo.CASES[name].seed)


def shapes(model: Decoder) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape."""
    named: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return {name: tuple(value.shape) for name, value in named}


def whole(model: Decoder, tokens: np.ndarray) -> np.ndarray:
    """Logits [T, V] of one call without memory."""
    return np.array(model(mx.array(tokens)[None])[0])


@dataclass
class Run:
    """A sequence on its way through the pages.

    chunks  how many tokens it takes in each step (0: it waits); the last one is repeated to the end
    """

    tokens: np.ndarray
    prompt: int
    chunks: Sequence[int]
    pages: list[int] = field(default_factory=list)
    done: int = 0
    logits: list[np.ndarray] = field(default_factory=list)

    def next(self, step: int) -> np.ndarray:
        """The positions of its tokens in this step."""
        chunk = self.chunks[min(step, len(self.chunks) - 1)]
        return np.arange(self.done, min(self.done + chunk, len(self.tokens)))


def paged(model: Decoder, runs: Sequence[Run], bits: KVBits = FLOATS) -> list[np.ndarray]:
    """Logits [T, V] of each run, computed together in packed rows over pages of float32 or of so many bits."""
    store = PageStore(model.state_specs(), _give_pages(runs), PAGE_SIZE, mx.float32, bits)
    step = 0
    while any(run.done < len(run.tokens) for run in runs):
        rows = [(run, places) for run in runs if len(places := run.next(step))]
        _advance(model, store, rows)
        step += 1
    return [np.concatenate(run.logits) for run in runs]


def _give_pages(runs: Sequence[Run]) -> int:
    """Give every run its pages, scattered so that no order can be relied on; the number of pages."""
    counts = [-(-len(run.tokens) // PAGE_SIZE) for run in runs]
    ids = np.random.Generator(np.random.PCG64(7)).permutation(sum(counts)).tolist()
    for run, count in zip(runs, counts, strict=True):
        run.pages = [ids.pop() for _ in range(count)]
    return sum(counts)


def _advance(model: Decoder, store: PageStore, rows: Sequence[tuple[Run, np.ndarray]]) -> None:
    batch = _pack(rows)
    logits = np.array(model(batch.tokens, store.states(batch), at=batch.sample_at))
    for (run, places), first in zip(rows, batch.starts[:-1], strict=True):
        run.logits.append(logits[first : first + len(places)])
        run.done += len(places)


def _pack(rows: Sequence[tuple[Run, np.ndarray]]) -> Batch:
    """One row of these positions of each run; the logits of every place are wanted."""
    starts = np.cumsum([0, *(len(places) for _, places in rows)])
    return Batch(
        tokens=_joined(run.tokens[places] for run, places in rows)[None],
        positions=_joined(places for _, places in rows),
        lengths=_joined(np.maximum(run.prompt, places + 1) for run, places in rows),
        slots=_joined(_slots(run, places) for run, places in rows),
        page_table=[run.pages for run, _ in rows],
        starts=starts.tolist(),
        contexts=[run.done + len(places) for run, places in rows],
        sample_at=mx.arange(int(starts[-1]), dtype=mx.int32),
    )


def _slots(run: Run, places: np.ndarray) -> np.ndarray:
    return np.array(run.pages)[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE


def _joined(parts: Any) -> mx.array:
    return mx.array(np.concatenate(list(parts)).astype(np.int32))


def write_folder(
    folder: Path, config: Mapping[str, Any], parameters: Mapping[str, tuple[int, ...]], prefix: str = ""
) -> Path:
    """Write config.json and model.safetensors with the zoo's weights; prefix is put before every name."""
    values = zoo.weights(config, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file({prefix + name: value for name, value in values.items()}, folder / "model.safetensors")
    return folder
