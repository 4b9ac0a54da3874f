"""The threads that bring appended bytes to the disk, so that the loop never waits for it.

Work begins in the order it was handed over; the outcome goes back to the loop. Knows nothing of logs: who
hands the work over knows what it means.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from millrace.histogram import Histogram
from millrace.mailbox import Mailbox

log = logging.getLogger(__name__)

T = TypeVar("T")
Outcome = Callable[[T | None, BaseException | None], None]
_Work: TypeAlias = tuple[Callable[[], T], Outcome[T], Callable[[], None] | None]
THREADS = 8
"""Flushes that wait for the disk at once share what it takes the file system: eight are hardly slower than
one, and a broker with hundreds of busy partitions has each of them on the disk ten times as soon."""


class FlushThreads(Generic[T]):
    """Run work apart from the loop and report each outcome on it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.seconds = Histogram()
        """How long each piece of work took."""
        self._began: dict[int, float] = {}
        """Of each thread at work: when it began, in monotonic time."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[_Work[T] | None] = queue.SimpleQueue()
        names = [f"flush {number}" for number in range(THREADS)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def since(self) -> float | None:
        """When the oldest work under way began, in monotonic time; from any thread."""
        with self._lock:
            return min(self._began.values(), default=None)

    def submit(
        self, work: Callable[[], T], outcome: Outcome[T], after: Callable[[], None] | None = None
    ) -> None:
        """Run `work` in a thread, then `outcome` on the loop with its result or its exception.

        In the thread `after` follows, which nobody waits for.
        """
        self._work.put((work, outcome, after))

    def close(self) -> None:
        """Finish what was handed over and end the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        me = threading.get_ident()
        while (item := self._work.get()) is not None:
            work, outcome, after = item
            began = time.monotonic()
            with self._lock:
                self._began[me] = began
            try:
                result = work()
            except BaseException as error:
                self._mailbox.post(_call(outcome, None, error))
            else:
                self._mailbox.post(_call(outcome, result, None))
            with self._lock:
                del self._began[me]
                self.seconds.observe(time.monotonic() - began)
            if after is not None:
                try:
                    after()
                except Exception:
                    log.exception("what follows a flush failed")


def _call(outcome: Outcome[T], result: T | None, error: BaseException | None) -> Callable[[], None]:
    return lambda: outcome(result, error)
