"""Tensor names of published checkpoints -> the names of the text model inside."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("umlm.weights")

# What a multimodal checkpoint puts before the text model's own names.
TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
)
TOWER = re.compile(
    r"(model\.)?(vision_tower|vision_model|vision_embedder|visual|vit|multi_modal_projector|mm_projector|connector"
    r"|patch_merger|image_newline|embed_vision|audio_tower|audio_model|audio_projector|embed_audio)\b.*"
)
TOWER_LAYER = re.compile(r"(.*?\.(?:layers?|blocks|resblocks))\.(\d+)\..*")


def text_names(names: Iterable[str], config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Map stored names to names of the text model; tensors of vision and audio towers are left out.

    Towers are announced with one logged line. A tower with fewer layers than the config states is an error,
    since then the download is not whole. Names without the leading `model.` (a bare base model) get it.
    """
    names = list(names)
    if not any(key in config for key in ("text_config", "vision_config", "audio_config")):
        return _with_base_prefix(names)
    towers = [name for name in names if TOWER.fullmatch(name)]
    _report_towers(towers, config, path)
    skipped = set(towers)
    return _with_base_prefix([name for name in names if name not in skipped])


def text_name(name: str) -> str:
    """One name without the prefix that a multimodal checkpoint gives its text model."""
    for prefix, replacement in TEXT_PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return name


def _with_base_prefix(names: list[str]) -> dict[str, str]:
    renamed = {name: text_name(name) for name in names}
    if "embed_tokens.weight" not in renamed.values():
        return renamed
    return {name: new if new.startswith("lm_head.") else f"model.{new}" for name, new in renamed.items()}


def _report_towers(towers: list[str], config: Mapping[str, Any], path: Path) -> None:
    if towers:
        _check_whole(towers, config, path)
        log.warning("%s: text only: %d tensors of vision or audio towers are skipped", path, len(towers))
    elif "vision_config" in config or "audio_config" in config:
        log.warning("%s: loaded as a text model; the config names towers, the files hold none", path)


def _check_whole(towers: list[str], config: Mapping[str, Any], path: Path) -> None:
    vision = config.get("vision_config")
    known = vision if isinstance(vision, Mapping) else {}
    stated = known.get("num_hidden_layers", known.get("depth"))
    layers: dict[str, set[str]] = {}
    for match in filter(None, map(TOWER_LAYER.fullmatch, towers)):
        if "audio" not in match[1]:
            layers.setdefault(match[1], set()).add(match[2])
    found = max(map(len, layers.values()), default=0)
    if isinstance(stated, int) and found < stated:
        raise ValueError(f"{path}: the vision tower has {found} of {stated} layers; download the model again")
