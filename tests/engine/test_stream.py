"""Streams and the engine thread: threads, asyncio, interrupts, cancelling, stopping."""

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from fakes import hashed, scripted_engine

from umlm.engine.params import SamplingParams
from umlm.engine.thread import EngineThread

LONG = SamplingParams(max_tokens=150)
SHORT = SamplingParams(max_tokens=5)


@pytest.fixture
def engine():
    made = scripted_engine(num_pages=400)
    yield made
    made.stop()


def wait_until_empty(engine, seconds=5.0):
    end = time.monotonic() + seconds
    while engine.call(lambda: engine.num_requests):
        assert time.monotonic() < end, "a request is still there"
    assert not engine.scheduler.has_work
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def ids(chunks):
    return [token for chunk in chunks for token in chunk.token_ids]


def test_closing_a_stream_cancels_within_a_step(engine):
    stream = engine.submit([1], LONG)
    next(stream)
    stream.close()
    steps = len(engine.runner.model.steps)
    wait_until_empty(engine)
    assert len(engine.runner.model.steps) <= steps + 2
    assert list(stream) == []


def test_cancelling_gives_a_last_chunk(engine):
    stream = engine.submit([1], LONG)
    next(stream)
    stream.cancel()
    chunks = list(stream)
    assert chunks[-1].finish_reason == "abort"
    stream.cancel()


def test_a_dropped_stream_cancels(engine):
    for _ in engine.submit([1], LONG):
        break
    gc.collect()
    wait_until_empty(engine)


def test_a_with_block_cancels(engine):
    with engine.submit([1], SamplingParams(n=3, temperature=1, max_tokens=150)) as stream:
        next(stream)
    wait_until_empty(engine)


@pytest.mark.parametrize("tokens", [1, 100])
def test_cancelling_at_any_moment_frees_everything(engine, tokens):
    """Case B11: 100 resets each for short and long prompts: before it is queued, waiting, in prefill, in decode."""
    chance = random.Random(tokens)
    for _ in range(100):
        stream = engine.submit([1] * tokens, LONG)
        for _ in range(chance.choice([0, 0, 1, 3])):
            next(stream)
        if chance.random() < 0.3:
            time.sleep(chance.random() / 1000)
        stream.close()
    wait_until_empty(engine)
    assert len(ids(engine.submit([1], SHORT))) == 5


def test_an_interrupt_while_waiting_cancels_and_the_engine_stays_usable(engine, monkeypatch):
    stream = engine.submit([1], LONG)
    next(stream)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    wait_until_empty(engine)
    assert len(ids(engine.submit([1], SHORT))) == 5


def test_requests_from_many_threads(engine):
    answers = {}

    def ask(number):
        answers[number] = ids(engine.submit([number], SHORT))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answers[number] == ids(engine.submit([number], SHORT)) for number in range(16))


def test_asyncio_streams_run_together(engine):
    async def ask(number):
        return [token async for chunk in engine.submit([number], SHORT) for token in chunk.token_ids]

    async def main():
        return await asyncio.gather(*(ask(number) for number in range(8)))

    assert asyncio.run(main()) == [ids(engine.submit([number], SHORT)) for number in range(8)]


def test_a_cancelled_task_cancels_its_request(engine):
    started = []

    async def ask():
        async for _ in engine.submit([1], LONG):
            started.append(1)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(ask())
        while not started:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until_empty(engine)


def test_to_thread_and_another_loop(engine):
    first = asyncio.run(asyncio.to_thread(lambda: ids(engine.submit([7], SHORT))))
    assert asyncio.run(asyncio.to_thread(lambda: ids(engine.submit([7], SHORT)))) == first


def test_call_runs_on_the_engine_thread_and_raises_there(engine):
    name = engine.call(lambda: threading.current_thread().name)
    assert name == "umlm-engine" != threading.current_thread().name
    assert engine.call(lambda: engine.call(lambda: 5)) == 5
    assert engine.call(int, "7") == 7
    for error in (ZeroDivisionError, TimeoutError, SystemExit):
        with pytest.raises(error):
            engine.call(_raise, error)
    assert len(ids(engine.submit([1], SHORT))) == 5


def _raise(error):
    raise error


def test_call_goes_between_steps(engine):
    stream = engine.submit([1], LONG)
    next(stream)
    engine.call(lambda: None)
    assert engine.call(lambda: engine.num_requests) == 1
    stream.close()


def test_stop_aborts_and_refuses(engine):
    stream = engine.submit([1], LONG)
    next(stream)
    engine.stop()
    assert list(stream)[-1].finish_reason == "abort"
    assert not engine.thread.is_alive
    engine.stop()
    for use in (lambda: engine.submit([1]), lambda: engine.call(int)):
        with pytest.raises(RuntimeError, match="the engine is stopped"):
            use()


def test_an_idle_engine_sleeps(engine):
    list(engine.submit([1], SHORT))
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_a_dropped_engine_is_freed_and_its_thread_ends():
    engine = scripted_engine(hashed)
    list(engine.submit([1], SHORT))
    thread, reference = engine.thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert not thread.is_alive


def test_loading_on_the_thread_first():
    thread = EngineThread()
    assert thread.call(lambda: threading.current_thread().name) == "umlm-engine"
    thread.stop()
    assert not thread.is_alive


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from fakes import scripted_engine
from umlm.engine.params import SamplingParams
engine = scripted_engine(context=100_000, num_pages=30_000)
stream = engine.submit([1], SamplingParams(max_tokens=None))
print(len(next(stream).token_ids), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["pass", "stream.close()", "raise SystemExit(0)"])
def test_the_interpreter_ends_while_the_engine_is_busy(end):
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), end=end)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


def test_a_real_interrupt_leaves_the_engine_usable():
    end = """
import os, signal, threading
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for chunk in stream:
        pass
except KeyboardInterrupt:
    print("interrupted")
print(len(list(engine.submit([2], SamplingParams(max_tokens=4)))), engine.call(lambda: engine.num_requests))
"""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), end=end)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\ninterrupted\n4 0\n", "")
