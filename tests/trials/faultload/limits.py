"""A limit for each step of a fault load, and its end at once: after a limit, after Ctrl-C, after a failure.

Ending at once means: whatever this process has started is killed, and nobody is waited for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tests.jobs import descendants
from tests.trials.faultload.kills import kill

KILL_S = 10.0
"""For everything to be gone: what is killed may have started something at that moment."""


class StepLimits:
    """Calls `overdue(step, limit in seconds)` in a thread of its own when a step takes longer than it may."""

    def __init__(self, overdue: Callable[[str, float], None]) -> None:
        self._overdue = overdue

    @contextmanager
    def step(self, what: str, limit_s: float) -> Iterator[None]:
        """The block has so long; nothing happens in it but that `overdue` is called."""
        timer = threading.Timer(limit_s, self._overdue, (what, limit_s))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # what `overdue` kills ends the step, which must not go on before it is done


def kill_everything_started() -> None:
    """Kill every process below this one."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        if not sum(kill(pid) for pid in descendants(os.getpid())):
            break
        time.sleep(0.1)


def end_at_once(code: int) -> NoReturn:
    """End everything that was started, then this process, from any thread."""
    kill_everything_started()
    os._exit(code)


def end_on_signals(ended_by: Callable[[str], NoReturn]) -> None:
    """Let Ctrl-C and SIGTERM call this at once, wherever the main thread is: nothing is unwound."""

    def on_signal(number: int, _: FrameType | None) -> None:
        ended_by(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
