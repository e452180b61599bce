"""MLX-quantized repositories: the `quantization` map of config.json and the tensors that it describes.

A quantized matrix X is three tensors: X.weight (uint32 words, little-endian fields), X.scales and, for affine,
X.biases. The map gives group_size, bits and mode for all, and by module path for single layers (or false).
Source: the documentation of `mx.quantize`, and the config files that MLX's converters write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umlm.kernels.packed import Format, Packed
from umlm.weights.checkpoint import StoredTensor
from umlm.weights.names import text_name
from umlm.weights.safetensors import read_tensor
from umlm.weights.shards import Located
from umlm.weights.values import FLOATS

log = logging.getLogger("umlm.weights")

# mode -> the (bits, group sizes) that MLX packs
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "affine": ((2, 3, 4, 5, 6, 8), (32, 64, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}
READ_ELSEWHERE = ("fp8",)
KEYS = ("group_size", "bits", "mode")


class QuantizationMap:
    """What the config says of each module path; `used` collects the overrides that met a tensor."""

    def __init__(self, table: Mapping[str, Any], source: Path) -> None:
        self.source = source
        self.default = {key: table[key] for key in KEYS if key in table}
        self.overrides = {key: value for key, value in table.items() if isinstance(value, (dict, bool))}
        self.used: set[str] = set()

    def setting(self, path: str) -> dict[str, Any] | None:
        """The keys for a module path, as stored or as the text model names it; None: kept in float."""
        for key, value in self.overrides.items():
            if key == path or text_name(key) == text_name(path):
                self.used.add(key)
                return self._merged(value)
        return self.default

    def _merged(self, value: dict[str, Any] | bool) -> dict[str, Any] | None:
        if isinstance(value, bool):
            return self.default if value else None
        changed_mode = value.get("mode", self.default.get("mode")) != self.default.get("mode")
        return dict(value) if changed_mode else {**self.default, **value}

    def report_unused(self, paths: set[str]) -> None:
        """Log the overrides that no quantized tensor met, with the reason."""
        for key in self.overrides.keys() - self.used:
            known = text_name(key) in paths
            if known and self.overrides[key] is False:
                continue
            reason = "its tensors are stored in float" if known else "no such tensor is in the files"
            log.warning("%s: quantization names %r, but %s", self.source, key, reason)


def quantization_map(config: Mapping[str, Any], source: Path) -> QuantizationMap | None:
    """The map of a config, or None for a float model. `quantization` wins over `quantization_config`.

    ValueError naming quant_method for checkpoints that another library quantized.
    """
    if isinstance(table := config.get("quantization"), dict):
        return QuantizationMap(table, source)
    table = foreign_table(config)
    if not table or (isinstance(table, dict) and table.get("quant_method") in READ_ELSEWHERE):
        return None
    if not isinstance(table, dict) or "quant_method" in table or "bits" not in table:
        method = table.get("quant_method") if isinstance(table, dict) else table
        raise ValueError(
            f"{source}: quantization_config.quant_method {method!r} cannot be read; "
            "take the float, MLX or GGUF version of this model"
        )
    return QuantizationMap(table, source)


def foreign_table(config: Mapping[str, Any]) -> Any:
    """Hugging Face's quantization_config, at the top level or in text_config; None where there is none."""
    text = config.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, Mapping) else None
    return config.get("quantization_config") or nested


def packed_tensor(name: str, path: str, parts: Mapping[str, Located], table: QuantizationMap) -> StoredTensor:
    """One quantized matrix from its parts `weight`, `scales` and perhaps `biases`.

    name  the logical name, `<module>.weight`;  path  the module path as stored, for the map
    """
    format = _format(path, parts, table)
    shape = _logical_shape(path, parts, format, table.source)
    weight = parts["weight"]

    def read() -> Packed:
        arrays = {key: read_tensor(part.file, part.entry) for key, part in parts.items()}
        return Packed(format, shape, arrays["weight"], arrays["scales"], arrays.get("biases"))

    nbytes = sum(part.entry.nbytes for part in parts.values())
    return StoredTensor(name, shape, format, weight.file, nbytes, read)


def _format(path: str, parts: Mapping[str, Located], table: QuantizationMap) -> Format:
    setting = table.setting(path)
    if setting is None:
        raise ValueError(f"{table.source}: quantization says false for {path!r}, but {parts['weight'].file} packs it")
    mode = setting.get("mode") or _mode_by_parts(setting, parts)
    if not isinstance(mode, str) or mode not in LAYOUTS:
        raise ValueError(
            f"{table.source}: quantization mode {mode!r} of {path!r} is unknown; known: {', '.join(LAYOUTS)}"
        )
    allowed_bits, allowed_groups = LAYOUTS[mode]
    bits = setting.get("bits", 4 if mode == "affine" else allowed_bits[0])
    group = setting.get("group_size", 64 if mode == "affine" else allowed_groups[0])
    whole = type(bits) is int and type(group) is int
    if not whole or bits not in allowed_bits or group not in allowed_groups:
        raise ValueError(
            f"{table.source}: quantization of {path!r} has bits {bits!r} and group_size {group!r}; "
            f"{mode} has bits {_list(allowed_bits)} and group_size {_list(allowed_groups)}"
        )
    return Format(mode, bits, group)


def _mode_by_parts(setting: Mapping[str, Any], parts: Mapping[str, Located]) -> str:
    """The mode of a map that names none: the block float formats have byte scales and no biases."""
    if "biases" in parts or parts["scales"].entry.dtype != "U8":
        return "affine"
    if setting.get("bits") == 8:
        return "mxfp8"
    return "nvfp4" if setting.get("group_size") == 16 else "mxfp4"


def _logical_shape(path: str, parts: Mapping[str, Located], format: Format, source: Path) -> tuple[int, ...]:
    """[..., rows, columns] of the values, after checking every part against it."""
    words, scales = parts["weight"].entry.shape, parts["scales"].entry
    where = f"{parts['weight'].file}: tensor '{path}.weight'"
    columns = words[-1] * 32 // format.bits if len(words) >= 2 else 0
    wanted = (*words[:-1], columns // format.group_size)
    if scales.shape != wanted or words[-1] * 32 != columns * format.bits or columns % format.group_size:
        raise ValueError(
            f"{where} {list(words)} with scales {list(scales.shape)} is not {format}, as {source} says: "
            f"its scales would be {list(wanted)}"
        )
    _check_parts(where, parts, format)
    return (*words[:-1], columns)


def _check_parts(where: str, parts: Mapping[str, Located], format: Format) -> None:
    scales, biases = parts["scales"].entry, parts.get("biases")
    affine = format.mode == "affine"
    if affine != (biases is not None) or (biases is not None and biases.entry.shape != scales.shape):
        found = "none" if biases is None else list(biases.entry.shape)
        raise ValueError(f"{where}: {format} needs biases {list(scales.shape) if affine else 'none'}, found {found}")
    if (scales.dtype in FLOATS) != affine or (not affine and scales.dtype != "U8"):
        raise ValueError(f"{where}: {format} cannot have scales of dtype {scales.dtype}")


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
