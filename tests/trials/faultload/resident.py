"""The resident loader: `millrace load --follow --live` of all topics, killed and started again."""

from __future__ import annotations

import signal
import threading

from tests.support import Process
from tests.trials.faultload.place import Place
from tests.trials.faultload.runs import Failed

EVERY = "1s"


class ResidentLoader:
    """Loads every topic that there was at its last start; safe between threads."""

    def __init__(self, place: Place) -> None:
        self.starts = 0
        self._place = place
        self._lock = threading.Lock()
        self._process: Process | None = None

    def restart(self) -> None:
        """Stop it, and start it with the topics that there are now."""
        self.stop()
        with self._lock:
            self._start()

    def kill(self) -> str | None:
        """Kill it, and start another in its place. Return its name, or None if it does not run."""
        with self._lock:
            if self._process is None or not self._process.running:
                return None
            self._process.kill()
            self._start()
        return "the resident loader"

    def check(self) -> None:
        """Raise Failed if it has ended by itself."""
        with self._lock:
            if self._process is not None and not self._process.running:
                raise Failed(f"the resident loader has ended: {self._process.output[-500:]}")

    def stop(self) -> None:
        """Let it make its last loads and end. Raise Failed if it ends with an error."""
        self.check()
        with self._lock:
            process, self._process = self._process, None
            # While it starts, SIGTERM ends it as any process.
            if process is not None and (code := process.stop()) not in (0, -signal.SIGTERM):
                raise Failed(f"the resident loader ends with {code}: {process.output[-500:]}")

    def _start(self) -> None:
        places = [word for key, value in self._place.sources().items() for word in (f"--{key}", value)]
        options = ["--warehouse", str(self._place.warehouse), "--follow", "--live", "--every", EVERY]
        self._process = Process(["load", *self._place.topics, *places, *options])
        self.starts += 1
