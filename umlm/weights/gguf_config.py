"""GGUF metadata as the keys of Hugging Face's config.json.

Sources: the GGUF specification's keys, llama.cpp's public converter (whose inverse this is) and, for what files
leave out, the constants that llama.cpp takes by architecture and layer count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from umlm.weights.gguf_metadata import GGUFError
from umlm.weights.gguf_names import ARCHITECTURES, ROPE_FREQS, ROPE_LONG, ROPE_SHORT

SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
TOKEN_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
# Every how many layers one sees the whole context, and the layer count of the one size whose attention scale
# comes from hidden_size / heads instead of head_dim (27B in both families).
GEMMA_PERIOD = {"gemma2": 2, "gemma3": 6}
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
GEMMA_CAPS: dict[str, dict[str, float | None]] = {
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
}


class _Keys:
    """Typed look-ups of `{architecture}.KEY`; errors name file and key."""

    def __init__(self, file: Path, metadata: Mapping[str, Any], architecture: str) -> None:
        self.file, self.metadata, self.architecture = file, metadata, architecture

    def get(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}")
        return default if value is None else _shortest(value)

    def number(self, key: str, default: Any = None) -> Any:
        """A number that must be there, unless there is a default; a list of equal numbers counts as one."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            what = "is missing" if value is None else f"is not one number: {value!r}"
            raise self.error(f"metadata '{self.architecture}.{key}' {what}")
        return value

    def error(self, message: str) -> GGUFError:
        return GGUFError(f"{self.file}: {message}")


def _shortest(value: Any) -> Any:
    """float32 metadata in its shortest form, 1e-05 for 9.999999747378752e-06, as config.json has it."""
    return float(str(np.float32(value))) if isinstance(value, float) and np.isfinite(value) else value


def architecture_of(file: Path, metadata: Mapping[str, Any]) -> str:
    """general.architecture, checked against those we know."""
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise GGUFError(f"{file}: metadata 'general.architecture' is {name!r}; known: {known}")
    return name


def config_from_gguf(
    file: Path,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_tensors: Mapping[str, list[float]],
) -> dict[str, Any]:
    """The config of the model in `file`.

    shapes        of all tensors, by GGUF name, rows first
    rope_tensors  the values of rope_freqs.weight and rope_factors_*.weight, where there are any
    Raises GGUFError for an unknown architecture and for missing keys, naming them.
    """
    architecture = architecture_of(file, metadata)
    keys = _Keys(file, metadata, architecture)
    _refuse_experts(keys)
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture].model_type}
    config |= {name: keys.number(key) for key, name in SIZES.items()}
    config |= _heads(keys, config)
    config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    config["vocab_size"] = _vocab_size(keys, shapes)
    config["tie_word_embeddings"] = "output.weight" not in shapes
    config |= _rope(keys, config, rope_tensors) | _token_ids(metadata)
    config |= _biases(shapes) | _family(keys, config)
    return config


def _refuse_experts(keys: _Keys) -> None:
    if keys.get("expert_count", 0):
        raise keys.error(f"{keys.architecture} with {keys.get('expert_count')} experts is not supported")


