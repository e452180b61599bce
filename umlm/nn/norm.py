"""Norms with a weight."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from umlm import kernels


class RMSNorm(nn.Module):
    """x / rms(x) * (offset + weight). arXiv:1910.07467"""

    offset = 0.0

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((size,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return kernels.rms_norm(x, self.weight, self.eps, self.offset)

    def norm(self) -> kernels.Norm:
        """What fused operations read of it."""
        return kernels.Norm(self.weight, self.eps, self.offset)


class UnitOffsetRMSNorm(RMSNorm):
    """x / rms(x) * (1 + weight), as in Gemma. arXiv:2403.08295"""

    offset = 1.0

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.weight = mx.zeros((size,))
