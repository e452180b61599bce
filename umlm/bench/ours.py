"""umlm's own figures, through the public API: random prompts, greedy, end tokens do not end an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator, Sequence

from mlx.utils import tree_flatten

from umlm.bench.workload import BATCH_PROMPT, KINDS, Workload
from umlm.engine.output import Chunk, Timings
from umlm.engine.params import SamplingParams
from umlm.engine.settings import EngineSettings
from umlm.engine.stream import Stream
from umlm.llm import LLM, load
from umlm.models import Decoder


def opened(model: str, dtype: str, settings: EngineSettings, work: Workload) -> tuple[LLM, float]:
    """The loaded model, with an engine that takes the whole workload, and the seconds that loading took."""
    most = max(work.batch, default=1)
    settings = dataclasses.replace(
        settings,
        max_requests=max(settings.max_requests, most),
        token_budget=max(settings.token_budget, most * BATCH_PROMPT),
        prefix_cache=False,  # what is measured is computing
    )
    start = time.perf_counter()
    llm = load(model, dtype=dtype, settings=settings)
    return llm, time.perf_counter() - start


class Round:
    """One pass over the workload, with prompts of its own."""

    def __init__(self, llm: LLM, work: Workload, seed: int) -> None:
        self.llm, self.work = llm, work
        self.draw = random.Random(seed)
        self.rates: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
        self.ttft: dict[int, float] = {}

    def run(self) -> Round:
        """Measure; returns itself."""
        for length in self.work.prefill:
            self._prefill(length)
        for length in self.work.decode:
            self.rates["decode"][length] = self._generate([max(1, length)])
        for requests in self.work.batch:
            self.rates["batch"][requests] = self._generate([BATCH_PROMPT] * requests)
        return self

    def _prefill(self, length: int) -> None:
        start = time.perf_counter()
        (timings,) = answers(self.llm, [self._prompt(length)], 1)
        assert timings.started is not None and timings.first_token is not None
        self.ttft[length] = timings.first_token - start
        self.rates["prefill"][length] = length / (timings.first_token - timings.started)

    def _generate(self, lengths: Sequence[int]) -> float:
        """Tokens per second of all requests together, after each has its first."""
        timings = answers(self.llm, [self._prompt(length) for length in lengths], self.work.tokens)
        begun = [each.first_token for each in timings if each.first_token is not None]
        ended = [each.last_token for each in timings if each.last_token is not None]
        return len(timings) * (self.work.tokens - 1) / (max(ended) - max(begun))

    def _prompt(self, length: int) -> list[int]:
        return [self.draw.randrange(self.llm.config.vocab_size) for _ in range(length)]


def answers(llm: LLM, prompts: Sequence[Sequence[int]], tokens: int) -> list[Timings]:
    """The moments of requests that begin in the same step."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    with contextlib.ExitStack() as stack:
        streams: list[Stream] = llm.engine.call(lambda: [llm.stream(prompt, params) for prompt in prompts])
        for stream in streams:
            stack.enter_context(stream)
        return [_timings(stream) for stream in streams]


def _timings(chunks: Iterator[Chunk]) -> Timings:
    *_, last = chunks
    if last.finish_reason != "length" or last.timings is None:
        raise RuntimeError(f"an answer ended with {last.finish_reason}: {last.error}")
    return last.timings


def bytes_per_token(model: Decoder) -> int:
    """Bytes of weights that decoding one token reads: all, but of an untied embedding table a row only."""
    sizes = {name: array.nbytes for name, array in dict(tree_flatten(model.parameters())).items()}
    untied = "lm_head" in model
    return sum(size for name, size in sizes.items() if not (untied and ".embed_tokens." in name))
