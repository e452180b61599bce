"""Sampling against transformers' stored answers, float64 numpy, and counts of many draws."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from umlm.engine.draw import choose, uniform
from umlm.engine.params import SamplingParams
from umlm.engine.request import Request
from umlm.engine.sampler import adjust, sample
from umlm.kernels.sampling import NUCLEUS, candidates, invert, widths

CASES = json.loads(Path(__file__).with_name("sampling_cases.json").read_text())


def request(tokens=(0,), generated=(), seed=0, index=0, stop_ids=(), **fields):
    made = Request(0, list(tokens), SamplingParams(**fields), 10_000, frozenset(stop_ids), seed, index)
    for token in generated:
        made.append(token)
    return made


def probabilities(logits, made):
    """{token: probability} of what the filters keep."""
    row = adjust(mx.array(np.asarray(logits, np.float32))[None], [made])
    values, ids = candidates(row, [made.params], widths(row, [made.params])[0])
    ids = range(values.shape[-1]) if ids is None else np.array(ids)[0].tolist()
    weights = np.exp(np.array(values)[0].astype(np.float64))
    return {token: weight / weights.sum() for token, weight in zip(ids, weights, strict=True) if weight > 0}


def kept(logits, **fields):
    return set(probabilities(logits, request(**fields)))


def tokens(logits, made):
    return [choice.token for choice in sample(mx.array(np.asarray(logits, np.float32)), made)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kept_tokens_and_their_probabilities_equal_transformers(number):
    case = CASES[number]
    got = probabilities(case["logits"], request(tokens=case["context"], **case["params"]))
    want = {int(token): probability for token, probability in case["kept"].items()}
    assert set(got) == {token for token, probability in want.items() if probability > 1e-45}
    assert all(got[token] == pytest.approx(want[token], rel=1e-4, abs=1e-7) for token in got)


def test_top_k_then_top_p_leaves_the_best():
    """Case P01: with top_k 1 the share of the best is 1 after renormalization, not 0.289."""
    logits = [1, 0.9, 0.8, 0.7]
    assert kept(logits, top_k=1, top_p=0.5, temperature=0.01) == {0}
    assert kept(logits, top_p=0.25, temperature=1) == {0}
    assert kept(logits, min_p=1, temperature=1) == {0}
    assert kept(logits, top_k=0, temperature=1) == kept(logits, top_k=99, temperature=1) == {0, 1, 2, 3}
    assert tokens([logits], [request(top_p=0, temperature=1)]) == [0]


def test_temperature_comes_before_the_filters():
    """Case P02."""
    assert len(kept([4, 2, 0], min_p=0.1, temperature=1)) == 2
    assert len(kept([4, 2, 0], min_p=0.1, temperature=2)) == 3


def test_top_k_draws_all_of_the_best_and_nothing_else():
    """Case P03: 2,000 draws from ten nearly equal logits."""
    logits = np.random.Generator(np.random.PCG64(1)).permutation(np.linspace(0, 0.9, 10))
    best = set(np.argsort(-logits)[:5].tolist())
    drawn = tokens(np.tile(logits, (2000, 1)), [request(seed=seed, temperature=1, top_k=5) for seed in range(2000)])
    assert set(drawn) == best


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.95}, {"top_k": 6}, {"min_p": 0.05}])
def test_frequencies_follow_the_probabilities(fields):
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, -3.0, 0.2])
    wanted = probabilities(logits, request(temperature=1.3, **fields))
    count = 6000
    made = [request(seed=seed, temperature=1.3, **fields) for seed in range(count)]
    seen = np.bincount(
        np.array(choose(mx.array(np.tile(logits, (count, 1)).astype(np.float32)), made).tokens), minlength=8
    )
    assert set(np.flatnonzero(seen)) <= set(wanted)
    chi2 = sum((seen[token] - count * share) ** 2 / (count * share) for token, share in wanted.items())
    assert chi2 < 26  # 7 degrees of freedom: one in two thousand; seeds are fixed, so it always or never passes


@pytest.mark.parametrize("spread", [5.0, 0.1])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_the_nucleus_of_a_large_vocabulary_is_exact(spread, top_p):
    """Against float64 numpy, where the first candidates hold the share and where they do not."""
    logits = np.random.Generator(np.random.PCG64(5)).normal(0, spread, 6000).astype(np.float32)
    made = request(temperature=1, top_p=top_p)
    shares = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    order = np.argsort(-shares)
    holds = shares[order[:NUCLEUS]].sum() > top_p + 1e-4
    assert widths(mx.array(logits)[None], [made.params]) == [NUCLEUS if holds else 6000]
    count = int(np.searchsorted(np.cumsum(shares[order]), top_p)) + 1
    got = probabilities(logits, made)
    assert abs(len(got) - count) <= 1  # the border itself may round either way
    assert set(got) <= set(order[: count + 1].tolist())
    scale = sum(shares[token] for token in got)
    assert all(got[token] == pytest.approx(shares[token] / scale, rel=1e-4) for token in got)


def test_inverting_skips_dropped_places_at_both_ends():
    values = mx.array([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]] * 5)
    assert invert(values, [0.0, 0.25, 0.5, 0.75, 1 - 2**-23]).tolist() == [1, 1, 3, 3, 3]


def test_a_draw_never_lands_on_a_dropped_token():
    made = [request(seed=seed, temperature=1, top_p=0.3) for seed in range(500)]
    logits = np.full((500, 40), -5.0)
    logits[:, 17] = logits[:, 23] = 3
    assert set(tokens(logits, made)) == {17}  # equal, and the first alone holds the share
    assert set(tokens(logits, [request(seed=seed, temperature=1, min_p=0.5) for seed in range(500)])) == {17, 23}


def test_the_draw_depends_on_seed_index_and_place_only():
    numbers = {
        uniform(request(seed=seed, index=index, generated=[1] * place))
        for seed in (0, 1, 2**64 - 1)
        for index in (0, 1)
        for place in (0, 1, 2)
    }
    assert len(numbers) == 18
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(request(seed=5, tokens=[1, 2, 3])) == uniform(request(seed=5, tokens=[9]))


def test_batch_mates_change_nothing():
    """Case P07, with every kind of mate: other filters, penalties, greedy."""
    generator = np.random.Generator(np.random.PCG64(3))
    logits = np.round(generator.normal(0, 1, (12, 300)), 1)  # many ties
    kinds = [{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.2}, {"temperature": 0}]
    made = [
        request(seed=place, generated=[3, 3, 5], presence_penalty=place % 2, **{"temperature": 1, **kinds[place % 6]})
        for place in range(12)
    ]
    alone = [tokens(logits[[place]], [made[place]])[0] for place in range(12)]
    assert tokens(logits, made) == alone
    assert tokens(logits[::-1], made[::-1]) == alone[::-1]


def test_each_row_has_its_own_temperature():
    """Case B06: 200 first tokens; the hot request varies, its greedy mate does not."""
    logits = np.tile(np.linspace(1, 0, 20), (2, 1))
    pairs = [tokens(logits, [request(seed=seed, temperature=5), request(temperature=0)]) for seed in range(200)]
    assert len({hot for hot, _ in pairs}) > 10
    assert {cold for _, cold in pairs} == {0}


@pytest.mark.parametrize("place", [25, 100])
def test_repetition_penalty_sees_the_whole_context(place):
    """Case P04: token 7 lies 25 or 100 tokens back; its logit -2 becomes -3."""
    context = [1] * 150
    context[-place] = 7
    logits = np.full(10, 0.5)
    logits[7] = -2
    made = request(tokens=context, generated=[3], repetition_penalty=1.5)
    row = np.array(adjust(mx.array(logits)[None], [made]))[0]
    assert row[3] == pytest.approx(0.5 / 1.5)
    assert row[7] == pytest.approx(-3)
    assert row[1] == pytest.approx(0.5 / 1.5)
    assert row[2] == pytest.approx(0.5)


def test_presence_and_frequency_count_generated_tokens_only():
    """Case P05."""
    made = request(tokens=[4, 4], generated=[5, 5, 6], presence_penalty=0.5, frequency_penalty=0.25)
    row = np.array(adjust(mx.zeros((1, 8)), [made]))[0]
    np.testing.assert_allclose(row, [0, 0, 0, 0, 0, -1.0, -0.75, 0])
    made = request(generated=[5, 5], presence_penalty=-2, frequency_penalty=-1)
    assert np.array(adjust(mx.zeros((1, 8)), [made]))[0, 5] == 4


def test_penalties_change_the_greedy_choice():
    """Case P05: token 5 is always the best by 3; two more of it cost 2 x 2 + 2."""
    logits = np.zeros((1, 8))
    logits[0, 5] = 3
    assert tokens(logits, [request(generated=[5], frequency_penalty=0.5, presence_penalty=0.5)]) == [5]
    assert tokens(logits, [request(generated=[5, 5], frequency_penalty=2, presence_penalty=2)]) != [5]


def test_bias_forces_and_forbids():
    """Case P08."""
    logits = np.random.Generator(np.random.PCG64(2)).normal(0, 1, (50, 10))
    made = [request(seed=seed, temperature=1, logit_bias={"7": 100, "5": -100}) for seed in range(50)]
    assert set(tokens(logits, made)) == {7}


def test_bias_comes_before_penalties_and_end_tokens_wait_for_min_tokens():
    made = request(tokens=[3], logit_bias={3: 2}, repetition_penalty=2, min_tokens=1, stop_ids=[4])
    row = np.array(adjust(mx.array([[0, 0, 0, -1.0, 99]]), [made]))[0]
    np.testing.assert_allclose(row, [0, 0, 0, 0.5, -np.inf])
    made.append(1)
    assert np.array(adjust(mx.array([[0, 0, 0, -1.0, 99]]), [made]))[0, 4] == 99


def test_adjusting_leaves_batch_mates_and_the_input_alone():
    logits = mx.zeros((3, 6))
    made = [request(), request(logit_bias={2: 5}), request()]
    assert np.array(adjust(logits, made)).tolist() == [[0] * 6, [0, 0, 5, 0, 0, 0], [0] * 6]
    assert not np.array(logits).any()


def test_logprobs_are_the_models_own():
    logits = np.random.Generator(np.random.PCG64(4)).normal(0, 2, (2, 30))
    wanted = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    made = [request(temperature=0.1, logit_bias={3: 100}, logprobs=4), request(logprobs=0)]
    first, second = sample(mx.array(logits.astype(np.float32)), made)
    assert first.token == first.logprobs.token == 3
    assert first.logprobs.logprob == pytest.approx(wanted[0, 3], abs=1e-5)
    assert [token for token, _ in first.logprobs.top] == np.argsort(-wanted[0])[:4].tolist()
    np.testing.assert_allclose([value for _, value in first.logprobs.top], np.sort(wanted[0])[::-1][:4], atol=1e-5)
    assert second.logprobs.top == []
    assert second.logprobs.logprob == pytest.approx(wanted[1].max(), abs=1e-5)


def test_more_logprobs_than_tokens_gives_all():
    (only,) = sample(mx.zeros((1, 5)), [request(logprobs=20)])
    assert sorted(token for token, _ in only.logprobs.top) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bad_row_is_an_error_for_its_request_alone(bad, temperature):
    """Case Q11: one NaN or +Inf, anywhere."""
    logits = np.zeros((3, 9))
    logits[:, 2] = 50
    logits[1, 6] = bad
    results = sample(mx.array(logits.astype(np.float32)), [request(temperature=temperature) for _ in range(3)])
    assert [result.error is None for result in results] == [True, False, True]
    assert (results[0].token, results[2].token) == (2, 2)
    assert "NaN or infinite" in results[1].error


def test_masked_tokens_are_no_error_but_nothing_else_is():
    logits = np.full((2, 4), -np.inf)
    logits[0, 3] = 0
    results = sample(mx.array(logits.astype(np.float32)), [request(temperature=1), request()])
    assert (results[0].token, results[0].error) == (3, None)
    assert results[1].error is not None


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-4, 0.5, 100.0])
def test_any_temperature_and_float_type_gives_a_token(dtype, temperature):
    logits = mx.array([[3e4, -3e4, 0, 2.9e4]]).astype(dtype)
    (result,) = sample(logits, [request(temperature=temperature)])
    assert result.error is None
    assert result.token in ({0} if temperature < 1 else {0, 3})


def test_greedy_rows_take_the_first_of_equals():
    assert choose(mx.array([[1.0, 3, 3, 0], [2, 2, 2, 2]]), [request(), request()]).tokens.tolist() == [1, 0]
