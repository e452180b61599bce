"""Run as a process: the memory that steps of a model take, for test_activations.py.

Prints JSON: the forecast of activations and of the reserve, the growth of resident memory by the largest step, and by
that and a mix of other steps after it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from umlm.cache.activations import Step, activation_bytes
from umlm.cache.batch import Batch
from umlm.cache.budget import Demand
from umlm.cache.store import PageStore
from umlm.engine.params import SamplingParams
from umlm.engine.request import Request
from umlm.engine.sampler import sample
from umlm.models import Decoder, build, config_from_dict

PAGE = 16


def memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(f"{field}:"))


def steps(model: Decoder, store: PageStore, tokens: int, rows: int, context: int, params: SamplingParams) -> None:
    """The last `tokens` tokens of one sequence of `context`, of which `rows` are sampled."""
    places = np.arange(context - tokens, context, dtype=np.int32)
    batch = Batch(
        tokens=mx.zeros((1, tokens), mx.int32),
        positions=mx.array(places),
        lengths=mx.array(places + 1),
        slots=mx.array(places),
        page_table=[list(range(store.num_pages))],
        starts=[0, tokens],
        contexts=[context],
        sample_at=mx.array(np.linspace(0, tokens - 1, rows).astype(np.int32)),
    )
    logits = model(batch.tokens, store.states(batch), at=batch.sample_at)
    sample(logits, [Request(row, [1], params, 9) for row in range(rows)])


def main(config: dict[str, Any], step: Step, dtype: mx.Dtype) -> dict[str, int]:
    model = build(config_from_dict(config))
    forecast = activation_bytes(model, step, dtype)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    store = PageStore(model.state_specs(), -(-step.context // PAGE), PAGE, dtype)
    drawn = SamplingParams(temperature=1, top_p=0.9, repetition_penalty=1.1, logprobs=5)
    steps(model, store, 2, 2, step.context, drawn)  # writes the pages' last slots: all are in memory
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    steps(model, store, step.tokens, step.rows, step.context, drawn)
    largest = memory("VmHWM") - before
    generator = np.random.Generator(np.random.PCG64(0))
    for tokens in generator.integers(1, step.tokens, 40).tolist():
        rows = min(tokens, step.rows)
        steps(model, store, tokens, rows, step.context, SamplingParams() if tokens % 2 else drawn)
    mixed = memory("VmHWM") - before
    return {
        "activations": forecast,
        "reserve": Demand(activations=forecast).reserve,
        "largest": largest,
        "mixed": mixed,
    }


if __name__ == "__main__":
    config, tokens, rows, context, name = json.loads(sys.argv[1])
    print(json.dumps(main(config, Step(tokens, rows, context), getattr(mx, name))))
