"""A config.json with values of wrong types or sizes ends in one ValueError that names the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zoo

from umlm.models import build, config_from_dict

CASES = ["llama", "mistral_window", "qwen2_window", "gemma", "gemma2", "gemma3_linear", "phi3_long"]
ROPES = ["llama_linear", "llama_dynamic", "llama_llama3", "llama_yarn_mscale", "llama_longrope", "gemma3_layer_types"]
VALUES = [True, 0, -1, 2.5, 1e30, float("nan"), "x", "", [], [1], {}, {"a": 1}, ["full_attention"] * 3]
NUMBERS = ["rms_norm_eps", "rope_theta", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"]
SIZES = ["sliding_window", "max_window_layers", "sliding_window_pattern", "hidden_size", "vocab_size"]


def attempt(config: dict[str, Any], *key: str) -> None:
    """Build, or raise ValueError: nothing else."""
    try:
        build(config_from_dict(config))
    except ValueError as error:
        assert "\n" not in str(error), f"{key}: more than one line: {error}"


@pytest.mark.parametrize("name", CASES)
def test_any_value_of_any_key(name: str) -> None:
    config = dict(zoo.CASES[name].config)
    for key in (*config, "head_dim", "layer_types", "partial_rotary_factor", "rope_scaling", "rope_parameters"):
        for value in VALUES:
            attempt({**config, key: value}, key, str(value))


@pytest.mark.parametrize("name", ROPES)
def test_any_value_of_any_rope_key(name: str) -> None:
    for config in _rope_variants(dict(zoo.CASES[name].config)):
        attempt(config)


def _rope_variants(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    outer = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    for key in config[outer]:
        for value in VALUES:
            yield {**config, outer: {**config[outer], key: value}}


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, -1, float("nan")])
@pytest.mark.parametrize("key", NUMBERS + SIZES)
def test_numbers_are_checked(key: str, value: Any) -> None:
    name = next(name for name in CASES if key in zoo.CASES[name].config)
    with pytest.raises(ValueError, match=key):
        config_from_dict({**zoo.CASES[name].config, key: value})


@pytest.mark.parametrize("value", ["false", 0, 1, [True], -1])
@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_switches_are_true_or_false(key: str, value: Any) -> None:
    """The text "false" would count as true."""
    with pytest.raises(ValueError, match=key):
        config_from_dict({**zoo.CASES["llama"].config, key: value})
