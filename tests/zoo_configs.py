"""The tiny configs of zoo.py: for each architecture its published keys, shrunk, and one case per switch."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN2: Config = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
QWEN3: Config = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 40,
    "head_dim": 16,
    "attention_bias": False,
    "rope_scaling": None,
    "sliding_window": None,
}
GEMMA: Config = {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "vocab_size": 149,
    "hidden_size": 36,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
GEMMA2: Config = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "vocab_size": 149,
    "hidden_size": 36,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "query_pre_attn_scalar": 12,
    "sliding_window": 8,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: Config = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 149,
    "hidden_size": 36,
    "intermediate_size": 56,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
}
PHI3: Config = LLAMA | {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "num_key_value_heads": 4,
    "original_max_position_embeddings": 64,
    "rope_scaling": None,
    "sliding_window": 2047,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}

YARN: Config = {"factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3: Config = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}
SHORT = [1.0, 1.05, 1.1, 1.2, 1.3, 1.5]
LONG = [1.0, 1.6, 2.5, 4.0, 7.0, 12.0]
LONGROPE: Config = {"max_position_embeddings": 96, "original_max_position_embeddings": 24}
LOCAL_GLOBAL_LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]


def _longrope(kind: str, short: list[float] = SHORT, long: list[float] = LONG) -> Config:
    return {"type": kind, "short_factor": short, "long_factor": long}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"config": LLAMA},
    "llama_tied": {
        "config": {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rope_theta")}
        | {"tie_word_embeddings": True, "head_dim": None, "rope_scaling": None}
    },
    "llama_biases": {
        "config": LLAMA | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    },
    "llama_head_dim": {"config": LLAMA | {"head_dim": 20}},
    "llama_linear": {
        "config": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
        "without": {"rope_scaling": None},
    },
    "llama_dynamic": {
        "config": LLAMA | {"max_position_embeddings": 24, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "num_tokens": 60,
        "prompt": 20,
        "without": {"rope_scaling": None},
    },
    "llama_llama3": {
        "config": LLAMA | {"rope_theta": 500000.0, "max_position_embeddings": 256, "rope_scaling": LLAMA3},
        "num_tokens": 70,
        "without": {"rope_scaling": None},
    },
    "llama_yarn": {
        "config": LLAMA | {"rope_scaling": YARN | {"rope_type": "yarn"}},
        "without": {"rope_scaling": None},
    },
    "llama_yarn_mscale": {
        "config": LLAMA
        | {
            "rope_scaling": YARN
            | {"type": "yarn", "mscale": 1.5, "mscale_all_dim": 0.5, "beta_fast": 3.0, "beta_slow": 0.4}
            | {"truncate": False}
        },
        "without": {"rope_scaling": YARN | {"type": "yarn"}},
    },
    "llama_yarn_attention_factor": {
        "config": LLAMA | {"rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 1.4}},
        "without": {"rope_scaling": YARN | {"rope_type": "yarn"}},
    },
    "llama_longrope": {
        "config": LLAMA
        | {"max_position_embeddings": 96}
        | {"rope_scaling": _longrope("longrope") | {"original_max_position_embeddings": 24}},
        "without": {"rope_scaling": None},
    },
    "llama_rope_parameters": {
        "config": {k: v for k, v in LLAMA.items() if k != "rope_theta"}
        | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 300.0}},
        "without": {"rope_parameters": YARN | {"rope_type": "yarn"}},
    },
    "mistral": {"config": MISTRAL | {"hidden_size": 60, "head_dim": 16, "rope_theta": 1000000.0}},
    "mistral_window": {
        "config": MISTRAL | {"sliding_window": 7, "tie_word_embeddings": True},
        "num_tokens": 50,
        "without": {"sliding_window": None},
    },
    "mistral_yarn": {
        "config": MISTRAL | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 10000.0}},
        "without": {"rope_parameters": None},
    },
    "qwen2": {"config": QWEN2 | {"tie_word_embeddings": True, "sliding_window": 8, "max_window_layers": 1}},
    "qwen2_window": {
        "config": QWEN2 | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
        "without": {"use_sliding_window": False},
    },
    "qwen2_layer_types": {
        "config": QWEN2
        | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
        | {"layer_types": LOCAL_GLOBAL_LOCAL},
        "without": {"layer_types": None},
    },
    "qwen2_yarn": {
        "config": QWEN2 | {"rope_theta": 10000.0, "rope_scaling": YARN | {"type": "yarn"}},
        "without": {"rope_scaling": None},
    },
    "qwen2_dynamic": {
        "config": QWEN2
        | {"rope_theta": 100.0, "max_position_embeddings": 16}
        | {"rope_scaling": {"type": "dynamic", "factor": 3.0}},
        "num_tokens": 50,
        "prompt": 30,
        "without": {"rope_scaling": None},
    },
    "qwen3": {"config": QWEN3 | {"tie_word_embeddings": True}},
    "qwen3_window": {
        "config": QWEN3
        | {"attention_bias": True, "num_key_value_heads": 1}
        | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "without": {"use_sliding_window": False},
    },
    "qwen3_yarn": {
        "config": QWEN3 | {"rope_theta": 10000.0, "rope_scaling": YARN | {"rope_type": "yarn"}},
        "without": {"rope_scaling": None},
    },
    "gemma": {"config": GEMMA, "without": {"hidden_act": "silu"}},
    "gemma_untied": {
        "config": GEMMA
        | {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 3}
        | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None}
        | {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "without": {"rope_scaling": None},
    },
    "gemma2": {"config": GEMMA2, "without": {"sliding_window": 4}},
    "gemma2_caps": {
        "config": GEMMA2
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 7}
        | {"layer_types": [*LOCAL_GLOBAL_LOCAL, "full_attention"], "attention_bias": True},
        "without": {"attn_logit_softcapping": 50.0},
    },
    "gemma2_no_caps": {
        "config": GEMMA2
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "hidden_activation": "gelu"}
        | {"layer_types": ["full_attention"] * 3 + ["sliding_attention"], "tie_word_embeddings": False},
        "without": {"layer_types": None},
    },
    "gemma3": {"config": GEMMA3, "without": {"sliding_window_pattern": 3}},
    "gemma3_linear": {
        "config": GEMMA3
        | {"num_hidden_layers": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 9}
        | {"rope_theta": 20000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "without": {"rope_scaling": None},
    },
    "gemma3_layer_types": {
        "config": {k: v for k, v in GEMMA3.items() if "rope" not in k and k != "sliding_window_pattern"}
        | {"num_hidden_layers": 3, "layer_types": LOCAL_GLOBAL_LOCAL, "final_logit_softcapping": 4.0}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
        "without": {"rope_parameters": None},
    },
    "gemma3_wrapper": {
        "config": {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "mm_tokens_per_image": 4,
            "boi_token_index": 145,
            "eoi_token_index": 146,
            "image_token_index": 148,
            "eos_token_id": [1, 106],
            "text_config": GEMMA3 | {"num_hidden_layers": 6, "num_key_value_heads": 2},
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
            },
        },
    },
    "phi3": {"config": PHI3},
    "phi3_window": {
        "config": PHI3 | {"sliding_window": 9, "num_key_value_heads": 2},
        "without": {"sliding_window": None},
    },
    "phi3_short": {
        "config": PHI3 | LONGROPE | {"rope_scaling": _longrope("longrope"), "sliding_window": None},
        "num_tokens": 24,
        "without": {"rope_scaling": None},
    },
    "phi3_long": {
        "config": PHI3 | LONGROPE | {"rope_scaling": _longrope("longrope"), "sliding_window": 40},
        "num_tokens": 60,
        "prompt": 20,
        "without": {"rope_scaling": _longrope("longrope", SHORT, SHORT)},
    },
    "phi4_mini": {
        "config": PHI3
        | LONGROPE
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}
        | {"num_attention_heads": 3, "num_key_value_heads": 1}
        | {"rope_scaling": _longrope("longrope"), "sliding_window": 262144},
        "num_tokens": 50,
        "prompt": 30,
        "without": {"rope_scaling": None},
    },
}
