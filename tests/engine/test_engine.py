"""The engine with a scripted model: what comes out, for whom, and that nothing stays behind."""

import random

import numpy as np
import pytest
from fakes import EOS, ByteTokenizer, PieceTokenizer, follow, hashed, one_hot, scripted_engine

from umlm.engine.params import SamplingParams


@pytest.fixture
def engine_of():
    """Make scripted engines that are stopped, and found empty, at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(scripted_engine(*args, **kwargs))
        return made[-1]

    yield make
    for engine in made:
        assert_empty(engine)
        engine.stop()


def assert_empty(engine):
    engine.call(lambda: None)  # jobs before this one are done
    assert engine.num_requests == 0
    assert not engine.scheduler.has_work
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def params(**fields):
    return SamplingParams(**{"max_tokens": 12, **fields})


def run(engine, prompt, **fields):
    """(text, token ids, last chunk) of one answer."""
    return joined(list(engine.submit(prompt, params(**fields))))


def joined(chunks):
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    return "".join(chunk.text for chunk in chunks), ids, chunks[-1]


def expected(prompt, count):
    context = list(prompt)
    for _ in range(count):
        context.append(int(np.argmax(hashed(context))))
    return context[len(prompt) :]


def ask(text):
    return ByteTokenizer().encode(text)


def test_ends_at_max_tokens(engine_of):
    """Case P16."""
    _, ids, last = run(engine_of(), [1, 2, 3], max_tokens=5)
    assert ids == expected([1, 2, 3], 5)
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert last.usage[:2] == (3, 5)


def test_the_end_token_ends_and_has_no_text(engine_of):
    engine = engine_of(follow({(1,): [*b"hello", EOS, *b"never"]}))
    text, ids, last = run(engine, [1])
    assert (text, last.finish_reason, last.stop_reason) == ("hello", "stop", None)
    assert ids == [*b"hello", EOS]
    assert last.usage[:2] == (1, 6)


def test_ignore_eos_and_min_tokens(engine_of):
    engine = engine_of(follow({(1,): [*b"hello", EOS, *b"more"]}))
    assert run(engine, [1], ignore_eos=True, max_tokens=8)[0] == "hellomo"
    _, ids, _ = run(engine, [1], min_tokens=7, max_tokens=20)
    assert EOS not in ids[:7]
    assert len(ids) >= 7


def test_stop_strings_wait_for_min_tokens_too(engine_of):
    engine = engine_of(follow({(1,): list(b"aENDbENDc")}))
    text, _, last = run(engine, [1], stop="END", min_tokens=5)
    assert (text, last.finish_reason, last.usage.completion_tokens) == ("aENDb", "stop", 8)


def test_stop_token_ids_end_and_are_named(engine_of):
    engine = engine_of(follow({(1,): list(b"abc")}))
    text, ids, last = run(engine, [1], stop_token_ids=[ord("b")])
    assert (text, ids, last.finish_reason, last.stop_reason) == ("a", [97, 98], "stop", 98)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "reason"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], "DEFGHIJ", "ABC", "stop"),  # case P11: over token borders
        (["ABC", "DEF", "G", "HI", "X"], "DEFGHIJ", "ABCDEFGHIX", "stop"),  # almost: nothing is lost
        (["ABC", "DEF", "G"], ["DEFGHIJ", "DEF"], "ABC", "stop"),  # one stop begins another
        (["caf", b"\xc3", b"\xa9", " au"], "é", "caf", "stop"),  # a character of two tokens
        (["a", "...x", "b"], "..", "a", "stop"),  # case P14: cut before the stop inside its token
        (["alpha ", "beta", " gam", "ma", " delta"], "beta gamma", "alpha ", "stop"),
        (["ab", b"\xf0\x9f"], "zz", "ab\ufffd", "stop"),  # half a character at the end is shown once
    ],
)
def test_stop_strings_never_leak(engine_of, pieces, stop, text, reason):
    tokenizer = PieceTokenizer(pieces)
    script = {(1,): list(range(300, 300 + len(pieces)))}
    engine = engine_of(follow(script, tokenizer.vocab_size), tokenizer=tokenizer)
    got, _, last = run(engine, [1], stop=stop, max_tokens=50)
    assert (got, last.finish_reason) == (text, reason)
    matched = [stop] if isinstance(stop, str) else stop
    assert last.stop_reason in ([*matched, None] if got.endswith(("X", "\ufffd")) else matched)


def test_only_a_true_beginning_of_a_stop_is_held_back(engine_of):
    """Case P13: a long stop delays nothing that cannot belong to it."""
    engine = engine_of(follow({(1,): list(b"a12b")}))
    chunks = list(engine.submit([1], params(stop="12345678901234567890")))
    assert [chunk.text for chunk in chunks] == ["a", "", "", "12b", ""]


def test_text_held_back_is_shown_at_the_length_limit(engine_of):
    engine = engine_of(follow({(1,): list(b"xyEN")}))
    text, _, last = run(engine, [1], stop="END", max_tokens=4)
    assert (text, last.finish_reason) == ("xyEN", "length")


def test_a_stop_that_the_last_token_completes_counts_as_stop(engine_of):
    engine = engine_of(follow({(1,): list(b"xyEND")}))
    text, _, last = run(engine, [1], stop="END", max_tokens=5)
    assert (text, last.finish_reason, last.stop_reason) == ("xy", "stop", "END")


@pytest.mark.parametrize(("length", "generated"), [(62, 2), (63, 1), (64, 0)])
def test_the_context_ends_an_answer(engine_of, length, generated):
    """Case K11: context 64, and room for 50 tokens is asked for."""
    _, ids, last = run(engine_of(context=64), [1] * length, max_tokens=50)
    assert (len(ids), last.finish_reason, last.usage[:2]) == (generated, "length", (length, generated))


@pytest.mark.parametrize("length", [65, 200])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine_of, length):
    """Case K11."""
    engine = engine_of(context=64)
    with pytest.raises(ValueError, match=f"the prompt has {length} tokens, the context holds 64"):
        engine.submit([1] * length)


def test_no_limit_means_the_context(engine_of):
    assert len(run(engine_of(context=40), [1, 2], max_tokens=None)[1]) == 38


def test_the_pool_limits_the_context(engine_of):
    assert len(run(engine_of(num_pages=5, page_size=4), [1, 2], max_tokens=10**9)[1]) == 18


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1, 258], "token ids from 0 to 257, not 258"),
        ([-1], "token ids from 0 to 257, not -1"),
        ([1.5], "must be a list of token ids"),
        ("text", "must be a list of token ids"),
        ([[1], [2]], "must be a list of token ids"),
    ],
)
def test_a_wrong_prompt_is_refused(engine_of, prompt, message):
    """Case B01 has the empty one."""
    with pytest.raises(ValueError, match=message):
        engine_of().submit(prompt)


@pytest.mark.parametrize("field", [{"logit_bias": {"999": 1}}, {"stop_token_ids": [999]}])
def test_token_ids_beyond_the_vocabulary_are_refused(engine_of, field):
    with pytest.raises(ValueError, match="vocabulary size, not 999"):
        engine_of().submit([1], params(**field))


@pytest.mark.parametrize("budget", [4, 7, 64])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_alone_together_and_in_any_chunks_the_tokens_are_the_same(engine_of, budget, page_size):
    """Case B01: prompts of 1 to 20 tokens; and with too few pages for all, so that some are preempted."""
    prompts = [list(range(50, 50 + length)) for length in (3, 20, 1, 7, 12, 9)]
    limits = {"token_budget": budget, "max_requests": 4}
    engine = engine_of(num_pages=48 // page_size, page_size=page_size, **limits)
    streams = [engine.submit(prompt, params(max_tokens=15)) for prompt in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert joined(list(stream))[1] == expected(prompt, 15)


def test_joining_and_leaving_in_mid_decode(engine_of):
    """Case B13: rows join at steps 1, 5 and 17, one is taken away, one joins again."""
    engine = engine_of(num_pages=200)
    first = engine.submit([1, 2, 3], params(max_tokens=60))
    others, ids = {}, []
    for count, chunk in enumerate(first):
        ids += chunk.token_ids
        if count in (1, 5, 17, 30):
            others[count] = engine.submit([9] * (count + 1), params(max_tokens=25))
        if count == 20:
            others.pop(1).close()
    assert ids == expected([1, 2, 3], 60)
    for count, stream in others.items():
        assert joined(list(stream))[1] == expected([9] * (count + 1), 25)


def test_the_same_prompt_again_gives_the_same_answer(engine_of):
    """Case K03: also a beginning of it, and one token."""
    engine = engine_of()
    for prompt in ([5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7], [5], [5, 6, 7, 8]):
        assert run(engine, prompt)[1] == expected(prompt, 12)


def test_32_parallel_requests_get_their_own_tokens(engine_of):
    """Case B07: each is forced to its own token; some are cancelled, lengths differ."""
    engine = engine_of(lambda context: np.zeros(258), num_pages=300, token_budget=40, max_requests=12)
    streams = {
        token: engine.submit([token] * (token % 9 + 1), params(logit_bias={token: 100}, max_tokens=5 + token))
        for token in range(32)
    }
    for token in (3, 11, 30):
        next(streams[token])
        streams.pop(token).cancel()
    for token, stream in streams.items():
        _, ids, last = joined(list(stream))
        assert ids == [token] * (5 + token)
        assert last.usage[:2] == (token % 9 + 1, 5 + token)


def test_n_answers_are_distinct_and_numbered(engine_of):
    """Case P17."""
    engine = engine_of(lambda context: np.zeros(258), num_pages=100)
    answers = {}
    for chunk in engine.submit([1], params(n=3, temperature=1, seed=5)):
        answers.setdefault(chunk.index, []).extend(chunk.token_ids)
    assert sorted(answers) == [0, 1, 2]
    assert [len(ids) for ids in answers.values()] == [12] * 3
    assert len({tuple(ids) for ids in answers.values()}) == 3
    again = {}
    for chunk in engine.submit([1], params(n=3, temperature=1, seed=5)):
        again.setdefault(chunk.index, []).extend(chunk.token_ids)
    assert again == answers


def test_seeds(engine_of):
    """Case P07: without a seed answers differ, with one they do not, whoever else is there."""
    engine = engine_of(lambda context: np.zeros(258), num_pages=200)
    hot = {"temperature": 1, "ignore_eos": True}
    assert len({tuple(run(engine, [1], **hot)[1]) for _ in range(5)}) == 5
    alone = run(engine, [1], seed=1, **hot)[1]
    mates = [engine.submit([2] * 9, params(temperature=2, max_tokens=30, top_k=7)) for _ in range(3)]
    assert run(engine, [1], seed=1, **hot)[1] == alone
    assert run(engine, [1], seed=-1, **hot)[1] != alone
    for mate in mates:
        list(mate)


def test_a_seeded_answer_survives_preemption(engine_of):
    hot = {"temperature": 1, "ignore_eos": True, "max_tokens": 30}
    large = engine_of(lambda context: np.zeros(258), num_pages=100)
    small = engine_of(lambda context: np.zeros(258), num_pages=12)
    wanted = [run(large, [seed], seed=seed, **hot)[1] for seed in range(3)]
    streams = [small.submit([seed], params(seed=seed, **hot)) for seed in range(3)]
    assert [joined(list(stream))[1] for stream in streams] == wanted


def test_logprobs_come_with_their_tokens(engine_of):
    chunks = list(engine_of().submit([1], params(logprobs=2, max_tokens=3)))
    for chunk in chunks:
        (report,) = chunk.logprobs
        assert report.token == chunk.token_ids[0] == report.top[0][0]
        assert len(report.top) == 2
    assert next(iter(engine_of().submit([1], params(max_tokens=1)))).logprobs is None


def test_bad_logits_end_one_request_and_name_it(engine_of):
    """Case Q11."""

    def logits(context):
        return np.full(258, np.nan) if context[0] == 66 and len(context) > 4 else hashed(context)

    engine = engine_of(logits)
    good, bad = engine.submit([1], params()), engine.submit([66, 66], params())
    _, ids, last = joined(list(bad))
    assert (last.finish_reason, len(ids), last.usage.completion_tokens) == ("error", 3, 3)
    assert last.error == "request 1: the model gave logits that are NaN or infinite"
    assert joined(list(good))[1] == expected([1], 12)


def test_a_failing_step_ends_its_requests_and_the_engine_lives(engine_of, caplog):
    def logits(context):
        if context[0] == 66:
            raise RuntimeError("device\nlost")
        return hashed(context)

    engine = engine_of(logits)
    _, _, last = run(engine, [66])
    assert (last.finish_reason, last.error) == ("error", "request 0: RuntimeError: device lost")
    assert run(engine, [1])[1] == expected([1], 12)
    assert "could not be computed" in caplog.text


def test_a_failing_detokenizer_ends_its_request_alone(engine_of):
    class Broken(PieceTokenizer):
        def detokenizer(self):
            stream = super().detokenizer()
            self.pieces = self.pieces[:1]
            stream._pieces = self.pieces
            return stream

    tokenizer = Broken(["a", "b"])
    engine = engine_of(follow({(1,): [300, 301], (2,): [300, 300]}, 302), tokenizer=tokenizer)
    good, bad = engine.submit([2], params()), engine.submit([1], params())
    _, _, last = joined(list(bad))
    assert last.finish_reason == "error"
    assert "IndexError" in last.error
    assert joined(list(good))[0] == "aa"


def test_nothing_stays_behind(engine_of):
    """Case B12: 1,000 requests, done, aborted and failed."""

    def logits(context):
        return np.full(258, np.nan) if context[0] == 66 else one_hot(EOS)

    engine = engine_of(logits, token_budget=64)
    chance = random.Random(0)
    streams = []
    for number in range(1000):
        streams.append(engine.submit([66 if number % 5 == 0 else 1] * 3, params(max_tokens=3)))
        if number % 7 == 0:
            chance.choice(streams).close()
    for stream in streams:
        list(stream)
    assert_empty(engine)


def test_times_are_measured_on_the_clock(engine_of):
    chunks = list(engine_of().submit([1, 2, 3], params(max_tokens=4)))
    assert all(chunk.timings is None for chunk in chunks[:-1])
    times, usage = chunks[-1].timings, chunks[-1].usage
    assert times.submitted <= times.started <= times.first_token < times.last_token
    assert times.ttft == times.first_token - times.submitted
    assert times.prompt_rate(usage) == pytest.approx(3 / (times.first_token - times.started))
    assert times.generation_rate(usage) == pytest.approx(3 / (times.last_token - times.first_token))
    assert times.peak_memory > 0
