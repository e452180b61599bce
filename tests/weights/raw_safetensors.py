"""safetensors files made byte by byte, broken ones too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def raw_file(file: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header (bytes as they are, else as JSON), stated header length, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    stated = len(text) if length is None else length
    file.write_bytes(stated.to_bytes(8, "little") + text + data)
    return file


def tensor(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def model_folder(folder: Path, config: Mapping[str, Any], shards: Mapping[str, Mapping[str, np.ndarray]]) -> Path:
    """A folder with config.json and files of these tensors, written by the reference library."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name, {"format": "pt"})
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    table = {"metadata": {"total_size": 0}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))


def decoded(codes: np.ndarray, bits: int, exponent_bits: int, finite: bool) -> np.ndarray:
    """float64 values of sign-exponent-mantissa codes; `finite` formats spend only the last code on NaN."""
    mantissa_bits, top = bits - 1 - exponent_bits, 2**exponent_bits - 1
    sign = np.where(codes >> (bits - 1), -1.0, 1.0)
    exponent, mantissa = (codes >> mantissa_bits) & top, codes & (2**mantissa_bits - 1)
    bias, fraction = 2 ** (exponent_bits - 1) - 1, mantissa / 2**mantissa_bits
    normal, small = (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias)
    values = sign * np.where(exponent == 0, small, normal)
    if finite:
        return np.where(codes & (2 ** (bits - 1) - 1) == 2 ** (bits - 1) - 1, np.nan, values)
    return np.where(exponent == top, np.where(mantissa == 0, sign * np.inf, np.nan), values)
