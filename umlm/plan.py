"""`umlm plan MODEL`: what a model needs of memory and what fits, from its headers alone.

Exit code 0 where so many requests of so many tokens fit together, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from umlm.cache.budget import in_units, in_words, kv_bytes_per_token, refusal
from umlm.cache.memory import available_memory
from umlm.command import Misuse, Parser, command
from umlm.engine.fit import Fit, settled
from umlm.engine.settings import EngineSettings
from umlm.models import build, config_from_dict
from umlm.options import add_arguments, from_namespace
from umlm.weights.folder import open_checkpoint
from umlm.weights.hub import DEFAULT_MODEL, resolve
from umlm.weights.load import activation_dtype

SETTINGS = ["context", "kv_bits", "kv_memory", "page_size", "token_budget"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("plan", __doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="a path or a downloaded model")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--dtype", default="auto", help="of activations and float weights (default: auto)")
    parser.add_argument(
        "--users", type=int, default=1, metavar="NUMBER", help="requests that run together (default: 1)"
    )
    add_arguments(parser, EngineSettings, only=SETTINGS)
    parser.add_argument("--json", action="store_true", help="print a JSON object, sizes in bytes")
    return command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    path = resolve(arguments.model, revision=arguments.revision, download=False)
    checkpoint = open_checkpoint(path)
    fit = Fit(
        checkpoint, build(config_from_dict(checkpoint.config)), arguments.dtype, settled(settings, arguments.dtype)
    )
    found = {"path": str(path), **_found(fit.with_(users=arguments.users))}
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(_lines(found)))
    if not found["fits"]:
        print(f"umlm plan: {found['refusal']}", file=sys.stderr)
    return 0 if found["fits"] else 1


def _settings(arguments: argparse.Namespace) -> EngineSettings:
    try:
        if arguments.users < 1:
            raise ValueError(f"users must be at least 1, not {arguments.users}")
        return from_namespace(EngineSettings, arguments)
    except ValueError as error:
        raise Misuse(str(error)) from None


def _found(fit: Fit) -> Mapping[str, Any]:
    limit = available_memory()
    whole, layout, fits = fit.whole(limit), fit.layout, fit.fits(limit)
    return {
        "context": fit.context,
        "users": fit.settings.max_requests,
        "dtype": str(activation_dtype(fit.checkpoint, fit.dtype)).removeprefix("mlx.core."),
        "kv_bits": fit.settings.kv_bits or "none",
        "kv_memory": in_words(fit.settings.memory),
        "kv_bytes_per_token": kv_bytes_per_token(layout.specs, layout.bytes_per_value, layout.bits),
        "page_bytes": whole.page_bytes,
        "weights": whole.demand.weights,
        "activations": whole.demand.activations,
        "reserve": whole.demand.reserve,
        "num_pages": whole.num_pages,
        "pages": whole.pages,
        "total": whole.total,
        "limit": limit.nbytes,
        "limit_by": limit.limit,
        "fits": fits,
        "refusal": None if fits else refusal(whole, fit.settings.memory),
        "largest_context": fit.largest_context(limit),
        "most_users": fit.most_users(limit),
    }


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    rows = {
        "model": found["path"],
        "weights": in_units(found["weights"]),
        "keys and values": f"{in_units(found['pages'])}: {found['users']:,} x {found['context']:,} tokens "
        f"of {found['kv_bytes_per_token']:,} bytes, {found['num_pages']:,} pages",
        "activations": f"{in_units(found['activations'])}, {found['dtype']}",
        "reserve": in_units(found["reserve"]),
        "needed": in_units(found["total"]),
        "available": f"{in_units(found['limit'])} ({found['limit_by']}), for keys and values {found['kv_memory']}",
        "fits": "yes" if found["fits"] else "no",
        "largest context": f"{found['largest_context']:,} tokens for {found['users']:,} users",
        "most users": f"{found['most_users']:,} of {found['context']:,} tokens",
    }
    return (f"{name:<18}{value}" for name, value in rows.items())


if __name__ == "__main__":
    sys.exit(main())
