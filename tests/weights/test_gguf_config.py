"""GGUF metadata as config keys: what Hugging Face's config.json of the same model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo
from gguf_files import write_gguf

from umlm.weights.gguf import open_gguf
from umlm.weights.gguf_config import config_from_gguf
from umlm.weights.gguf_metadata import GGUFError, Metadata

# What llama's files need; the shapes of one block stand for its tensors.
LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 8,
    "llama.context_length": 512,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
}


def config_of(
    metadata: dict[str, Any], blocks: int = 2, rope: dict[str, list[float]] | None = None, **names: tuple[int, ...]
) -> dict[str, Any]:
    shapes = {f"blk.{index}.attn_norm.weight": (64,) for index in range(blocks)}
    shapes |= {"token_embd.weight": (100, 64), "output.weight": (100, 64)}
    return config_from_gguf(Metadata(Path("m.gguf"), None, metadata), shapes | names, rope or {})  # type: ignore[arg-type]


def of(architecture: str, **more: Any) -> dict[str, Any]:
    """LLAMA's metadata under another architecture; `_` in further keys stands for `.` where needed."""
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA.items()}
    return renamed | {"general.architecture": architecture} | more


@pytest.mark.parametrize("name", ["llama_head_dim", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3"])
def test_keys_equal_hugging_face_s(tmp_path: Path, name: str) -> None:
    published = zoo.CASES[name].config
    weights = zoo.weights(published, zoo.golden(name).parameters)
    found = open_gguf(write_gguf(tmp_path / "m.gguf", published, weights)).config
    same = {key: found[key] for key in found if published.get(key) is not None}
    assert len(same) >= 12
    expected = {key: published[key] for key in same}
    # llama.cpp knows no mistral; gemma's files mean the tanh form by "gelu"; a window that is off is not stated
    expected |= {"model_type": "llama"} if name == "mistral" else {}
    expected |= {"hidden_act": "gelu_pytorch_tanh"} if name == "gemma" else {}
    assert same == expected


def test_numbers_are_in_their_shortest_form() -> None:
    assert config_of(LLAMA)["rms_norm_eps"] == 1e-5


def test_defaults_of_what_files_leave_out() -> None:
    config = config_of(LLAMA)
    assert (config["num_key_value_heads"], config["head_dim"], config["rope_theta"]) == (8, 8, 10000.0)
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (100, False)
    assert "rope_scaling" not in config and config["attention_bias"] is False


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    with pytest.raises(GGUFError, match=r"m\.gguf: metadata 'general\.architecture' is 'rwkv7'; known: llama, qwen2"):
        config_of(of("rwkv7"))


def test_wrong_or_missing_keys_are_named() -> None:
    without = {key: value for key, value in LLAMA.items() if "embedding" not in key}
    with pytest.raises(GGUFError, match=r"'llama\.embedding_length' is missing"):
        config_of(without)
    for bad in (0, -1, 2.5, True, "eight", np.array([8, 4])):
        with pytest.raises(GGUFError, match=r"'llama\.attention\.head_count' must be"):
            config_of(LLAMA | {"llama.attention.head_count": bad})
    with pytest.raises(GGUFError, match=r"'llama\.block_count' is 2, but the file holds tensors of 3 blocks"):
        config_of(LLAMA, blocks=3)
    with pytest.raises(GGUFError, match=r"'llama\.expert_count' is 8: mixtures of experts"):
        config_of(LLAMA | {"llama.expert_count": 8})
    with pytest.raises(GGUFError, match=r"value_length' differs from the key length 8"):
        config_of(LLAMA | {"llama.attention.value_length": 4})


def test_a_list_of_equal_numbers_is_one_number() -> None:
    assert config_of(LLAMA | {"llama.attention.head_count_kv": np.array([2, 2])})["num_key_value_heads"] == 2


def test_rope_scaling_kinds() -> None:
    kind, factor = "llama.rope.scaling.type", {"llama.rope.scaling.factor": 4.0}
    assert config_of(LLAMA | {kind: "linear"} | factor)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config_of(LLAMA | {"llama.rope.scale_linear": 2.0})["rope_scaling"]["factor"] == 2.0
    assert "rope_scaling" not in config_of(LLAMA | {kind: "none"})
    yarn = {kind: "yarn", "llama.rope.scaling.original_context_length": 128, "llama.rope.scaling.yarn_beta_fast": 16.0}
    assert config_of(LLAMA | yarn | factor)["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0
    }  # fmt: skip
    with pytest.raises(GGUFError, match=r"rope\.scaling\.factor' is missing"):
        config_of(LLAMA | {kind: "yarn"})
    for bad in ("spiral", 3, np.array([1, 2])):
        with pytest.raises(GGUFError, match=r"rope\.scaling\.type' is .*; known: none, linear, yarn, longrope"):
            config_of(LLAMA | {kind: bad})
    with pytest.raises(GGUFError, match="'longrope': the tensors rope_factors_long"):
        config_of(LLAMA | {kind: "longrope"})


def test_factors_in_the_file_are_used_as_such() -> None:
    scaled = config_of(LLAMA, rope={"rope_freqs.weight": [1.0, 1.0, 2.5, 8.0]})
    assert scaled["rope_scaling"] == {"rope_type": "factors", "factors": [1.0, 1.0, 2.5, 8.0]}
    assert "rope_scaling" not in config_of(LLAMA, rope={"rope_freqs.weight": [1.0] * 4})


def test_phi3_longrope_and_partial_rotary() -> None:
    stated = {
        "phi3.rope.dimension_count": 6,
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": float(np.float32(1.19)),
        "phi3.attention.sliding_window": 0,
    }
    factors = {"rope_factors_long.weight": [4.0] * 3, "rope_factors_short.weight": [1.0] * 3}
    config = config_of(of("phi3", **stated), rope=factors)
    assert config["partial_rotary_factor"] == 0.75 and config["sliding_window"] is None
    assert config["original_max_position_embeddings"] == 64
    assert config["rope_scaling"] == {
        "rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [4.0] * 3,
        "original_max_position_embeddings": 64, "attention_factor": 1.19,
    }  # fmt: skip


@pytest.mark.parametrize(("architecture", "layers", "scalar"), [("gemma2", 46, 8), ("gemma3", 62, 8)])
def test_the_27b_sizes_scale_attention_by_hidden_size(architecture: str, layers: int, scalar: int) -> None:
    stated = {f"{architecture}.attention.key_length": 16, f"{architecture}.block_count": layers}
    big = config_of(of(architecture, **stated), blocks=layers)
    assert big["query_pre_attn_scalar"] == scalar
    assert config_of(of(architecture, **stated | {f"{architecture}.block_count": 2}))["query_pre_attn_scalar"] == 16


def test_gemma_windows() -> None:
    full, local = "full_attention", "sliding_attention"
    eight = {"gemma3.block_count": 8, "gemma3.attention.sliding_window": 512}
    config = config_of(of("gemma3", **eight), blocks=8)
    assert config["layer_types"] == [local] * 5 + [full] + [local] * 2 and config["sliding_window"] == 512
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1_000_000.0, 10000.0)
    key = "gemma3.attention.sliding_window_pattern"
    assert config_of(of("gemma3", **eight, **{key: 2}), blocks=8)["layer_types"] == [local, full] * 4
    flags = np.array([True, False] * 3 + [True, True])
    assert config_of(of("gemma3", **eight, **{key: flags}), blocks=8)["layer_types"][-3:] == [full, local, local]
    assert config_of(of("gemma3"))["layer_types"] == [full] * 2
    second = config_of(of("gemma2"))
    assert second["layer_types"] == [local, full] and second["sliding_window"] == 4096
    assert (second["attn_logit_softcapping"], second["final_logit_softcapping"]) == (50.0, 30.0)


def test_a_window_in_a_llama_file_means_mistral() -> None:
    config = config_of(LLAMA | {"llama.attention.sliding_window": 128})
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 128)


def test_ends_of_turns_are_gathered() -> None:
    ids = {f"tokenizer.ggml.{name}_token_id": value for name, value in {"bos": 1, "eos": 2, "eot": 7, "eom": 2}.items()}
    config = config_of(LLAMA | ids)
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 7])
    with pytest.raises(GGUFError, match=r"'tokenizer\.ggml\.eos_token_id' must be of type int, not str"):
        config_of(LLAMA | {"tokenizer.ggml.eos_token_id": "</s>"})
