"""Work that blocks on ZooKeeper, in threads of its own; coroutines of the loop wait for its outcome.

Commits and take-overs, members' requests, and administrators' requests have separate threads, so that each
kind waits only for its own. The queue is bounded, and a request is answered in time or refused. Steps on
groups return their result or an error code; `begin` passes either to the client, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeAlias, TypeVar

from millrace.errors import BrokerError, ErrorCode
from millrace_broker.mailbox import Mailbox, outcome, started_threads

T = TypeVar("T")
logger = logging.getLogger("millrace.groups.work")

Failed: TypeAlias = Callable[[ErrorCode], None]
Attempt: TypeAlias = Coroutine[Future[Any], None, T | ErrorCode]
"""A coroutine of the loop that returns its result or the client's error."""
WAIT_S = 5.0
"""Seconds that a client waits for ZooKeeper before it must ask again: a third of the limit of the cluster's
own calls. Clients give up on a request only after 30 s and more, but consume nothing while they wait."""
ITEM_S = 0.01
"""Seconds of wait for each item of a request for many offsets or groups: ten times what it takes alone. The
client's next try reads everything again, so on a busy machine a shorter wait would never end."""
MAX_WAIT_S = 25.0
"""Longest wait in any case: Kafka's own clients give up after 30 s."""
MANY_ITEMS = 500
"""Items up to which the wait is WAIT_S."""
BUG = "a step on consumer groups failed"
MAX_QUEUED = 2_000
"""Most pieces of work; a client that retries every 100 ms while ZooKeeper is away must not pile them up."""


async def result_of(steps: Attempt[T]) -> T | ErrorCode:
    """Await the steps. If one raises, log the exception and return UNKNOWN_SERVER_ERROR."""
    try:
        return await steps
    except Exception:
        logger.exception(BUG)
        return ErrorCode.UNKNOWN_SERVER_ERROR


def begin(mailbox: Mailbox, steps: Attempt[T], done: Callable[[T], None], failed: Failed) -> None:
    """Run the steps on the loop, then `done` with their result or `failed` with their error.

    If `done` raises, `failed` is called, too: a bug must not leave a client without an answer.
    """

    async def answer() -> None:
        try:
            result = await steps
            if not isinstance(result, ErrorCode):
                done(result)
        except Exception:
            logger.exception(BUG)
            result = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(result, ErrorCode):
            failed(result)

    mailbox.begin(answer())


def started(mailbox: Mailbox, steps: Attempt[T]) -> Future[T | ErrorCode]:
    """Run the steps on the loop beside others; the future brings their outcome."""
    result: Future[T | ErrorCode] = Future()

    async def run() -> None:
        result.set_result(await result_of(steps))

    mailbox.begin(run())
    return result


class Waiting(Future[T | ErrorCode]):
    """A client's wait for an outcome. It ends after WAIT_S, later for many items, with an error to retry."""

    def __init__(self, mailbox: Mailbox, *, items: int = 1) -> None:
        super().__init__()
        wait_s = min(max(WAIT_S, items * ITEM_S), MAX_WAIT_S)
        self._timer = mailbox.after(wait_s, lambda: self.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def settle(self, result: T | ErrorCode) -> None:
        """Set the outcome unless the client has waited too long. On the loop only."""
        if not self.done():
            self._timer.cancel()
            self.set_result(result)


class Work:
    """The threads for work on groups. `run` and `ask` are for coroutines of the loop."""

    def __init__(self, mailbox: Mailbox, threads: int) -> None:
        self._mailbox = mailbox
        self._pool = started_threads(threads, "groups")
        self._under_way: set[Future[None]] = set()
        self._answers_many = False
        self._is_closed = False

    @property
    def room(self) -> int:
        return MAX_QUEUED - len(self._under_way)

    async def run(self, work: Callable[[], T]) -> T | ErrorCode:
        """Run `work` in a thread, however long it takes; return its result or the code of its error."""
        if self._is_closed or not self.room:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        result: Future[T | ErrorCode] = Future()

        def in_thread() -> None:
            found: T | ErrorCode
            try:
                found = work()
            except Exception as error:
                found = _code(error)
            # Before `running` is done: a thread that waits for `running` may close the mailbox next.
            result.set_result(found)

        running = self._pool.submit(in_thread)
        self._under_way.add(running)
        found = await outcome(result)
        self._under_way.discard(running)
        return found

    async def ask(self, question: Callable[[], T], *, items: int = 1) -> T | ErrorCode:
        """Run as `run` does, for a client that waits as in `Waiting`; skip the question if it gave up.

        Only one question about more than MANY_ITEMS is taken at a time, and others must be asked again: those
        about few items would otherwise wait behind all of them.
        """
        if (is_about_many := items > MANY_ITEMS) and self._answers_many:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._answers_many |= is_about_many
        waiting: Waiting[T] = Waiting(self._mailbox, items=items)

        def in_time() -> T:
            if waiting.done():
                raise BrokerError("the client waits for the answer no longer")
            return question()

        async def run() -> None:
            waiting.settle(await self.run(in_time))
            self._answers_many &= not is_about_many

        self._mailbox.begin(run())
        return await outcome(waiting)

    def close(self, within_s: float) -> None:
        """Let the threads finish their work, for at most `within_s`; the loop has ended."""
        self._is_closed = True
        wait(list(self._under_way), within_s)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _code(error: Exception) -> ErrorCode:
    """Return the client's error: COORDINATOR_NOT_AVAILABLE, to retry, unless the error says more."""
    if not isinstance(error, BrokerError):
        logger.error("work on consumer groups failed", exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR):
        logger.warning("consumer groups: %s", error)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error.code
