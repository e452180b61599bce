"""Options: types, ranges, flags and mappings come from one declaration."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from umlm.options import add_arguments, check, from_mapping, from_namespace, option, options_of


@dataclass(frozen=True)
class Heat:
    temperature: float = option(0.5, "how hot, 100 % at most", ge=0, le=100)
    rate: float = option(1.0, "speed", gt=0, lt=9, unit="m/s")
    count: int = option(3, "how many", ge=1)
    limit: int | None = option(None, "most")
    loud: bool = option(False, "say more")
    mode: str = option("slow", "how", choices=("slow", "fast"))
    names: str | Sequence[str] | None = option(None, "names")
    ids: Sequence[int] = option([], "ids", ge=0)
    bias: Mapping[int | str, float] | None = option(None, "bias", ge=-100, le=100)
    plain: int = 7

    def __post_init__(self):
        check(self)


def parse(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser, Heat)
    return from_namespace(Heat, parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 999999, "temperature must be between 0 and 100, not 999999"),
        ("temperature", -0.1, "temperature must be between 0 and 100, not -0.1"),
        ("temperature", float("nan"), "temperature must be a finite number, not nan"),
        ("temperature", -float("inf"), "temperature must be a finite number, not -inf"),
        ("temperature", 10**400, "temperature must be a finite number, not 1000"),
        ("temperature", True, "temperature must be a finite number, not True"),
        ("temperature", None, "temperature must be a finite number, not None"),
        ("temperature", "1", "temperature must be a finite number, not '1'"),
        ("rate", 0, "rate must be greater than 0 m/s and less than 9 m/s, not 0"),
        ("count", 0, "count must be at least 1, not 0"),
        ("count", 1.0, "count must be an integer, not 1.0"),
        ("count", True, "count must be an integer, not True"),
        ("limit", "5", "limit must be an integer, not '5'"),
        ("loud", 1, "loud must be true or false, not 1"),
        ("mode", "medium", "mode must be one of slow, fast, not 'medium'"),
        ("names", 5, "names must be a string or a list of strings, not 5"),
        ("names", ["a", 5], "names must be a string or a list of strings, not ['a', 5]"),
        ("ids", [1, -1], "ids must be at least 0, not -1"),
        ("ids", [False], "ids must be a list of integers, not [False]"),
        ("bias", {7: 101}, "bias[7] must be between -100 and 100, not 101"),
        ("bias", {"7": "x"}, "bias must be a mapping to finite numbers, not {'7': 'x'}"),
        ("bias", [1], "bias must be a mapping to finite numbers, not [1]"),
    ],
)
def test_wrong_value_is_named(name, value, message):
    with pytest.raises(ValueError) as error:
        Heat(**{name: value})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_right_values_pass():
    heat = Heat(temperature=1, count=np.int64(4), names=("a", "b"), bias={"7": -1, 8: 2.5}, limit=5)
    assert (heat.temperature, heat.count, heat.limit) == (1, 4, 5)


def test_mutable_defaults_are_not_shared():
    first = Heat()
    first.ids.append(1)
    assert Heat().ids == []


def test_only_option_fields_are_options():
    assert [item.name for item in options_of(Heat)][-1] == "bias"


def test_flags_set_what_is_given_and_nothing_else():
    assert parse() == Heat()
    heat = parse(
        *("--temperature", "2", "--limit", "4", "--loud", "--mode", "fast", "--names", "a", "--names", "b"),
        *("--ids", "1", "--bias", "7=1.5", "--bias", "8=-2"),
    )
    assert heat == Heat(2.0, limit=4, loud=True, mode="fast", names=["a", "b"], ids=[1], bias={"7": 1.5, "8": -2.0})
    assert parse("--no-loud").loud is False


def test_flags_are_checked_like_everything_else():
    with pytest.raises(ValueError, match="temperature must be a finite number, not nan"):
        parse("--temperature", "nan")


@pytest.mark.parametrize("arguments", [("--mode", "x"), ("--count", "x"), ("--bias", "7")])
def test_text_that_is_no_value_ends_in_usage(arguments, capsys):
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


def test_help_tells_range_and_default():
    parser = argparse.ArgumentParser(prog="heat")
    add_arguments(parser, Heat)
    text = " ".join(parser.format_help().split())
    assert "how hot, 100 % at most (between 0 and 100; default: 0.5)" in text


def test_mapping_takes_known_keys_and_null_means_default():
    assert from_mapping(Heat, {"count": 2, "limit": None, "temperature": None}, "heat.yaml") == Heat(count=2)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"temprature": 1}, "heat.yaml: unknown key 'temprature'; did you mean 'temperature'?"),
        ({"zzz": 1}, "heat.yaml: unknown key 'zzz'; known keys: temperature, rate"),
        ({"plain": 1}, "heat.yaml: unknown key 'plain'"),
        ({"count": 0}, "heat.yaml: count must be at least 1, not 0"),
        ([1], "heat.yaml: must be a mapping of options, not [1]"),
    ],
)
def test_mapping_errors_name_source_and_key(mapping, message):
    with pytest.raises(ValueError) as error:
        from_mapping(Heat, mapping, "heat.yaml")
    assert str(error.value).startswith(message)
