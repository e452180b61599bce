"""Sampling parameters: what is out of range is refused by name (absurd and non-finite values: case P18)."""

import pytest

from umlm.engine.params import SamplingParams

NUMBERS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e999, "1", True, None, 999999])
def test_absurd_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 999999}, "temperature must be between 0 and 100, not 999999"),
        ({"top_p": -1}, "top_p must be between 0 and 1, not -1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than 0 and at most 100, not 0"),
        ({"logprobs": 10**9}, "logprobs must be between 0 and 1000, not 1000000000"),
        ({"top_k": -2}, "top_k must be at least -1, not -2"),
        ({"n": 0}, "n must be between 1 and 128, not 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"max_tokens": -1}, "max_tokens must be at least 0, not -1"),
        ({"max_tokens": "5"}, "max_tokens must be an integer, not '5'"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens must be at most max_tokens (5), not 6"),
        ({"seed": 1.5}, "seed must be an integer, not 1.5"),
        ({"stop": ["a", ""]}, "stop must not contain the empty string"),
        ({"stop": ""}, "stop must not contain the empty string"),
        ({"stop": [5]}, "stop must be a string or a list of strings, not [5]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be at least 0, not -1"),
        ({"logit_bias": {"abc": 1}}, "logit_bias must have token ids as keys, not 'abc'"),
        ({"logit_bias": {-5: 1}}, "logit_bias must have token ids of at least 0 as keys, not -5"),
        ({"logit_bias": {"-5": 1}}, "logit_bias must have token ids as keys, not '-5'"),
        ({"logit_bias": {"²": 1}}, "logit_bias must have token ids as keys, not '²'"),
        ({"logit_bias": {"5": "x"}}, "logit_bias must be a mapping to finite numbers"),
        ({"logit_bias": {"5": 101}}, "logit_bias['5'] must be between -100 and 100, not 101"),
    ],
)
def test_refusal_names_field_value_and_range(fields, message):
    with pytest.raises(ValueError) as error:
        SamplingParams(**fields)
    assert str(error.value).startswith(message)


def test_null_is_allowed_where_it_has_a_meaning():
    """Case P15."""
    params = SamplingParams(max_tokens=None, seed=None, stop=None, stop_token_ids=None, logit_bias=None, logprobs=None)
    assert (params.stops, params.bias, params.max_tokens) == ((), {}, None)
    assert SamplingParams(max_tokens=10**9).max_tokens == 10**9


def test_logit_bias_keys_of_json_become_token_ids():
    """Case P08."""
    assert SamplingParams(logit_bias={"7": 100, 5: -100}).bias == {7: 100.0, 5: -100.0}
    assert SamplingParams(logit_bias={}).bias == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {"99999": 1}}, "logit_bias must hold token ids below 100, the vocabulary size, not 99999"),
        ({"stop_token_ids": [100]}, "stop_token_ids must hold token ids below 100, the vocabulary size, not 100"),
    ],
)
def test_token_ids_are_checked_against_the_vocabulary(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields).check_vocabulary(100)


def test_stop_is_one_string_or_several():
    assert SamplingParams(stop="ab").stops == ("ab",)
    assert SamplingParams(stop=["ab", "c"]).stops == ("ab", "c")


def test_the_default_is_greedy():
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.7).is_greedy
