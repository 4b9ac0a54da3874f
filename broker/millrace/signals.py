"""How a process of ours is told to end: SIGTERM or Ctrl-C, at any moment, once or several times.

Python runs a signal's handler between two instructions of the main thread, whatever lock that thread holds
just then. A handler that takes a lock, as `Event.set` does, may wait for its own thread for ever. No handler
here takes one: a server hears of the signal in another thread, a program that does one thing after the other
by a KeyboardInterrupt.
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
    """Call `stop` in a thread of its own at the first SIGTERM or SIGINT; later ones change nothing.

    For servers, from their main thread. The interpreter itself writes the signal's number to a pipe, also
    while the main thread is inside a library. `limited` is for a process that may be killed at any moment:
    it ends after STOP_LIMIT_S even if a broker or a database that does not answer holds it up. `read_again`
    is called there at every SIGHUP; it raises nothing.
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
    """Raise KeyboardInterrupt in the block at SIGTERM or SIGINT; once it is left, signals change nothing.

    For programs that clean up on their way out: neither that nor what they do afterwards is interrupted.
    Python drops what is raised while it finalizes an object, so the interrupt is raised again every
    REPEAT_S until the block is on its way out.
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
    """True where the main thread is in an `except`, `finally` or `__exit__` because of an interrupt."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread does. A signal without a handler in Python is not written to the pipe."""


def end_soon(code: int) -> None:
    """End this process with `code` after STOP_LIMIT_S, unless it has ended by then."""

    def end_now() -> None:
        os.write(2, b"millrace: ending without an answer that is waited for\n")
        os._exit(code)

    timer = threading.Timer(STOP_LIMIT_S, end_now)
    timer.daemon = True
    timer.start()
