"""A tiny llama checkpoint with a real tokenizer and a chat template, whose answer is known by construction.

Attention and MLP add nothing, embeddings are one-hot, and the head maps each token of SENTENCE to the next one, the
last to the end token and every other token to the first. So whatever the prompt, greedy decoding says SENTENCE.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

SENTENCE = "One café, two foxes🦊 end."
WORDS = "One two foxes end system user assistant"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = "<|im_end|>"
CONTEXT = 4096
TEMPLATE = (
    "{%- if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% if mood is defined %}({{ mood }}){% endif %}{% endif -%}"
)


def tokenizer() -> Tokenizer:
    """Byte-level BPE that knows WORDS; other characters fall apart into bytes."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False, special_tokens=SPECIAL)
    made.train_from_iterator([WORDS], trainer)
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return made


def sentence_ids() -> list[int]:
    """The tokens of SENTENCE, without the end token."""
    return tokenizer().encode(SENTENCE).ids


def write_chat_model(folder: Path, *, sure: float = 12.0, template: bool = True) -> Path:
    """Write the checkpoint. sure: logit of the next token of the sentence, 0 for all others."""
    vocabulary = tokenizer()
    size, width = vocabulary.get_vocab_size(), 4 * (vocabulary.get_vocab_size() // 4 + 1)
    write_tokenizer(folder, template=template)
    _write_json(folder / "config.json", _config(size, width, vocabulary.token_to_id(END)))
    save_file(_weights(size, width, _successors(vocabulary), sure), folder / "model.safetensors")
    return folder


def spoil(folder: Path, token: int) -> None:
    """Make the logit of one token NaN, always."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][token] = np.nan
    save_file(weights, folder / "model.safetensors")


def write_tokenizer(folder: Path, *, template: bool = True) -> None:
    """Write the tokenizer's files into a model's folder, with or without the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    chat = {"chat_template": TEMPLATE} if template else {}
    _write_json(folder / "tokenizer_config.json", {"eos_token": END, **chat})


def _config(size: int, width: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": width,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": end,
    }


def _successors(vocabulary: Tokenizer) -> np.ndarray:
    """int [vocab], the token that follows each token."""
    chain = [*vocabulary.encode(SENTENCE).ids, vocabulary.token_to_id(END)]
    assert len(set(chain)) == len(chain), "a token occurs twice, so it has no single successor"
    following = np.full(vocabulary.get_vocab_size(), chain[0])
    following[chain[:-1]] = chain[1:]
    return following


def _weights(size: int, width: int, following: np.ndarray, sure: float) -> dict[str, np.ndarray]:
    head = np.zeros((size, width), np.float32)
    head[following, np.arange(size)] = sure / np.sqrt(width)  # the norm makes sqrt(width) of a one-hot's 1
    block = {
        "self_attn.q_proj": (16, width),
        "self_attn.k_proj": (8, width),
        "self_attn.v_proj": (8, width),
        "self_attn.o_proj": (width, 16),
        "mlp.gate_proj": (8, width),
        "mlp.up_proj": (8, width),
        "mlp.down_proj": (width, 8),
    }
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    return {
        "model.embed_tokens.weight": np.eye(size, width, dtype=np.float32),
        "lm_head.weight": head,
        **{f"model.{name}.weight": np.ones(width, np.float32) for name in norms},
        **{f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in block.items()},
    }


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
