"""A model folder in Hugging Face's layout (or with a GGUF file in it) as a Checkpoint; headers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umlm.text.folder import tokenizer_from_folder
from umlm.weights.checkpoint import Checkpoint, StoredTensor
from umlm.weights.gguf import open_gguf
from umlm.weights.json_file import read_object, read_optional
from umlm.weights.mlx_quantization import QuantizationMap, packed_tensor, quantization_map
from umlm.weights.names import text_names
from umlm.weights.safetensors import read_tensor
from umlm.weights.shards import Located, Shards, merge, open_shards

PARTS = ("weight", "scales", "biases")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model folder, a .gguf file, or a .safetensors file with config.json beside it.

    Only headers are read. FileNotFoundError or ValueError name the file and what is wrong with it.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.suffix == ".gguf":
        return open_gguf(path)
    if path.suffix == ".safetensors":
        return _checkpoint(path.parent, merge([path]))
    raise ValueError(f"{path}: not a model: a folder, a .gguf or a .safetensors file is needed")


def open_folder(folder: Path) -> Checkpoint:
    """Open a folder: its safetensors by config.json, or the one GGUF model in it."""
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.gguf")):
        return open_gguf(folder)
    return _checkpoint(folder, open_shards(folder))


def _checkpoint(folder: Path, shards: Shards) -> Checkpoint:
    config = read_object(folder / "config.json")
    table = quantization_map(config, folder / "config.json")
    return Checkpoint(
        path=folder,
        config=config,
        tensors=_stored(folder, shards.tensors, config, table),
        load_tokenizer=lambda: tokenizer_from_folder(folder),
        generation_config=read_optional(folder / "generation_config.json"),
        metadata=shards.metadata,
    )


def _stored(
    folder: Path, located: Mapping[str, Located], config: Mapping[str, Any], table: QuantizationMap | None
) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    names = text_names(located, config, folder)
    packed = {name.removesuffix(".scales") for name in names if _is_packed(name, located)}
    for name, new in names.items():
        path, _, part = name.rpartition(".")
        if path not in packed:
            _put(tensors, _plain(new, located[name]))
        elif part == "weight":
            _put(tensors, _packed(folder, new, path, located, table))
    if table is not None:
        table.report_unused({name.rpartition(".")[0] for name in tensors})
    return tensors


def _is_packed(name: str, located: Mapping[str, Located]) -> bool:
    weight = located.get(name.removesuffix(".scales") + ".weight")
    return name.endswith(".scales") and weight is not None and weight.entry.dtype == "U32"


def _packed(
    folder: Path, name: str, path: str, located: Mapping[str, Located], table: QuantizationMap | None
) -> StoredTensor:
    if table is None:
        raise ValueError(f"{folder / 'config.json'}: no 'quantization', but tensor '{path}.weight' is packed")
    parts = {part: located[f"{path}.{part}"] for part in PARTS if f"{path}.{part}" in located}
    return packed_tensor(name, path, parts, table)


def _plain(name: str, located: Located) -> StoredTensor:
    file, entry = located
    return StoredTensor(name, entry.shape, entry.dtype, file, entry.nbytes, lambda: read_tensor(file, entry))


def _put(tensors: dict[str, StoredTensor], tensor: StoredTensor) -> None:
    if tensor.name in tensors:
        raise ValueError(f"{tensor.file}: two tensors mean {tensor.name!r}, with and without a prefix")
    tensors[tensor.name] = tensor

