"""Block-scaled FP8 folders against float64 numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from raw_safetensors import decoded, raw_file, tensor

from umlm.weights.checkpoint import StoredTensor
from umlm.weights.folder import open_checkpoint

NAME = "model.layers.0.mlp.up_proj"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def folder_of(folder: Path, codes: np.ndarray, scales: np.ndarray, kind: str, table: dict[str, Any] = FP8) -> Path:
    first, last = codes.nbytes, codes.nbytes + scales.nbytes
    header = {f"{NAME}.weight": tensor("F8_E4M3", list(codes.shape), 0, first)}
    header[f"{NAME}.weight_scale_inv"] = tensor(kind, list(scales.shape), first, last)
    raw_file(folder / "model.safetensors", header, codes.tobytes() + scales.tobytes())
    (folder / "config.json").write_text(json.dumps({"quantization_config": table}))
    return folder


def stored(folder: Path) -> StoredTensor:
    (found,) = open_checkpoint(folder).tensors.values()
    return found


@pytest.mark.parametrize("kind", ["F32", "BF16"])
@pytest.mark.parametrize(("rows", "columns"), [(130, 130), (128, 256), (5, 300), (257, 1)])
def test_values_are_multiplied_by_the_scale_of_their_block(kind: str, rows: int, columns: int, tmp_path: Path) -> None:
    """W11: ragged edge blocks too; scales 1, 2, 3, ... in float32 or bfloat16."""
    codes = np.random.default_rng(5).integers(0, 127, (rows, columns)).astype(np.uint8)
    grid = (-(-rows // 128), -(-columns // 128))
    scales = np.arange(1, 1 + grid[0] * grid[1], dtype=np.float32).reshape(grid)
    raw = scales if kind == "F32" else (scales.view(np.uint32) >> 16).astype(np.uint16)
    found = stored(folder_of(tmp_path, codes, raw, kind))
    by_value = scales[np.arange(rows)[:, None] // 128, np.arange(columns)[None] // 128]
    expected = decoded(codes.astype(np.int64), 8, 4, True) * by_value
    value = found.read()
    assert isinstance(value, mx.array) and value.shape == found.shape == (rows, columns)
    assert found.nbytes == codes.nbytes + raw.nbytes
    np.testing.assert_array_equal(np.array(value), expected)


def test_scales_of_another_grid_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, np.zeros((130, 130), np.uint8), np.ones((1, 2), np.float32), "F32")
    with pytest.raises(ValueError, match=r"\[130, 130\] with weight_scale_inv \[1, 2\] .* would be \[2, 2\]"):
        open_checkpoint(folder)


@pytest.mark.parametrize("block", [None, 128, [128], [0, 128], [128, 128.0], ["128", "128"]])
def test_other_kinds_of_fp8_are_refused(block: Any, tmp_path: Path) -> None:
    table = {**FP8, "weight_block_size": block}
    folder = folder_of(tmp_path, np.zeros((4, 4), np.uint8), np.ones((1, 1), np.float32), "F32", table)
    with pytest.raises(ValueError, match="quant_method 'fp8' with weight_block_size"):
        open_checkpoint(folder)
