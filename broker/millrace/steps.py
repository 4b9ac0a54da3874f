"""Progress of long commands: the steps of a command, the counts of its loops, and how both are shown.

    with own_steps("verify", counts_only=True) as progress:
        count = Count(progress, "files hashed", len(files))
        for file in files:
            ...
            count.add(size=file.bytes)    # step: verify: 12 of 40 files hashed (30%), 120.5 MB, 35 s

A terminal has one line, which is rewritten. Elsewhere a count is a line on standard error, one every EVERY_S
seconds.
"""

from __future__ import annotations

import collections
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.escaping import escaped
from millrace.logs import VERBOSE

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_S = 10.0
"""Seconds between two counts in a log."""
SHORT_S = 1.0
"""Seconds during which a command shows nothing: most commands end before."""
OFTEN_S = 1.0
"""Seconds between two lines of a Count."""
_WIDE = 100
"""Columns of a terminal that has room for a bar beside the figures."""
_COUNT = re.compile(r"([^(]+ \((\d+)%\)[^(]*), [\d,]+ s")

OnLine = Callable[[str], None]


class Count:
    """Count of a loop: the finished items of all, with their records and bytes. Any thread may add to it."""

    def __init__(self, progress: OnLine, what: str, total: int = 0, records: str = "records") -> None:
        """Report lines through `progress`. `what` names the items; items counted in "bytes" are sizes."""
        self._progress, self._what, self._records_are = progress, what, records
        self._done, self._total, self._records, self._bytes = 0, total, 0, 0
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self._due = self._since + OFTEN_S

    def expect(self, items: int) -> None:
        """Add items that are still to be done, and report the count."""
        with self._lock:
            self._total += items
            self._due = 0.0
        self.add(0)

    def add(self, items: int = 1, *, records: int = 0, size: int = 0) -> None:
        """Add finished items. Report the count if it is time."""
        with self._lock:
            self._done += items
            self._records += records
            self._bytes += size
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + OFTEN_S
            line = self._line(now - self._since)
        self._progress(line)

    def _line(self, seconds: float) -> str:
        from rich.filesize import decimal

        number = decimal if self._what == "bytes" else "{:,}".format
        what = "" if self._what == "bytes" else f" {self._what}"
        share = self._done * 100 // self._total if self._total else 0
        parts = [f"{number(self._done)} of {number(self._total)}{what} ({min(share, 100)}%)"]
        parts += [f"{self._records:,} {self._records_are}"] if self._records else []
        parts += [decimal(self._bytes)] if self._bytes else []
        return ", ".join((*parts, f"{seconds:,.0f} s"))


def to_stderr(what: str) -> OnLine:
    """Return a progress callback that writes whole `step: <what>: <step>` lines from any thread."""
    return lambda step: _write(f"step: {what}: {step}")


def _write(line: str) -> None:
    # One write: print would write the end of the line separately, and threads share the stream.
    sys.stderr.write(f"{escaped(line)}\n")
    sys.stderr.flush()


@contextmanager
def own_steps(what: str, *, counts_only: bool = False) -> Iterator[OnLine]:
    """Show the steps of a command that works in this process, once it has worked for SHORT_S.

    With `counts_only` the counts alone are shown, unless `millrace --verbose` asks for every step.
    """
    counts_only = counts_only and VERBOSE not in os.environ
    with steps(what, SHORT_S) as on_line:

        def progress(step: str) -> None:
            if not counts_only or _COUNT.fullmatch(step):
                on_line(f"step: {what}: {step}")

        yield progress


def _for_log(held_s: float) -> OnLine:
    """Return a callback that writes a count every EVERY_S seconds, and other lines after `held_s` seconds."""
    begun, held, lock = time.monotonic(), collections.deque[str](), threading.Lock()
    due = begun + EVERY_S

    def write(line: str) -> None:
        nonlocal due
        with lock:
            now = time.monotonic()
            is_count = _COUNT.fullmatch(line)
            if is_count and now < due:
                return
            due = now + EVERY_S if is_count else due
            held.append(line)
            while held and now - begun >= held_s:
                _write(held.popleft())

    return write


@contextmanager
def steps(what: str, held_s: float = 0.0) -> Iterator[OnLine]:
    """Show a bar with the newest line on a terminal. Without a terminal, write the lines for the log.

    A log gets no line before `held_s` seconds. `millrace --verbose` writes every line everywhere.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if VERBOSE in os.environ or not console.is_terminal:
        yield _write if VERBOSE in os.environ else _for_log(held_s)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    class Late(Progress):
        """A bar that appears after SHORT_S."""

        def get_renderables(self) -> Iterator[RenderableType]:
            if time.monotonic() - begun >= SHORT_S:
                yield from super().get_renderables()

    begun = time.monotonic()
    bars = [BarColumn(10)] if console.width >= _WIDE else []  # the text has the share, too
    columns = (TextColumn("{task.description}", markup=False), *bars, TimeElapsedColumn())
    # Output for a file must not go to the terminal.
    is_shown = sys.stdout.isatty()
    with Late(*columns, console=console, transient=True, redirect_stdout=is_shown) as bar:
        task = bar.add_task(f"{what} ...", total=None)

        def show(line: str) -> None:
            text, share = line.removeprefix("step: "), None
            if count := _COUNT.fullmatch(text):
                text, share = count[1], int(count[2])  # the bar has a clock of its own
            shown = escaped(text)[: max(20, console.width - 9 - 11 * len(bars))]
            bar.update(task, description=shown, completed=share, total=None if share is None else 100)

        yield show
