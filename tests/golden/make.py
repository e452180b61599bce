"""Make tests/golden/*.npz: the logits that transformers computes for every case of tests/zoo.py.

    python tests/golden/make.py            writes all files
    python tests/golden/make.py NAME ...   writes some
    python tests/golden/make.py --check    computes all again and compares with the files

Needs the `parity` extra. Float32, eager attention, no cache; `decoded` of a few cases with one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[1]))

import zoo

POSITIONS = 8
AGREE = 2e-5  # of the logits' range, between two machines
CONTRAST = 0.02  # of the logits' range: less would not show a switch that is left out


def language_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Parameters by the name a text-only checkpoint gives them; a vision tower's are left out."""
    named = {name.replace("language_model.", ""): value for name, value in model.named_parameters()}
    return {name: p for name, p in named.items() if "vision_tower" not in name and "multi_modal" not in name}


def make_model(case: zoo.Case, config: Mapping[str, Any]) -> PreTrainedModel:
    """The transformers model of a config, with the zoo's weights."""
    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32).eval()
    parameters = language_parameters(model)
    values = zoo.weights(config, {name: tuple(p.shape) for name, p in parameters.items()}, case.seed)
    for name, parameter in parameters.items():
        parameter.data.copy_(torch.from_numpy(values[name]))
    return model


def whole(model: PreTrainedModel, tokens: torch.Tensor) -> np.ndarray:
    """Logits [T, V] of one call."""
    return model(input_ids=tokens, use_cache=False).logits[0].numpy()


def decode(model: PreTrainedModel, tokens: torch.Tensor, prompt: int) -> np.ndarray:
    """Logits [T - prompt, V] of the tokens after the prompt, one a call, with a cache."""
    cache = model(input_ids=tokens[:, :prompt], use_cache=True).cache
    rows = []
    for place in range(prompt, tokens.shape[1]):
        answer = model(input_ids=tokens[:, place : place + 1], cache=cache, use_cache=True)
        cache = answer.cache
        rows.append(answer.logits[0, 0].numpy())
    return np.stack(rows)


def compute(case: zoo.Case) -> dict[str, Any]:
    """The arrays of one golden file."""
    tokens = torch.from_numpy(case.tokens.astype(np.int64))[None]
    model = make_model(case, case.config)
    logits = whole(model, tokens)
    places = np.unique(np.linspace(1, case.num_tokens - 1, POSITIONS).round().astype(np.int32))
    # A new model: dynamic rope remembers the longest sequence it met.
    decoded = decode(make_model(case, case.config), tokens, case.prompt) if case.prompt else logits[:0]
    shapes = {name: tuple(p.shape) for name, p in language_parameters(model).items()}
    return {
        "config": np.array(json.dumps(case.config)),
        "tokens": case.tokens,
        "positions": places,
        "logits": logits[places],
        "decoded": decoded,
        "parameters": np.array([f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]),
    }


def contrast_of_switch(case: zoo.Case, logits: np.ndarray, positions: np.ndarray) -> float:
    """How far the logits move when the case's switch is off, in parts of their range."""
    tokens = torch.from_numpy(case.tokens.astype(np.int64))[None]
    other = whole(make_model(case, {**case.config, **case.without}), tokens)[positions]
    contrast = float(np.abs(other - logits).max() / np.ptp(logits))
    assert contrast > CONTRAST, f"{case.name}: {dict(case.without)} moves the logits by {contrast:.1e} only"
    return contrast


def assert_same(name: str, new: dict[str, Any]) -> None:
    with np.load(zoo.GOLDEN / f"{name}.npz") as old:
        assert set(old.files) == set(new), f"{name}: {sorted(old.files)} stored, {sorted(new)} computed"
        limit = AGREE * np.ptp(old["logits"])
        for key, value in new.items():
            if key in ("logits", "decoded"):
                gap = np.abs(old[key] - value).max(initial=0.0)
                assert gap <= limit, f"{name}: {key} differ by {gap:.2e}, more than {limit:.2e}"
            else:
                assert np.array_equal(old[key], value), f"{name}: {key} differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; all by default")
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    for name in options.names or zoo.CASES:
        case = zoo.CASES[name]
        arrays = compute(case)
        if options.check:
            assert_same(name, arrays)
        else:
            np.savez_compressed(zoo.GOLDEN / f"{name}.npz", **arrays)
        contrast = contrast_of_switch(case, arrays["logits"], arrays["positions"]) if case.without else 0.0
        low, high = arrays["logits"].min(), arrays["logits"].max()
        print(f"{name:28} logits {low:7.2f} .. {high:6.2f}   contrast {contrast:.3f}")


if __name__ == "__main__":
    main()
