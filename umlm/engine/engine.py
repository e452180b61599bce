"""The engine: requests go in from any thread, one thread steps, chunks come out."""

from __future__ import annotations

import functools
import itertools
import logging
import reprlib
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from umlm.cache.memory import peak_memory
from umlm.cache.prefix import Identity
from umlm.engine.output import Chunk, Clock, Output, TextStream, Timings
from umlm.engine.params import SamplingParams
from umlm.engine.reading import Embedding, PromptLogprobs
from umlm.engine.request import Request, State
from umlm.engine.sampler import Sample
from umlm.engine.scheduler import Plan, Scheduler
from umlm.engine.service import Service
from umlm.engine.stream import Channel, Stream
from umlm.engine.thread import EngineThread

T = TypeVar("T")
_log = logging.getLogger(__name__)


class PlanRunner(Protocol):
    """What computes a plan (engine/runner.py)."""

    def run(self, plan: Plan) -> list[Sample]: ...


class Vocabulary(Protocol):
    """What the engine asks of a tokenizer (text/tokenizer.py)."""

    @property
    def eos_ids(self) -> Collection[int]: ...
    def detokenizer(self) -> TextStream: ...


class Engine:
    """Runs requests together on one thread. Dropping the engine, or the interpreter's exit, stops the thread.

    thread      made by the caller when loading has to happen on it first: arrays belong to one thread
    context     most tokens of prompt and answer together
    vocab_size  token ids are below it
    relieve     called before every step: gives memory back where the machine runs short (engine/relief.py)
    """

    def __init__(
        self,
        runner: PlanRunner,
        scheduler: Scheduler,
        tokenizer: Vocabulary,
        *,
        context: int,
        vocab_size: int,
        thread: EngineThread | None = None,
        clock: Clock = time.perf_counter,
        relieve: Callable[[], object] | None = None,
    ) -> None:
        self.runner, self.scheduler, self.tokenizer = runner, scheduler, tokenizer
        self.context = min(context, scheduler.pool.num_tokens)
        self.vocab_size = vocab_size
        self.thread = thread or EngineThread()
        self._clock = clock
        self._relieve = relieve or _nothing
        self._ids = itertools.count()
        self._outputs: dict[Request, tuple[Output, Channel]] = {}
        self.thread.work = _weakly(self._work)
        self._finalizer = weakref.finalize(self, self.thread.stop)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._outputs)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run function(*args) on the engine thread, between steps; returns its result or raises its exception."""
        return self.thread.call(function, *args)

    def stop(self) -> None:
        """End all requests with "abort" and the thread with them. May be called again."""
        if self._finalizer.alive:
            self.thread.post(self._abort_all)
            self._finalizer()

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        service: Service | None = None,
        *,
        pooling: str | None = None,
    ) -> Stream:
        """Queue a prompt and return its chunks; params.n answers grow at the same time and share its full pages.

        pooling  instead of an answer, one chunk with the prompt's embedding: "mean", "last" or "cls"

        Raises ValueError for a prompt that is empty, too long or of unknown token ids, and for params that this
        model cannot serve; RuntimeError when the engine is stopped.
        """
        if not self.thread.is_alive:
            raise RuntimeError("the engine is stopped; load the model again")
        params = params or SamplingParams()
        params.check_vocabulary(self.vocab_size)
        prompt = self.check_prompt(prompt_ids)
        outputs = self._outputs_for(prompt, params, service or Service(), pooling)
        requests, channel = [output.request for output in outputs], Channel()
        self.thread.post(functools.partial(self._enter, outputs, channel))
        cancel = functools.partial(self.thread.post, functools.partial(self._leave, requests))
        return Stream(channel, len(requests), cancel, lambda: self.thread.is_alive)

    def step(self) -> bool:
        """Plan, compute and commit one step, and hand out its chunks; whether there is more to do."""
        self._expire()
        self._relieve()
        plan = self.scheduler.plan()
        self._mark_started(plan)
        samples = self._run(plan)
        self.scheduler.commit(plan, [sample.token for sample in samples])
        for request, sample in zip(plan.sampled, samples, strict=True):
            self._emit(request, sample)
        return self.scheduler.has_work

    def _work(self) -> bool:
        """A step that cannot break the thread."""
        try:
            return self.step()
        except Exception as error:
            _log.exception("a step failed, all requests end")
            self._fail(list(self._outputs), _words(error))
            return False

    def _run(self, plan: Plan) -> list[Sample]:
        """Samples of the plan; requests that cannot be computed have ended with an error."""
        if not plan.rows:
            return []
        try:
            samples = self.runner.run(plan)
        except Exception as error:
            _log.exception("a step could not be computed, the requests in it end")
            self._fail([row.request for row in plan.rows], _words(error))
            return [Sample(0)] * len(plan.sampled)
        for request, sample in zip(plan.sampled, samples, strict=True):
            if sample.error is not None:
                self._fail([request], sample.error)
        return samples

    def check_prompt(self, prompt_ids: Sequence[int]) -> list[int]:
        """The prompt as a list; ValueError when it is empty, longer than the context, or holds unknown token ids."""
        ids = np.asarray(prompt_ids)
        if not ids.size:
            raise ValueError("the prompt is empty; give at least one token")
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"the prompt must be a list of token ids, not {reprlib.repr(prompt_ids)}")
        if ids.size > self.context:
            raise ValueError(f"the prompt has {ids.size} tokens, the context holds {self.context}; shorten the prompt")
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if wrong.size:
            raise ValueError(f"the prompt must hold token ids from 0 to {self.vocab_size - 1}, not {wrong[0]}")
        return ids.tolist()

    def _outputs_for(
        self, prompt: list[int], params: SamplingParams, service: Service, pooling: str | None
    ) -> list[Output]:
        """One output, and in it one request, per answer; the answers share one seed and differ by their index."""
        room = self.context - len(prompt)
        if params.max_tokens is not None:
            room = min(room, params.max_tokens)
        stop_ids = frozenset(params.stop_token_ids or ())
        group = None if self.scheduler.prefixes.keep else next(self._ids)
        make = functools.partial(
            Request,
            params=params,
            max_length=len(prompt) + room,
            stop_ids=stop_ids if params.ignore_eos else stop_ids | frozenset(self.tokenizer.eos_ids),
            seed=secrets.randbits(64) if params.seed is None else params.seed % 2**64,
            priority=service.priority,
            identity=Identity(salt=service.cache_salt, group=group),
        )
        now = self._clock()
        requests = [make(id=next(self._ids), tokens=list(prompt), index=index) for index in range(params.n)]
        _let_read(requests[0], pooling, self.vocab_size)
        return [
            Output(request, self.tokenizer.detokenizer(), Timings(now), self._clock, service) for request in requests
        ]

    def _enter(self, outputs: Sequence[Output], channel: Channel) -> None:
        for output in outputs:
            request = output.request
            self._outputs[request] = (output, channel)
            self.scheduler.submit(request)
            if len(request.tokens) >= request.max_length:  # a prompt that fills the context leaves no room
                self.scheduler.finish(request, "length")
                self._end(request)

    def _leave(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request in self._outputs:
                self.scheduler.cancel(request)
                self._end(request)

    def _expire(self) -> None:
        """End the requests whose time is over."""
        now = self._clock()
        for request, (output, _) in list(self._outputs.items()):
            if (why := output.overdue(now)) is not None:
                self._fail([request], why, "timeout")

    def _mark_started(self, plan: Plan) -> None:
        for row in plan.rows:
            timings = self._outputs[row.request][0].timings
            if timings.started is None:
                timings.started = self._clock()

    def _emit(self, request: Request, sample: Sample) -> None:
        """Hand out the chunk of a sampled token; a stop string ends the request here."""
        if request not in self._outputs:  # it has failed
            return
        output, channel = self._outputs[request]
        try:
            chunk = output.add(sample)
        except Exception as error:
            self._fail([request], _words(error))
            return
        if output.stop is not None:
            self.scheduler.finish(request, "stop")
            request.finish_reason, request.stop_reason = "stop", output.stop
        if request.state is State.FINISHED:
            self._end(request, chunk)
        else:
            channel.put(chunk)

    def _end(self, request: Request, chunk: Chunk | None = None) -> None:
        """Hand out the last chunk and forget the request."""
        output, channel = self._outputs.pop(request)
        channel.put(output.last(chunk or Chunk(request.index), peak_memory()))

    def _fail(self, requests: Sequence[Request], message: str, reason: str = "error") -> None:
        """End requests with an error, in one line that names each."""
        for request in requests:
            self.scheduler.finish(request, reason)
            request.finish_reason, request.error = reason, f"request {request.id}: {message}"
            self._end(request)

    def _abort_all(self) -> None:
        self._leave(list(self._outputs))


def _let_read(request: Request, pooling: str | None, vocab_size: int) -> None:
    """Give a request what it reads of its prompt. Without room for an answer it ends once that is read."""
    if pooling is not None:
        request.reading = Embedding(request.num_prompt, pooling)
    elif request.params.prompt_logprobs is not None:
        request.reading = PromptLogprobs(tuple(request.tokens), request.params.prompt_logprobs, vocab_size)
    request.scored = request.reading is not None
    if request.scored and (pooling is not None or request.max_length == request.num_prompt):
        request.reads_only, request.stop_ids = True, frozenset()
        request.max_length = request.num_prompt + 1


def _nothing() -> None:
    return None


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _weakly(method: Callable[[], bool]) -> Callable[[], bool]:
    """The method while its object lives, so that the thread alone does not keep an engine alive."""
    reference = weakref.WeakMethod(method)

    def call() -> bool:
        living = reference()
        return living is not None and living()

    return call
