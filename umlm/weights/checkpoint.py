"""A checkpoint: the config and the named tensors of a model on disk, headers only until read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from umlm.kernels.packed import Format, Packed
from umlm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, under its Hugging Face parameter name.

    shape   the logical shape, as the model sees it (not the packed one)
    format  a Format for quantized matrices, else the stored dtype's name: "F32", "F16", "BF16", ...
    nbytes  bytes on disk, scales and biases included
    read    reads the values: an mx.array of `shape`, or a Packed
    """

    name: str
    shape: tuple[int, ...]
    format: Format | str
    file: Path
    nbytes: int
    read: Callable[[], mx.array | Packed]


@dataclass(frozen=True)
class Checkpoint:
    """What a folder or file holds.

    config             the keys of Hugging Face's config.json (made from GGUF metadata where needed)
    tensors            by Hugging Face parameter name
    load_tokenizer     builds the tokenizer; errors name the file
    generation_config  the keys of generation_config.json, or {}
    metadata           what else the file says of itself (GGUF metadata, safetensors __metadata__)
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    load_tokenizer: Callable[[], Tokenizer]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
