"""How every `umlm VERB` ends: its exit code, and its errors as one line on stderr.

0 done, 1 failed, 2 misused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence


class Misuse(ValueError):
    """The command line asks for something that cannot be meant; exit code 2."""


def command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse `argv` (None: the process's own), call `run`, and return the exit code.

    Adds --debug, which lets errors through with their traceback. `run` returns None or 0 for success.
    """
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:  # --help, or misuse that argparse has reported
        return end.code if isinstance(end.code, int) else 2
    try:
        return run(arguments) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_left()
    except (ValueError, OSError, RuntimeError) as error:
        if arguments.debug:
            raise
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, Misuse) else 1


def _reader_left() -> int:
    """`umlm list | head`: nothing is wrong, but Python would complain when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
