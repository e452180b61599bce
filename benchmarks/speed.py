"""Prefill and decode speed of a model, through the public API, with the floor that memory sets.

    python benchmarks/speed.py [MODEL] [--prompt-tokens 16 128] [--decode 32] [--rounds 3] [--json]

Prompts are random token ids, others in every round; end tokens do not end the answer. The first answer of each
length is warm-up and left out; lengths take turns from round to round; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
from statistics import median
from typing import Any

from machine import hardware, read_bandwidth
from mlx.utils import tree_flatten

import umlm
from umlm.models import Decoder
from umlm.weights.hub import DEFAULT_MODEL


def measure(llm: umlm.LLM, lengths: list[int], decode: int, rounds: int) -> list[dict[str, Any]]:
    """One row of medians per prompt length."""
    samples: dict[int, list[Any]] = {length: [] for length in lengths}
    for turn in range(rounds + 1):
        for length in lengths:
            timings = answer(llm, length, decode, seed=turn)
            if turn:
                samples[length].append(timings)
    return [{"prompt_tokens": length, **_medians(samples[length])} for length in lengths]


def answer(llm: umlm.LLM, length: int, decode: int, seed: int) -> Any:
    """The timings of one answer to a random prompt."""
    draw = random.Random(f"{seed} {length}")
    prompt = [draw.randrange(llm.config.vocab_size) for _ in range(length)]
    return llm.generate(prompt, max_tokens=decode, ignore_eos=True).timings


def _medians(samples: list[Any]) -> dict[str, float]:
    rates = ("prompt_tps", "generation_tps", "ttft")
    return {name: median(getattr(sample, name) for sample in samples) for name in rates}


def bytes_per_token(model: Decoder) -> int:
    """Bytes of weights that decoding one token reads: all, but of an untied embedding table a row only."""
    sizes = {name: array.nbytes for name, array in dict(tree_flatten(model.parameters())).items()}
    untied = "lm_head" in model
    return sum(size for name, size in sizes.items() if not (untied and ".embed_tokens." in name))


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Load, measure, and put everything that a reader needs in one mapping."""
    bandwidth = read_bandwidth()
    with umlm.load(arguments.model, dtype=arguments.dtype) as llm:
        rows = measure(llm, arguments.prompt_tokens, arguments.decode, arguments.rounds)
        weights = bytes_per_token(llm.model)
        peak = answer(llm, 1, 2, seed=0).peak_memory
    return {
        "model": arguments.model,
        "hardware": hardware(),
        "decode_tokens": arguments.decode,
        "rounds": arguments.rounds,
        "rows": rows,
        "weight_bytes_per_token": weights,
        "read_bytes_per_second": bandwidth,
        "decode_tps_at_bandwidth": bandwidth / weights,
        "peak_mlx_bytes": peak,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
    }


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def show(found: dict[str, Any]) -> None:
    print(f"model      {found['model']}")
    for name, value in found["hardware"].items():
        print(f"{name:10} {value}")
    print(f"\nmedians of {found['rounds']} rounds, {found['decode_tokens']} tokens decoded")
    print(f"{'prompt tokens':>13} {'prefill tok/s':>14} {'decode tok/s':>13} {'first token s':>14}")
    for row in found["rows"]:
        print(
            f"{row['prompt_tokens']:>13} {row['prompt_tps']:>14.1f} {row['generation_tps']:>13.2f} {row['ttft']:>14.3f}"
        )
    roof = found["decode_tps_at_bandwidth"]
    best = max(row["generation_tps"] for row in found["rows"])
    print(
        f"\nfloor      {found['weight_bytes_per_token'] / 1e6:.1f} MB of weights a token, read at "
        f"{found['read_bytes_per_second'] / 1e9:.1f} GB/s: {roof:.1f} tok/s at most; decode reaches {best / roof:.1%}"
    )
    print(
        f"memory     peak {found['peak_mlx_bytes'] / 2**20:.0f} MiB in MLX, "
        f"{found['peak_resident_bytes'] / 2**20:.0f} MiB resident"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"any model (default: {DEFAULT_MODEL})")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--decode", type=int, default=32, help="tokens to generate, at least 2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if min(*arguments.prompt_tokens, arguments.rounds) < 1 or arguments.decode < 2:
        parser.error("--prompt-tokens and --rounds must be at least 1, --decode at least 2")
    found = report(arguments)
    print(json.dumps(found, indent=2)) if arguments.json else show(found)


if __name__ == "__main__":
    main()
