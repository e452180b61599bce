"""LLM from other threads and from asyncio, left early, interrupted, closed, dropped, and two at a time."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import interrupted
import mlx.core as mx
import numpy as np
import pytest
from tiny_chat import SENTENCE

from umlm import LLM, load

ENDLESS = {"ignore_eos": True, "max_tokens": 4000}


def in_thread(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


def free_pages(llm: LLM) -> int:
    """Counted on the engine thread, after all that was posted to it before."""
    return llm.engine.call(lambda: llm.engine.scheduler.pool.num_free)


def engine_threads() -> int:
    return sum(thread.name == "umlm-engine" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen within 20 seconds"
        time.sleep(0.01)


def test_load_here_and_generate_in_a_worker(sentence: LLM) -> None:
    assert in_thread(lambda: sentence.generate("Hello").text) == SENTENCE
    assert in_thread(lambda: sentence.logits([1, 2]).shape) == (2, 290)


def test_load_in_a_worker_and_use_here(sentence_folder: Path) -> None:
    llm = in_thread(lambda: load(sentence_folder))
    assert isinstance(llm, LLM)
    with llm:
        assert llm.generate("Hello").text == SENTENCE
        assert mx.softmax(llm.logits([1, 2]), axis=-1).sum().item() == pytest.approx(2, abs=1e-4)


def test_many_threads_share_one_model(sentence: LLM) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: sentence.generate("Hello").text, range(24)))
    assert texts == [SENTENCE] * 24


def test_asyncio_streams_gather_and_to_thread(sentence: LLM) -> None:
    async def text(prompt: str) -> str:
        return "".join([chunk.text async for chunk in sentence.stream(prompt)])

    async def everything() -> list[str]:
        in_a_thread = asyncio.to_thread(lambda: sentence.generate("Hello").text)
        return await asyncio.gather(text("A"), text("B"), text("C"), in_a_thread)

    assert asyncio.run(everything()) == [SENTENCE] * 4


def test_a_cancelled_task_ends_its_request(sentence: LLM) -> None:
    async def endless() -> None:
        async for _ in sentence.stream("Hello", **ENDLESS):
            pass

    async def cancel() -> None:
        before = free_pages(sentence)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endless(), 0.3)
        assert free_pages(sentence) == before

    asyncio.run(cancel())
    assert sentence.generate("Hello").text == SENTENCE


def test_generating_inside_a_running_event_loop_works(sentence: LLM) -> None:
    """As in a notebook cell, which runs inside a loop."""

    async def cell() -> str:
        return sentence.generate("Hello").text

    assert asyncio.run(cell()) == SENTENCE


@pytest.mark.parametrize("way", ["close", "with", "drop"])
def test_leaving_a_stream_early_frees_its_pages(sentence: LLM, way: str) -> None:
    before = free_pages(sentence)
    stream = sentence.stream("Hello", **ENDLESS)
    assert next(stream).token_ids
    assert free_pages(sentence) < before
    if way == "close":
        stream.close()
    elif way == "with":
        with stream:
            pass
    del stream
    assert free_pages(sentence) == before
    assert sentence.generate("Hello").text == SENTENCE


def test_a_stream_keeps_its_model_alive(sentence_folder: Path) -> None:
    assert "".join(chunk.text for chunk in load(sentence_folder).stream("Hello")) == SENTENCE


def test_close_twice_then_a_clear_error(sentence_folder: Path) -> None:
    before = engine_threads()
    llm = load(sentence_folder)
    stream = llm.stream("Hello", **ENDLESS)
    next(stream)
    llm.close()
    llm.close()
    assert engine_threads() == before
    assert [chunk.finish_reason for chunk in stream][-1] == "abort"
    for use in (llm.generate, llm.stream, llm.chat, llm.logits):
        with pytest.raises(RuntimeError, match="stopped; load the model again"):
            use("Hello")


def test_leaving_the_with_block_closes(sentence_folder: Path) -> None:
    with load(sentence_folder) as llm:
        assert "sentence" in repr(llm)
    with pytest.raises(RuntimeError, match="load the model again"):
        llm.generate("Hello")


def test_a_dropped_model_ends_its_thread_and_gives_its_memory_back(random_folder: Path) -> None:
    before = engine_threads()
    llm = load(random_folder)
    llm.generate([5], max_tokens=2)
    network = weakref.ref(llm.model)
    assert engine_threads() == before + 1
    del llm
    gc.collect()
    wait_until(lambda: engine_threads() == before)
    gc.collect()
    assert network() is None


def test_two_models_side_by_side(sentence: LLM, random_llm: LLM) -> None:
    alone = random_llm.generate([5, 6], max_tokens=9, ignore_eos=True).token_ids
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(lambda: [sentence.generate("Hello").text for _ in range(5)])
        other = pool.submit(
            lambda: [random_llm.generate([5, 6], max_tokens=9, ignore_eos=True).token_ids for _ in range(5)]
        )
        assert one.result(60) == [SENTENCE] * 5
        assert other.result(60) == [alone] * 5


def test_the_network_can_be_called_from_any_thread(random_llm: LLM) -> None:
    tokens = [3, 4, 5]
    expected = np.array(random_llm.logits(tokens))
    assert np.array_equal(np.array(random_llm.model(mx.array([tokens]))[0]), expected)
    assert np.array_equal(in_thread(lambda: np.array(random_llm.model(mx.array([tokens]))[0])), expected)


INTERRUPT_GENERATE = """
import os, signal, sys, threading
import umlm
llm = umlm.load(sys.argv[1])
calls = {
    "generate": lambda: llm.generate(["Hello"] * 3, ignore_eos=True, max_tokens=4000),
    "stream": lambda: list(llm.stream("Hello", ignore_eos=True, max_tokens=4000)),
    "chat": lambda: llm.chat("Hello", ignore_eos=True, max_tokens=4000),
}
pages = llm.engine.scheduler.pool.num_free
for name, call in calls.items():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
        print(name, "was not interrupted")
    except KeyboardInterrupt:
        free = llm.engine.call(lambda: llm.engine.scheduler.pool.num_free)
        print(name, free == pages, llm.engine.num_requests, llm.generate("Hello").text)
