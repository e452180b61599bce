"""Every family and rope kind gives transformers' logits: whole, in chunks, packed with others, decoding.

The bound is a part of the logits' range in float32; the answers lie in tests/golden (see its make.py).
"""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from zoo_model import Run, load_case, paged, shapes, whole

from umlm.models import MODELS

BOUND = 1e-5
every_case = pytest.mark.parametrize("name", zoo.CASES)


def assert_close(name: str, logits: np.ndarray, wanted: np.ndarray) -> None:
    gap = np.abs(logits - wanted).max() / np.ptp(wanted)
    assert gap <= BOUND, f"{name}: logits differ by {gap:.1e} of their range"


def test_every_family_has_two_cases() -> None:
    kinds = [case.config["model_type"] for case in zoo.CASES.values()]
    families = {MODELS[kind] for kind in kinds}
    assert families == set(MODELS.values())
    assert all(sum(MODELS[kind] is family for kind in kinds) >= 2 for family in families)


@every_case
def test_parameters_are_hugging_face_s(name: str) -> None:
    assert shapes(load_case(name)) == zoo.golden(name).parameters


@every_case
def test_whole(name: str) -> None:
    truth = zoo.golden(name)
    assert_close(name, whole(load_case(name), truth.tokens)[truth.positions], truth.logits)


@every_case
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_in_chunks(name: str, chunk: int) -> None:
    truth = zoo.golden(name)
    (logits,) = paged(load_case(name), [Run(truth.tokens, len(truth.tokens), [chunk])])
    assert_close(name, logits[truth.positions], truth.logits)


@every_case
def test_packed_with_others(name: str) -> None:
    """A long sequence in chunks, one that comes late and one token by token share each row; each is as if alone."""
    truth, model = zoo.golden(name), load_case(name)
    late, slow = truth.tokens[9:20], truth.tokens[3:20]
    runs = [Run(truth.tokens, len(truth.tokens), [9]), Run(late, 11, [0, 0, 6, 5]), Run(slow, 17, [8, 1])]
    logits = paged(model, runs)
    assert_close(name, logits[0][truth.positions], truth.logits)
    assert_close(name, logits[1], whole(model, late))
    assert_close(name, logits[2], whole(model, slow))


@pytest.mark.parametrize("name", [name for name, case in zoo.CASES.items() if case.prompt])
def test_decoding_across_a_length_dependent_rope(name: str) -> None:
    """Each new token turns by its own length, earlier keys stay as written: transformers with a cache."""
    truth, prompt = zoo.golden(name), zoo.CASES[name].prompt
    (logits,) = paged(load_case(name), [Run(truth.tokens, prompt, [prompt, 1])])
    assert_close(name, logits[prompt:], truth.decoded)
