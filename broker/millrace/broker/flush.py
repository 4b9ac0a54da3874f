"""The threads that bring appended bytes to the disk, so that the loop never waits for it.

Work begins in the order it was handed over; the outcome goes back to the loop. Knows nothing of logs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from millrace.histogram import Histogram
from millrace.mailbox import Mailbox

log = logging.getLogger(__name__)

T = TypeVar("T")
THREADS = 8
"""Flushes that wait for the disk at once share what it takes the file system: eight are hardly slower than
one, and a broker with hundreds of busy partitions has each of them on the disk ten times as soon."""


class FlushThreads:
    """Run work apart from the loop and report each outcome on it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.seconds = Histogram()
        """How long each piece of work took."""
        self._began: dict[int, float] = {}
        """When each thread at work began, in monotonic time."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
        self,
        work: Callable[[], T],
        outcome: Callable[[T | None, BaseException | None], None],
        after: Callable[[], None] | None = None,
    ) -> None:
        """Run `work` in a thread, then `outcome` on the loop with its result or its exception.

        In the thread `after` follows, which nobody waits for.
        """
        self._work.put(lambda: self._flush(work, outcome, after))

    def close(self) -> None:
        """Finish what was handed over and end the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (flush := self._work.get()) is not None:
            flush()

    def _flush(
        self,
        work: Callable[[], T],
        outcome: Callable[[T | None, BaseException | None], None],
        after: Callable[[], None] | None,
    ) -> None:
        thread, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[thread] = began
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        self._mailbox.post(lambda: outcome(result, failure))
        with self._lock:
            del self._began[thread]
            self.seconds.observe(time.monotonic() - began)
        try:
            if after is not None:
                after()
        except Exception:
            log.exception("what follows a flush failed")
