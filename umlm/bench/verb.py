"""`umlm bench MODEL`: how fast a model runs here, how near the floor that memory sets, and against peers.

Prompts are random token ids, others in every round; end tokens do not end an answer. A round measures everything
once; the first is warm-up and left out; peers take turns with umlm round by round; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from umlm.bench.machine import hardware, read_bandwidth
from umlm.bench.ours import Round, bytes_per_token, opened
from umlm.bench.peers import KNOWN, Peer, peer
from umlm.bench.table import lines
from umlm.bench.workload import Samples, Workload, ratios
from umlm.cache.memory import peak_memory
from umlm.command import Misuse, Parser, command
from umlm.engine.settings import EngineSettings
from umlm.kernels import cpu
from umlm.llm import LLM
from umlm.options import add_arguments, from_namespace
from umlm.weights.hub import DEFAULT_MODEL, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("bench", __doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"any model (default: {DEFAULT_MODEL})")
    _add_workload(parser)
    parser.add_argument("--dtype", default="auto", help="of activations and float weights (default: auto)")
    add_arguments(parser, EngineSettings, only=["kv_bits", "activations"])
    parser.add_argument("--peer", action="append", default=[], metavar="PEER", help=f"compare with it: {KNOWN}")
    parser.add_argument(
        "--peer-model",
        action="append",
        default=[],
        metavar="NAME:MODEL",
        help="what a peer runs where it is not the same: llama.cpp:FILE.gguf, mlx-lm:FOLDER",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return command(parser, _run, argv)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    sizes: dict[str, Any] = {"nargs": "*", "type": int, "metavar": "N"}
    parser.add_argument("--prefill", **sizes, default=[128, 512], help="prompt lengths (default: 128 512)")
    parser.add_argument("--decode", **sizes, help="contexts to generate after (default: 0, and 2000 where it fits)")
    parser.add_argument("--batch", **sizes, default=[8], help="numbers of requests at once (default: 8)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens to generate (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds after the warm-up (default: 3)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of CPU kernels and peers (default: all)")


def _run(arguments: argparse.Namespace) -> None:
    work, settings = _workload(arguments), from_namespace(EngineSettings, arguments)
    resolve(arguments.model)
    peers = [peer(asked, arguments.model, arguments.peer_model) for asked in arguments.peer]
    llm, seconds = opened(arguments.model, arguments.dtype, settings, work)
    with llm:
        found = measure(llm, _fitting(work, llm, arguments.decode is None), arguments.rounds, peers)
    found["load_ms"] = seconds * 1e3
    found["kv_bits"], found["activations"] = llm.settings.kv_bits, llm.settings.activations
    print(json.dumps(found)) if arguments.json else print("\n".join(lines(found)))


def _workload(arguments: argparse.Namespace) -> Workload:
    """Raises Misuse for sizes that mean nothing."""
    decode = [0, 2000] if arguments.decode is None else arguments.decode
    if min([*arguments.prefill, *arguments.batch, arguments.rounds, 1]) < 1:
        raise Misuse("--prefill, --batch and --rounds must be at least 1")
    if min([*decode, arguments.threads, 0]) < 0:
        raise Misuse("--decode and --threads must be at least 0")
    if arguments.tokens < 2:
        raise Misuse(f"--tokens must be at least 2, the first and one more, not {arguments.tokens}")
    if not (arguments.prefill or decode or arguments.batch):
        raise Misuse("nothing to measure: give --prefill, --decode or --batch a number")
    prefill, contexts, batch = (tuple(sorted(set(each))) for each in (arguments.prefill, decode, arguments.batch))
    return Workload(prefill, contexts, batch, arguments.tokens, _threads(arguments.threads))


def _threads(asked: int) -> int:
    """Threads that kernels use, set as asked."""
    if cpu.extension is None:
        return asked or 1
    cpu.extension.set_num_threads(asked)
    return cpu.extension.num_threads()


def _fitting(work: Workload, llm: LLM, default: bool) -> Workload:
    """The workload, without the default's long context where the model has none; ValueError if it is too long."""
    if default and work.context > llm.context:
        work = Workload(work.prefill, (0,), work.batch, work.tokens, work.threads)
    if work.context > llm.context:
        raise ValueError(f"{work.context} tokens are more than this model's context of {llm.context}: measure less")
    return work


def measure(llm: LLM, work: Workload, rounds: int, peers: Sequence[Peer] = ()) -> dict[str, Any]:
    """All figures but the time to load: what `umlm bench --json` prints, with sizes as integers."""
    Round(llm, work, seed=0).run()
    memory = peak_memory()  # before anything is made to measure the bandwidth
    ours, theirs = Samples(), [Samples() for _ in peers]
    ttft, bandwidth = [], []
    for seed in range(1, rounds + 1):
        _note(f"round {seed} of {rounds}")
        taken = Round(llm, work, seed).run()
        ours.add(taken.rates)
        ttft += [taken.ttft[max(taken.ttft)]] if taken.ttft else []
        bandwidth.append(read_bandwidth())
        for samples, other in zip(theirs, peers, strict=True):
            samples.add(other.rates(work))
    rates, size, speed = ours.medians(), bytes_per_token(llm.model), median(bandwidth)
    fastest = rates["decode"][min(rates["decode"])] if rates["decode"] else None
    return {
        "model": llm.name,
        "hardware": hardware(),
        "rounds": rounds,
        "tokens": work.tokens,
        "threads": work.threads,
        **rates,
        "ttft_ms": median(ttft) * 1e3 if ttft else None,
        "peak_memory_bytes": memory,
        "bytes_per_token": size,
        "read_bytes_per_second": speed,
        "bandwidth_share": None if fastest is None else fastest * size / speed,
        "peers": [
            {"name": other.name, "model": other.model, **samples.medians(), "ratio": ratios(rates, samples.medians())}
            for other, samples in zip(peers, theirs, strict=True)
        ],
    }


def _note(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)
