"""`umlm rm MODEL`: delete a downloaded model from the cache. Nothing outside of the cache is ever deleted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from umlm.command import Parser, command
from umlm.weights.cache_folder import CachedModel, cache_folder, find_cached, remove_model


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("rm", __doc__)
    parser.add_argument("model", help="a name that `umlm list` shows")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    models = find_cached(arguments.model)
    if not models:
        raise FileNotFoundError(f"{arguments.model!r} is not in {cache_folder()}; `umlm list` shows what is")
    if not arguments.yes and not _confirmed(models):
        print("Nothing was deleted.", file=sys.stderr)
        return 1
    for model in models:
        remove_model(model)
        print(f"Deleted {model.name}, {model.nbytes / 1e6:.1f} MB")
    return 0


def _confirmed(models: Sequence[CachedModel]) -> bool:
    if not sys.stdin.isatty():
        raise ValueError("not a terminal, so there is nobody to ask; pass --yes")
    names = ", ".join(model.name for model in models)
    print(f"Delete {names}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


if __name__ == "__main__":
    sys.exit(main())
