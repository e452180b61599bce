"""`umlm VERB ...`: the same as `python -m umlm.VERB ...`."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from umlm import __version__
from umlm.command import ending

VERBS = {
    "generate": "answer a prompt",
    "bench": "measure speed and memory, alone or against other engines",
    "pull": "download a model into the cache",
    "list": "list the models in the cache",
    "show": "describe a model without loading it",
    "plan": "what a model needs of memory, and what fits",
    "rm": "delete a model from the cache",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the rest of the command line to the verb's own main(); returns its exit code."""
    return ending(lambda: _dispatch(list(sys.argv[1:] if argv is None else argv) or ["--help"]))


def _dispatch(words: list[str]) -> int:
    verb, *rest = words
    if verb in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if verb == "--version":
        print(f"umlm {__version__}")
        return 0
    if verb not in VERBS:
        print(f"umlm: {verb!r} is not a verb{_hint(verb)} (umlm --help lists them)", file=sys.stderr)
        return 2
    return importlib.import_module(f"umlm.{verb}").main(rest)


def _hint(verb: str) -> str:
    near = difflib.get_close_matches(verb, VERBS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _usage() -> str:
    verbs = "\n".join(f"  {verb:10} {meaning}" for verb, meaning in VERBS.items())
    return f"usage: umlm VERB [options]\n\n{verbs}\n\n`umlm VERB --help` describes a verb's options."


if __name__ == "__main__":
    sys.exit(main())
