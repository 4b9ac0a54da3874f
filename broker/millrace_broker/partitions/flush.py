"""The threads that bring appended bytes to the disk, so that the loop never waits for it.

Work begins in the order it was handed over; the outcome goes back to the loop. Work that may wait has one
thread of its own. Each piece begins when the one before it is done, at most 1,000 times a second, so that
many partitions in a hurry keep no other from the disk. Knows nothing of logs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar, cast

from millrace_broker.histogram import Histogram
from millrace_broker.mailbox import Mailbox, outcome

log = logging.getLogger("millrace.broker.flush")

T = TypeVar("T")
THREADS = 8
"""Flushes that wait for the disk at once share the work of the file system: eight are hardly slower than one,
and each of hundreds of busy partitions is on the disk ten times as soon."""
PAUSE_S = 0.001
"""Seconds from the beginning of one piece of work that may wait to that of the next. Each costs the broker
0.2 ms of CPU and takes whatever came meanwhile, and no message waits longer for it than a client notices."""

Outcome: TypeAlias = Callable[[T | None, BaseException | None], None]
"""A function that takes the result of some work, or its exception."""
_Queue: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class FlushThreads:
    """Runs work apart from the loop and reports each outcome on it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.seconds = Histogram()
        """Durations of the pieces of work."""
        self.done = 0
        """Number of pieces of work that have ended. Any thread may read it."""
        self._began: dict[int, float] = {}
        """Begin of the work of each busy thread, in monotonic time."""
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
        """Begin of the oldest work under way, in monotonic time; from any thread."""
        with self._lock:
            return min(self._began.values(), default=None)

    def submit(
        self, work: Callable[[], T], then: Outcome[T], after: Callable[[], None] | None = None
    ) -> None:
        """Run `work` in a thread, then `then` on the loop with its result or its exception.

        `after` follows in the thread; no outcome waits for it.
        """
        self._work.put(lambda: self._flush(work, self._on_loop(then), after))

    async def flush(self, work: Callable[[], T], after: Callable[[], None] | None = None) -> T:
        """Run `work`, then `after`, as `submit` does; return the result or raise the exception of `work`."""
        done: Future[T] = Future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(cast(T, result))

        self._work.put(lambda: self._flush(work, tell, after))
        return await outcome(done)

    def submit_soon(
        self, work: Callable[[], T], then: Outcome[T], after: Callable[[], None] | None = None
    ) -> None:
        """Run as `submit` does, when the disk is free: one piece after the other, with pauses."""
        self._may_wait.put(lambda: self._flush(work, self._on_loop(then), after))

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
        began = 0.0
        while (flush := self._may_wait.get()) is not None:
            pause = began + PAUSE_S - time.monotonic()
            if pause > 0 and not self._closing:
                time.sleep(pause)
            began = time.monotonic()
            flush()

    def _on_loop(self, then: Outcome[T]) -> Outcome[T]:
        return lambda result, error: self._mailbox.post(lambda: then(result, error))

    def _flush(self, work: Callable[[], T], tell: Outcome[T], after: Callable[[], None] | None) -> None:
        thread, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[thread] = began
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        tell(result, failure)
        with self._lock:
            del self._began[thread]
            self.done += 1
            self.seconds.observe(time.monotonic() - began)
        try:
            if after is not None:
                after()
        except Exception:
            log.exception("what follows a flush failed")
