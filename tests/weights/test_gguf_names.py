"""GGUF names and layouts, both ways, against the `gguf` package's own tables."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import zoo
from gguf_files import ARCHITECTURES as GGUF_ARCHITECTURES
from gguf_files import kv_heads, permuted

from umlm.weights.gguf_names import ARCHITECTURES, ROTARY, gguf_name, hf_name, norm_shift, row_order

# The gguf package has no head for gemma 1 and 2, whose published models are all tied.
HEADLESS = ("gemma_untied", "gemma2_no_caps")
CASES = [
    name for name, case in zoo.CASES.items() if case.config["model_type"] in GGUF_ARCHITECTURES and name not in HEADLESS
]


def architecture(name: str) -> str:
    return gguf.MODEL_ARCH_NAMES[GGUF_ARCHITECTURES[zoo.CASES[name].config["model_type"]]]


@pytest.mark.parametrize("name", CASES)
def test_names_are_those_of_the_gguf_package(name: str) -> None:
    config = zoo.CASES[name].config
    table = gguf.get_tensor_name_map(GGUF_ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    for parameter in zoo.golden(name).parameters:
        stored = table.get_name(parameter, try_suffixes=(".weight", ".bias"))
        assert gguf_name(architecture(name), parameter) == stored
        assert hf_name(architecture(name), stored) == parameter


@pytest.mark.parametrize("name", ["llama_biases", "mistral", "qwen2", "gemma3", "phi3"])
def test_what_is_loaded_can_be_written_back(name: str) -> None:
    """The inverse of loading gives the converter's rows: what export will do."""
    config = zoo.CASES[name].config
    heads = {"q_proj": config["num_attention_heads"], "k_proj": kv_heads(config)}
    for parameter, value in zoo.weights(config, zoo.golden(name).parameters).items():
        part = parameter.split(".")[-2]
        order = row_order(architecture(name), parameter, value.shape[0], *heads.values())
        if config["model_type"] in ("llama", "mistral") and part in heads:
            assert order is not None
            np.testing.assert_array_equal(value[np.argsort(order)], permuted(value, heads[part]))
            np.testing.assert_array_equal(permuted(value, heads[part])[order], value)
        else:
            assert order is None


def test_norms_of_gemma_are_shifted_and_no_others() -> None:
    norms = ["model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.3.self_attn.q_norm.weight"]
    for name in ARCHITECTURES:
        shift = 1.0 if name.startswith("gemma") else 0.0
        assert [norm_shift(name, norm) for norm in norms] == [shift] * 3
        assert norm_shift(name, "model.layers.0.mlp.up_proj.weight") == 0.0


def test_names_of_no_place() -> None:
    for name in ("blk.0.ffn_xy.weight", "blk.0.attn_q.scale", "blk.x.attn_q.weight", "v.patch_embd.weight", "output"):
        assert hf_name("llama", name) is None
    assert hf_name("llama", "blk.0.attn_q_norm.weight") is None and hf_name("qwen3", "blk.0.attn_q_norm.weight")
    assert gguf_name("llama", "model.layers.0.mlp.router.weight") is None


def test_rotary_constants_are_recognised() -> None:
    for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "blk.7.attn_rot_embd"):
        assert ROTARY.fullmatch(name)
    assert not ROTARY.fullmatch("blk.0.attn_q.weight")


def test_rows_that_do_not_split_into_heads() -> None:
    with pytest.raises(ValueError, match="30 rows do not split into 4 heads"):
        row_order("llama", "model.layers.0.self_attn.q_proj.weight", 30, 4, 2)
