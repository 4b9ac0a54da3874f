"""The thread that brings appended bytes to the disk, so that the loop never waits for it.

One piece of work after another, in the order it was handed over; the outcome goes back to the loop. Knows
nothing of logs: who hands the work over knows what it means.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from millrace.histogram import Histogram
from millrace.mailbox import Mailbox

T = TypeVar("T")
Outcome = Callable[[T | None, BaseException | None], None]


class FlushThread(Generic[T]):
    """Runs work apart from the loop and reports each outcome on it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.seconds = Histogram()
        """How long each piece of work took."""
        self.since: float | None = None
        """When the work under way began, in monotonic time."""
        self._work: queue.SimpleQueue[tuple[Callable[[], T], Outcome[T]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], outcome: Outcome[T]) -> None:
        """Run `work` in the thread, then `outcome` on the loop with its result or its exception."""
        self._work.put((work, outcome))

    def close(self) -> None:
        """Finish what was handed over and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, outcome = item
            self.since = began = time.monotonic()
            try:
                result = work()
            except BaseException as error:
                self._mailbox.post(_call(outcome, None, error))
            else:
                self._mailbox.post(_call(outcome, result, None))
            self.since = None
            self.seconds.observe(time.monotonic() - began)


def _call(outcome: Outcome[T], result: T | None, error: BaseException | None) -> Callable[[], None]:
    return lambda: outcome(result, error)
