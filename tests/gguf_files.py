"""Writes GGUF files of tiny models with the `gguf` package, in the layout of the public converter.

Names come from gguf's own TensorNameMap; q and k rows of llama models are permuted, norm weights of gemma
models have one added, constants of rope scaling become tensors or metadata. Nothing here uses umlm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    *,
    type_of: Callable[[str], str] = lambda name: "F32",
    blocks: Mapping[str, tuple[str, np.ndarray]] | None = None,
    vocabulary: bool = False,
    metadata: Mapping[str, Any] | None = None,
    tensors_per_file: int = 0,
) -> Path:
    """Writes Hugging Face weights as a GGUF file; returns its path (of part 1 for a split set).

    type_of           ggml type of a matrix by its Hugging Face name, of those that gguf can quantize
    blocks            ready-made (ggml type, uint8 [rows, row bytes]) by Hugging Face name, written as they are
    vocabulary        add a byte-level BPE tokenizer; vocab_size must be 258 or more
    metadata          further keys: str, int, float, bool, or lists
    tensors_per_file  split into files of so many tensors
    """
    arch = ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=tensors_per_file)
    _add_config(writer, config)
    _add_rope(writer, config)
    if vocabulary:
        add_byte_vocabulary(writer, config["vocab_size"])
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, value in weights.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, f"the gguf package has no name for {name}"
        _add_tensor(writer, stored, _layout(config, name, value), type_of(name))
    for name, (kind, data) in (blocks or {}).items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(stored, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def kv_heads(config: Mapping[str, Any]) -> int:
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama files have them: the two halves of a head interleaved."""
    split = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


def _layout(config: Mapping[str, Any], name: str, value: np.ndarray) -> np.ndarray:
    if config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
        return value + 1
    if config["model_type"] in ("llama", "mistral"):
        for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", kv_heads(config))):
            if f".{part}." in name:
                return permuted(value, heads)
    return value


def _add_tensor(writer: GGUFWriter, name: str, value: np.ndarray, kind: str) -> None:
    if value.ndim < 2 or kind == "F32":
        writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
    else:
        data = gguf.quantize(np.ascontiguousarray(value), GGMLQuantizationType[kind])
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])


def _add_config(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] in ("llama", "mistral"):
        writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    _add_family(writer, config)


def _add_family(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    if config["model_type"] in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "phi3":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1.0)))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])


def _add_rope(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if "rope_theta" in config:
        writer.add_rope_freq_base(config["rope_theta"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config, scaling))
    elif kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
        _add_yarn(writer, scaling)
    elif kind == "longrope":
        _add_longrope(writer, config, scaling)


def _add_yarn(writer: GGUFWriter, scaling: Mapping[str, Any]) -> None:
    adders = {
        "original_max_position_embeddings": writer.add_rope_scaling_orig_ctx_len,
        "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
        "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
        "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
    }
    for key, add in adders.items():
        if scaling.get(key) is not None:
            add(scaling[key])


def _add_longrope(writer: GGUFWriter, config: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    original = config["original_max_position_embeddings"]
    stretch = config["max_position_embeddings"] / original
    factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
    writer.add_rope_scaling_attn_factors(factor)
    for kind in ("long", "short"):
        values = np.array(scaling[f"{kind}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", values)


def _llama3_factors(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> np.ndarray:
    """What each inverse frequency is divided by: arXiv:2407.21783's smooth scaling, float32 [head_dim / 2]."""
    dims = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = config["rope_theta"] ** -(np.arange(0, dims, 2) / dims)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def add_byte_vocabulary(writer: GGUFWriter, vocab_size: int) -> None:
    """A GPT-2 style vocabulary: 256 bytes, one merge, an end token, and padding up to vocab_size."""
    tokens = [_byte_letter(byte) for byte in range(256)] + ["th", "<|end|>"]
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL]
    padding = range(258, vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + [f"[PAD{index}]" for index in padding])
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED for _ in padding])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def _byte_letter(byte: int) -> str:
    """GPT-2's printable letter for a byte: itself where it is printable, else from 256 on in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))
