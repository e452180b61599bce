"""Names and layouts of GGUF tensors against Hugging Face's parameters, both ways.

A GGUF tensor differs from the parameter it was made of in its name, in the order of q and k rows (llama: rotary
pairs lie side by side), and in the norm weights of the gemma family (stored with one added).
Sources: the GGUF specification's standardized tensor names, llama.cpp's public converter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

ROOT = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PRE_NORM = {"ffn_norm": "post_attention_layernorm"}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
# Tensors that hold constants of the rotary embedding: they become config keys or nothing.
ROPE_FREQS, ROPE_LONG, ROPE_SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROTARY = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd(\.weight)?")

_GGUF_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_HF_BLOCK = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture`.

    model_type  Hugging Face's name for it
    blocks      tensor names within a transformer block, GGUF -> Hugging Face
    interleaved q and k rows are stored with rotary pairs side by side
    norm_shift  what was added to the norm weights
    """

    model_type: str
    blocks: dict[str, str]
    interleaved: bool = False
    norm_shift: float = 0.0


ARCHITECTURES = {
    "llama": Architecture("llama", ATTENTION | MLP | PRE_NORM, interleaved=True),
    "qwen2": Architecture("qwen2", ATTENTION | MLP | PRE_NORM),
    "qwen3": Architecture("qwen3", ATTENTION | MLP | PRE_NORM | QK_NORM),
    "gemma": Architecture("gemma", ATTENTION | MLP | PRE_NORM, norm_shift=1.0),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | SANDWICH, norm_shift=1.0),
    "gemma3": Architecture("gemma3_text", ATTENTION | MLP | SANDWICH | QK_NORM, norm_shift=1.0),
    "phi3": Architecture("phi3", FUSED | PRE_NORM),
}


def hf_name(architecture: str, name: str) -> str | None:
    """The Hugging Face parameter of a GGUF tensor, or None where the architecture has no such tensor."""
    stem, _, suffix = name.rpartition(".")
    if stem in ROOT and suffix in ("weight", "bias"):
        return f"{ROOT[stem]}.{suffix}"
    match = _GGUF_BLOCK.fullmatch(name)
    part = ARCHITECTURES[architecture].blocks.get(match[2]) if match else None
    return f"model.layers.{match[1]}.{part}.{match[3]}" if match and part else None


def gguf_name(architecture: str, name: str) -> str | None:
    """The GGUF tensor of a Hugging Face parameter, or None where the architecture has no such parameter."""
    stem, _, suffix = name.rpartition(".")
    root = {hf: gguf for gguf, hf in ROOT.items()}
    if stem in root and suffix in ("weight", "bias"):
        return f"{root[stem]}.{suffix}"
    match = _HF_BLOCK.fullmatch(name)
    parts = {hf: gguf for gguf, hf in ARCHITECTURES[architecture].blocks.items()}
    part = parts.get(match[2]) if match else None
    return f"blk.{match[1]}.{part}.{match[3]}" if match and part else None


def row_order(architecture: str, name: str, rows: int, num_heads: int, num_kv_heads: int) -> np.ndarray | None:
    """Stored rows in Hugging Face's order, by parameter name: int [rows], or None where they are in order.

    Within a head of D rows the file has (0, D/2, 1, D/2 + 1, ...). `stored[row_order]` is the parameter, and
    `parameter[np.argsort(row_order)]` what is stored; whole rows move, so it works on quantized blocks too.
    """
    projection = re.search(r"\.self_attn\.([qk])_proj\.", name)
    if projection is None or not ARCHITECTURES[architecture].interleaved:
        return None
    heads = num_heads if projection[1] == "q" else num_kv_heads
    if rows % (2 * heads):
        raise ValueError(f"{name}: {rows} rows do not split into {heads} heads of rotary pairs")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(rows)


def norm_shift(architecture: str, name: str) -> float:
    """What the file added to this parameter (by its Hugging Face name)."""
    return ARCHITECTURES[architecture].norm_shift if name.endswith("norm.weight") else 0.0
