"""One source of options: dataclass fields that serve as Python arguments, argparse flags and YAML keys."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import difflib
import functools
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union

T = TypeVar("T")
_KEY = "umlm.option"


@dataclasses.dataclass(frozen=True)
class Rule:
    """What one option means and which values it takes; bounds hold for every number inside a list or mapping."""

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: tuple[Any, ...] | None = None
    flag: str | None = None
    unit: str | None = None

    @property
    def range(self) -> str:
        """The allowed range in words, empty without bounds: `between 0 and 100`."""
        unit = f" {self.unit}" if self.unit else ""
        if self.ge is not None and self.le is not None:
            return f"between {self.ge} and {self.le}{unit}"
        bounds = [("at least", self.ge), ("greater than", self.gt), ("at most", self.le), ("less than", self.lt)]
        return " and ".join(f"{words} {bound}{unit}" for words, bound in bounds if bound is not None)

    def admits(self, number: float) -> bool:
        """Whether the number lies within the bounds."""
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )


class Option(typing.NamedTuple):
    """A field of an options class, with its type resolved."""

    name: str
    hint: Any
    rule: Rule
    default: Any

    @property
    def flag(self) -> str:
        """The command-line flag, `--top-k` for `top_k` unless the rule names another."""
        return self.rule.flag or "--" + self.name.replace("_", "-")


def option(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Sequence[Any] | None = None,
    flag: str | None = None,
    unit: str | None = None,
) -> Any:
    """Make a dataclass field that is an option; list, dict and set defaults are copied per object."""
    rule = Rule(help, ge, gt, le, lt, None if choices is None else tuple(choices), flag, unit)
    if isinstance(default, (list, dict, set)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata={_KEY: rule})
    return dataclasses.field(default=default, metadata={_KEY: rule})


def options_of(cls: Any) -> tuple[Option, ...]:
    """The option fields of a dataclass, in order; fields made otherwise are not options."""
    return _resolved(cls)


@functools.cache
def _resolved(cls: Any) -> tuple[Option, ...]:
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if _KEY in field.metadata]
    return tuple(Option(f.name, hints[f.name], f.metadata[_KEY], _default(f)) for f in fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def check(obj: Any) -> None:
    """Check type, range and choices of every option of a dataclass object; call it in `__post_init__`.

    bool is no integer, NaN and infinity are no numbers, None is a value only where the type says Optional.
    Raises ValueError in one line: name, what is allowed, the value.
    """
    for name, hint, rule, _ in options_of(type(obj)):
        value = getattr(obj, name)
        if not _matches(value, hint):
            raise ValueError(f"{name} must be {_words(hint)}, not {reprlib.repr(value)}")
        if rule.choices is not None and value is not None and value not in rule.choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, rule.choices))}, not {reprlib.repr(value)}")
        for path, number in _numbers(name, value):
            if not rule.admits(number):
                raise ValueError(f"{path} must be {rule.range}, not {number!r}")


def check_fields(obj: Any, at_least: Mapping[str, float]) -> None:
    """Check every field of a dataclass object by its annotation; numbers must be > 0, or as `at_least` says.

    Raises ValueError as `check` does.
    """
    for name, hint in _field_hints(obj.__class__):
        value = getattr(obj, name)
        if not _matches(value, hint):
            raise ValueError(f"{name} must be {_words(hint)}, not {reprlib.repr(value)}")
        for path, number in _numbers(name, value):
            if name in at_least and number < at_least[name]:
                raise ValueError(f"{path} must be at least {at_least[name]}, not {number!r}")
            if name not in at_least and number <= 0:
                raise ValueError(f"{path} must be greater than 0, not {number!r}")


@functools.cache
def _field_hints(cls: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


def _matches(value: Any, hint: Any) -> bool:
    """Whether the value is of the type; floats take integers, sequences take lists and tuples."""
    if _is_union(hint):
        return any(_matches(value, part) for part in typing.get_args(hint))
    if hint is Any:
        return True
    if hint is type(None):
        return value is None
    if hint is bool or hint is str:
        return isinstance(value, hint)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is float:
        return _is_finite(value)
    return _matches_container(value, hint)


def _matches_container(value: Any, hint: Any) -> bool:
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _matches(key, args[0]) and _matches(item, args[1]) for key, item in value.items()
        )
    if issubclass(origin, Sequence):
        return isinstance(value, (list, tuple)) and all(_matches(item, args[0]) for item in value)
    return isinstance(value, origin)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _is_finite(value: Any) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _numbers(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every number in a value, with the words that point at it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{path}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(path, item)
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        yield path, value


_SINGULAR = {bool: "true or false", int: "an integer", float: "a finite number", str: "a string"}
_PLURAL = {bool: "booleans", int: "integers", float: "finite numbers", str: "strings"}


def _words(hint: Any) -> str:
    """A type in words for an error message."""
    if _is_union(hint):
        return " or ".join(_words(part) for part in typing.get_args(hint) if part is not type(None))
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint in _SINGULAR:
        return _SINGULAR[hint]
    if issubclass(origin, Mapping):
        return f"a mapping to {_PLURAL.get(args[1], 'values')}"
    if issubclass(origin, Sequence):
        return f"a list of {_PLURAL.get(args[0], 'values')}"
    return f"of type {origin.__name__}"


def add_arguments(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, cls: type, only: Collection[str] | None = None
) -> None:
    """Add one flag per option, or per option that `only` names. A flag that is not given sets nothing, so other
    sources can come between.

    Lists take the flag several times, mappings take KEY=VALUE several times, booleans have a --no- form, and numbers
    that may be None take the word none.
    """
    for item in options_of(cls):
        if only is not None and item.name not in only:
            continue
        common: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS, "help": _help(item)}
        kind, container = _scalar(item.hint)
        if container is Mapping:
            parser.add_argument(item.flag, action="append", type=_pair(kind), metavar="KEY=VALUE", **common)
        elif kind is bool:
            parser.add_argument(item.flag, action=argparse.BooleanOptionalAction, **common)
        else:
            action = "append" if container is Sequence else "store"
            metavar = (item.rule.unit or kind.__name__).upper() if item.rule.choices is None else None
            kind = _or_none(kind) if container is None and _is_optional(item.hint) else kind
            choices = item.rule.choices
            parser.add_argument(item.flag, action=action, type=kind, choices=choices, metavar=metavar, **common)


def _help(item: Option) -> str:
    default = None if item.default in (None, [], {}, ()) else f"default: {item.default}"
    notes = "; ".join(note for note in (item.rule.range, default) if note)
    return (item.rule.help + (f" ({notes})" if notes else "")).replace("%", "%%")


def _scalar(hint: Any) -> tuple[Any, type | None]:
    """The type of one value on the command line, and the container that collects several."""
    parts = [part for part in (typing.get_args(hint) if _is_union(hint) else [hint]) if part is not type(None)]
    for part in parts:
        origin, args = typing.get_origin(part) or part, typing.get_args(part)
        if issubclass(origin, Mapping):
            return args[1], Mapping
        if issubclass(origin, Sequence) and origin is not str:
            return args[0], Sequence
    return parts[0], None


def _is_optional(hint: Any) -> bool:
    return _is_union(hint) and type(None) in typing.get_args(hint)


def _or_none(kind: Any) -> Any:
    """Parse a number, or the word none; for a text that word is a text."""

    def parse(text: str) -> Any:
        return None if text.lower() == "none" else kind(text)

    parse.__name__ = kind.__name__  # argparse names it in its error
    return kind if kind is str else parse


def _pair(kind: Any) -> Any:
    def pair(text: str) -> tuple[str, Any]:
        key, separator, value = text.partition("=")
        if not separator:
            raise argparse.ArgumentTypeError(f"{text!r} has no '=': write KEY=VALUE")
        return key, kind(value)

    return pair


def from_namespace(cls: type[T], namespace: argparse.Namespace) -> T:
    """Make the options from parsed arguments; flags that were not given keep their defaults.

    Raises ValueError as `check` does.
    """
    given = {item.name: getattr(namespace, item.name) for item in options_of(cls) if hasattr(namespace, item.name)}
    for item in options_of(cls):
        if item.name in given and _scalar(item.hint)[1] is Mapping:
            given[item.name] = dict(given[item.name] or ())
    return cls(**given)


def from_mapping(cls: type[T], mapping: Mapping[str, Any], source: str) -> T:
    """Make the options from a YAML or JSON mapping; null stands for the default.

    Raises ValueError that begins with the source, for unknown keys with the nearest known one.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{source}: must be a mapping of options, not {reprlib.repr(mapping)}")
    known = [item.name for item in options_of(cls)]
    for key in mapping:
        if key not in known:
            raise ValueError(f"{source}: unknown key {key!r}; {_nearest(str(key), known)}")
    try:
        return cls(**{key: value for key, value in mapping.items() if value is not None})
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _nearest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
