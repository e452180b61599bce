"""The engine with real tiny models: alone == together == in any chunks == one dense call per token."""

import mlx.core as mx
import numpy as np
import pytest
import zoo_model
from fakes import ByteTokenizer

from umlm.cache.budget import FLOATS, KV_BITS
from umlm.cache.pool import PagePool
from umlm.cache.store import PageStore
from umlm.engine.engine import Engine
from umlm.engine.params import SamplingParams
from umlm.engine.runner import Runner
from umlm.engine.scheduler import Scheduler
from umlm.engine.thread import EngineThread

NEW = 10
LENGTHS = (3, 20, 1, 7, 12)
CASES = ["llama", "mistral_window", "qwen3", "gemma2", "gemma3"]


@pytest.fixture(params=CASES)
def engine_of(request):
    """Make one engine around a zoo model that is loaded on the engine's thread."""
    thread = EngineThread()
    model = thread.call(zoo_model.load_changed, request.param)
    size = model.config.vocab_size

    def make(num_pages, page_size, bits=FLOATS, **limits):
        store = thread.call(PageStore, model.state_specs(), num_pages, page_size, mx.float32, bits)
        scheduler = Scheduler(PagePool(num_pages, page_size), **limits)
        runner = Runner(model, store)
        return Engine(runner, scheduler, ByteTokenizer(), context=64, vocab_size=size, thread=thread)

    yield make
    thread.stop()


def prompts(vocab_size):
    generator = np.random.Generator(np.random.PCG64(0))
    return [generator.integers(0, vocab_size, length).tolist() for length in LENGTHS]


def dense(model, prompt):
    """Greedy tokens from whole sequences, without any memory."""
    tokens = list(prompt)
    for _ in range(NEW):
        logits = model(mx.array([tokens]))
        tokens.append(int(mx.argmax(logits[0, -1])))
    return tokens[len(prompt) :]


def paged(model, prompt, bits):
    """Greedy tokens of one sequence, each from the whole of it in fresh pages of so many bits."""
    tokens = list(prompt)
    for _ in range(NEW):
        run = zoo_model.Run(np.array(tokens), len(tokens), [len(tokens)])
        tokens.append(int(zoo_model.paged(model, [run], bits)[0][-1].argmax()))
    return tokens[len(prompt) :]


def answer(stream):
    return [token for chunk in stream for token in chunk.token_ids]


COMPANY = [
    (100, 4, {"token_budget": 64, "max_requests": 8}),  # all together, whole prompts
    (100, 4, {"token_budget": 5, "max_requests": 4}),  # small chunks
    (100, 16, {"token_budget": 64, "max_requests": 1}),  # one after the other
    (40, 1, {"token_budget": 24, "max_requests": 8, "max_chunk": 3}),  # preempted on the way
]


@pytest.mark.parametrize(("num_pages", "page_size", "limits"), COMPANY)
def test_greedy_tokens_do_not_depend_on_who_else_runs_or_on_chunks(engine_of, num_pages, page_size, limits):
    """Cases B01 and B13."""
    engine = engine_of(num_pages, page_size, **limits)
    given = prompts(engine.vocab_size)
    streams = [engine.submit(prompt, SamplingParams(max_tokens=NEW)) for prompt in given]
    got = [answer(stream) for stream in streams]
    assert got == [engine.call(dense, engine.runner.model, prompt) for prompt in given]


@pytest.mark.parametrize("kind", ["8", "4", "k8v4"])
@pytest.mark.parametrize(("num_pages", "page_size", "limits"), COMPANY)
def test_greedy_tokens_with_quantized_pages_are_those_alone(engine_of, num_pages, page_size, limits, kind):
    """Together, in chunks, and computed again after preemption: the same pages, so the same tokens."""
    engine = engine_of(num_pages, page_size, KV_BITS[kind], **limits)
    given = prompts(engine.vocab_size)
    streams = [engine.submit(prompt, SamplingParams(max_tokens=NEW)) for prompt in given]
    got = [answer(stream) for stream in streams]
    assert got == [engine.call(paged, engine.runner.model, prompt, KV_BITS[kind]) for prompt in given]


def test_a_seed_gives_the_same_tokens_alone_and_together(engine_of):
    """Case P07."""
    hot = [SamplingParams(max_tokens=NEW, temperature=1, seed=seed, top_p=0.9) for seed in range(len(LENGTHS))]
    engine = engine_of(100, 4, token_budget=16, max_requests=8)
    given = list(zip(prompts(engine.vocab_size), hot, strict=True))
    together = [engine.submit(prompt, params) for prompt, params in given]
    got = [answer(stream) for stream in together]
    assert got == [answer(engine.submit(prompt, params)) for prompt, params in given]
