"""The packed row that one call of the model computes: arrays only, made by engine/runner.py."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx


class Batch(NamedTuple):
    """T new tokens of R requests in one row; no padding exists.

    tokens      int32 [1, T]
    positions   int32 [T], each token's place in its own sequence
    lengths     int32 [T], max(prompt length, position + 1)
    slots       int32 [T], where each token's key and value go: page_id * page_size + offset
    page_table  list of R lists of page ids, in sequence order
    starts      R + 1 offsets into the row: request r owns starts[r] .. starts[r + 1]
    contexts    R totals: tokens of request r after this step (earlier ones + new)
    sample_at   int32 [S], places in the row whose logits are wanted
    """

    tokens: mx.array
    positions: mx.array
    lengths: mx.array
    slots: mx.array
    page_table: list[list[int]]
    starts: list[int]
    contexts: list[int]
    sample_at: mx.array
