"""Work that blocks on ZooKeeper, in threads of its own; its outcome is handled on the loop.

Commits and take-overs, members' requests, and administrators' requests have separate threads, so that each
kind waits only for its own. The queue is bounded, and a request is answered in time or refused. Of the
caller's two functions, `done` and `failed`, exactly one is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from millrace.errors import BrokerError, ErrorCode
from millrace_broker.mailbox import Mailbox, started_threads

T = TypeVar("T")
log = logging.getLogger("millrace.groups.work")

Failed: TypeAlias = Callable[[ErrorCode], None]
WAIT_S = 5.0
"""Seconds that a client waits for ZooKeeper before it must ask again: a third of the limit of the cluster's
own calls. Clients give up on a request only after 30 s and more, but consume nothing while they wait."""
ITEM_S = 0.002
"""Seconds of wait for each item of a request for many offsets or groups."""
MAX_WAIT_S = 25.0
"""Longest wait in any case: clients give up after 30 s."""
MAX_QUEUED = 2_000
"""Most pieces of work; a client that retries every 100 ms while ZooKeeper is away must not pile them up."""


class Waiting(Generic[T]):
    """A client that waits for an outcome: for WAIT_S, and longer if it asks for many items."""

    def __init__(
        self, mailbox: Mailbox, done: Callable[[T], None], failed: Failed, *, items: int = 1
    ) -> None:
        self.open = True
        self._done, self._failed = done, failed
        wait_s = min(max(WAIT_S, items * ITEM_S), MAX_WAIT_S)
        self._timer = mailbox.after(wait_s, lambda: self.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def succeed(self, result: T) -> None:
        if self._close():
            self._done(result)

    def fail(self, code: ErrorCode) -> None:
        if self._close():
            self._failed(code)

    def _close(self) -> bool:
        was_open, self.open = self.open, False
        self._timer.cancel()
        return was_open


class Work:
    """The threads for work on groups. `run` and `ask` are for the loop."""

    def __init__(self, mailbox: Mailbox, threads: int) -> None:
        self._mailbox = mailbox
        self._pool = started_threads(threads, "groups")
        self._under_way: set[Future[None]] = set()

    @property
    def room(self) -> int:
        return MAX_QUEUED - len(self._under_way)

    def run(self, work: Callable[[], T], done: Callable[[T], None], failed: Failed) -> None:
        """Run `work` in a thread, however long it takes, then `done` or `failed` on the loop."""
        if not self.room:
            failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return

        def in_thread() -> None:
            try:
                answer = partial(done, work())
            except Exception as error:
                answer = partial(failed, _code(error))
            # Before the future is done: a thread that waits for the future may close the mailbox next.
            self._mailbox.post(lambda: finished(answer))

        def finished(answer: Callable[[], None]) -> None:
            self._under_way.discard(future)
            answer()

        future = self._pool.submit(in_thread)
        self._under_way.add(future)

    def ask(
        self, question: Callable[[], T], done: Callable[[T], None], failed: Failed, *, items: int = 1
    ) -> None:
        """Run as `run` does, for a client that waits as in `Waiting`; skip the question if it gave up."""
        waiting = Waiting(self._mailbox, done, failed, items=items)

        def work() -> T:
            if not waiting.open:
                raise BrokerError("the client waits for the answer no longer")
            return question()

        self.run(work, waiting.succeed, waiting.fail)

    def close(self, within_s: float) -> None:
        """Let the threads finish their work, for at most `within_s`; the loop has ended."""
        wait(list(self._under_way), within_s)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _code(error: Exception) -> ErrorCode:
    """Return the client's error: COORDINATOR_NOT_AVAILABLE, to retry, unless the error says more."""
    if not isinstance(error, BrokerError):
        log.error("work on consumer groups failed", exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR):
        log.warning("consumer groups: %s", error)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error.code
