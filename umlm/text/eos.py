"""Which ids end generation."""

from collections.abc import Collection, Iterable
from typing import Any

from umlm.text.backend import Backend

# Tokens that close a turn in published chat formats. Models are often shipped with the base model's EOS only.
END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|eot|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<|call|>",
    "<｜end▁of▁sentence｜>", "[|endofturn|]", "<end_of_utterance>",
)  # fmt: skip


def flatten_ids(*values: Any) -> set[int]:
    """All ids in values that may each be an int, a list of ints, or None. Raises ValueError for others."""
    ids: set[int] = set()
    for value in values:
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is None:
                continue
            if isinstance(item, bool) or not isinstance(item, int):
                raise ValueError(f"eos_token_id: {value!r} is not an id or a list of ids; correct the configuration")
            ids.add(item)
    return ids


def end_of_turn_ids(backend: Backend, template_sources: Iterable[str]) -> Collection[int]:
    """Ids of well-known end-of-turn tokens that are special here and that the chat template writes."""
    text = "".join(template_sources)
    control = {token.text: token.id for token in backend.control}
    # In the harmony format <|end|> closes one message of several in a turn.
    names = [name for name in END_OF_TURN if not (name == "<|end|>" and "<|channel|>" in control)]
    return {control[name] for name in names if name in control and name in text}
