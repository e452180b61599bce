"""Tiny models of every architecture: a config, seeded weights and tokens, and nothing else.

A case holds the keys of a published config.json, shrunk. Weights follow from (seed, Hugging Face parameter
name), tokens from the seed, so that golden/make.py (with transformers) and the tests (with umlm) make the
same model without storing it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from zoo_configs import CONFIGS

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Case:
    """One tiny model.

    config      keys of config.json
    num_tokens  length of the golden sequence
    prompt      length of the prompt from which golden/make.py decodes token by token; 0: it does not
    without     keys that switch off what the case is about: make.py asserts that they change the logits
    """

    name: str
    config: Mapping[str, Any]
    num_tokens: int = 40
    prompt: int = 0
    without: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's keys: of a multimodal config, the nested ones."""
        return self.config.get("text_config", self.config)

    @property
    def tokens(self) -> np.ndarray:
        """int32 [num_tokens], below vocab_size."""
        raw = _raw(f"{self.seed}:tokens", self.num_tokens)
        return (raw % np.uint64(self.text_config["vocab_size"])).astype(np.int32)


class Golden(NamedTuple):
    """What transformers answers for a case.

    positions   int32 [P], places in the sequence whose logits are stored
    logits      float32 [P, V], whole sequence in one call
    decoded     float32 [num_tokens - prompt, V] of the last tokens, one per call with a cache; [0, V] without
    parameters  Hugging Face parameter name -> shape; tied ones once
    """

    config: dict[str, Any]
    tokens: np.ndarray
    positions: np.ndarray
    logits: np.ndarray
    decoded: np.ndarray
    parameters: dict[str, tuple[int, ...]]


CASES = {name: Case(name, **fields) for name, fields in CONFIGS.items()}


def golden(name: str) -> Golden:
    """The stored answers of a case; ValueError where they were made from another config or sequence."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        shapes = dict(line.split() for line in file["parameters"].tolist())
        found = Golden(
            config=json.loads(str(file["config"])),
            tokens=file["tokens"],
            positions=file["positions"],
            logits=file["logits"],
            decoded=file["decoded"],
            parameters={key: tuple(map(int, shape.split("x"))) for key, shape in shapes.items()},
        )
    case = CASES[name]
    if found.config != case.config or not np.array_equal(found.tokens, case.tokens):
        raise ValueError(f"tests/golden/{name}.npz is older than the case in tests/zoo_configs.py: run make.py")
    return found


def weights(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 arrays for Hugging Face parameter names; logits then spread over a few units."""
    model_type = config.get("text_config", config).get("model_type", "")
    centre = 0.0 if model_type.startswith("gemma") else 1.0  # gemma's norms multiply by 1 + weight
    return {name: _weight(name, shape, seed, centre) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...], seed: int, norm_centre: float) -> np.ndarray:
    raw = _raw(f"{seed}:{name}", int(np.prod(shape)))
    # The 24 highest bits are exact in float32; uniform in [-1, 1).
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    if "norm" in name:
        scale, centre = 0.4, norm_centre
    elif name.endswith("bias"):
        scale, centre = 0.6, 0.0
    else:
        scale, centre = _gain(name) * (3.0 / shape[-1]) ** 0.5, 0.0
    return (unit * np.float32(scale) + np.float32(centre)).reshape(shape)


def _gain(name: str) -> float:
    """Standard deviation x sqrt(inputs): queries and keys large enough that attention is not flat."""
    if "q_proj" in name or "k_proj" in name or "qkv_proj" in name:
        return 1.6
    return 2.0 if "embed_tokens" in name or "lm_head" in name else 1.0


def _raw(key: str, count: int) -> np.ndarray:
    """uint64 [count] of PCG64 seeded by a text; numpy promises this stream for good, unlike its normals."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    return np.random.PCG64(seed).random_raw(count)
