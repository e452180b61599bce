"""Model configurations: the keys of Hugging Face's config.json, checked, with the family's defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from umlm.kernels import ACTIVATIONS
from umlm.nn import RopeParameters
from umlm.options import check_fields

Config = TypeVar("Config", bound="ModelConfig")

FULL, SLIDING = "full_attention", "sliding_attention"
NULLABLE = {"nullable": True}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every decoder has. Families override the defaults and add their own keys.

    A key that is null counts as absent, unless its field is marked nullable.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    original_max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    partial_rotary_factor: float = 1.0

    LAYER_TYPES: ClassVar[tuple[str, ...]] = (FULL, SLIDING)

    @classmethod
    def from_mapping(cls: type[Config], mapping: Mapping[str, Any]) -> Config:
        """Build from the keys of config.json; keys that the family does not know are ignored."""
        values: dict[str, Any] = {}
        for spec in fields(cls):
            value = mapping.get(spec.name)
            if value is not None or (spec.name in mapping and spec.metadata.get("nullable")):
                values[spec.name] = tuple(value) if isinstance(value, list) else value
            elif spec.default is MISSING:
                raise ValueError(
                    f"config.json lacks {spec.name!r}, which model_type {mapping.get('model_type')!r} needs"
                )
        return cls(**values)

    def __post_init__(self) -> None:
        check_fields(self, at_least=AT_LEAST)
        self._fill("num_key_value_heads", self.num_attention_heads)
        self._fill("head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"hidden_act {self.hidden_act!r} is unknown; known: {known}")
        self._fill("layer_types", tuple(self.default_layer_types()))
        self._check_layer_types()
        for layer_type in set(self.types):
            self.rope(layer_type)

    @property
    def context_length(self) -> int:
        """Tokens that the model was made for; yarn extends the original context by its factor."""
        ropes = [self.rope(layer_type) for layer_type in set(self.types)]
        reach = [int(r.original_max_position_embeddings * r.extension) for r in ropes if r.rope_type == "yarn"]
        return max([self.max_position_embeddings, *reach])

    @property
    def kv_heads(self) -> int:
        assert self.num_key_value_heads is not None
        return self.num_key_value_heads

    @property
    def size_of_head(self) -> int:
        assert self.head_dim is not None
        return self.head_dim

    @property
    def types(self) -> tuple[str, ...]:
        assert self.layer_types is not None
        return self.layer_types

    @property
    def length_kind(self) -> Callable[[int], tuple[int, ...]] | None:
        """What of a token's length its keys depend on, for those who keep keys; None: nothing."""
        ropes = [self.rope(layer_type) for layer_type in sorted(set(self.types))]
        ropes = [rope for rope in ropes if rope.goes_by_length]
        return (lambda length: tuple(rope.length_kind(length) for rope in ropes)) if ropes else None

    def context_parity(self, block_parameters: int) -> int | None:
        """Tokens of context at which attending costs a token as much as so many parameters; None without attention.

        A parameter is one multiply-add, a token of context two per number of a head, in layers that see all of it.
        """
        full_layers = sum(self.window(layer) is None for layer in range(self.num_hidden_layers))
        each = 2 * full_layers * self.num_attention_heads * self.size_of_head
        return max(1, block_parameters // each) if each else None

    def default_layer_types(self) -> list[str]:
        """The kind of each layer where config.json does not list them."""
        return [FULL] * self.num_hidden_layers

    def window(self, layer: int) -> int | None:
        """Tokens that a query of this layer sees; None for all before it."""
        return self.sliding_window or None if self.types[layer] == SLIDING else None

    def rope(self, layer_type: str) -> RopeParameters:
        """The rotary embedding of layers of this type, from the old keys or the new ones."""
        values = {"rope_theta": self.rope_theta, "partial_rotary_factor": self.partial_rotary_factor}
        values |= self.rope_dict(layer_type)
        return rope_parameters(self, values)

    def rope_dict(self, layer_type: str) -> dict[str, Any]:
        """What config.json says of rope for this layer type: rope_scaling, or rope_parameters (per type or for all)."""
        found = self.rope_scaling or self.rope_parameters or {}
        if layer_type in found:
            found = found[layer_type]
        if not isinstance(found, Mapping):
            raise ValueError(f"the rope parameters of {layer_type} must be a mapping, not {found!r}")
        return {key: value for key, value in found.items() if value is not None}

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check_layer_types(self) -> None:
        if len(self.types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.types)} entries for {self.num_hidden_layers} layers")
        for kind in self.types:
            if kind not in self.LAYER_TYPES:
                known = ", ".join(self.LAYER_TYPES)
                raise ValueError(f"layer type {kind!r} is not known to {self.model_type}; known: {known}")


# Numbers that may be 0: no window, windows from the first layer on.
AT_LEAST = {"sliding_window": 0, "max_window_layers": 0}
ROPE_ALIASES = {"su": "longrope", "mrope": "default"}
ROPE_KEYS = {spec.name for spec in fields(RopeParameters)}


def rope_parameters(config: ModelConfig, values: Mapping[str, Any]) -> RopeParameters:
    """RopeParameters from a config's rope keys; `type` is the old name of `rope_type`."""
    kind = values.get("rope_type", values.get("type", "default"))
    share = values["partial_rotary_factor"]
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ValueError(f"partial_rotary_factor must be greater than 0 and at most 1, not {share!r}")
    dims = int(config.size_of_head * share)
    original = config.original_max_position_embeddings or values.get("original_max_position_embeddings")
    chosen = {key: value for key, value in values.items() if key in ROPE_KEYS}
    for key in ("beta_fast", "beta_slow"):  # 0 stands for the default, as in transformers
        if chosen.get(key) == 0:
            del chosen[key]
    chosen |= {
        "dims": dims,
        "rope_type": ROPE_ALIASES.get(str(kind), kind),
        "max_position_embeddings": config.max_position_embeddings,
        "original_max_position_embeddings": original or config.max_position_embeddings,
    }
    return RopeParameters(**chosen)


def nullable(default: Any) -> Any:
    """A field for which null in config.json means off, and absent means `default`."""
    return field(default=default, metadata=NULLABLE)
