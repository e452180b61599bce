"""The figures of a measurement as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from umlm.bench.workload import KINDS

WORDS = {"prefill": "{} tokens of prompt", "decode": "after {} tokens", "batch": "{} requests together"}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What `umlm bench` prints."""
    yield f"{'model':<11}{found['model']}"
    for name, value in found["hardware"].items():
        yield f"{name:<11}{value}"
    yield f"{'precision':<11}activations {found['activations']}, keys and values {found['kv_bits']} bits"
    yield f"\nmedians of {found['rounds']} rounds, {found['threads']} threads, {found['tokens']} tokens generated"
    yield from _rates(found)
    yield ""
    yield from _rest(found)


def _rates(found: Mapping[str, Any]) -> Iterator[str]:
    peers = found["peers"]
    yield f"{'tokens per second':<34}{'umlm':>10}" + "".join(f"{peer['name']:>12}{'ratio':>8}" for peer in peers)
    for kind in KINDS:
        for size, rate in found[kind].items():
            others = "".join(_compared(peer, kind, size) for peer in peers)
            yield f"{kind:<10}{WORDS[kind].format(size):<24}{rate:>10.1f}{others}"
    for peer in peers:
        yield f"{peer['name']} runs {peer['model']}"


def _compared(peer: Mapping[str, Any], kind: str, size: int) -> str:
    return _cell(peer[kind].get(size), 12, 1) + _cell(peer["ratio"][kind].get(size), 8, 2)


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _rest(found: Mapping[str, Any]) -> Iterator[str]:
    if found["ttft_ms"] is not None:
        yield f"first token of the longest prompt after {found['ttft_ms']:.1f} ms; loaded in {found['load_ms']:.0f} ms"
    yield f"peak memory {found['peak_memory_bytes'] / 2**20:.0f} MiB"
    floor = (
        f"{found['bytes_per_token'] / 1e6:.1f} MB of weights a token; memory reads "
        f"{found['read_bytes_per_second'] / 1e9:.1f} GB/s"
    )
    share = found["bandwidth_share"]
    yield floor if share is None else f"{floor}: decode uses {share:.0%} of that"
