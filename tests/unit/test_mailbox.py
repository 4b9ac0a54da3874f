"""Work reaches the loop from other threads and at its time."""

from __future__ import annotations

import logging
import select
import threading

import pytest

from millrace_broker.mailbox import MIN_SWEEP, Mailbox, started_threads
from tests.support import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mailbox(clock: Clock) -> Mailbox:
    return Mailbox(clock)


def test_a_post_from_a_thread_wakes_the_loop(mailbox: Mailbox) -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: mailbox.post(lambda: done.append(1)))
    thread.start()
    readable, _, _ = select.select([mailbox.wake_fd], [], [], 10)
    assert readable
    mailbox.drain()
    mailbox.run()
    thread.join()
    assert done == [1]
    assert not select.select([mailbox.wake_fd], [], [], 0)[0]


def test_a_call_brings_its_result_or_its_exception(mailbox: Mailbox) -> None:
    good, bad = mailbox.call(lambda: 6 * 7), mailbox.call(lambda: 1 // 0)
    mailbox.run()
    assert good.result(timeout=0) == 42
    assert isinstance(bad.exception(timeout=0), ZeroDivisionError)


def test_timers_run_in_order_and_not_before_their_time(mailbox: Mailbox, clock: Clock) -> None:
    done: list[str] = []
    mailbox.after(2, lambda: done.append("second"))
    mailbox.after(1, lambda: done.append("first"))
    assert mailbox.seconds_to_next() == 1
    mailbox.run()
    assert done == []
    clock.now += 2
    assert mailbox.seconds_to_next() == 0
    mailbox.run()
    assert done == ["first", "second"]
    assert mailbox.seconds_to_next() is None


def test_a_cancelled_timer_neither_runs_nor_wakes(mailbox: Mailbox, clock: Clock) -> None:
    done: list[int] = []
    mailbox.after(1, lambda: done.append(1)).cancel()
    assert mailbox.seconds_to_next() is None
    clock.now += 2
    mailbox.run()
    assert done == []


def test_work_that_fails_does_not_stop_the_rest(mailbox: Mailbox, caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    mailbox.post(lambda: exec("1 // 0"))
    mailbox.post(lambda: done.append(1))
    with caplog.at_level(logging.ERROR):
        mailbox.run()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


def test_periodic_work_goes_on_after_it_has_failed(
    mailbox: Mailbox, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[float] = []

    def work() -> None:
        runs.append(clock.now)
        if len(runs) == 2:
            raise RuntimeError("a bug, once")

    mailbox.every(1.0, work)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            clock.now += 1
            mailbox.run()
    assert len(runs) == 4
    assert caplog.text.count("a bug, once") >= 1


def test_work_posted_by_work_waits_for_the_next_run(mailbox: Mailbox) -> None:
    done: list[str] = []
    mailbox.post(lambda: mailbox.post(lambda: done.append("later")))
    mailbox.run()
    assert done == []
    assert mailbox.seconds_to_next() == 0
    mailbox.run()
    assert done == ["later"]


def test_cancelled_timers_do_not_pile_up_until_their_time() -> None:
    mailbox = Mailbox()
    ran: list[int] = []
    for number in range(100_000):
        mailbox.after(300, lambda: ran.append(-1)).cancel()
        if number % 1000 == 0:
            mailbox.after(0, lambda number=number: ran.append(number))  # type: ignore[misc]
    assert len(mailbox._timers) <= 2 * MIN_SWEEP
    mailbox.run()
    assert ran == list(range(0, 100_000, 1000))
    mailbox.close()


def test_threads_that_cannot_all_be_started_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="new thread"):
            started_threads(3, "few")
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    pool = started_threads(3, "enough")
    assert sum(thread.name.startswith("enough") for thread in threading.enumerate()) == 3
    pool.shutdown()
