"""What a checkpoint is, from its headers: sizes, formats, context, memory per token, licence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from umlm.models import build, config_from_dict
from umlm.text.tokenizer import Tokenizer
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.json_file import read_optional
from umlm.weights.pypi import SOURCE

KV_BYTES = 2  # of one cached number: keys and values are kept in 16 bits unless asked otherwise


class FormatUse(NamedTuple):
    """How many tensors and values are stored in one format."""

    tensors: int
    parameters: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.parameters if self.parameters else 0.0


class Description(NamedTuple):
    """`context` in tokens; `kv_bytes_per_token` of one request before windows cut it off."""

    architecture: str
    parameters: int
    nbytes: int
    formats: dict[str, FormatUse]
    context: int
    kv_bytes_per_token: int
    tokenizer: str
    chat_template: bool
    license: str

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.parameters if self.parameters else 0.0


def describe(checkpoint: Checkpoint) -> Description:
    """Read no tensor; build the tokenizer, since only it knows whether it is whole."""
    config = config_from_dict(checkpoint.config)
    formats = _formats(checkpoint)
    tokenizer = checkpoint.load_tokenizer()
    return Description(
        architecture=config.model_type,
        parameters=sum(use.parameters for use in formats.values()),
        nbytes=sum(use.nbytes for use in formats.values()),
        formats=formats,
        context=config.context_length,
        kv_bytes_per_token=kv_bytes_per_token(checkpoint.config),
        tokenizer=_tokenizer(tokenizer),
        chat_template=tokenizer.chat_template is not None,
        license=_license(checkpoint),
    )


def kv_bytes_per_token(config: Mapping[str, Any], bytes_each: int = KV_BYTES) -> int:
    """Bytes of keys and values that all layers keep for one token."""
    specs = build(config_from_dict(config)).state_specs()
    return sum(spec.bytes_per_token(bytes_each) for spec in specs)


def _formats(checkpoint: Checkpoint) -> dict[str, FormatUse]:
    uses: dict[str, FormatUse] = {}
    for tensor in checkpoint.tensors.values():
        old = uses.get(str(tensor.format), FormatUse(0, 0, 0))
        parameters = old.parameters + math.prod(tensor.shape)
        uses[str(tensor.format)] = FormatUse(old.tensors + 1, parameters, old.nbytes + tensor.nbytes)
    return dict(sorted(uses.items(), key=lambda item: -item[1].nbytes))


def _tokenizer(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.vocab_size} tokens"


def _license(checkpoint: Checkpoint) -> str:
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    stated = checkpoint.metadata.get("general.license") or read_optional(folder / SOURCE).get("license")
    return str(stated or _license_of_card(folder / "README.md") or "not stated")


def _license_of_card(card: Path) -> str | None:
    """The `license:` line of a model card's YAML head."""
    if not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    head = lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []
    return next((line.partition(":")[2].strip() for line in head if line.startswith("license:")), None)
