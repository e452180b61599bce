"""Every architecture: an answer is the same bits cold, from a warm prefix, after preemption, and as one of three.

Tokens and log-probabilities in float32, from pages that were filled by other prompts, in other chunks.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
import zoo
import zoo_model
from fakes import ByteTokenizer

from umlm.cache.budget import FLOATS, KVBits
from umlm.cache.pool import PagePool
from umlm.cache.store import PageStore
from umlm.engine.engine import Engine
from umlm.engine.params import SamplingParams
from umlm.engine.runner import Runner
from umlm.engine.scheduler import Scheduler
from umlm.engine.thread import EngineThread

NEW = 8
PAGE = 4
CONTEXT = 64  # beyond what some were made for, where dynamic rope begins to stretch
GREEDY = SamplingParams(max_tokens=NEW, logprobs=2, ignore_eos=True)


class Bench:
    """One model, whose weights are evaluated so that the threads of all its engines may read them."""

    def __init__(self, name: str) -> None:
        self.model = zoo_model.load_changed(name)
        mx.eval(self.model.parameters())
        self.tokens = zoo.CASES[name].tokens.tolist()
        self._cold: dict[tuple, list] = {}

    def engine(self, num_pages: int = 100, bits: KVBits = FLOATS, **limits: int) -> Engine:
        """An engine with empty pages, of float32 or of so many bits."""
        config, thread = self.model.config, EngineThread()
        store = thread.call(PageStore, self.model.state_specs(), num_pages, PAGE, mx.float32, bits)
        scheduler = Scheduler(PagePool(num_pages, PAGE), length_kind=config.length_kind, **limits)
        runner = Runner(self.model, store)
        size = config.vocab_size
        return Engine(runner, scheduler, ByteTokenizer(), context=CONTEXT, vocab_size=size, thread=thread)

    def cold(self, prompt: list[int], bits: KVBits = FLOATS) -> list:
        """The answer of an engine that has seen nothing, alone."""
        key = (bits, *prompt)
        if key not in self._cold:
            self._cold[key] = answers(self.engine(bits=bits, prefix_cache=False).submit(prompt, GREEDY))[0]
        return self._cold[key]


def answers(stream) -> dict[int, list]:
    """index -> (token, its log-probabilities) of each token."""
    found: dict[int, list] = {}
    for chunk in stream:
        assert chunk.error is None, chunk.error
        found.setdefault(chunk.index, []).extend(chunk.logprobs or ())
    return found


@pytest.fixture(scope="module", params=zoo.CASES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def prompts(bench: Bench) -> list[list[int]]:
    """Field case K01: a long one, its beginning twice, and others around page borders and rope's limits."""
    tokens = bench.tokens
    lengths = (40, 20, 20, 40, 15, 16, 17, 3, 9, 33)
    return [*(tokens[:length] for length in lengths), [*tokens[:22], *tokens[30:37]]]


def test_warm_is_cold(bench: Bench) -> None:
    """Field cases K01 and K12; windows and ropes that go by the length included."""
    engine = bench.engine()
    for prompt in prompts(bench):
        assert answers(engine.submit(prompt, GREEDY))[0] == bench.cold(prompt), f"{len(prompt)} tokens"
    assert engine.scheduler.prefixes.stats.hit >= 60


@pytest.mark.parametrize("bits", [KVBits(8, 8), KVBits(8, 4)], ids=["8", "k8v4"])
def test_quantized_pages_are_reused_with_the_same_bits(bench: Bench, bits: KVBits) -> None:
    """Field case K07: quantized pages, batching and prefix hits at once."""
    engine = bench.engine(bits=bits, token_budget=64, max_requests=8, max_chunk=7)
    for _ in range(2):
        streams = engine.call(lambda: [engine.submit(prompt, GREEDY) for prompt in prompts(bench)])
        assert [answers(stream)[0] for stream in streams] == [bench.cold(prompt, bits) for prompt in prompts(bench)]
    assert engine.scheduler.prefixes.stats.hit >= 200


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_eight_together_are_cold(bench: Bench, chunk: int) -> None:
    """Field case B02: mixed lengths in one row, whole and in chunks; some share a beginning, most do not."""
    engine = bench.engine(token_budget=64, max_requests=8, max_chunk=chunk)
    given = [[first, *bench.tokens[:length]] for first, length in enumerate((40, 2, 11, 1, 20, 5, 31))]
    given.append(given[0][:24])
    streams = engine.call(lambda: [engine.submit(prompt, GREEDY) for prompt in given])
    assert [answers(stream)[0] for stream in streams] == [bench.cold(prompt) for prompt in given]


def test_preempted_is_cold(bench: Bench) -> None:
    """Pages for half of what five requests need, chunks of 7: some lose their pages and find a part again."""
    engine = bench.engine(num_pages=16, token_budget=12, max_requests=5, max_chunk=7)
    given = [
        [first, *bench.tokens[:length]] for first, length in zip((1, 2, 3, 4, 5), (20, 12, 17, 9, 24), strict=True)
    ]
    preempted = count_preemptions(engine.scheduler)
    streams = engine.call(lambda: [engine.submit(prompt, GREEDY) for prompt in given])  # all before the first step
    assert [answers(stream)[0] for stream in streams] == [bench.cold(prompt) for prompt in given]
    assert preempted


def count_preemptions(scheduler: Scheduler) -> list:
    """A list that gets every request that is preempted from now on."""
    seen: list = []
    preempt = scheduler.preempt

    def noted(request) -> None:
        seen.append(request)
        preempt(request)

    scheduler.preempt = noted  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_three_answers_share_the_prompt_s_pages(bench: Bench, prefix_cache: bool) -> None:
    """With the prefix cache off too; the last, partial page is computed by each for itself."""
    engine = bench.engine(prefix_cache=prefix_cache)
    prompt = bench.tokens[:22]
    three = SamplingParams(max_tokens=NEW, logprobs=2, ignore_eos=True, n=3)
    assert answers(engine.submit(prompt, three)) == dict.fromkeys(range(3), bench.cold(prompt))
    assert engine.scheduler.prefixes.stats.hit == 2 * 20
