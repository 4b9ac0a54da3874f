"""Work for the loop's thread: posted from other threads, or due at a time.

The loop is the only writer of the broker's state; every other thread passes functions to it through the
mailbox. The mailbox owns the pipe that wakes the loop, and does not depend on the functions' work.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from types import coroutine
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Coroutine[Future[Any], None, object]
"""A coroutine for the loop. It may await only `outcome`, `Mailbox.sleep` and further coroutines
of this type."""
logger = logging.getLogger("millrace.mailbox")
BUSY_S = 0.001
"""Seconds after which `when_idle` does not wait for an idle loop any more."""
MIN_SWEEP = 1024
"""Number of timers below which no sweep removes the cancelled ones."""


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads for work from the loop; all threads are running already.

    An ordinary pool starts a thread when it first needs one. If the system has no thread left then, the work
    is lost without an error, and the loop never takes the step that waits for it.
    """
    pool, all_run = ThreadPoolExecutor(count, thread_name_prefix=name), threading.Barrier(count)
    try:
        for running in [pool.submit(all_run.wait) for _ in range(count)]:
            running.result()
    except RuntimeError:
        all_run.abort()
        pool.shutdown()
        raise
    return pool


@coroutine
def outcome(future: Future[T]) -> Generator[Future[T], None, T]:
    """Wait for `future`, then return its result or raise its exception. For a coroutine of the loop."""
    yield future
    return future.result()


class Timer:
    """A function that is due later; `cancel` prevents its run."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Forget the function, and with it all objects that it holds."""
        self.function = None


class Mailbox:
    """Functions that wait for the loop.

    `post` and `call` are for any thread, the other methods for the loop's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._posted: deque[Callable[[], None]] = deque()
        self._at_end_of_turn: list[Callable[[], None]] = []
        self._when_idle: list[tuple[float, Timer]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._sweep_at = MIN_SWEEP
        self._numbers = itertools.count()
        self._stopped = False
        self.wake_fd, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def post(self, *functions: Callable[[], None]) -> None:
        """Run `functions` on the loop soon. Takes no lock."""
        self._posted.extend(functions)
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_end, b"\0")

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the loop soon; the future brings its result or its exception.

        The future is cancelled when the loop has ended, so that no thread waits for it.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        if self._stopped:
            future.cancel()
        return future

    def after(self, seconds: float, function: Callable[[], None]) -> Timer:
        """Run `function` on the loop after `seconds`."""
        if len(self._timers) >= self._sweep_at:
            # Cancelled timers would stay until their time: minutes, while clients come and go.
            self._timers = [entry for entry in self._timers if entry[2].function is not None]
            heapq.heapify(self._timers)
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._timers))
        timer = Timer(function)
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), timer))
        return timer

    def when_idle(self, function: Callable[[], None]) -> Timer:
        """Run `function` in the next turn that finds nothing to read, or in the first one after BUSY_S."""
        timer = Timer(function)
        self._when_idle.append((self.now() + BUSY_S, timer))
        return timer

    def every(self, seconds: float, function: Callable[[], object]) -> None:
        """Run `function` on the loop every `seconds`, also after it has raised."""

        def again() -> None:
            self.after(seconds, again)
            function()

        self.after(seconds, again)

    def begin(self, steps: Steps) -> None:
        """Run a coroutine on the loop: its first step now, each further step after the future it awaits.

        If a step raises, the exception is logged and the coroutine ends; the caller of `begin` is not
        notified. A coroutine that still waits when the loop ends takes no further step: its `finally` blocks
        run whenever Python frees it, so they must not act on the broker.
        """

        def step() -> None:
            with contextlib.suppress(StopIteration):
                steps.send(None).add_done_callback(lambda _: self.post(step))

        self._run(step)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. For a coroutine of the loop."""
        over: Future[None] = Future()
        self.after(seconds, lambda: over.set_result(None))
        await outcome(over)

    def at_end_of_turn(self, function: Callable[[], None]) -> None:
        """Run `function`, which raises nothing, at the end of this turn of the loop."""
        self._at_end_of_turn.append(function)

    def end_turn(self) -> None:
        """Run the functions of `at_end_of_turn`."""
        if self._at_end_of_turn:
            functions, self._at_end_of_turn = self._at_end_of_turn, []
            for function in functions:
                function()

    def seconds_to_next(self) -> float | None:
        """Return the seconds that the loop may sleep; None for any time."""
        if self._posted or self._when_idle:
            return 0.0
        while self._timers and self._timers[0][2].function is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def drain(self) -> None:
        """Empty the pipe, when the loop has seen it readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def run(self, *, is_idle: bool = True) -> None:
        """Run the posted and the due functions. A failing function is logged; the others still run.

        `is_idle` is True if this turn of the loop found nothing to read.
        """
        now = self.now()
        waiting, self._when_idle = self._when_idle, []
        for due, timer in waiting:
            if is_idle or now >= due:
                self._take(timer)
            elif timer.function is not None:
                self._when_idle.append((due, timer))
        if self._posted:
            for _ in range(len(self._posted)):
                self._run(self._posted.popleft())
        while self._timers and self._timers[0][0] <= now:
            self._take(heapq.heappop(self._timers)[2])

    def stop(self) -> None:
        """Run the posted functions after the event loop has ended."""
        self._stopped = True  # first: from now on a call is either run below or cancelled
        while self._posted:
            self._run(self._posted.popleft())

    def _take(self, timer: Timer) -> None:
        """Run a timer's function, unless it was cancelled."""
        if timer.function is not None:
            function, timer.function = timer.function, None
            self._run(function)

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("work for the loop failed")

    def close(self) -> None:
        """Close the pipe; nothing may be posted any more."""
        os.close(self.wake_fd)
        os.close(self._wake_end)


class Notifier:
    """Wakes the one coroutine of the loop that waits for changes. On the loop only."""

    __slots__ = ("_is_notified", "_mailbox", "_waiting")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox, self._is_notified = mailbox, False
        self._waiting: Future[None] | None = None

    def notify(self) -> None:
        """Wake the coroutine. If it does not wait now, its next `wait` returns at once."""
        self._is_notified = True
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until `notify` was called since the last `wait`, or for `seconds`."""
        if not self._is_notified:
            self._waiting = Future()
            timer = None if seconds is None else self._mailbox.after(seconds, self.notify)
            await outcome(self._waiting)
            if timer is not None:
                timer.cancel()
        self._is_notified = False
