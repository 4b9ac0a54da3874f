"""Reports of a fault load: a bar on a terminal, elsewhere one line per event; all of it also in a file."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Report:
    """A context; safe between threads."""

    def __init__(self, log: Path, steps: int) -> None:
        """`steps` loads and power cuts are to be done."""
        self._console = Console(highlight=False, markup=False)
        self._log = log.open("a", buffering=1)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=steps)

    def say(self, line: str, *, stays: bool = False) -> None:
        """One event; on a terminal the next one takes its place, unless it stays."""
        with self._lock:
            text = f"{time.monotonic() - self._began:7.1f}  {line}"
            self._log.write(text + "\n")
            if stays or not self._console.is_terminal:
                self._console.print(text, soft_wrap=True)
            else:
                self._bar.update(self._task, description=line[:60])

    def advance(self, what: str) -> None:
        """One step is done."""
        self.say(what)
        self._bar.advance(self._task)

    def __enter__(self) -> Report:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        self._log.close()
