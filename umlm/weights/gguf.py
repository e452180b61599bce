"""GGUF files as checkpoints: headers at once, tensors when they are read.

Matrices stay quantized, in the blocks that lie in the file. Where no kernel computes on these (on a Mac, and without
the CPU extension) they become MLX affine if that is the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from umlm.kernels.gguf_blocks import BLOCKS, dequantize_blocks
from umlm.kernels.packed import Format, Packed
from umlm.kernels.quantized_matmul import computes_on
from umlm.text.gguf_vocab import tokenizer_from_gguf
from umlm.weights.checkpoint import Checkpoint, StoredTensor
from umlm.weights.gguf_affine import affine_format, affine_from_blocks
from umlm.weights.gguf_config import architecture_of, config_from_gguf
from umlm.weights.gguf_header import PLAIN, GGUFHeader, TensorInfo
from umlm.weights.gguf_metadata import GGUFError
from umlm.weights.gguf_names import ROTARY, hf_name, norm_shift, row_order
from umlm.weights.gguf_parts import read_parts
from umlm.weights.values import evaluated, read_array, read_values

SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file, any part of a split set, or a folder that holds one model. Reads headers only.

    Tensors have Hugging Face's names, row orders and values. A tensor's `format` is what the header promises;
    in the rare case that affine scales would overflow, `read()` gives the blocks instead.
    Raises FileNotFoundError, or GGUFError naming file and field.
    """
    headers = read_parts(Path(path))
    first = headers[0]
    architecture = architecture_of(first.metadata)
    places = {name: (header, info) for header in headers for name, info in header.tensors.items()}
    config = config_from_gguf(
        first.metadata,
        {name: info.shape for name, (_, info) in places.items()},
        {name: _numbers(*place) for name, place in places.items() if ROTARY.fullmatch(name)},
    )
    stored = [_stored(architecture, config, *place) for name, place in places.items() if not ROTARY.fullmatch(name)]
    return Checkpoint(
        path=Path(path),
        config=config,
        tensors={tensor.name: tensor for tensor in stored},
        load_tokenizer=partial(_tokenizer, first),
        generation_config=_generation_config(config, first.metadata),
        metadata=first.metadata,
    )


def _tokenizer(header: GGUFHeader) -> Any:
    try:
        return tokenizer_from_gguf(header.metadata)
    except GGUFError:
        raise
    except ValueError as error:
        raise GGUFError(f"{header.file}: {error}") from None


def _generation_config(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in SAMPLING.items()}
    found["eos_token_id"] = config.get("eos_token_id")
    return {name: value for name, value in found.items() if value is not None}


def _numbers(header: GGUFHeader, info: TensorInfo) -> list[float]:
    """A small tensor of float32 as Python numbers."""
    if info.ggml_type != "F32":
        raise GGUFError(f"{header.file}: tensor {info.name!r} must be F32, not {info.ggml_type}")
    return header.bytes_of(info).view(np.float32).tolist()


def _stored(architecture: str, config: Mapping[str, Any], header: GGUFHeader, info: TensorInfo) -> StoredTensor:
    name = hf_name(architecture, info.name)
    if name is None:
        raise GGUFError(f"{header.file}: tensor {info.name!r} is not known to architecture {architecture!r}")
    try:
        order = row_order(
            architecture, name, info.shape[0], config["num_attention_heads"], config["num_key_value_heads"]
        )
    except ValueError as error:
        raise GGUFError(f"{header.file}: {error}") from None
    form, read = _reader(header, info, order, norm_shift(architecture, name))
    return StoredTensor(name, info.shape, form, header.file, info.nbytes, read)


def _reader(
    header: GGUFHeader, info: TensorInfo, order: np.ndarray | None, shift: float
) -> tuple[Format | str, Callable[[], mx.array | Packed]]:
    """The tensor's format, and the function that reads it."""
    if info.ggml_type in PLAIN:
        return info.ggml_type, partial(_read_plain, header, info, order, shift)
    if len(info.shape) < 2 or shift:
        return info.ggml_type, partial(_read_expanded, header, info, order, shift)
    affine = None if computes_on(info.ggml_type) else affine_format(info.ggml_type)
    if affine is not None:
        return affine, partial(_read_affine, header, info, order)
    return _blocks(info), partial(_read_packed, header, info, order)


def _blocks(info: TensorInfo) -> Format:
    return Format("gguf", 0, BLOCKS[info.ggml_type][0], info.ggml_type)


def _rows(header: GGUFHeader, info: TensorInfo, order: np.ndarray | None) -> mx.array:
    """The tensor's bytes, uint8 [..., rows, bytes]; copied only where its rows are put in another order."""
    shape = (*info.shape[:-1], info.nbytes // math.prod(info.shape[:-1]))
    return _ordered(read_array(header.file, info.offset, shape, mx.uint8), order)


def _ordered(values: mx.array, order: np.ndarray | None) -> mx.array:
    return values if order is None else evaluated(values[mx.array(order)])


def _read_plain(header: GGUFHeader, info: TensorInfo, order: np.ndarray | None, shift: float) -> mx.array:
    values = _ordered(read_values(header.file, info.offset, info.shape, info.ggml_type), order)
    return values.astype(mx.float32) - shift if shift else values


def _read_expanded(header: GGUFHeader, info: TensorInfo, order: np.ndarray | None, shift: float) -> mx.array:
    """Quantized vectors and norms, which no kernel takes: float32 values."""
    values = dequantize_blocks(_rows(header, info, None), info.ggml_type, info.shape[-1])
    return _ordered(values, order) - shift


def _read_packed(header: GGUFHeader, info: TensorInfo, order: np.ndarray | None) -> Packed:
    return Packed(_blocks(info), info.shape, _rows(header, info, order))


def _read_affine(header: GGUFHeader, info: TensorInfo, order: np.ndarray | None) -> Packed:
    blocks = _read_packed(header, info, order)
    return affine_from_blocks(np.asarray(blocks.weight), info.ggml_type, info.shape) or blocks
