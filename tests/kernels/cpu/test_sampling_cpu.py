"""The sampler's kernels on every instruction set."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from test_sampling import KINDS, allowed, made

from umlm import kernels


@pytest.mark.parametrize("size", [5, 130, 9000])
def test_every_instruction_set_draws_where_float64_says(isa: str, size: int) -> None:
    rng = np.random.default_rng(1)
    draws = [made(t, float(rng.integers(0, 2**23)) / 2**23, **kind) for kind in KINDS for t in (0.3, 2.5)]
    logits = rng.normal(0, 2, (len(draws), size)).astype(np.float32)
    tokens, usable = kernels.sample_rows(mx.array(logits), draws)
    assert np.array(usable).all()
    for row, draw, token in zip(logits, draws, tokens.tolist(), strict=True):
        assert token in allowed(row, draw), draw


def test_ties_go_to_the_lower_token(isa: str) -> None:
    logits = np.zeros((3, 500), np.float32)
    logits[:, [140, 17, 490, 200]] = 2
    draws = [made(uniform=u, top_k=2) for u in (0.0, 0.49, 0.51)]
    assert kernels.sample_rows(mx.array(logits), draws).tokens.tolist() == [17, 17, 140]
    zeros = mx.array([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]])
    assert kernels.sample_rows(zeros, [made(uniform=0.1, top_k=1)] * 2).tokens.tolist() == [1, 1]


def test_batch_mates_change_nothing(isa: str) -> None:
    rng = np.random.default_rng(2)
    logits = mx.array(np.round(rng.normal(0, 1, (len(KINDS), 2000)), 1).astype(np.float32))
    draws = [made(uniform=0.61, **kind) for kind in KINDS]
    alone = [kernels.sample_rows(logits[i : i + 1], draws[i : i + 1]).tokens.item() for i in range(len(draws))]
    assert kernels.sample_rows(logits, draws).tokens.tolist() == alone
    assert kernels.sample_rows(logits[::-1], draws[::-1]).tokens.tolist() == alone[::-1]


def test_columns_of_another_layout_are_read_right(isa: str) -> None:
    logits = mx.array(np.random.default_rng(3).normal(0, 1, (300, 4)).astype(np.float32)).T
    assert kernels.sample_rows(logits, [None] * 4).tokens.tolist() == np.array(logits).argmax(axis=-1).tolist()
