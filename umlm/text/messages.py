"""Conversations in the form that chat templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from umlm.text.tool_schema import function_schema

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_REASONING = ("reasoning_content", "thinking", "reasoning")


class Chat(NamedTuple):
    """A conversation as plain JSON data, made anew: the caller's objects are never changed."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None


class Habits(NamedTuple):
    """What a template expects of its messages beyond the usual."""

    roles: frozenset[str] = frozenset(ROLES)
    developer: bool = False  # it knows the role "developer"
    parts: bool = False  # it reads content as a list of parts only
    argument_text: bool = False  # it writes tool-call arguments as text, not as an object
    none_content: bool = False  # it tells tool calls by content being none


def normalize_messages(messages: Sequence[Mapping[str, Any]], habits: Habits) -> list[dict[str, Any]]:
    """Messages with checked roles, content as a string (or parts, where the template wants them), arguments as
    objects, developer as system where the template has no such role, and adjacent system turns joined then.

    Raises ValueError naming the message, the value and the remedy.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ValueError("messages: a list of {'role': ..., 'content': ...} objects is needed")
    normalized: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        turn = _normalize(_plain(message, f"messages[{number}]"), f"messages[{number}]", habits)
        if _same_system(normalized, turn, messages[number - 1 : number + 1]):
            turn["content"] = normalized.pop()["content"] + "\n\n" + turn["content"]
        normalized.append(turn)
    if habits.parts:
        for turn in normalized:
            turn["content"] = [{"type": "text", "text": turn["content"]}] if turn["content"] else []
    return normalized


def normalize_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Tools as JSON schemas; Python functions are described by their signature and docstring. None for no tools."""
    if not tools:
        return None
    return [
        function_schema(tool) if callable(tool) and not isinstance(tool, type) else _object(tool, f"tools[{i}]")
        for i, tool in enumerate(tools)
    ]


def normalize_documents(documents: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Documents as plain objects, or None."""
    if documents is None:
        return None
    return [_object(document, f"documents[{i}]") for i, document in enumerate(documents)]


def _normalize(message: Any, where: str, habits: Habits) -> dict[str, Any]:
    if not isinstance(message, dict) or "role" not in message:
        raise ValueError(f"{where}: an object with 'role' and 'content' is needed, not {message!r}")
    role = message["role"]
    if role not in habits.roles:
        raise ValueError(f"{where}: unknown role {role!r}; known: {', '.join(sorted(habits.roles))}")
    turn = {key: value for key, value in message.items() if value is not None}
    turn["role"] = "system" if role == "developer" and not habits.developer else role
    turn["content"] = _content_text(message.get("content"), where)
    if turn.get("tool_calls"):
        turn["tool_calls"] = [_tool_call(call, where, habits) for call in turn["tool_calls"]]
        if habits.none_content and not turn["content"]:
            turn["content"] = None
    return _with_reasoning(turn)


def _same_system(before: list[dict[str, Any]], turn: dict[str, Any], originals: Sequence[Any]) -> bool:
    """Whether a turn and the one before it are system turns only because a developer turn became one."""
    renamed = any(_plain(message, "messages")["role"] == "developer" for message in originals)
    return bool(before) and renamed and turn["role"] == before[-1]["role"] == "system"


def _with_reasoning(turn: dict[str, Any]) -> dict[str, Any]:
    """Reasoning under the two names that templates read (as transformers does)."""
    text = next((turn[name] for name in _REASONING if name in turn), None)
    return turn if text is None else {"thinking": text, **turn, "reasoning_content": text}


def _content_text(content: Any, where: str) -> str:
    """Content as one string: None is empty, text parts are joined in order."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{where}: content is a {type(content).__name__}; a string or a list of text parts is needed")
    return "".join(_part_text(part, where) for part in content)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"{where}: content part of type {kind!r} is not supported; this model reads text parts only")
    return part["text"]


def _tool_call(call: Any, where: str, habits: Habits) -> dict[str, Any]:
    """A tool call whose arguments have the form that the template expects."""
    if not isinstance(call, dict):
        raise ValueError(f"{where}: a tool call must be an object, not {call!r}")
    call = {key: value for key, value in call.items() if value is not None}
    holder = call.get("function", call)
    if not isinstance(holder, dict) or not isinstance(holder.get("name"), str):
        raise ValueError(f"{where}: a tool call needs a function with a name")
    arguments = _arguments(holder.get("arguments"), f"{where}: tool call {holder['name']!r}")
    holder = {**holder, "arguments": json.dumps(arguments, ensure_ascii=False) if habits.argument_text else arguments}
    return {**call, "function": holder} if "function" in call else holder


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            raise ValueError(f"{where}: arguments {arguments!r} are not JSON; send a JSON object") from None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise ValueError(f"{where}: arguments must be a JSON object, not {arguments!r}")
    return arguments


def _object(value: Any, where: str) -> dict[str, Any]:
    value = _plain(value, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a JSON object is needed, not {value!r}")
    return value


def _plain(value: Any, where: str) -> Any:
    """A copy in plain JSON types: templates are foreign code and get no object with methods of its own."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if callable(getattr(value, "model_dump", None)):  # pydantic models, as the OpenAI client returns them
        return _plain(value.model_dump(), where)
    raise ValueError(f"{where}: a {type(value).__name__} cannot go into a prompt; use plain JSON data")
