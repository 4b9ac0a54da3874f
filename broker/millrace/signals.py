"""Signals that end Millrace's processes: SIGTERM or Ctrl-C, at any moment, once or several times.

Python runs a signal's handler between two instructions of the main thread, which may hold any lock at that
moment. A handler that takes a lock, as `Event.set` does, may wait for its own thread for ever. No handler
here takes a lock: a server handles the signal in another thread, a sequential program gets a
KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_LIMIT_S = 8.0
REPEAT_S = 1.0


def stop_on_signals(
    stop: Callable[[], None], *, limited: bool = False, read_again: Callable[[], None] | None = None
) -> None:
    """Call `stop` in a thread of its own at the first SIGTERM or SIGINT; later signals change nothing.

    For servers, from their main thread. The interpreter itself writes the signal's number to a pipe, also
    while the main thread is inside a library. `limited` is for a process that may be killed at any moment: it
    ends after STOP_LIMIT_S even while a broker or a database does not answer. `read_again` is called in that
    thread at every SIGHUP; it must not raise.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)

    def wait() -> None:
        while (number := os.read(reading, 1)[0]) not in STOP_SIGNALS:
            if number == signal.SIGHUP and read_again is not None:
                read_again()
        if limited:
            end_soon(0)
        stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in STOP_SIGNALS if read_again is None else (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, _ignore)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at SIGTERM or SIGINT; after the block signals change nothing.

    For programs that clean up before they end: neither the cleanup nor the code after the block is
    interrupted. Python drops exceptions raised while it finalizes an object, so the interrupt is raised again
    every REPEAT_S until the block handles it.
    """
    active = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if active and not _interrupt_is_handled():
            signal.setitimer(signal.ITIMER_REAL, REPEAT_S, REPEAT_S)
            raise KeyboardInterrupt

    for number in (*STOP_SIGNALS, signal.SIGALRM):
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        active = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt_is_handled() -> bool:
    """Return True while the main thread handles an interrupt, in `except`, `finally` or `__exit__`."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread acts. Python writes a signal to the pipe only if the signal has a handler."""


def end_soon(code: int) -> None:
    """End this process with `code` after STOP_LIMIT_S, unless it ends earlier."""

    def end_now() -> None:
        os.write(2, b"millrace: ended while still waiting for an answer\n")
        os._exit(code)

    timer = threading.Timer(STOP_LIMIT_S, end_now)
    timer.daemon = True
    timer.start()
