"""Priorities, time limits, salts and shared prompts through the engine, on a clock that the test moves."""

import random

import pytest
from fakes import hashed, scripted_engine

from umlm.cache.prefix import Miss
from umlm.engine.params import SamplingParams
from umlm.engine.service import Service

PARAMS = SamplingParams(max_tokens=12)


class Clock:
    """Seconds that pass with every step of the model."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def made():
    """(make an engine whose steps take a second each, its clock)"""
    engines, clock = [], Clock()

    def logits(context):
        clock.now += 1
        return hashed(context)

    def make(**limits):
        engine = scripted_engine(logits, clock=clock, **limits)
        engines.append(engine)
        return engine

    yield make, clock
    for engine in engines:
        engine.stop()
        assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def together(engine, *submissions):
    """Streams that all enter before the next step."""
    return engine.call(lambda: [engine.submit(*each) for each in submissions])


def last(stream):
    *_, chunk = stream
    return chunk


def test_a_total_time_limit_ends_with_what_there_is(made):
    engine = made[0]()
    (stream,) = together(engine, ([1, 2], PARAMS, Service(timeout=4.5)))
    chunks = list(stream)
    assert (chunks[-1].finish_reason, chunks[-1].usage.completion_tokens) == ("timeout", 5)
    assert chunks[-1].error == "request 0: took longer than timeout, 4.5 s"


def test_a_queue_time_limit_counts_until_it_begins(made):
    engine = made[0](max_requests=1)
    first, second, third = together(
        engine,
        ([1, 2], PARAMS, Service(queue_timeout=3)),
        ([3, 4], PARAMS, Service(queue_timeout=3)),
        ([5, 6], PARAMS, Service(queue_timeout=30)),
    )
    assert last(first).finish_reason == "length"
    ended = last(second)
    assert (ended.finish_reason, ended.usage.completion_tokens, ended.usage.cache_miss) == ("timeout", 0, None)
    assert ended.error == "request 1: waited longer than queue_timeout, 3 s"
    assert last(third).finish_reason == "length"


def test_the_urgent_go_first(made):
    engine = made[0](max_requests=1)
    streams = together(engine, ([1, 2], PARAMS), ([3, 4], PARAMS), ([5, 6], PARAMS, Service(priority=1)))
    ends = [last(stream).timings.last_token for stream in streams]
    assert ends[2] < ends[0] < ends[1]


def test_usage_tells_what_was_found_and_why_not_more(made):
    engine = made[0]()
    usages = [last(engine.submit([*range(1, 10), end], PARAMS)).usage for end in (20, 20, 21)]
    assert [(usage.cached_tokens, usage.cache_miss) for usage in usages] == [(0, "unknown"), (8, "none"), (8, "none")]
    salted = last(engine.submit([*range(1, 10), 20], PARAMS, Service(cache_salt="s"))).usage
    assert (salted.cached_tokens, salted.cache_miss) == (0, "unknown")
    assert engine.scheduler.prefixes.stats.missed[Miss.SALT] == 10


def test_the_prompt_rate_counts_computed_tokens(made):
    engine = made[0]()
    for cached in (0, 8):
        (stream,) = together(engine, ([*range(1, 11)], PARAMS))
        chunk = last(stream)
        assert chunk.usage.cached_tokens == cached
        assert chunk.timings.prompt_rate(chunk.usage) == 10 - cached


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_answers_to_one_prompt_compute_it_once(made, prefix_cache):
    engine = made[0](prefix_cache=prefix_cache)
    three = SamplingParams(max_tokens=3, n=3)
    (stream,) = together(engine, (list(range(1, 15)), three))
    found = {chunk.index: chunk.usage.cached_tokens for chunk in stream if chunk.usage}
    assert found == {0: 0, 1: 12, 2: 12}
    assert engine.runner.model.steps[:2] == [[14], [1, 2, 2]]


def test_answers_share_with_nobody_else_while_the_prefix_cache_is_off(made):
    engine = made[0](prefix_cache=False)
    three = SamplingParams(max_tokens=3, n=3)
    streams = together(engine, *[(list(range(1, 15)), three)] * 2)
    for stream in streams:
        assert sorted(chunk.usage.cached_tokens for chunk in stream if chunk.usage) == [0, 12, 12]


def test_b11_200_random_ends(made):
    """Field case B11: ended before, in the queue, while it waits for a prefix, in prefill, in decode."""
    engine, chance = made[0](num_pages=60, token_budget=16, max_requests=6), random.Random(1)
    prefixes = [[chance.randrange(256) for _ in range(24)] for _ in range(3)]
    streams = []
    for _ in range(200):
        prompt = [*chance.choice(prefixes)[: chance.randint(1, 24)], chance.randrange(256)]
        service = Service(priority=chance.randint(0, 1), timeout=chance.choice([None, 5, 50]))
        streams.append(engine.submit(prompt, SamplingParams(max_tokens=chance.randint(1, 30)), service))
        if chance.random() < 0.7:
            stream = chance.choice(streams)
            if chance.random() < 0.5:
                next(stream, None)
            stream.close()
    for stream in streams:
        list(stream)
    engine.call(lambda: None)
    scheduler = engine.scheduler
    assert (engine.num_requests, scheduler.running, scheduler.waiting) == (0, [], [])
    assert scheduler.pool.num_free == 60
    assert not scheduler._deferral._leaders
    prompt = list(range(40, 45))
    assert [token for chunk in engine.submit(prompt, PARAMS) for token in chunk.token_ids] == alone(prompt)


def alone(prompt):
    context = list(prompt)
    for _ in range(12):
        context.append(int(hashed(context).argmax()))
    return context[len(prompt) :]


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", 1.5), ("priority", None), ("timeout", 0), ("timeout", float("nan")), ("queue_timeout", -1),
     ("queue_timeout", True), ("cache_salt", 5)],
)  # fmt: skip
def test_wrong_values_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        Service(**{field: value})
