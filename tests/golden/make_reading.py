"""Make tests/golden/reading.npz: log-probabilities and pooled states that transformers gives for the default model.

    python tests/golden/make_reading.py

Needs the `parity` extra. The weights are those of the GGUF file, dequantized to float32 by the gguf package. Per case
of tests/data/real-models.json with model "smol": logprobs float64 [T - 1] of tokens 1 .. T - 1, and float32 [hidden]
mean, last and cls of the last hidden state.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from umlm.weights.hub import DEFAULT_MODEL, resolve

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HERE = Path(__file__).parent
CASES = json.loads((HERE.parent / "data" / "real-models.json").read_text(encoding="utf-8"))["cases"]


def reading(model: torch.nn.Module, ids: list[int]) -> dict[str, np.ndarray]:
    found = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    logprobs = torch.log_softmax(found.logits[0, :-1].double(), dim=-1)
    states = found.hidden_states[-1][0].double()
    return {
        "logprobs": logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy(),
        "mean": states.mean(0).float().numpy(),
        "last": states[-1].float().numpy(),
        "cls": states[0].float().numpy(),
    }


def opened(file: Path) -> LlamaForCausalLM:
    reader = GGUFReader(file)
    model = LlamaForCausalLM(_config(reader)).eval()
    values = dict(_parameter(tensor, model.config) for tensor in reader.tensors)
    missing, extra = model.load_state_dict(values, strict=False)
    assert (missing, extra) == (["lm_head.weight"], []), (missing, extra)  # tied to the embedding
    return model


def _config(reader: GGUFReader) -> LlamaConfig:
    def value(key: str) -> float:
        return reader.fields[f"llama.{key}"].contents()

    return LlamaConfig(
        vocab_size=int(next(t.shape[1] for t in reader.tensors if t.name == "token_embd.weight")),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )


def _parameter(tensor: ReaderTensor, config: LlamaConfig) -> tuple[str, torch.Tensor]:
    """Its Hugging Face name, and its values; rows of q and k lie in pairs in the file, in halves there."""
    *block, kind, _ = tensor.name.split(".")
    array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind)
    if heads is not None:
        array = array.reshape(heads, -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{NAMES[kind]}.weight", torch.from_numpy(np.ascontiguousarray(array))


def main() -> None:
    torch.set_grad_enabled(False)
    (file,) = resolve(DEFAULT_MODEL).rglob("*.gguf")
    model = opened(file)
    arrays = {
        f"{case['name']}/{key}": value
        for case in CASES
        if case["model"] == "smol"
        for key, value in reading(model, case["ids"]).items()
    }
    np.savez_compressed(HERE / "reading.npz", **arrays)
    print({name: array.shape for name, array in arrays.items()})


if __name__ == "__main__":
    main()
