"""A peer that is one process. It ends with its context, or with the test run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self


class OneProcess:
    """The end of the process that `start` has started; its output is in `log` of its folder."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nothing when it is not running."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    close = kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_runs(self, name: str) -> None:
        """Raise AssertionError with the last lines of its log if it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            words = (self.folder / "log").read_text(errors="replace")[-3000:]
            code = self._process and self._process.returncode
            raise AssertionError(f"{name} ended with exit code {code}:\n{words}")
