"""Measures mlx-lm; run as a script by an interpreter that has it, so it uses nothing of umlm.

    python mlx_lm_rates.py MODEL PREFILL DECODE BATCH TOKENS BATCH_PROMPT     (lists as 128,512)

Prints a JSON list of [kind, size, tokens per second].
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mlx.core as mx


def main() -> None:
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    model, _ = load(sys.argv[1])[:2]
    prefill, decode, batch = ([int(size) for size in word.split(",") if size] for word in sys.argv[2:5])
    tokens, batch_prompt = int(sys.argv[5]), int(sys.argv[6])

    def first(requests: int, length: int) -> tuple[Any, Any]:
        """The first token of `requests` random prompts, and the cache."""
        cache = make_prompt_cache(model)
        ids = mx.random.randint(10, 1000, (requests, length))
        token = mx.argmax(model(ids, cache=cache)[:, -1], axis=-1)
        mx.eval(token)
        return token, cache

    def generate(requests: int, length: int) -> float:
        token, cache = first(requests, length)
        start = time.perf_counter()
        for _ in range(tokens - 1):
            token = mx.argmax(model(token[:, None], cache=cache)[:, -1], axis=-1)
            mx.eval(token)
        return requests * (tokens - 1) / (time.perf_counter() - start)

    def prompt_rate(length: int) -> float:
        start = time.perf_counter()
        first(1, length)
        return length / (time.perf_counter() - start)

    first(1, 2)
    rates = [("prefill", length, prompt_rate(length)) for length in prefill]
    rates += [("decode", length, generate(1, max(1, length))) for length in decode]
    rates += [("batch", requests, generate(requests, batch_prompt)) for requests in batch]
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
