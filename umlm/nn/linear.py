"""Matrices of a model: linear maps and embedding tables in a float dtype."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels


class Projecting(nn.Module):
    """A layer y = x W^T + b whose matrix fused operations may read."""

    def projection(self) -> kernels.Projection:
        """The matrix and the bias."""
        raise NotImplementedError


class Linear(Projecting):
    """y = x W^T + b; weight [outputs, inputs], bias [outputs] or none."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = mx.zeros((outputs, inputs))
        if bias:
            self.bias = mx.zeros((outputs,))

    def __call__(self, x: mx.array) -> mx.array:
        return kernels.matmul(x, self.weight, self.get("bias"))

    def projection(self) -> kernels.Projection:
        return kernels.Projection(self.weight, self.get("bias"))


class Embedding(nn.Module):
    """Rows of weight [vocab, hidden] by token id; `as_linear` is the tied output head."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = mx.zeros((vocab_size, hidden_size))

    @property
    def dtype(self) -> mx.Dtype:
        """What the rows come out in."""
        return self.weight.dtype

    def __call__(self, ids: mx.array) -> mx.array:
        return kernels.embedding(ids, self.weight, self.weight.dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        return kernels.matmul(x, self.weight)
