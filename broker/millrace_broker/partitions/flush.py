"""The threads that bring appended bytes to the disk, so that the loop never waits for it.

Work begins in the order it was handed over; the outcome goes back to the loop. Work that may wait has one
thread of its own. Each piece begins when the one before it is done, 1,000 times a second in the long run, so
that many partitions in a hurry keep no other from the disk. Of a log the threads have only the `FlushSide`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from millrace_broker.histogram import Histogram
from millrace_broker.mailbox import Mailbox, outcome
from millrace_broker.storage.sides import FlushSide
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.broker.flush")

THREADS = 8
"""Flushes that wait for the disk at once share the work of the file system: eight are hardly slower than one,
and each of hundreds of busy partitions is on the disk ten times as soon."""
PAUSE_S = 0.001
"""Seconds from the beginning of one piece of work that may wait to that of the next, in the long run. Each
costs the broker 0.2 ms of CPU and takes whatever came meanwhile."""
AHEAD = 3
"""Pieces of work that may begin before their time: messages that come unevenly do not wait for each other."""

Outcome: TypeAlias = Callable[[LogState | None, BaseException | None], None]
"""A function that takes the state that a flush returned, or the exception that it raised."""
_Queue: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class FlushThreads:
    """Flushes logs apart from the loop and reports each outcome on it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.seconds = Histogram()
        """Durations of the flushes."""
        self.done = 0
        """Number of flushes that have ended. Any thread may read it."""
        self._began: dict[int, float] = {}
        """Begin of the flush of each busy thread, in monotonic time."""
        self._lock = threading.Lock()
        self._work: _Queue = queue.SimpleQueue()
        self._may_wait: _Queue = queue.SimpleQueue()
        self._closing = False
        self._threads = [
            *(threading.Thread(target=self._run, name=f"flush {n}", daemon=True) for n in range(THREADS)),
            threading.Thread(target=self._run_at_a_pace, name="flush soon", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def since(self) -> float | None:
        """Monotonic time at which the oldest running flush began; None if none runs. From any thread."""
        with self._lock:
            return min(self._began.values(), default=None)

    def submit(self, log: FlushSide, then: Outcome) -> None:
        """Flush `log` in a thread, then run `then` on the loop with the result or the exception.


        The checkpoint that is due follows in the thread; no outcome waits for it.
        """
        self._work.put(lambda: self._flush(log, self._on_loop(then)))

    async def flush(self, log: FlushSide) -> LogState:
        """Flush `log` as `submit` does; return the state on the disk or raise the exception of the flush."""
        done: Future[LogState] = Future()

        def report(result: LogState | None, error: BaseException | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                assert result is not None
                done.set_result(result)

        self._work.put(lambda: self._flush(log, report))
        return await outcome(done)

    def submit_soon(self, log: FlushSide, then: Outcome) -> None:
        """Flush as `submit` does, when the disk is free: one log after the other, with pauses."""
        self._may_wait.put(lambda: self._flush(log, self._on_loop(then)))

    def close(self) -> None:
        """Finish the work handed over and end the threads."""
        self._closing = True
        self._may_wait.put(None)
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (flush := self._work.get()) is not None:
            flush()

    def _run_at_a_pace(self) -> None:
        due = 0.0
        while (flush := self._may_wait.get()) is not None:
            now = time.monotonic()
            due = max(due, now)  # time in which nothing was to do is not saved up
            early = due - now - AHEAD * PAUSE_S
            if early > 0 and not self._closing:
                time.sleep(early)
            due += PAUSE_S
            flush()

    def _on_loop(self, then: Outcome) -> Outcome:
        return lambda result, error: self._mailbox.post(lambda: then(result, error))

    def _flush(self, log: FlushSide, report: Outcome) -> None:
        thread, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[thread] = began
        result: LogState | None = None
        failure: BaseException | None = None
        try:
            result = log.flush()
        except BaseException as error:
            failure = error
        report(result, failure)
        with self._lock:
            del self._began[thread]
            self.done += 1
            self.seconds.observe(time.monotonic() - began)
        try:
            log.write_due_checkpoint()
        except Exception:
            logger.exception("the checkpoint after a flush failed")
