"""Block-scaled FP8 checkpoints: X.weight in F8_E4M3, X.weight_scale_inv with one factor per block of it.

value[r, c] = weight[r, c] * weight_scale_inv[r // block_rows, c // block_columns]
Source: the published DeepSeek-V3 and Qwen3 FP8 repositories, config key quantization_config.weight_block_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from umlm.weights.checkpoint import StoredTensor
from umlm.weights.mlx_quantization import foreign_table
from umlm.weights.safetensors import read_tensor
from umlm.weights.shards import Located

SCALE = "weight_scale_inv"


def block_size(config: Mapping[str, Any], source: Path) -> tuple[int, int] | None:
    """Rows and columns of a block, None for a checkpoint that is not FP8. ValueError for other kinds of FP8."""
    table = foreign_table(config)
    if not isinstance(table, dict) or table.get("quant_method") != "fp8":
        return None
    block = table.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise ValueError(
            f"{source}: quant_method 'fp8' with weight_block_size {block!r} cannot be read, only [rows, columns]; "
            "take the float, MLX or GGUF version of this model"
        )
    return block[0], block[1]


def fp8_tensor(name: str, weight: Located, scale: Located, block: tuple[int, int]) -> StoredTensor:
    """The matrix as float32 when it is read, each block multiplied by its scale; ValueError if they do not fit."""
    shape = weight.entry.shape
    wanted = tuple(-(-size // each) for size, each in zip(shape, block, strict=False))
    if weight.entry.dtype != "F8_E4M3" or len(shape) != 2 or scale.entry.shape != wanted:
        raise ValueError(
            f"{weight.file}: tensor {name!r} {weight.entry.dtype} {list(shape)} with {SCALE} "
            f"{list(scale.entry.shape)} is not FP8 in blocks of {list(block)}, its scales would be {list(wanted)}"
        )

    def read() -> mx.array:
        values = read_tensor(weight.file, weight.entry).astype(mx.float32)
        scales = read_tensor(scale.file, scale.entry).astype(mx.float32)
        result = _scaled(values, scales, block)
        mx.eval(result)
        return result

    return StoredTensor(name, shape, "F8_E4M3", weight.file, weight.entry.nbytes + scale.entry.nbytes, read)


def _scaled(values: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array:
    """values [R, C] times scales [ceil(R / rows), ceil(C / columns)]; the last blocks may be cut short."""
    rows, columns = values.shape
    by_column = mx.repeat(scales, block[1], axis=1)[:, :columns]
    return values * mx.repeat(by_column, block[0], axis=0)[:rows]
