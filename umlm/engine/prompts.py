"""The forms in which a prompt comes from Python: a text, a conversation, token ids, or many of these."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
import numpy as np

Message: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = Sequence[Message]
Prompt: TypeAlias = "str | Messages | Sequence[int]"
T = TypeVar("T")
ARRAYS = (np.ndarray, mx.array)
KINDS = "a text, messages, token ids, or a list of these"


def conversation(messages: str | Messages, system: str | None = None) -> list[Message]:
    """Messages from a text or messages, with a system message put in front."""
    turns: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def is_single(prompt: Any) -> bool:
    """A text, a conversation or token ids; else it is a list of these."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, (Sequence, *ARRAYS)):
        raise ValueError(f"the prompt must be {KINDS}, not {reprlib.repr(prompt)}")
    if not len(prompt):
        raise ValueError(f"the prompt is empty; give {KINDS}")
    return prompt.ndim == 1 if isinstance(prompt, ARRAYS) else not isinstance(prompt[0], (str, Sequence, *ARRAYS))


def is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def token_ids(prompt: Any) -> list[int]:
    """A sequence or array of integers as a list; ValueError for anything else."""
    ids = np.asarray(prompt).tolist() if isinstance(prompt, ARRAYS) else prompt
    if not isinstance(ids, Sequence) or not all(isinstance(token, Integral) for token in ids):
        raise ValueError(f"a prompt must be a text, messages or token ids, not {reprlib.repr(prompt)}")
    return list(ids)


def each(function: Callable[[Any], T], prompts: Sequence[Any]) -> Iterator[T]:
    """function(prompt) of every prompt; its ValueError says which one of many it is about, from 0 on."""
    for index, prompt in enumerate(prompts):
        try:
            yield function(prompt)
        except ValueError as error:
            where = f"prompt {index} of {len(prompts)}: " if len(prompts) > 1 else ""
            raise ValueError(f"{where}{error}") from None
