"""The flush threads: what they carry out at the same time, and what they report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.flush import AHEAD, PAUSE_S, THREADS, FlushThreads
from millrace_broker.storage.file_system import FileSystem
from millrace_broker.storage.sides import Flush
from millrace_broker.storage.state import LogState
from tests.support import WAIT_S, wait_until


def state(end: int = 0) -> LogState:
    return LogState(end, end, end, 0, None)


def no_checkpoint() -> None:
    """None is due."""


@dataclass(eq=False)
class Log:
    """A log as flush threads see it; the test decides what its flush does."""

    flush: Callable[[], LogState] = state
    write_due_checkpoint: Callable[[], None] = no_checkpoint
    checkpoint_is_due: bool = False

    def begin_flush(self) -> Flush:
        raise AssertionError("the file system cannot be synced as a whole")

    def end_flush(self, flush: Flush, *, synced: bool) -> LogState:
        raise AssertionError("no flush was begun")


def end_of(flushed: LogState | None) -> int:
    assert flushed is not None
    return flushed.end


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def flushes(mailbox: Mailbox) -> Iterator[FlushThreads]:
    threads = flush_threads(mailbox)
    yield threads
    threads.close()


def flush_threads(mailbox: Mailbox) -> FlushThreads:
    """Threads that flush each log alone: procfs knows no sync of all."""
    return FlushThreads(mailbox, FileSystem(Path("/proc"), -1))


def test_a_flush_that_waits_for_the_disk_holds_up_no_other(mailbox: Mailbox, flushes: FlushThreads) -> None:
    disk, done = threading.Event(), list[int]()

    def hang() -> LogState:
        assert disk.wait(WAIT_S)
        return state()

    flushes.submit(Log(hang), lambda flushed, _: done.append(end_of(flushed)))
    for end in range(1, 3 * THREADS + 1):
        flushes.submit(Log(partial(state, end)), lambda flushed, _: done.append(end_of(flushed)))
    flushes.begin_owed()

    def others_are_done() -> bool:
        mailbox.run()
        return len(done) == 3 * THREADS

    wait_until("the others are done", others_are_done)
    assert sorted(done) == list(range(1, 3 * THREADS + 1))
    disk.set()


def test_work_that_may_wait_runs_one_by_one_at_its_pace_and_holds_up_no_other(
    mailbox: Mailbox, flushes: FlushThreads
) -> None:
    disk, began, done = threading.Event(), list[float](), list[str]()

    def flush() -> LogState:
        began.append(time.monotonic())
        assert disk.wait(WAIT_S)
        return state()

    for _ in range(3 * THREADS):
        flushes.submit_soon(Log(flush), lambda *_: done.append("soon"))
    wait_until("the first is under way", lambda: began)
    flushes.submit(Log(), lambda *_: done.append("now"))
    flushes.begin_owed()

    def has_run(count: int) -> bool:
        mailbox.run()
        return len(done) == count

    wait_until("the other is done", lambda: has_run(1))
    assert (done, len(began)) == (["now"], 1)
    free = time.monotonic()
    disk.set()
    wait_until("all are done", lambda: has_run(1 + 3 * THREADS))
    # The second begins when the disk is free, some at once behind it, and the others at the pace.
    assert began[-1] - free >= PAUSE_S * (3 * THREADS - 2 - AHEAD) * 0.99


def test_a_few_pieces_of_work_begin_at_once_and_the_pace_holds_in_the_long_run(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, done = [100.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda pause: now.append(now.pop() + pause))
    monkeypatch.setattr("millrace_broker.partitions.flush.time", clock)
    flushes = flush_threads(mailbox)

    def flush() -> LogState:
        done.append(now[0])
        return state()

    def began(pieces: int) -> list[float]:
        """The times at which so many pieces of work that come at once begin, in pauses since now."""
        start = now[0]
        done.clear()
        for _ in range(pieces):
            flushes.submit_soon(Log(flush), lambda *_: None)
        wait_until("all are done", lambda: len(done) == pieces)
        return [round((each - start) / PAUSE_S, 3) for each in done]

    assert began(AHEAD + 3) == [0] * (AHEAD + 1) + [1, 2]
    assert began(2) == [1, 2], "there was no rest"
    now[0] += 1.5 * PAUSE_S
    assert began(2) == [0, 0.5]
    now[0] += 1000 * PAUSE_S
    assert began(AHEAD + 2) == [0] * (AHEAD + 1) + [1], "a long rest is not saved up"
    flushes.close()


def test_since_tells_of_the_oldest_flush_under_way(flushes: FlushThreads) -> None:
    first, second = threading.Event(), threading.Event()

    def wait(disk: threading.Event) -> LogState:
        assert disk.wait(WAIT_S)
        return state()

    assert flushes.since is None
    flushes.submit(Log(partial(wait, first)), lambda *_: None)
    flushes.begin_owed()
    oldest = wait_until("the first is under way", lambda: flushes.since)
    flushes.submit(Log(partial(wait, second)), lambda *_: None)
    flushes.begin_owed()
    assert flushes.since == oldest
    first.set()
    wait_until("the second is the oldest", lambda: flushes.since not in (None, oldest))
    second.set()
    wait_until("nothing is under way", lambda: flushes.since is None)


def test_closing_finishes_what_was_handed_over_and_errors_are_outcomes(mailbox: Mailbox) -> None:
    flushes, outcomes = flush_threads(mailbox), list[object]()

    def fail() -> LogState:
        raise OSError("the disk is gone")

    for flush in (partial(state, 1), fail) * (THREADS // 2):
        for submit in (flushes.submit, flushes.submit_soon):
            submit(
                Log(flush),
                lambda flushed, error: outcomes.append(end_of(flushed) if error is None else str(error)),
            )
    flushes.close()
    mailbox.run()
    assert outcomes.count(1) == outcomes.count("the disk is gone") == THREADS
    assert sum(flushes.seconds.counts) == 2 * THREADS


def test_the_checkpoint_follows_when_the_outcome_of_a_flush_was_told_and_may_fail(
    mailbox: Mailbox, flushes: FlushThreads
) -> None:
    go_on, told = threading.Event(), list[int]()

    def fail() -> None:
        assert go_on.wait(WAIT_S)
        raise ValueError("nobody waits for this")

    for end in range(2 * THREADS):
        flushes.submit(Log(partial(state, end), fail), lambda flushed, _: told.append(end_of(flushed)))
    flushes.begin_owed()

    def all_threads_told() -> bool:
        mailbox.run()
        return len(told) == THREADS

    wait_until("each thread has told of one", all_threads_told)
    go_on.set()
    flushes.close()
    mailbox.run()
    assert sorted(told) == list(range(2 * THREADS))
