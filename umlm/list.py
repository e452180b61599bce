"""`umlm list`: the downloaded models, with their sizes and dates."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone

from rich.console import Console
from rich.table import Table
from rich.text import Text

from umlm.command import Parser, command
from umlm.weights.cache_folder import CachedModel, cache_folder, cached_models


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("list", __doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    return command(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> None:
    models = cached_models()
    if arguments.json:
        print(json.dumps([_row(model) for model in models], indent=2))
    elif models:
        Console(soft_wrap=True).print(_table(models))
    else:
        print(f"No models in {cache_folder()}; `umlm pull` downloads the default one.", file=sys.stderr)


def _row(model: CachedModel) -> dict[str, object]:
    when = datetime.fromtimestamp(model.modified, timezone.utc).isoformat(timespec="seconds")
    return {"name": model.name, "path": str(model.path), "bytes": model.nbytes, "modified": when}


def _table(models: Sequence[CachedModel]) -> Table:
    table = Table("name", "MB", "downloaded", box=None)
    for model in models:
        when = datetime.fromtimestamp(model.modified).strftime("%Y-%m-%d %H:%M")
        table.add_row(Text(model.name), f"{model.nbytes / 1e6:.1f}", when)
    return table


if __name__ == "__main__":
    sys.exit(main())
