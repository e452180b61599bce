"""One progress bar on stderr, for downloads, loading and many prompts; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]


@contextmanager
def byte_bar(title: str, shown: bool | None = None) -> Iterator[Report]:
    """A bar fed with (bytes done, bytes in all). shown None: when stderr is a terminal."""
    with _bar(title, shown, bytes_shown=True) as report:
        yield report


@contextmanager
def count_bar(title: str, shown: bool | None = None) -> Iterator[Report]:
    """The same, fed with (done, in all) of anything that is counted."""
    with _bar(title, shown, bytes_shown=False) as report:
        yield report


@contextmanager
def _bar(title: str, shown: bool | None, *, bytes_shown: bool) -> Iterator[Report]:
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counts = DownloadColumn() if bytes_shown else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counts, TimeRemainingColumn())
    # Plain terminal codes, which notebooks show too; rich would ask for ipywidgets there.
    console = Console(stderr=True, force_terminal=True, force_jupyter=False)
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)
