"""Array functions: each op has a reference in plain MLX ops and, where one serves better, a kernel."""

from umlm.kernels.activation import ACTIVATIONS, activation, gated_activation
from umlm.kernels.attention import attention
from umlm.kernels.backends import check_settings, report
from umlm.kernels.experts import expert_matmul
from umlm.kernels.gated_delta import gated_delta
from umlm.kernels.halves import (
    AttentionHalf,
    BlockStack,
    Norm,
    Pages,
    Projection,
    StackPages,
    attention_half,
    feed_forward_half,
    halves_serve,
    watch,
)
from umlm.kernels.matmul import matmul
from umlm.kernels.norm import rms_norm
from umlm.kernels.packed import Format, Packed
from umlm.kernels.paged_attention import PageTable, paged_attention, write_pages
from umlm.kernels.precision import use_activations
from umlm.kernels.quantized_matmul import dequantize, embedding, quantized_matmul
from umlm.kernels.quantized_pages import KeptPages, QuantizedPages, empty_pages, more_pages, row_bytes
from umlm.kernels.rope import rope
from umlm.kernels.sampling import sample_rows
from umlm.kernels.selective_scan import selective_scan
from umlm.kernels.short_conv import short_conv
from umlm.kernels.softmax import softmax

__all__ = [
    "ACTIVATIONS",
    "AttentionHalf",
    "BlockStack",
    "Format",
    "KeptPages",
    "Norm",
    "Packed",
    "PageTable",
    "Pages",
    "Projection",
    "QuantizedPages",
    "StackPages",
    "activation",
    "attention",
    "attention_half",
    "check_settings",
    "dequantize",
    "embedding",
    "empty_pages",
    "expert_matmul",
    "feed_forward_half",
    "gated_activation",
    "gated_delta",
    "halves_serve",
    "matmul",
    "more_pages",
    "paged_attention",
    "quantized_matmul",
    "report",
    "rms_norm",
    "rope",
    "row_bytes",
    "sample_rows",
    "selective_scan",
    "short_conv",
    "softmax",
    "use_activations",
    "watch",
    "write_pages",
]
