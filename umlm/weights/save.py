"""Write a model as a folder that Hugging Face and MLX readers understand."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from umlm.kernels.packed import Format, Packed
from umlm.models import text_part
from umlm.quant.packed import PackedMatrix
from umlm.weights.gguf_affine import affine_format, affine_from_blocks
from umlm.weights.partial import partial_folder
from umlm.weights.shards import INDEX

SHARD_BYTES = 5 * 2**30
# Files beside the weights that a reader of the copy needs.
COMPANIONS = (
    "tokenizer*",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "*.tiktoken",
    "chat_template.*",
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
)
OF_OTHERS = ("text_config", "vision_config", "audio_config", "quantization", "quantization_config", "architectures")


def save_model(
    model: nn.Module,
    config: Mapping[str, Any],
    folder: str | Path,
    *,
    companions: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write `folder`: safetensors shards, their index, config.json, and the tokenizer files of `companions`.

    config  the keys of config.json; its quantization map is written anew from the model's packed layers
    The folder appears whole or not at all. FileExistsError if it holds something already, ValueError for GGUF
    blocks that no format of MLX can hold, OSError when the disk is too full.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: not empty; name a new folder")
    parameters, formats = saved_parameters(model)
    _check_space(folder, sum(array.nbytes for array in parameters.values()))
    with partial_folder(folder) as partial:
        save_tensors(parameters, partial, shard_bytes)
        _write_json(partial / "config.json", saved_config(config, parameters, formats))
        if companions is not None and companions.is_dir():
            _copy_companions(companions, partial)


def save_tensors(parameters: Mapping[str, mx.array], folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write model*.safetensors of at most `shard_bytes` each (one tensor at least) and the index."""
    shards = list(_shards(parameters, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        mx.save_safetensors(str(folder / name), shard, {"format": "pt"})  # readers refuse files without a format
        weight_map.update(dict.fromkeys(shard, name))
    total = sum(array.nbytes for array in parameters.values())
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def saved_config(
    config: Mapping[str, Any], parameters: Mapping[str, mx.array], formats: Mapping[str, Format]
) -> dict[str, Any]:
    """config.json of the saved text model: its own dtype, and the quantization of its own layers."""
    kept = {key: value for key, value in text_part(config).items() if key not in (*OF_OTHERS, "dtype")}
    floats = [array.dtype for array in parameters.values() if mx.issubdtype(array.dtype, mx.floating)]
    if floats:
        kept["torch_dtype"] = str(floats[0]).removeprefix("mlx.core.")
    if "architectures" in config and "text_config" not in config:
        kept["architectures"] = config["architectures"]
    if formats:
        kept["quantization"] = kept["quantization_config"] = quantization_table(formats, parameters)
    return kept


def saved_parameters(model: nn.Module) -> tuple[dict[str, mx.array], dict[str, Format]]:
    """The parameters by name, and the format of every packed layer by module path; ggml blocks as MLX affine."""
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    formats = {}
    for path, module in model.named_modules():
        if isinstance(module, PackedMatrix):
            packed = _without_blocks(path, module.packed)
            arrays = {"weight": packed.weight, "scales": packed.scales, "biases": packed.biases}
            parameters |= {f"{path}.{part}": array for part, array in arrays.items() if array is not None}
            formats[path] = packed.format
    return parameters, formats


def _without_blocks(path: str, packed: Packed) -> Packed:
    """The same values in one of MLX's formats. ValueError where none has them."""
    kind = packed.format.ggml_type
    if kind is None:
        return packed
    repacked = affine_from_blocks(np.asarray(packed.weight), kind, packed.shape) if affine_format(kind) else None
    if repacked is None:
        raise ValueError(f"{path} holds GGUF {kind} blocks, which safetensors cannot; dequantize it first")
    return repacked


def quantization_table(formats: Mapping[str, Format], parameters: Mapping[str, mx.array]) -> dict[str, Any]:
    """MLX's `quantization` map: the most common format for all, the other layers by path, float ones as false."""
    common = max(formats.values(), key=list(formats.values()).count)
    table: dict[str, Any] = _keys(common)
    for path, format in formats.items():
        if format != common:
            table[path] = _keys(format)
    for name, array in parameters.items():
        path, _, leaf = name.rpartition(".")
        if leaf == "weight" and array.ndim == 2 and path not in formats:
            table[path] = False
    return table


def _keys(format: Format) -> dict[str, Any]:
    return {"group_size": format.group_size, "bits": format.bits, "mode": format.mode}


def _shards(parameters: Mapping[str, mx.array], shard_bytes: int) -> Iterator[dict[str, mx.array]]:
    shard: dict[str, mx.array] = {}
    size = 0
    for name, array in parameters.items():
        if shard and size + array.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = array
        size += array.nbytes
    yield shard


def _check_space(folder: Path, needed: int) -> None:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise OSError(f"{folder}: {needed} bytes are needed, {free} are free on that disk")


def _copy_companions(source: Path, target: Path) -> None:
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    with file.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
