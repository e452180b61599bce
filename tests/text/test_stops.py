"""Stop strings: cut exactly before the first one, hold back only what may become one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umlm.text import StopMatcher


def run(stops, deltas):
    """(shown deltas, stopped, the stop)."""
    matcher, shown = StopMatcher(stops), []
    for delta in deltas:
        text, stopped = matcher.add(delta)
        shown.append(text)
        if stopped:
            return shown, True, matcher.matched
    return [*shown, matcher.finish()], False, None


def test_stop_over_many_tokens_never_leaks():
    """P11: a stop that spans five tokens."""
    shown, stopped, stop = run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J"])
    assert (shown, stopped, stop) == (["ABC", "", "", "", ""], True, "DEFGHIJ")


def test_of_two_stops_the_one_complete_first_wins():
    """P11: one stop is a prefix of the other; the result is the same for every way of cutting."""
    for deltas in (["xabcy"], list("xabcy"), ["xa", "bcy"]):
        shown, stopped, stop = run(["abc", "ab"], deltas)
        assert ("".join(shown), stopped, stop) == ("x", True, "ab")


def test_overlapping_starts():
    assert "".join(run(["aab"], list("aaab"))[0]) == "a"
    assert run(["abcd", "bc"], ["abcd"])[2] == "bc" == run(["abcd", "bc"], list("abcd"))[2]


def test_only_a_true_prefix_is_held():
    """P13: a long stop delays nothing that cannot begin it."""
    shown, stopped, _ = run(["12345678901234567890"], ["a", "</think>", "b", "12", "c"])
    assert (shown, stopped) == (["a", "</think>", "b", "", "12c", ""], False)


def test_rest_of_the_token_is_not_sent():
    """P14: a stop inside a token, and a stop over tokens."""
    assert run(["..", "never"], ["...x"])[0] == [""]
    assert "".join(run(["beta gamma"], ["alpha ", "beta", " gam", "ma delta"])[0]) == "alpha "


def test_held_text_comes_at_the_end():
    assert run(["END"], ["text EN"])[0] == ["text ", "EN"]


def test_nothing_follows_a_stop():
    matcher = StopMatcher(["x"])
    assert matcher.add("axb") == ("a", True)
    assert matcher.add("more") == ("", True) and matcher.finish() == ""


@pytest.mark.parametrize("stop", ["", None, 3])
def test_bad_stops_are_named(stop):
    with pytest.raises(ValueError, match="stop: "):
        StopMatcher(["ok", stop])


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("ab", max_size=3), max_size=12),
)
def test_cutting_does_not_matter(stops, deltas):
    """The oracle: the shortest beginning of the text that ends with a stop."""
    text = "".join(deltas)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    shown, stopped, stop = run(stops, deltas)
    if not ends:
        assert ("".join(shown), stopped) == (text, False)
    else:
        longest = max((s for s in stops if text[: ends[0]].endswith(s)), key=len)
        assert ("".join(shown), stopped, stop) == (text[: ends[0] - len(longest)], True, longest)
