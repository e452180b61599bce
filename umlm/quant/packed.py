"""Layers whose matrix stays quantized in memory, and putting them into a model."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels
from umlm.kernels import Packed
from umlm.nn import Embedding, Linear, Projecting


class PackedMatrix(nn.Module):
    """A quantized matrix under its parameter names: weight, scales and biases as in an MLX repository."""

    def __init__(self, packed: Packed) -> None:
        super().__init__()
        self.format, self.shape = packed.format, packed.shape
        self.weight = packed.weight
        if packed.scales is not None:
            self.scales = packed.scales
        if packed.biases is not None:
            self.biases = packed.biases
        self.freeze()

    @property
    def packed(self) -> Packed:
        return Packed(self.format, self.shape, self.weight, self.get("scales"), self.get("biases"))


class PackedLinear(PackedMatrix, Projecting):
    """y = x W^T + b with W [outputs, inputs] quantized."""

    def __init__(self, packed: Packed, bias: mx.array | None = None) -> None:
        super().__init__(packed)
        if bias is not None:
            self.bias = bias

    def __call__(self, x: mx.array) -> mx.array:
        y = kernels.quantized_matmul(x, self.packed)
        return y + self.bias.astype(y.dtype) if "bias" in self else y

    def projection(self) -> kernels.Projection:
        return kernels.Projection(self.packed, self.get("bias"))


class PackedEmbedding(PackedMatrix):
    """An embedding table [vocab, hidden] that stays quantized; rows come out in `dtype`."""

    def __init__(self, packed: Packed, dtype: mx.Dtype) -> None:
        super().__init__(packed)
        self.dtype = dtype

    def __call__(self, ids: mx.array) -> mx.array:
        return kernels.embedding(ids, self.packed, self.dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        return kernels.quantized_matmul(x, self.packed)


def replace(model: nn.Module, path: str, packed: Packed, dtype: mx.Dtype = mx.float32) -> None:
    """Put a quantized layer at `path` ("model.layers.0.self_attn.q_proj") in place of the float one.

    dtype  what an embedding's rows come out in. Raises ValueError where the layer there cannot be quantized.
    """
    above, _, name = path.rpartition(".")
    parent = module_at(model, above)
    old = parent[name]
    if isinstance(old, Embedding):
        parent[name] = PackedEmbedding(packed, dtype)
    elif isinstance(old, Linear):
        parent[name] = PackedLinear(packed, old.get("bias"))
    else:
        raise ValueError(f"{path} is a {type(old).__name__}, which cannot be quantized; store it in a float dtype")


def module_at(model: nn.Module, path: str) -> Any:
    """The module at a dotted path such as model.layers.0.mlp; the model itself for an empty one."""
    module: Any = model
    for part in filter(None, path.split(".")):
        module = module[int(part)] if isinstance(module, list) else module[part]
    return module
