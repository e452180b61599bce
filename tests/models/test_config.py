"""Quirks of published config.json files: old and new names, nulls, nested text configs, family defaults."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import zoo
from zoo_configs import LONG, SHORT
from zoo_model import Run, load, load_changed, paged, shapes, whole

from umlm.models import MODELS, build, config_from_dict
from umlm.nn import DenseState, Rope, RopeParameters

BOUND = 1e-5
PLAIN = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_wrapper", "phi3"]
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"short_factor": SHORT, "long_factor": LONG}
every_family = pytest.mark.parametrize("name", PLAIN)


def assert_golden(name: str, logits: np.ndarray) -> None:
    """These logits of a whole sequence are the ones that transformers has for the case."""
    truth = zoo.golden(name)
    gap = np.abs(logits[truth.positions] - truth.logits).max() / np.ptp(truth.logits)
    assert gap <= BOUND, f"logits differ from {name}'s by {gap:.1e} of their range"


def changed(name: str, **keys: Any) -> np.ndarray:
    """Logits of a case's tokens with other config keys; ... takes a key away."""
    return whole(load_changed(name, **keys), zoo.CASES[name].tokens)


def with_keys(name: str, **keys: Any) -> dict[str, Any]:
    """A case's config with other keys for the language model; ... takes a key away."""
    config = dict(zoo.CASES[name].config)
    text = {key: value for key, value in {**zoo.CASES[name].text_config, **keys}.items() if value is not ...}
    return {**config, "text_config": text} if "text_config" in config else text


# F01: the rope kind is named `type` in old files, `rope_type` in new ones.


@pytest.mark.parametrize(
    "names", [{"type": "linear"}, {"rope_type": "linear"}, {"type": "linear", "rope_type": "linear"}]
)
def test_rope_kind_by_either_name(names: dict[str, str]) -> None:
    assert_golden("llama_linear", changed("llama", rope_scaling={**names, "factor": 4.0}))


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"type": "default"}, ...])
def test_no_rope_scaling_in_every_spelling(scaling: Any) -> None:
    assert_golden("llama", changed("llama", rope_scaling=scaling))


# F02: llama3's scaling block has other keys than factor.


def test_llama3_inverse_frequencies() -> None:
    """Head of 8, theta 10000: the first two waves stay, the third too, the fourth lies in the smooth zone."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    }
    config = config_from_dict(with_keys("llama", head_dim=8, rope_theta=10000.0, rope_scaling=scaling))
    found = np.array(Rope(config.rope("full_attention")).inv_freq(mx.array([1])))
    assert np.allclose(found, [1, 0.1, 0.01, 0.00021361], rtol=2e-5)


# F03: rope_scaling null, or not there, in every family.


@every_family
def test_rope_scaling_null_or_absent(name: str) -> None:
    tokens = zoo.CASES[name].tokens
    for scaling in (None, ...):
        model = load(with_keys(name, rope_scaling=scaling), zoo.golden(name).parameters)
        assert_golden(name, whole(model, tokens))


# F04: yarn on families other than the first one; an unknown kind.


@pytest.mark.parametrize(
    ("name", "golden", "keys"),
    [
        ("llama", "llama_yarn", {}),
        ("mistral_yarn", "mistral_yarn", {"rope_parameters": ..., "rope_theta": 10000.0}),
        ("qwen2", "qwen2_yarn", {"rope_theta": 10000.0, "tie_word_embeddings": False}),
        ("qwen3_yarn", "qwen3_yarn", {}),
    ],
)
def test_yarn_on_every_family(name: str, golden: str, keys: dict[str, Any]) -> None:
    assert_golden(golden, changed(name, rope_scaling={**YARN, "type": "yarn"}, **keys))


@every_family
def test_unknown_rope_kind_is_named_before_any_weight(name: str) -> None:
    with pytest.raises(ValueError, match=r"'foo'.*known.*llama3.*longrope.*yarn"):
        config_from_dict(with_keys(name, rope_scaling={"type": "foo", "factor": 2.0}))


# F06: long factors by the real length of the sequence, never by the room there is or by others.


def test_longrope_goes_by_the_prompt_alone() -> None:
    """The prompt is as long as the original context: short factors, alone and beside a longer one."""
    tokens = zoo.CASES["phi3_short"].tokens
    model = load_changed("phi3_long", sliding_window=None)
    longer = zoo.CASES["phi3_long"].tokens
    assert_golden("phi3_short", whole(model, tokens))
    for mates in ([], [Run(longer, len(longer), [10])]):
        assert_golden("phi3_short", paged(model, [Run(tokens, len(tokens), [5]), *mates])[0])


def test_longrope_ignores_how_far_the_context_may_grow() -> None:
    """Issue's numbers: original 16, maximum 16 or 64; a given factor leaves only the length to choose by."""
    config = {
        "num_attention_heads": 4,
        "hidden_size": 48,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [4.0] * 6, "factor": 4.0},
    }
    tokens = zoo.CASES["phi3"].tokens[:8]
    small, large = (whole(load_changed("phi3", max_position_embeddings=n, **config), tokens) for n in (16, 64))
    assert np.array_equal(small, large)


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_phi3_s_old_names_of_longrope(kind: str) -> None:
    assert_golden("phi3_long", changed("phi3_long", rope_scaling={**LONGROPE, "type": kind}))


