"""A model folder in Hugging Face's layout (or with a GGUF file in it) as a Checkpoint; headers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from umlm.text.folder import tokenizer_from_folder
from umlm.weights.checkpoint import Checkpoint, StoredTensor
from umlm.weights.fp8 import SCALE, block_size, fp8_tensor
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


@dataclass(frozen=True)
class _Layout:
    """Where tensors lie, and how config.json says that they are stored."""

    config_file: Path
    located: Mapping[str, Located]
    quantization: QuantizationMap | None
    fp8_block: tuple[int, int] | None

    def is_packed(self, path: str) -> bool:
        """Whether a module's weight is words with scales."""
        weight = self.located.get(f"{path}.weight")
        return f"{path}.scales" in self.located and weight is not None and weight.entry.dtype == "U32"


def _checkpoint(folder: Path, shards: Shards) -> Checkpoint:
    file = folder / "config.json"
    config = read_object(file)
    layout = _Layout(file, shards.tensors, quantization_map(config, file), block_size(config, file))
    return Checkpoint(
        path=folder,
        config=config,
        tensors=_stored(layout, text_names(shards.tensors, config, folder)),
        load_tokenizer=lambda: tokenizer_from_folder(folder),
        generation_config=read_optional(folder / "generation_config.json"),
        metadata=shards.metadata,
    )


def _stored(layout: _Layout, names: Mapping[str, str]) -> dict[str, StoredTensor]:
    """Tensors by the text model's name, from stored names -> those names."""
    tensors: dict[str, StoredTensor] = {}
    for name, new in names.items():
        if (tensor := _tensor(layout, name, new)) is None:
            continue
        if new in tensors:
            raise ValueError(f"{tensor.file}: two tensors mean {new!r}, with and without a prefix")
        tensors[new] = tensor
    if layout.quantization is not None:
        layout.quantization.report_unused({name.rpartition(".")[0] for name in tensors})
    return tensors


def _tensor(layout: _Layout, name: str, new: str) -> StoredTensor | None:
    """One tensor under its new name; None for the scales of another."""
    path, _, part = name.rpartition(".")
    if layout.is_packed(path) and part in PARTS:
        return _packed(layout, path, new) if part == "weight" else None
    scale = layout.located.get(f"{path}.{SCALE}")
    if layout.fp8_block is not None and scale is not None and part in ("weight", SCALE):
        return fp8_tensor(new, layout.located[name], scale, layout.fp8_block) if part == "weight" else None
    return _plain(new, layout.located[name])


def _packed(layout: _Layout, path: str, new: str) -> StoredTensor:
    if layout.quantization is None:
        raise ValueError(f"{layout.config_file}: no 'quantization', but tensor '{path}.weight' is packed")
    parts = {part: layout.located[f"{path}.{part}"] for part in PARTS if f"{path}.{part}" in layout.located}
    return packed_tensor(new, path, parts, layout.quantization)


def _plain(name: str, located: Located) -> StoredTensor:
    file, entry = located
    return StoredTensor(name, entry.shape, entry.dtype, file, entry.nbytes, lambda: read_tensor(file, entry))
