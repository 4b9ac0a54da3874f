"""Work reaches the loop from other threads and at its time."""

from __future__ import annotations

import logging
import select
import threading
from concurrent.futures import CancelledError, Future

import pytest

from millrace_broker.mailbox import BUSY_S, MIN_SWEEP, Mailbox, Notifier, outcome, started_threads
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


def test_what_waits_for_an_idle_loop_runs_when_nothing_is_left_to_read(mailbox: Mailbox) -> None:
    done: list[int] = []
    mailbox.when_idle(lambda: done.append(1))
    assert mailbox.seconds_to_next() == 0
    mailbox.run(is_idle=False)
    assert done == []
    mailbox.run(is_idle=True)
    assert done == [1]
    assert mailbox.seconds_to_next() is None


def test_what_waits_for_an_idle_loop_runs_in_a_busy_one_when_its_time_is_over(
    mailbox: Mailbox, clock: Clock
) -> None:
    done: list[int] = []
    mailbox.when_idle(lambda: done.append(1))
    clock.now += BUSY_S / 2
    mailbox.when_idle(lambda: done.append(2)).cancel()
    mailbox.when_idle(lambda: done.append(3))
    mailbox.run(is_idle=False)
    assert done == []
    clock.now += BUSY_S / 2
    mailbox.run(is_idle=False)
    assert done == [1]
    clock.now += BUSY_S / 2
    mailbox.run(is_idle=False)
    assert done == [1, 3]
    assert mailbox.seconds_to_next() is None


def test_what_is_to_wait_for_an_idle_loop_waits_for_the_next_turn(mailbox: Mailbox) -> None:
    done: list[int] = []

    def wait() -> None:
        mailbox.when_idle(lambda: done.append(1))

    mailbox.post(wait)
    mailbox.run(is_idle=True)
    assert done == []
    mailbox.run(is_idle=True)
    assert done == [1]


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


def test_a_coroutine_takes_its_first_step_at_once_and_each_other_one_after_an_outcome(
    mailbox: Mailbox,
) -> None:
    first, second = Future[int](), Future[int]()
    done: list[int] = []

    async def inner() -> int:
        return 10 * await outcome(second)

    async def steps() -> None:
        done.append(0)
        done.append(await outcome(first))
        done.append(await inner())

    mailbox.begin(steps())
    assert done == [0]
    first.set_result(1)
    assert done == [0], "the next step waits for the loop"
    mailbox.run()
    assert done == [0, 1]
    mailbox.run()
    assert done == [0, 1]
    second.set_result(2)
    mailbox.run()
    assert done == [0, 1, 20]


def test_an_outcome_from_a_thread_wakes_the_loop_which_takes_the_step(mailbox: Mailbox) -> None:
    pool = started_threads(1, "working")
    steps_in: list[str] = []

    async def steps() -> None:
        steps_in.append(await outcome(pool.submit(lambda: threading.current_thread().name)))
        steps_in.append(threading.current_thread().name)

    mailbox.begin(steps())
    assert select.select([mailbox.wake_fd], [], [], 10)[0]
    mailbox.run()
    assert steps_in == ["working_0", threading.current_thread().name]
    pool.shutdown()


def test_an_outcome_that_is_there_already_is_taken_in_a_later_step(mailbox: Mailbox) -> None:
    there, done = Future[int](), list[int]()
    there.set_result(1)

    async def steps() -> None:
        done.append(await outcome(there))

    mailbox.begin(steps())
    assert done == []
    mailbox.run()
    assert done == [1]


def test_an_outcome_that_failed_is_raised_in_the_coroutine(mailbox: Mailbox) -> None:
    failing, cancelled = Future[int](), Future[int]()
    caught: list[Exception] = []

    async def steps() -> None:
        for future in (failing, cancelled):
            try:
                await outcome(future)
            except Exception as error:
                caught.append(error)

    mailbox.begin(steps())
    failing.set_exception(ZeroDivisionError())
    cancelled.cancel()
    mailbox.run()
    mailbox.run()
    assert [type(error) for error in caught] == [ZeroDivisionError, CancelledError]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_coroutine_that_fails_is_logged_with_its_traceback_and_stops_no_other(
    mailbox: Mailbox, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    awaited, done = Future[None](), list[str]()

    async def with_a_bug() -> None:
        if not at_once:
            await outcome(awaited)
        raise RuntimeError("a bug")

    async def good() -> None:
        await outcome(awaited)
        done.append("good")

    with caplog.at_level(logging.ERROR):
        mailbox.begin(with_a_bug())
        mailbox.begin(good())
        awaited.set_result(None)
        mailbox.run()
        mailbox.run()
    assert done == ["good"]
    assert caplog.text.count("RuntimeError: a bug") == 1
    assert "in with_a_bug" in caplog.text


def test_a_notification_wakes_who_waits_and_one_that_came_before_is_not_missed(
    mailbox: Mailbox, clock: Clock
) -> None:
    changes, looks = Notifier(mailbox), list[float]()

    async def steps() -> None:
        for seconds in (None, None, 2.0, None):
            await changes.wait(seconds)
            looks.append(clock.now)

    mailbox.begin(steps())
    mailbox.run()
    assert looks == []
    changes.notify()
    changes.notify()
    mailbox.run()
    assert looks == [clock.now], "both are looked at together"
    changes.notify()
    mailbox.run()
    assert len(looks) == 2
    assert mailbox.seconds_to_next() == 2
    clock.now += 2
    mailbox.run()
    mailbox.run()
    assert len(looks) == 3


def test_coroutines_that_sleep_go_on_in_the_order_of_their_times(mailbox: Mailbox, clock: Clock) -> None:
    done: list[float] = []

    async def steps(seconds: float) -> None:
        await mailbox.sleep(seconds)
        done.append(seconds)

    for seconds in (3, 1, 2):
        mailbox.begin(steps(seconds))
    assert mailbox.seconds_to_next() == 1
    mailbox.run()
    assert done == []
    clock.now += 2
    mailbox.run()  # the times have come
    mailbox.run()
    assert done == [1, 2]
    clock.now += 1
    mailbox.run()
    mailbox.run()
    assert done == [1, 2, 3]


def test_a_coroutine_that_waits_when_the_loop_ends_takes_no_further_step(
    mailbox: Mailbox, clock: Clock
) -> None:
    before, after, done = Future[None](), Future[None](), list[str]()

    async def steps(future: Future[None], name: str) -> None:
        await outcome(future)
        done.append(name)

    async def asleep() -> None:
        await mailbox.sleep(1)
        done.append("asleep")

    mailbox.begin(steps(before, "before"))
    mailbox.begin(steps(after, "after"))
    mailbox.begin(asleep())
    before.set_result(None)
    mailbox.stop()
    clock.now += 2
    after.set_result(None)
    assert done == ["before"]


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
