"""Threads of the groups' own, and what the loop hears of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from millrace.errors import ErrorCode
from millrace_broker.groups.work import Waiting, Work
from millrace_broker.mailbox import Mailbox, Timer
from tests.support import wait_until
from tests.unit.groups.coordinating import Broker, Cluster, name_for
from tests.unit.groups.registry import MemoryRegistry


class SlowMailbox(Mailbox):
    """Takes its time, and keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def post(self, *functions: Callable[[], None]) -> None:
        time.sleep(0.05)
        super().post(*functions)
        self.taken += 1


def test_nothing_is_posted_after_the_threads_are_closed() -> None:
    mailbox = SlowMailbox()
    work = Work(mailbox, 4)
    for _ in range(4):
        mailbox.begin(work.run(lambda: None))
    work.close(10)
    taken = mailbox.taken
    mailbox.close()
    assert taken == 4


def test_steps_that_go_on_after_the_threads_are_closed_end_with_an_error_to_retry() -> None:
    mailbox, codes = Mailbox(), list[ErrorCode]()
    work = Work(mailbox, 1)

    async def steps() -> None:
        assert await work.run(lambda: 1) == 1
        code = await work.run(lambda: 2)
        assert isinstance(code, ErrorCode)
        codes.append(code)

    mailbox.begin(steps())
    work.close(10)
    mailbox.stop()
    mailbox.close()
    assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize(("items", "wait_s"), [(1, 5), (500, 5), (1_000, 10), (2_500, 25), (100_000, 25)])
def test_a_client_waits_longer_for_many_items_but_less_than_its_own_30_seconds(
    items: int, wait_s: float
) -> None:
    waits = list[float]()

    class Watched(Mailbox):
        def after(self, seconds: float, function: Callable[[], None]) -> Timer:
            waits.append(seconds)
            return super().after(seconds, function)

    mailbox = Watched()
    Waiting[None](mailbox, items=items)
    mailbox.close()
    assert waits == [wait_s]


def test_questions_about_many_groups_leave_threads_to_those_about_few() -> None:
    mailbox, free = Mailbox(), threading.Event()
    work, answers = Work(mailbox, 2), dict[str, object]()

    def ask(name: str, items: int, question: Callable[[], object]) -> None:
        async def steps() -> None:
            answers[name] = await work.ask(question, items=items)

        mailbox.begin(steps())

    def answered(name: str) -> bool:
        mailbox.run()
        return name in answers

    ask("many", 2_500, free.wait)
    ask("many at the same time", 2_500, free.wait)
    assert answers == {"many at the same time": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    ask("few", 1, lambda: True)
    wait_until("the answer about few", lambda: answered("few"))
    assert "many" not in answers
    free.set()
    wait_until("the answer about many", lambda: answered("many"))
    ask("many later", 2_500, free.wait)
    wait_until("the next answer about many", lambda: answered("many later"))
    work.close(10)
    mailbox.close()
    assert answers["many"] is answers["few"] is answers["many later"] is True


def test_a_group_is_coordinated_and_its_offsets_are_written_though_the_system_has_no_thread_left(
    cluster: Cluster, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    broker = Broker(1, cluster, registry)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        assert broker.commit(name_for(1)) == {("t", 0): 0}
    broker.groups.close()
    broker.mailbox.close()
