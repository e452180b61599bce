"""Fill a model with the tensors of a checkpoint: all names and shapes are checked before the first value is read."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from umlm.kernels.packed import Format, Packed
from umlm.models import build, config_from_dict
from umlm.models.decoder import Decoder
from umlm.nn import Embedding, Linear
from umlm.quant.packed import module_at, replace
from umlm.weights.checkpoint import Checkpoint, StoredTensor
from umlm.weights.values import DTYPES as STORED
from umlm.weights.values import FLOATS

log = logging.getLogger("umlm.weights")

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
BUFFER = re.compile(r".*\brotary_emb\.\w+")  # old checkpoints store what the config already says
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
SHOWN = 8  # problems listed one a line before the rest is counted

Progress = Callable[[int, int], None]


def load_model(checkpoint: Checkpoint, dtype: str = "auto", progress: Progress | None = None) -> Decoder:
    """The model of a checkpoint, its parameters evaluated.

    dtype     of float parameters: "float32", "float16", "bfloat16", or "auto": float32 where the default device
              is a CPU (half precision is slow there), else as stored. Packed matrices stay as they are.
    progress  called with (bytes read, bytes in all)
    Raises ValueError with one line per missing, extra or misshapen tensor, before anything is read.
    """
    model = build(config_from_dict(checkpoint.config))
    fill(model, checkpoint, dtype, progress)
    return model


def fill(model: nn.Module, checkpoint: Checkpoint, dtype: str = "auto", progress: Progress | None = None) -> None:
    """Set the parameters of `model` from the checkpoint's tensors, one at a time. See load_model."""
    target = float_dtype(dtype)
    rows = target or DTYPES.get(stated_dtype(checkpoint.config), mx.float32)
    tensors = match(model, checkpoint)
    done, total = 0, sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        _assign(model, tensor, target, rows)
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    mx.clear_cache()  # buffers of the stored dtypes that the casts left behind


def loaded_bytes(checkpoint: Checkpoint, dtype: str = "auto") -> int:
    """Bytes that the checkpoint's tensors take once they are loaded: floats in `dtype`, packed ones as stored."""
    target = float_dtype(dtype)

    def size(tensor: StoredTensor) -> int:
        if target is None or isinstance(tensor.format, Format):
            return tensor.nbytes
        return math.prod(tensor.shape) * target.size

    return sum(size(tensor) for tensor in checkpoint.tensors.values())


def float_dtype(dtype: str) -> mx.Dtype | None:
    """The dtype that float tensors are cast to, None for as stored."""
    if dtype == "auto":
        return mx.float32 if mx.default_device().type == mx.DeviceType.cpu else None
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; known: auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def activation_dtype(checkpoint: Checkpoint, dtype: str = "auto") -> mx.Dtype:
    """The dtype that the model computes in once it is loaded: what its embedding gives."""
    target, stated = float_dtype(dtype), DTYPES.get(stated_dtype(checkpoint.config), mx.float32)
    embedding = checkpoint.tensors.get(EMBEDDING)
    if target is not None or embedding is None or embedding.format not in STORED or embedding.format == "F8_E4M3":
        return target or stated
    return STORED[str(embedding.format)][1]


def stated_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that a config.json names, "" for none: what a packed embedding's rows come out in."""
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def match(model: nn.Module, checkpoint: Checkpoint) -> list[StoredTensor]:
    """The checkpoint's tensors that the model takes. ValueError lists what is missing, extra or misshapen."""
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not BUFFER.fullmatch(name)}
    if HEAD in tensors and HEAD not in parameters and EMBEDDING in parameters:
        _drop_head(tensors)
    missing = [_missing(name, parameters[name], checkpoint) for name in parameters if name not in tensors]
    wrong = [_problem(model, parameters.get(name), tensor) for name, tensor in tensors.items()]
    if found := missing + [problem for problem in wrong if problem]:
        rest = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise ValueError("\n".join(found[:SHOWN] + rest))
    return list(tensors.values())


def _drop_head(tensors: dict[str, StoredTensor]) -> None:
    """The config ties the head to the embedding; a stored head is not used."""
    head = tensors.pop(HEAD)
    if EMBEDDING in tensors and not _equal(head, tensors[EMBEDDING]):
        log.warning(
            "%s: %s differs from the embedding, but tie_word_embeddings is true: it is not used", head.file, HEAD
        )


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape or one.format != other.format:
        return False
    return all(bool(mx.array_equal(a, b)) for a, b in zip(_arrays(one.read()), _arrays(other.read()), strict=True))


def _arrays(value: mx.array | Packed) -> list[mx.array]:
    if not isinstance(value, Packed):
        return [value]
    return [array for array in (value.weight, value.scales, value.biases) if array is not None]


def _missing(name: str, parameter: mx.array, checkpoint: Checkpoint) -> str:
    hint = ""
    if name == HEAD:
        hint = "; if its output head is the embedding, set tie_word_embeddings to true in the config"
    return f"{checkpoint.path}: tensor {name!r} is missing, the model needs it as {list(parameter.shape)}{hint}"


def _problem(model: nn.Module, parameter: mx.array | None, tensor: StoredTensor) -> str | None:
    where = f"{tensor.file}: tensor {tensor.name!r} {list(tensor.shape)}"
    if parameter is None:
        return f"{where} has no place in the model"
    if parameter.shape != tensor.shape:
        return f"{where} does not fit, the model needs {list(parameter.shape)}"
    if isinstance(tensor.format, Format):
        module = module_at(model, tensor.name.rpartition(".")[0])
        if not isinstance(module, (Linear, Embedding)):
            return f"{where} is {tensor.format}, but a {type(module).__name__} cannot be quantized"
    elif tensor.format in STORED.keys() - FLOATS:
        return f"{where} has dtype {tensor.format}, the model needs a float"
    return None


def _assign(model: nn.Module, tensor: StoredTensor, target: mx.Dtype | None, rows: mx.Dtype) -> None:
    value = tensor.read()
    path, _, leaf = tensor.name.rpartition(".")
    if isinstance(value, Packed):
        mx.eval(_arrays(value))
        replace(model, path, value, rows)
        return
    dtype = target or (rows if tensor.format == "F8_E4M3" else value.dtype)  # FP8 is not computed with
    array = value.astype(dtype)
    mx.eval(array)  # now, or the stored and the cast copies of all tensors would pile up
    module_at(model, path)[leaf] = array
