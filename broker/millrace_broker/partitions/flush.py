"""The threads that bring appended bytes to the disk, so that the loop never waits for it.

The loop hands over what one turn owes. A few logs are flushed by a thread each. Many are flushed together, by
one sync of the file system; what is owed meanwhile is flushed with the next one. A flush that may wait has a
thread of its own. Each begins when the one before it is done, 1,000 times a second in the long run, so that
many partitions in a hurry keep no other from the disk. The outcome goes back to the loop. Of a log the
threads have only the `FlushSide`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from millrace_broker.histogram import Histogram
from millrace_broker.mailbox import Mailbox, outcome
from millrace_broker.storage.file_system import FileSystem
from millrace_broker.storage.sides import Flush, FlushSide
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.broker.flush")

THREADS = 8
"""Flushes that wait for the disk at once share the work of the file system: eight are hardly slower than
one."""
MANY = 3
"""Number of logs from which on one sync of the file system costs less than one of each log."""
PAUSE_S = 0.001
"""Seconds from the beginning of one flush that may wait to that of the next, in the long run. Each costs the
broker 0.2 ms of CPU and takes whatever came meanwhile."""
AHEAD = 3
"""Flushes that may begin before their time: messages that come unevenly do not wait for each other."""

Outcome: TypeAlias = Callable[[LogState | None, BaseException | None], None]
"""A function that takes the state that a flush returned, or the exception that it raised."""
Owed: TypeAlias = tuple[FlushSide, Outcome]
"""(log to flush, function to run on the loop with the outcome)."""


class FlushThreads:
    """Flushes logs apart from the loop and reports each outcome on it."""

    def __init__(self, mailbox: Mailbox, file_system: FileSystem) -> None:
        """`file_system` has all the logs."""
        self._mailbox, self._file_system = mailbox, file_system
        self.seconds = Histogram()
        """Durations of the flushes."""
        self.done = 0
        """Number of flushes that have ended. Any thread may read it."""
        self._began: dict[int, float] = {}
        """Begin of the flush of each busy thread, in monotonic time."""
        self._lock = threading.Lock()
        self._owed: list[Owed] = []
        self._alone: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._together: queue.SimpleQueue[Sequence[Owed] | None] = queue.SimpleQueue()
        self._may_wait: queue.SimpleQueue[Owed | None] = queue.SimpleQueue()
        self._is_sharing = False
        """True while a shared sync is queued or under way, or was a moment ago."""
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"flush {n}", daemon=True) for n in range(THREADS)
        ]
        self._other_threads = [
            threading.Thread(target=self._run_together, name="flush together", daemon=True),
            threading.Thread(target=self._run_at_a_pace, name="flush soon", daemon=True),
        ]
        for thread in self._threads + self._other_threads:
            thread.start()

    @property
    def since(self) -> float | None:
        """Monotonic time at which the oldest running flush began; None if none runs. From any thread."""
        with self._lock:
            return min(self._began.values(), default=None)

    def submit(self, log: FlushSide, then: Outcome) -> None:
        """Flush `log` after this turn, then run `then` on the loop with the result or the exception.

        The checkpoint that is due follows in a thread; no outcome waits for it.
        """
        self._owed.append((log, then))

    async def flush(self, log: FlushSide) -> LogState:
        """Flush `log` as `submit` does; return the state on the disk or raise the exception of the flush."""
        done: Future[LogState] = Future()

        def report(result: LogState | None, error: BaseException | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                assert result is not None
                done.set_result(result)

        self.submit(log, report)
        return await outcome(done)

    def submit_soon(self, log: FlushSide, then: Outcome) -> None:
        """Flush as `submit` does, when the disk is free: one log after the other, with pauses."""
        self._may_wait.put((log, then))

    def begin_owed(self) -> None:
        """Begin the flushes that this turn of the loop has submitted."""
        if not self._owed:
            return
        owed, self._owed = self._owed, []
        if (self._is_sharing or len(owed) >= MANY) and self._file_system.is_ready:
            self._is_sharing = True
            self._together.put(owed)
        else:
            for log, then in owed:
                self._alone.put(partial(self._flush, log, then))

    def close(self) -> None:
        """Finish the submitted work and end the threads."""
        self.begin_owed()
        self._closing = True
        self._may_wait.put(None)
        self._together.put(None)
        for thread in self._other_threads:
            thread.join()
        for _ in self._threads:
            self._alone.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._alone.get()) is not None:
            work()

    def _run_together(self) -> None:
        while (owed := self._together.get()) is not None:
            all_owed = [*owed]
            while not self._together.empty():
                if (more := self._together.get()) is None:
                    self._together.put(None)
                    break
                all_owed += more
            try:
                self._flush_together(all_owed)
            except Exception:
                logger.exception("a bug while flushing %d logs together", len(all_owed))
            self._is_sharing = False

    def _run_at_a_pace(self) -> None:
        due = 0.0
        while (owed := self._may_wait.get()) is not None:
            now = time.monotonic()
            due = max(due, now)  # time in which nothing was to do is not saved up
            early = due - now - AHEAD * PAUSE_S
            if early > 0 and not self._closing:
                time.sleep(early)
            due += PAUSE_S
            self._flush(*owed)

    def _flush(self, log: FlushSide, then: Outcome) -> None:
        with self._timed(1):
            try:
                told = partial(then, log.flush(), None)
            except BaseException as error:
                told = partial(then, None, error)
            self._mailbox.post(told)
        self._write_checkpoint(log)

    def _flush_together(self, owed: Sequence[Owed]) -> None:
        waiting: dict[FlushSide, list[Outcome]] = {}
        for log, then in owed:
            waiting.setdefault(log, []).append(then)
        with self._timed(len(waiting)):
            begun, outcomes = list[tuple[FlushSide, Flush]](), list[Callable[[], None]]()
            for log, then_all in waiting.items():
                try:
                    begun.append((log, log.begin_flush()))
                except BaseException as error:
                    outcomes += [partial(then, None, error) for then in then_all]
            synced = self._sync_file_system()
            for log, flush in begun:
                if synced:
                    outcomes += self._ended(log, flush, waiting[log], synced=True)
                else:  # side by side, as if each had been owed alone
                    self._alone.put(partial(self._end_alone, log, flush, waiting[log]))
            self._mailbox.post(*outcomes)
        if synced:
            for log in [log for log, _ in begun if log.checkpoint_is_due]:
                self._alone.put(partial(self._write_checkpoint, log))

    def _end_alone(self, log: FlushSide, flush: Flush, then_all: Sequence[Outcome]) -> None:
        with self._timed(0):
            self._mailbox.post(*self._ended(log, flush, then_all, synced=False))
        self._write_checkpoint(log)

    def _ended(
        self, log: FlushSide, flush: Flush, then_all: Sequence[Outcome], *, synced: bool
    ) -> list[Callable[[], None]]:
        """End a flush; return what the loop is to run then."""
        try:
            result = log.end_flush(flush, synced=synced)
        except BaseException as error:
            return [partial(then, None, error) for then in then_all]
        return [partial(then, result, None) for then in then_all]

    def _sync_file_system(self) -> bool:
        try:
            return self._file_system.sync()
        except Exception:  # a bug: the logs that were begun are held until they are ended
            logger.exception("a bug while syncing the file system; each log is synced by itself")
            return False

    @contextmanager
    def _timed(self, flushes: int) -> Iterator[None]:
        """Note that this thread flushes so many logs."""
        thread, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[thread] = began
        try:
            yield
        finally:
            with self._lock:
                del self._began[thread]
                self.done += flushes
                took = time.monotonic() - began
                for _ in range(flushes):
                    self.seconds.observe(took)

    def _write_checkpoint(self, log: FlushSide) -> None:
        try:
            log.write_due_checkpoint()
        except Exception:
            logger.exception("the checkpoint after a flush failed")
