"""How every `umlm VERB` ends: its exit code, and its errors and warnings as one line each on stderr.

0 done, 1 failed, 2 misused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

FAILURES = (ValueError, OSError, RuntimeError, MemoryError)
INTERRUPTED = 130


class Misuse(ValueError):
    """The command line asks for something that cannot be meant; exit code 2."""


class Parser(argparse.ArgumentParser):
    """A verb's parser: misuse is one line, without the usage of all options before it; no abbreviated flags."""

    def __init__(self, verb: str, description: str | None) -> None:
        super().__init__(prog=f"umlm {verb}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse `argv` (None: the process's own), call `run`, and return the exit code.

    Adds --debug, which lets errors through with their traceback. `run` returns None or 0 for success. Warnings of
    umlm go to stderr, unless the parsed arguments say quiet.
    """
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return ending(lambda: _run(parser, run, argv))


def ending(run: Callable[[], int]) -> int:
    """The exit code of `run`, also when it is interrupted or nobody reads stdout any more."""
    _never_fail_to_write()
    try:
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    return code


def _run(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int | None], argv: Sequence[str] | None
) -> int:
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:  # --help, or misuse that the parser has reported
        return end.code if isinstance(end.code, int) else 2
    with _warnings_shown(parser.prog, arguments):
        try:
            return run(arguments) or 0
        except BrokenPipeError:
            raise
        except FAILURES as error:
            if arguments.debug:
                raise
            print(f"{parser.prog}: {_line(error)}", file=sys.stderr)
            return 2 if isinstance(error, Misuse) else 1


def _line(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def _warnings_shown(prog: str, arguments: argparse.Namespace) -> Iterator[None]:
    """Warnings of umlm's loggers as lines on stderr; tracebacks of what a request died of only with --debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{prog}: %(message)s") if arguments.debug else _OneLine(prog))
    handler.setLevel(logging.ERROR if getattr(arguments, "quiet", False) else logging.WARNING)
    logger = logging.getLogger("umlm")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OneLine(logging.Formatter):
    def __init__(self, prog: str) -> None:
        super().__init__()
        self.prog = prog

    def format(self, record: logging.LogRecord) -> str:
        return f"{self.prog}: {record.getMessage()}"


def _never_fail_to_write() -> None:
    """Characters that the locale's encoding lacks come out as `?` instead of an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def _reader_left() -> int:
    """`umlm list | head`: nothing is wrong, but Python would complain when it flushes stdout at exit."""
    with contextlib.suppress(OSError, ValueError):  # a captured stdout has no file number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