# F08: the same block under rope_scaling and under rope_parameters.


@every_family
def test_rope_scaling_equals_rope_parameters(name: str) -> None:
    """Both give one rotary embedding, and beyond the original length it is not the plain one."""
    block = {**LONGROPE, "rope_type": "longrope"} if name == "phi3" else {**YARN, "rope_type": "yarn"}
    old = config_from_dict(with_keys(name, rope_scaling=block, rope_theta=777.0))
    new = config_from_dict(
        with_keys(name, rope_scaling=..., rope_theta=..., rope_parameters={**block, "rope_theta": 777.0})
    )
    assert old.rope("full_attention") == new.rope("full_attention")
    assert old.rope("full_attention").rope_type != "default"
    assert new.rope("full_attention").rope_theta == 777.0


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_under_either_key_beyond_the_original_length(key: str) -> None:
    assert_golden("llama_yarn", changed("llama", **{key: {**YARN, "rope_type": "yarn"}}))


def test_rope_per_layer_type_wins_over_gemma3_s_old_keys() -> None:
    config = config_from_dict({**zoo.CASES["gemma3_layer_types"].config, "rope_local_base_freq": 3.0})
    assert config.rope("sliding_attention").rope_theta == 500.0
    assert config.rope("full_attention").factor == 4.0


# F09, F10: heads that are turned in part.


def test_partial_rotary_leaves_the_rest_of_a_head() -> None:
    """A quarter of a head of 16 turns: the first 4 dims, in pairs (0, 2) and (1, 3)."""
    config = config_from_dict(with_keys("phi4_mini", rope_scaling=None, partial_rotary_factor=0.25))
    q = np.random.Generator(np.random.PCG64(3)).standard_normal((1, 5, 2, 16)).astype(np.float32)
    found = np.array(Rope(config.rope("full_attention"))(mx.array(q), DenseState(5)))
    assert np.array_equal(found[..., 4:], q[..., 4:])
    angles = np.arange(5)[:, None, None] * np.array([1.0, 10000.0**-0.5])
    first, second = q[..., :2].astype(np.float64), q[..., 2:4].astype(np.float64)
    turned = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    assert np.allclose(found[..., :4], np.concatenate(turned, axis=-1), atol=1e-6)


def test_partial_rotary_factor_absent_null_and_one() -> None:
    found = {
        config_from_dict(with_keys("phi3", partial_rotary_factor=f)).rope("full_attention") for f in (..., None, 1.0)
    }
    assert found == {RopeParameters(12, max_position_embeddings=64, original_max_position_embeddings=64)}


def test_sections_of_a_multimodal_rope_keep_the_partial_factor() -> None:
    """With text alone all position streams are equal, and the sections make no difference."""
    block = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    plain = config_from_dict(with_keys("phi4_mini", rope_scaling=..., rope_parameters=block))
    sections = {**block, "type": "mrope", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = config_from_dict(with_keys("phi4_mini", rope_scaling=..., rope_parameters=sections))
    assert config.rope("full_attention") == plain.rope("full_attention")
    assert config.rope("full_attention").dims == 4


# F11, F12: the size of a head.


def test_head_dim_apart_from_hidden_size() -> None:
    keys = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    found = shapes(build(config_from_dict(with_keys("llama", **keys))))
    prefix = "model.layers.0.self_attn."
    wanted = {"q_proj": (128, 64), "k_proj": (64, 64), "v_proj": (64, 64), "o_proj": (64, 128)}
    assert {key: found[f"{prefix}{key}.weight"] for key in wanted} == wanted


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads", "num_global_key_value_heads"])
@every_family
def test_null_is_absent(name: str, key: str) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 16}
    absent, null = (config_from_dict(with_keys(name, **sizes, **{key: value})) for value in (..., None))
    assert absent == null


