"""Which class serves a model_type, and what config.json must be turned into for it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from umlm.models.config import ModelConfig
from umlm.models.decoder import Decoder
from umlm.models.gemma import Gemma, Gemma2, Gemma3
from umlm.models.llama import Llama, Mistral
from umlm.models.phi3 import Phi3
from umlm.models.qwen import Qwen2, Qwen3

MODELS: dict[str, type[Decoder]] = {
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "gemma3_text": Gemma3,
    "llama": Llama,
    "mistral": Mistral,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
}


def config_from_dict(mapping: Mapping[str, Any]) -> ModelConfig:
    """Check the keys of a config.json and return them as the family's config.

    Multimodal files: the keys of `text_config` count, and the top level for what it leaves out.
    Raises ValueError naming the key, its value and what is known.
    """
    mapping = text_part(mapping)
    family = _family(mapping.get("model_type"))
    return family.Config.from_mapping(family.adapt(mapping))


def build(config: ModelConfig) -> Decoder:
    """The model of a config, its parameters lazy placeholders: nothing is allocated until weights are loaded."""
    return _family(config.model_type)(config)


def text_part(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config's keys for the language model: those of text_config, where there is one, before the top level's."""
    text = mapping.get("text_config")
    if not isinstance(text, Mapping):
        return mapping
    return {**mapping, **{key: value for key, value in text.items() if value is not None}}


def _family(model_type: Any) -> type[Decoder]:
    if isinstance(model_type, str) and model_type in MODELS:
        return MODELS[model_type]
    if model_type is None:
        raise ValueError("config.json has no model_type; add the one of the model's family")
    near = difflib.get_close_matches(str(model_type), MODELS, n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise ValueError(f"model_type {model_type!r} is not supported{hint}; known: {', '.join(sorted(MODELS))}")
