"""Time to the first token with a known prefix and without, and what a long prompt costs the streams beside it.

    python benchmarks/prefix.py [MODEL] [--shared 2000] [--new 30] [--long 8000] [--rounds 5] [--json]

Cold and warm are the same prompt, so the answers must be the same tokens: cold under a salt of its own, warm after
another prompt with the same beginning. The stream's gaps are medians over the first and the last quarter of the
steps in which the long prompt is computed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import umlm
from umlm import LLM
from umlm.bench.machine import hardware
from umlm.engine.output import Chunk
from umlm.weights.hub import DEFAULT_MODEL

ANSWER = {"max_tokens": 16, "ignore_eos": True}


class Prompts:
    """Random token ids."""

    def __init__(self, llm: LLM) -> None:
        self._size, self._draw = llm.config.vocab_size, random.Random(0)

    def __call__(self, length: int) -> list[int]:
        return [self._draw.randrange(self._size) for _ in range(length)]


def reuse(llm: LLM, prompts: Prompts, shared: int, new: int, number: int) -> dict[str, Any]:
    """One prefix: seconds to the first token cold and warm, and whether the tokens are the same."""
    prefix = prompts(shared)
    llm.generate([*prefix, *prompts(new + 20)], **ANSWER)
    prompt = [*prefix, *prompts(new)]
    cold = llm.generate(prompt, cache_salt=f"round {number}", **ANSWER)
    warm = llm.generate(prompt, **ANSWER)
    return {
        "cold": cold.timings.ttft,
        "warm": warm.timings.ttft,
        "cached_tokens": warm.usage.cached_tokens,
        "same_tokens": cold.token_ids == warm.token_ids,
    }


def beside(llm: LLM, prompt: list[int]) -> dict[str, float]:
    """A stream's gaps between tokens while a prompt is computed: near the prompt's start and near its end."""
    with llm.stream([1, 2, 3], max_tokens=None, ignore_eos=True) as stream:
        for _ in range(5):
            next(stream)
        with llm.stream(prompt, max_tokens=1) as long:
            gaps = list(_gaps(stream, long))
    part = max(1, len(gaps) // 4)
    return {"first": median(gaps[:part]), "last": median(gaps[-part:]), "steps": len(gaps)}


def _gaps(stream: Iterator[Chunk], long: Any) -> Iterator[float]:
    before = time.perf_counter()
    while long._channel.chunks.empty():
        next(stream)
        now = time.perf_counter()
        yield now - before
        before = now


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with umlm.load(arguments.model, progress=False, max_requests=4) as llm:
        prompts = Prompts(llm)
        reuse(llm, prompts, arguments.shared, arguments.new, -1)  # a warm-up
        rounds = [reuse(llm, prompts, arguments.shared, arguments.new, n) for n in range(arguments.rounds)]
        long = beside(llm, prompts(min(arguments.long, llm.context - 1)))
    cold, warm = (median(found[name] for found in rounds) for name in ("cold", "warm"))
    return {
        "model": arguments.model,
        "hardware": hardware(),
        "rounds": arguments.rounds,
        "cold_s": cold,
        "warm_s": warm,
        "ratio": cold / warm,
        "cached_tokens": rounds[0]["cached_tokens"],
        "same_tokens": all(found["same_tokens"] for found in rounds),
        "beside_long": long,
    }


def show(found: dict[str, Any]) -> None:
    for name, value in {"model": found["model"], **found["hardware"]}.items():
        print(f"{name:10} {value}")
    print(f"\nfirst token after {found['cold_s']:.3f} s cold, {found['warm_s']:.3f} s warm: {found['ratio']:.1f} times")
    print(f"{found['cached_tokens']} tokens found; the same answers: {found['same_tokens']}")
    long = found["beside_long"]
    print(f"a stream beside a long prompt: {long['first'] * 1e3:.0f} ms a token at the prompt's start, ", end="")
    print(f"{long['last'] * 1e3:.0f} ms at its end ({long['steps']} steps)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"any model (default: {DEFAULT_MODEL})")
    parser.add_argument("--shared", type=int, default=2000, help="tokens that the prompts share")
    parser.add_argument("--new", type=int, default=30, help="tokens of its own that the measured prompt has")
    parser.add_argument("--long", type=int, default=8000, help="tokens of the prompt beside the stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments)
    print(json.dumps(found, indent=2)) if arguments.json else show(found)


if __name__ == "__main__":
    main()
