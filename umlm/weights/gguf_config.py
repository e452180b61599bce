"""GGUF metadata as the keys of Hugging Face's config.json.

Sources: the GGUF specification's keys, llama.cpp's public converter (whose inverse this is) and, for what files
leave out, the constants that llama.cpp takes by architecture and layer count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from umlm.weights.gguf_metadata import GGUFError, Metadata
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

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def get(self, key: str) -> Any:
        """A value of any kind, or None; a list of equal numbers counts as one number."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = value[0].item()
        return _shortest(value)

    def number(self, key: str, default: float | None = None) -> Any:
        """A finite number, which must be there unless there is a default."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            raise self.error(key, "is missing" if value is None else f"must be a number, not {value!r}")
        return value

    def optional(self, key: str) -> Any:
        """A finite number, or None where the key is missing."""
        return None if self.get(key) is None else self.number(key)

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of `least` or more, which must be there unless there is a default."""
        value = self.number(key, default)
        if not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of {least} or more, not {value!r}")
        return value

    def error(self, key: str, message: str) -> GGUFError:
        return self.metadata.error(f"metadata '{self.architecture}.{key}' {message}")


def _shortest(value: Any) -> Any:
    """float32 metadata in its shortest form, 1e-05 for 9.999999747378752e-06, as config.json has it."""
    return float(str(np.float32(value))) if isinstance(value, float) and abs(value) < 3e38 else value


def architecture_of(metadata: Metadata) -> str:
    """general.architecture, checked against those we know."""
    name = metadata.typed("general.architecture", str)
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise metadata.error(f"metadata 'general.architecture' is {name!r}; known: {known}")
    return name


def config_from_gguf(
    metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], rope_tensors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """The config of a model.

    shapes        of all tensors, by GGUF name, rows first
    rope_tensors  the values of rope_freqs.weight and rope_factors_*.weight, where there are any
    Raises GGUFError for an unknown architecture, and for missing or wrong keys, naming them.
    """
    architecture = architecture_of(metadata)
    keys = _Keys(metadata, architecture)
    if keys.get("expert_count"):
        raise keys.error("expert_count", f"is {keys.get('expert_count')}: mixtures of experts are not supported")
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture].model_type}
    config |= {name: keys.size(key) for key, name in SIZES.items()}
    _check_blocks(keys, config["num_hidden_layers"], shapes)
    config |= _heads(keys, config)
    config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    config["vocab_size"] = _vocab_size(keys, shapes)
    config["tie_word_embeddings"] = "output.weight" not in shapes
    config |= _rope(keys, config, rope_tensors) | _token_ids(metadata)
    config |= _biases(shapes) | _family(keys, config)
    return config


def _check_blocks(keys: _Keys, layers: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The stated number of blocks is in the file: nothing is made by a number alone."""
    found = len({name.split(".")[1] for name in shapes if name.startswith("blk.")})
    if found != layers:
        raise keys.error("block_count", f"is {layers}, but the file holds tensors of {found} blocks")


def _heads(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = keys.size("attention.key_length", config["hidden_size"] // heads)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise keys.error("attention.value_length", f"differs from the key length {head_dim}: not supported")
    return {"num_key_value_heads": keys.size("attention.head_count_kv", heads), "head_dim": head_dim}


def _vocab_size(keys: _Keys, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the embedding: files may have more rows than tokens, or fewer than metadata says."""
    if "token_embd.weight" in shapes:
        return shapes["token_embd.weight"][0]
    return keys.size("vocab_size", len(keys.metadata.typed("tokenizer.ggml.tokens", list) or ()))


def _token_ids(metadata: Metadata) -> dict[str, Any]:
    """bos, eos and padding; several ends of a turn become a list."""
    key = "tokenizer.ggml.{}_token_id"
    found: dict[str, Any] = {name: metadata.typed(key.format(part), int) for part, name in TOKEN_IDS.items()}
    ends = [metadata.typed(key.format(part), int) for part in ("eos", "eot", "eom")]
    several = list(dict.fromkeys(token for token in ends if token is not None))
    if len(several) > 1:
        found["eos_token_id"] = several
    return {name: value for name, value in found.items() if value is not None}


def _biases(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in shapes, "mlp_bias": "blk.0.ffn_up.bias" in shapes}


def _rope(keys: _Keys, config: Mapping[str, Any], tensors: Mapping[str, list[float]]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0)}
    dims = keys.size("rope.dimension_count", config["head_dim"])
    if dims != config["head_dim"]:
        rope["partial_rotary_factor"] = dims / config["head_dim"]
    original = keys.optional("rope.scaling.original_context_length")
    scaling = _rope_scaling(keys, tensors, original)
    found = rope | {"original_max_position_embeddings": original, "rope_scaling": scaling}
    return {key: value for key, value in found.items() if value is not None}


def _rope_scaling(keys: _Keys, tensors: Mapping[str, list[float]], original: int | None) -> dict[str, Any] | None:
    """rope_scaling, or None. Factors of llama3 scaling stand in the file as numbers: they are used as such."""
    kind = keys.get("rope.scaling.type")
    if ROPE_LONG in tensors and ROPE_SHORT in tensors:
        return _longrope(keys, tensors, original)
    if ROPE_FREQS in tensors:
        factors = tensors[ROPE_FREQS]
        return None if set(factors) == {1.0} else {"rope_type": "factors", "factors": factors}
    if isinstance(kind, str) and kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
        return scaling if kind == "linear" else scaling | _yarn(keys, original)
    if isinstance(kind, str) and kind == "longrope":
        raise keys.error("rope.scaling.type", f"is 'longrope': the tensors {ROPE_LONG} and {ROPE_SHORT} are missing")
    if kind is not None and (not isinstance(kind, str) or kind != "none"):
        raise keys.error("rope.scaling.type", f"is {kind!r}; known: none, linear, yarn, longrope")
    # Files older than the type key state the linear factor alone.
    factor = keys.number("rope.scale_linear", 1.0)
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None


def _longrope(keys: _Keys, tensors: Mapping[str, list[float]], original: int | None) -> dict[str, Any]:
    found = {
        "rope_type": "longrope",
        "short_factor": tensors[ROPE_SHORT],
        "long_factor": tensors[ROPE_LONG],
        "original_max_position_embeddings": original,
        "attention_factor": keys.optional("rope.scaling.attn_factor"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _yarn(keys: _Keys, original: int | None) -> dict[str, Any]:
    found = {"original_max_position_embeddings": original} | {
        name: keys.optional(f"rope.scaling.yarn_{key}")
        for key, name in {"attn_factor": "attention_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}.items()
    }
    return {key: value for key, value in found.items() if value is not None}


def _family(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """What one architecture has beyond the others."""
    window = keys.size("attention.sliding_window", 0, least=0) or None
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
        found[key] = cap if keys.get(key) is None else keys.number(key)
    if architecture == "gemma3":
        found["rope_theta"] = keys.number("rope.freq_base", 1_000_000.0)
        found["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    return found


def _layer_types(keys: _Keys, layers: int, *, windowed: bool) -> list[str]:
    """The kind of each layer: a period, or a flag per layer (true for a window)."""
    pattern = keys.metadata.get(f"{keys.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        flags = [bool(flag) for flag in pattern]
    else:
        period = keys.size("attention.sliding_window_pattern", GEMMA_PERIOD[keys.architecture], least=0)
        flags = [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]
    return ["sliding_attention" if windowed and flag else "full_attention" for flag in flags]