def test_llama_s_heads_by_default() -> None:
    config = config_from_dict(with_keys("llama", head_dim=None, num_key_value_heads=None))
    assert (config.head_dim, config.num_key_value_heads) == (48 // 4, 4)


def test_gemma3_published_without_heads() -> None:
    """The file of the 4B model names neither heads nor vocabulary: the family's defaults hold."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = config_from_dict({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]})
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings) == (262208, 131072)
    assert config.tie_word_embeddings
    assert [i for i in range(34) if config.window(i) is None] == [5, 11, 17, 23, 29]
    assert {config.window(i) for i in range(34)} == {1024, None}


# F13: a sliding window that is null.


@pytest.mark.parametrize("window", [None, ..., 0, 4096])
def test_mistral_without_a_window(window: Any) -> None:
    assert_golden("mistral", changed("mistral", sliding_window=window))


def test_mistral_with_a_window() -> None:
    config = config_from_dict(with_keys("mistral", sliding_window=7))
    assert [config.window(i) for i in range(3)] == [7, 7, 7]


# F16: values that only text_config has, and values that differ there.


def test_nested_text_config_wins() -> None:
    config = dict(zoo.CASES["gemma3_wrapper"].config)
    text = {**config["text_config"], "tie_word_embeddings": False}
    found = config_from_dict({**config, "text_config": text, "vocab_size": 7, "tie_word_embeddings": True})
    assert found.vocab_size == config["text_config"]["vocab_size"]
    assert found.tie_word_embeddings is False
    assert found.model_type == "gemma3_text"


def test_top_level_fills_what_the_text_config_leaves_out() -> None:
    config = dict(zoo.CASES["gemma3_wrapper"].config)
    text = {key: value for key, value in config["text_config"].items() if key != "vocab_size"}
    assert config_from_dict({**config, "text_config": text, "vocab_size": 77}).vocab_size == 77


# F17: biases.


def test_biases_are_used() -> None:
    """Each kind of bias moves the logits; with both they are transformers' (test_parity)."""
    tokens, model = zoo.CASES["llama_biases"].tokens, load_changed("llama_biases")
    assert_golden("llama_biases", whole(model, tokens))
    for kind in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        model = load_changed("llama_biases")
        zeros = [(name, mx.zeros(shape)) for name, shape in shapes(model).items() if name.endswith(f"{kind}.bias")]
        assert len(zeros) == 3
        before = whole(model, tokens)
        model.load_weights(zeros, strict=False)
        moved = np.abs(whole(model, tokens) - before).max() / np.ptp(before)
        assert moved > 1e-3, kind


# What is wrong in a config is named, with its value and what is known.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "lama"}, r"'lama'.*'llama'"),
        ({"model_type": ...}, r"model_type"),
        ({"hidden_size": ...}, r"'hidden_size'"),
        ({"hidden_size": 0}, r"hidden_size.*0"),
        ({"num_hidden_layers": 2.5}, r"num_hidden_layers.*2\.5"),
        ({"vocab_size": "many"}, r"vocab_size.*'many'"),
        ({"num_key_value_heads": 3}, r"num_attention_heads 4.*num_key_value_heads 3"),
        ({"hidden_act": "swoosh"}, r"hidden_act 'swoosh'.*silu"),
        ({"layer_types": ["full_attention"]}, r"layer_types.*1.*3"),
        ({"layer_types": ["full_attention", "mamba", "full_attention"]}, r"'mamba'.*full_attention"),
        ({"rope_scaling": {"type": "linear"}}, r"'linear'.*'factor'"),
        ({"rope_scaling": {"type": "longrope", "short_factor": SHORT}}, r"'longrope'.*'long_factor'"),
        ({"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": [1.0]}}, r"long_factor.*1.*6"),
        ({"head_dim": 7}, r"7.*even"),
    ],
)
def test_wrong_values_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_dict(with_keys("llama", **keys))


def test_keys_that_say_nothing_about_the_model_are_ignored() -> None:
    extra = {"transformers_version": "9.9", "quantization": {"bits": 4}, "auto_map": {}, "task_specific_params": None}
    assert config_from_dict(with_keys("llama", **extra)) == config_from_dict(with_keys("llama"))


def test_every_family_is_covered_here() -> None:
    assert {zoo.CASES[name].config["model_type"] for name in PLAIN} | {"gemma3_text"} == set(MODELS)