def _heads(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = keys.number("attention.key_length", config["hidden_size"] // max(heads, 1))
    if keys.number("attention.value_length", head_dim) != head_dim:
        raise keys.error("attention.value_length differs from attention.key_length, which is not supported")
    return {"num_key_value_heads": keys.number("attention.head_count_kv", heads), "head_dim": head_dim}


def _vocab_size(keys: _Keys, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the embedding: files may have more rows than tokens, or fewer than metadata says."""
    if "token_embd.weight" in shapes:
        return shapes["token_embd.weight"][0]
    return keys.number("vocab_size", len(keys.metadata.get("tokenizer.ggml.tokens", ())))


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in TOKEN_IDS.items()}
    turn_ends = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    eos = list(dict.fromkeys(value for value in turn_ends if value is not None))
    if len(eos) > 1:
        found["eos_token_id"] = eos
    return {name: value for name, value in found.items() if value is not None}


def _biases(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in shapes, "mlp_bias": "blk.0.ffn_up.bias" in shapes}


def _rope(keys: _Keys, config: Mapping[str, Any], tensors: Mapping[str, list[float]]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0)}
    dims = keys.number("rope.dimension_count", config["head_dim"])
    if dims != config["head_dim"]:
        rope["partial_rotary_factor"] = dims / config["head_dim"]
    original = keys.get("rope.scaling.original_context_length")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    scaling = _rope_scaling(keys, tensors, original)
    return rope | ({"rope_scaling": scaling} if scaling else {})


def _rope_scaling(keys: _Keys, tensors: Mapping[str, list[float]], original: int | None) -> dict[str, Any] | None:
    """rope_scaling, or None. Factors of llama3 scaling stand in the file as numbers: they are used as such."""
    kind = keys.get("rope.scaling.type", "none")
    if ROPE_LONG in tensors and ROPE_SHORT in tensors:
        return _longrope(keys, tensors, original)
    if ROPE_FREQS in tensors:
        factors = tensors[ROPE_FREQS]
        return None if set(factors) == {1.0} else {"rope_type": "factors", "factors": factors}
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(keys, original)
    if kind == "longrope":
        raise keys.error(f"rope scaling 'longrope' needs the tensors {ROPE_LONG} and {ROPE_SHORT}")
    if kind != "none":
        raise keys.error(
            f"metadata '{keys.architecture}.rope.scaling.type' is {kind!r}; known: none, linear, yarn, longrope"
        )
    # Files older than the type key say the linear factor alone.
    factor = keys.get("rope.scale_linear")
    return {"rope_type": "linear", "factor": factor} if factor and factor != 1.0 else None


def _longrope(keys: _Keys, tensors: Mapping[str, list[float]], original: int | None) -> dict[str, Any]:
    found = {
        "rope_type": "longrope",
        "short_factor": tensors[ROPE_SHORT],
        "long_factor": tensors[ROPE_LONG],
        "original_max_position_embeddings": original,
        "attention_factor": keys.get("rope.scaling.attn_factor"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _yarn(keys: _Keys, original: int | None) -> dict[str, Any]:
    found = {
        "rope_type": "yarn",
        "factor": keys.number("rope.scaling.factor"),
        "original_max_position_embeddings": original,
        "attention_factor": keys.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _family(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """What one architecture has beyond the others."""
    window = keys.get("attention.sliding_window") or None
    if keys.architecture in GEMMA_PERIOD:
        return _gemma(keys, config, window)
    if keys.architecture == "gemma":
        return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if keys.architecture == "phi3":
        return {"hidden_act": "silu", "sliding_window": window}
    if keys.architecture == "llama" and window:
        return {"hidden_act": "silu", "model_type": "mistral", "sliding_window": window}
    return {"hidden_act": "silu"}


def _gemma(keys: _Keys, config: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    """Gemma 2 and 3: windows by layer, capped logits (2), rope bases by kind of layer (3)."""
    architecture, layers = keys.architecture, config["num_hidden_layers"]
    by_heads = layers == GEMMA_27B_LAYERS[architecture]
    scalar = config["hidden_size"] // config["num_attention_heads"] if by_heads else config["head_dim"]
    found = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": window or 4096,
        "layer_types": _layer_types(keys, layers, windowed=bool(window) or architecture == "gemma2"),
    }
    for key, cap in GEMMA_CAPS[architecture].items():
        found[key] = keys.get(key, cap)
    if architecture == "gemma3":
        found["rope_theta"] = keys.number("rope.freq_base", 1_000_000.0)
        found["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    return found


def _layer_types(keys: _Keys, layers: int, *, windowed: bool) -> list[str]:
    """The kind of each layer: a period, or a flag per layer (true for a window)."""
    pattern = keys.get("attention.sliding_window_pattern", GEMMA_PERIOD[keys.architecture])
    if isinstance(pattern, np.ndarray):
        flags = [bool(flag) for flag in pattern]
    else:
        flags = [pattern == 0 or (layer + 1) % pattern != 0 for layer in range(layers)]
    return ["sliding_attention" if windowed and flag else "full_attention" for flag in flags]
