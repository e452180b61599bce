"""The forecast of what a step takes, against the resident memory of processes that compute it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

from umlm.cache.activations import Step, Widths, activation_bytes, rows_scored, widths
from umlm.models import Decoder, build, config_from_dict

SCRIPT = Path(__file__).with_name("step_memory.py")
MIB = 1 << 20


class Case(NamedTuple):
    shape: dict[str, Any]
    tokens: int
    rows: int = 32
    context: int = 2048
    dtype: str = "float32"
    environment: dict[str, str] = {}

    @property
    def config(self) -> dict[str, Any]:
        return {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 4096, **self.shape}


def shape(
    layers: int, hidden: int, inner: int, heads: int, kv: int, dim: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "vocab_size": vocab,
        **more,
    }


CASES = {
    "deep": Case(shape(30, 576, 1536, 9, 3, 64, 49152), 512),
    "wide": Case(shape(4, 1024, 4096, 16, 4, 64, 32000), 512),
    "long step": Case(shape(16, 512, 1024, 8, 2, 64, 32000), 1024),
    "large vocabulary": Case(shape(4, 512, 1024, 8, 2, 64, 160000), 256),
    "sandwich": Case(shape(12, 512, 1024, 8, 2, 64, 32000, model_type="gemma3_text"), 512),
    "half precision": Case(shape(12, 512, 2048, 8, 2, 64, 32000), 512, dtype="bfloat16"),
    "half of it fused": Case(shape(12, 512, 2048, 8, 2, 64, 32000, model_type="phi3"), 512),
    "plain operations": Case(
        shape(3, 128, 256, 16, 4, 32, 2000), 256, 8, 2048, environment={"UMLM_KERNELS": "reference"}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_forecast_covers_what_steps_take(name: str) -> None:
    """The largest step within 5 % (and 2 MiB that a process of its own needs); any mix of steps with the reserve."""
    case = CASES[name]
    words = json.dumps([case.config, case.tokens, case.rows, case.context, case.dtype])
    done = subprocess.run(
        [sys.executable, SCRIPT, words], env={**os.environ, **case.environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shown = {key: round(value / MIB, 1) for key, value in found.items()}
    assert found["largest"] <= 1.05 * found["activations"] + 2 * MIB, shown
    assert found["mixed"] <= found["activations"] + found["reserve"], shown
    assert found["largest"] >= 0.7 * found["activations"], shown  # not covered by wasting memory


def network(**more: Any) -> Decoder:
    return build(config_from_dict(Case(shape(2, 64, 160, 8, 2, 16, 1000, **more), 8).config))


def test_widths_are_those_of_the_matrices() -> None:
    assert widths(network()) == Widths(64, 128 + 2 * 32 + 64, 2 * 160 + 64)


def test_widths_of_fused_matrices_are_the_same() -> None:
    assert widths(network(model_type="phi3", pad_token_id=0, head_dim=None)) == Widths(
        64, 64 + 2 * 16 + 64, 2 * 160 + 64
    )


def test_more_tokens_and_more_rows_take_more() -> None:
    model = network()
    least = activation_bytes(model, Step(8, 8, 64), mx.float32)
    assert activation_bytes(model, Step(16, 8, 64), mx.float32) > least
    assert activation_bytes(model, Step(8, 64, 64), mx.float32) > least


@pytest.mark.parametrize(("vocab", "rows"), [(1000, 32), (49152, 32), (262144, 8), (10**7, 1)])
def test_rows_that_are_scored_together_are_few_for_large_vocabularies(vocab: int, rows: int) -> None:
    assert rows_scored(vocab) == rows
