"""`umlm show MODEL`: what a model is, from its headers alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from umlm.command import Parser, command
from umlm.weights.describe import Description, describe
from umlm.weights.folder import open_checkpoint
from umlm.weights.hub import DEFAULT_MODEL, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("show", __doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="a path or a downloaded model")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    return command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    path = resolve(arguments.model, revision=arguments.revision, download=False)
    found = describe(open_checkpoint(path))
    if arguments.json:
        print(json.dumps({"path": str(path), **_mapping(found)}, indent=2))
    else:
        print("\n".join(f"{name:<26}{value}" for name, value in [("path", str(path)), *_lines(found)]))


def _mapping(found: Description) -> dict[str, object]:
    formats = {
        name: {**use._asdict(), "bits_per_weight": round(use.bits_per_weight, 3)} for name, use in found.formats.items()
    }
    return {**found._asdict(), "formats": formats, "bits_per_weight": round(found.bits_per_weight, 3)}


def _lines(found: Description) -> list[tuple[str, str]]:
    formats = [
        (f"  {name}", f"{use.tensors} tensors, {use.parameters:,} values, {use.bits_per_weight:.2f} bits each")
        for name, use in found.formats.items()
    ]
    return [
        ("architecture", found.architecture),
        ("parameters", f"{found.parameters:,}"),
        ("weights", f"{found.nbytes / 1e6:,.1f} MB, {found.bits_per_weight:.2f} bits each"),
        *formats,
        ("context", f"{found.context:,} tokens"),
        ("KV cache", f"{found.kv_bytes_per_token:,} bytes per token at 16 bits"),
        ("tokenizer", found.tokenizer),
        ("chat template", "yes" if found.chat_template else "no"),
        ("license", found.license),
    ]


if __name__ == "__main__":
    sys.exit(main())
