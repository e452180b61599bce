"""Take a model, give a model: layers that compute on quantized matrices."""

from umlm.quant.packed import PackedEmbedding, PackedLinear, PackedMatrix, replace

__all__ = ["PackedEmbedding", "PackedLinear", "PackedMatrix", "replace"]