"""


def test_an_interrupt_while_generating_leaves_the_model_usable(sentence_folder: Path) -> None:
    out = interrupted.run(INTERRUPT_GENERATE, str(sentence_folder))
    assert out.splitlines() == [f"{name} True 0 {SENTENCE}" for name in ("generate", "stream", "chat")]


INTERRUPT_LOAD = """
import os, signal, sys, threading, time
import umlm
load = umlm.load  # imported before anything is interrupted
ended = set()
for step in range(40):
    alarm = threading.Timer(0.005 * step, os.kill, (os.getpid(), signal.SIGINT))
    try:
        alarm.start()
        load(sys.argv[1]).close()
        alarm.join()
        time.sleep(0.01)
        ended.add("loaded")
    except KeyboardInterrupt:
        ended.add("interrupted")
    alarm.join()
print(sorted(ended))
deadline = time.monotonic() + 20
while threading.active_count() > 2 and time.monotonic() < deadline:
    time.sleep(0.01)
print(threading.active_count() <= 2, load(sys.argv[1]).generate("Hello").text)
"""


def test_an_interrupt_while_loading_leaves_nothing_behind(sentence_folder: Path) -> None:
    """At forty moments, from the first line to after the end.

    One idle thread may stay: an interrupt can come between its start and the assignment of the object that ends it.
    """
    seen, after = interrupted.run(INTERRUPT_LOAD, str(sentence_folder)).splitlines()
    assert "interrupted" in seen
    assert after == f"True {SENTENCE}"


LEAVE = """
import sys
import umlm
llm = umlm.load(sys.argv[1])
stream = llm.stream("Hello", ignore_eos=True, max_tokens=4000)
print(next(stream).text)
"""


def test_a_program_may_end_in_the_middle_of_an_answer(sentence_folder: Path) -> None:
    """Neither does it wait for the end of the answer, nor does the thread crash while Python shuts down."""
    process = interrupted.start(LEAVE, str(sentence_folder))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "One\n", "")
