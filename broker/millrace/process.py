"""Child processes that end with their parent, and what of a started one can be awaited.

Knows nothing of what the children do. Linux only where it says so.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from millrace.errors import MillraceError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In a child, before exec: get SIGTERM when the thread that started it ends, however it ends (Linux)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One started command: its output goes to a file, its `ready:` line can be awaited."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.tail: deque[str] = deque(maxlen=20)
        self._address: str | None = None
        # A session of its own: Ctrl-C reaches only the supervisor, which then stops children in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._copy_output, name=f"output of {name}", daemon=True)
        self._reader.start()

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self.log.open("a", buffering=1) as log:
            for line in output:
                log.write(line)
                self.tail.append(line.rstrip("\n"))
                if line.startswith("ready: "):
                    self._address = line.split()[-1]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def wait_until_ready(self, timeout_s: float) -> str:
        """HOST:PORT of its ready line; MillraceError with its last words when it ends or stays silent."""
        deadline = time.monotonic() + timeout_s
        while self._address is None:
            if self.exit_code is not None:
                raise MillraceError(f"{self.name} ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise MillraceError(f"{self.name} is not ready after {timeout_s:.0f} s; see {self.log}")
            time.sleep(0.02)
        return self._address

    def last_words(self) -> str:
        """The last line it printed, or its exit code when it printed nothing."""
        self._reader.join(1)
        return (
            self.tail[-1].removeprefix("millrace: ")
            if self.tail
            else f"exit code {self.exit_code}, no output"
        )

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL when it has not ended in time; returns once it is gone."""
        if self.exit_code is None:
            self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1)
