"""Python functions as tools: a JSON schema from signature and docstring.

The form is that of `transformers.utils.get_json_schema` (Google-style docstrings), which chat templates are tested
with.
"""

import inspect
import json
import re
import types
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_NAMES: dict[Any, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
    list: "array", tuple: "array", dict: "object",
}  # fmt: skip
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Examples?|Yields|Note|Notes):[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^()\n]*\))?:\s*(.*)$")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """{"type": "function", "function": {name, description, parameters, return?}} of a Python function.

    Every argument needs a type hint and a line under `Args:` in the docstring; `(choices: [...])` at its end becomes
    an enum. Raises ValueError naming the function and what is missing.
    """
    name = getattr(function, "__name__", "function")
    description, argument_docs, return_doc = _read_docstring(function, name)
    hints = get_type_hints(function)
    parameters = [p for i, p in enumerate(inspect.signature(function).parameters.values()) if not _is_self(i, p)]
    properties = {p.name: _property(p, hints, argument_docs, name) for p in parameters}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [p.name for p in parameters if p.default is inspect.Parameter.empty]:
        schema["required"] = required
    body: dict[str, Any] = {"name": name, "description": description, "parameters": schema}
    if "return" in hints and (returned := _return(hints["return"], return_doc)) is not None:
        body["return"] = returned
    return {"type": "function", "function": body}


def _is_self(position: int, parameter: inspect.Parameter) -> bool:
    return position == 0 and parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty


def _property(
    parameter: inspect.Parameter, hints: dict[str, Any], docs: dict[str, str], function: str
) -> dict[str, Any]:
    where = f"tool {function}: argument {parameter.name!r}"
    if parameter.name not in hints:
        raise ValueError(f"{where} has no type hint; add one")
    if parameter.name not in docs:
        raise ValueError(f"{where} has no description; add a line for it under 'Args:' in the docstring")
    schema = _type_schema(hints[parameter.name], where)
    description = docs[parameter.name]
    if choices := _CHOICES.search(description):
        schema["enum"] = json.loads(choices[1])
        description = description[: choices.start()].strip()
    return {**schema, "description": description}


def _return(hint: Any, doc: str | None) -> dict[str, Any] | None:
    """The model never writes a return value, so a hint that has no schema only leaves it out."""
    try:
        schema = _type_schema(hint, "return")
    except ValueError:
        return None
    return schema if doc is None else {**schema, "description": doc}


def _type_schema(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin in (Union, types.UnionType):
        return _union_schema(arguments, where)
    if origin is Literal:
        return _enum_schema(list(arguments))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_schema([member.value for member in hint])
    kind = _NAMES.get(origin or hint)
    if kind is None or (origin is tuple and (... in arguments or len(arguments) == 1)):
        raise ValueError(f"{where}: type {hint!r} has no JSON schema; use str, int, float, bool, list, dict, Literal")
    return {"type": kind, **_inner_schema(origin, arguments, where)}


def _inner_schema(origin: Any, arguments: tuple[Any, ...], where: str) -> dict[str, Any]:
    if origin is list and arguments:
        return {"items": _type_schema(arguments[0], where)}
    if origin is tuple and arguments:
        return {"prefixItems": [_type_schema(argument, where) for argument in arguments]}
    if origin is dict and len(arguments) == 2:
        return {"additionalProperties": _type_schema(arguments[1], where)}
    return {}


def _union_schema(arguments: tuple[Any, ...], where: str) -> dict[str, Any]:
    schemas = [_type_schema(argument, where) for argument in arguments if argument is not type(None)]
    if len(schemas) == 1:
        union = schemas[0]
    elif all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        names = sorted({schema["type"] for schema in schemas})
        union = {"type": names[0] if len(names) == 1 else names}
    else:
        union = {"anyOf": schemas}
    return {**union, "nullable": True} if type(None) in arguments else union


def _enum_schema(values: list[Any]) -> dict[str, Any]:
    if any(type(value) not in _NAMES for value in values):
        raise ValueError(f"enum values {values!r} must be int, float, str, bool or None to be written as JSON")
    names = list(dict.fromkeys(_NAMES[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _read_docstring(function: Callable[..., Any], name: str) -> tuple[str, dict[str, str], str | None]:
    """(description, argument -> description, description of the result) of a Google-style docstring."""
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise ValueError(
            f"tool {name}: the function has no docstring; say there what it does and what its arguments are"
        )
    parts = _SECTION.split(doc)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    arguments = _argument_lines(sections.get("Args", sections.get("Arguments", "")))
    returned = sections.get("Returns")
    return parts[0].strip(), arguments, None if returned is None else inspect.cleandoc("\n" + returned).strip()


def _argument_lines(block: str) -> dict[str, str]:
    """Argument -> description; deeper lines continue the one above."""
    descriptions: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc("\n" + block).splitlines():
        match = _ARGUMENT.match(line)
        if match:
            current = match[1]
            descriptions[current] = match[2].strip()
        elif line.strip() and current:
            descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
    return descriptions
