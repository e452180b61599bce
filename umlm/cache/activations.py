"""How many bytes the largest step takes beside weights and pages, from the widths of a model's matrices.

The numbers were measured on MLX 0.32.4 (tests/cache/test_activations.py measures them again). Where a block is several
operations, MLX's encoder runs ahead of the CPU that computes: results of about a hundred operations add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from umlm import kernels
from umlm.kernels.backends import serving
from umlm.models import Decoder
from umlm.nn import Attention, GatedMLP

FUSED_RESULTS = 4  # as wide as x, where all blocks are one operation
PARTLY_AHEAD = 8.5  # blocks whose results are in memory together, where one half is fused and the other is not
SINGLE_AHEAD = 2.2  # the same, where every operation has a result of its own
SAMPLER_COPIES = 3  # of the logits: as they came, adjusted, and what a filter or a top list makes of them
SCORE_COPIES = 1.2  # of the scores, where attention is computed by plain operations
GATHERED_COPIES = 3  # of the keys and values gathered for it
LOGITS_SCORED = 1 << 21  # of places of a prompt that are scored together, for at most ROWS_SCORED places
ROWS_SCORED = 32


class Step(NamedTuple):
    """The largest step that a scheduler plans: new tokens, rows of logits, tokens of the longest request."""

    tokens: int
    rows: int
    context: int


class Widths(NamedTuple):
    """Numbers per token in the widest block: x, what attention and feed-forward projections give."""

    hidden: int
    attention: int
    feed_forward: int


def activation_bytes(model: Decoder, step: Step, dtype: mx.Dtype) -> int:
    """Bytes of activations at the peak of a step: blocks, attention's scratch, logits and what sampling makes."""
    wide = widths(model)
    layers = model.config.num_hidden_layers
    if not kernels.halves_serve():
        blocks = _single(wide, layers, dtype.size)
    elif _has_halves(model):
        blocks = FUSED_RESULTS * wide.hidden * dtype.size + 4 * _scratch(wide)
    else:
        blocks = _partly(wide, layers, dtype.size)
    rows = max(step.rows, rows_scored(model.config.vocab_size))
    return int(blocks * step.tokens + _attention(model, step) + 4 * SAMPLER_COPIES * rows * model.config.vocab_size)


def rows_scored(vocab_size: int) -> int:
    """How many places of a prompt have logits at one time while the prompt is scored."""
    return max(1, min(ROWS_SCORED, LOGITS_SCORED // vocab_size))


def widths(model: Decoder) -> Widths:
    """The widest block's numbers, from the shapes of its matrices: nothing is computed."""
    parts = [(_outputs(block["self_attn"]), _outputs(block["mlp"])) for block in model.model.layers]
    return Widths(model.config.hidden_size, *(max(column) for column in zip(*parts, strict=True)))


def _has_halves(model: Decoder) -> bool:
    parts = [(type(block["self_attn"]), type(block["mlp"])) for block in model.model.layers]
    return all(a.__call__ is Attention.__call__ and m.__call__ is GatedMLP.__call__ for a, m in parts)


def _outputs(part: Any) -> int:
    matrices: list[tuple[str, mx.array]] = tree_flatten(part.parameters())  # type: ignore[assignment]
    return sum(matrix.shape[-2] for _, matrix in matrices if matrix.ndim > 1)


def _scratch(wide: Widths) -> float:
    """One half's own: normed x, all projections, and the integers that quantized matrices are multiplied with."""
    return 1.5 * max(wide.attention, wide.feed_forward) + 2 * wide.hidden


def _partly(wide: Widths, layers: int, size: int) -> float:
    """Projections, the product inside the feed-forward part, and three results as wide as x."""
    return min(layers, PARTLY_AHEAD) * (wide.attention + 1.5 * wide.feed_forward + 3 * wide.hidden) * size


def _single(wide: Widths, layers: int, size: int) -> float:
    """Projections, and as many norms, rotations, products and sums after them."""
    each = 2 * (wide.attention + wide.feed_forward) + 2 * wide.hidden
    return min(layers, SINGLE_AHEAD) * each * size


def _attention(model: Decoder, step: Step) -> float:
    """Plain operations hold the scores of all heads, and gather a request's keys and values; kernels hold neither."""
    if serving("paged_attention") != "reference":
        return 0
    specs = model.state_specs()
    scores = 4 * model.config.num_attention_heads * step.tokens * step.context
    gathered = max((spec.bytes_per_token(4) for spec in specs), default=0) * step.context
    return SCORE_COPIES * scores + GATHERED_COPIES * gathered
