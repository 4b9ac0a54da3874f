"""The steps of a job: how the job reports them, and how its command shows them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from millrace.escaping import escaped
from millrace.logs import VERBOSE


def to_stderr(what: str) -> Callable[[str], None]:
    """Return a progress callback that writes whole `step: <what>: <step>` lines from any thread."""
    return lambda step: _write(f"step: {what}: {step}")


def _write(line: str) -> None:
    # One write: print would write the end of the line separately, and threads share the stream.
    sys.stderr.write(f"{escaped(line)}\n")
    sys.stderr.flush()


@contextmanager
def steps(what: str, quiet: Callable[[str], None] | None = None) -> Iterator[Callable[[str], None]]:
    """Show a bar with the newest line on a terminal. Without a terminal, write every line for the log.

    `quiet` receives the lines when there is no terminal. `millrace --verbose` writes every line everywhere.
    """
    console = Console(stderr=True)
    if VERBOSE in os.environ:
        yield _write
        return
    if not console.is_terminal:
        yield quiet or _write
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{what} ...", total=None)

        def show(line: str) -> None:
            count = re.search(r" (\d+) of (\d+): ", line)
            done, total = (int(count[1]), int(count[2])) if count else (None, None)
            bar.update(
                task, description=escaped(line)[: max(20, console.width - 40)], completed=done, total=total
            )

        yield show
