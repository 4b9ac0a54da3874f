"""Threads of the groups' own, and what the loop hears of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from millrace.groups.work import Work
from millrace.mailbox import Mailbox


class SlowMailbox(Mailbox):
    """Takes its time, and keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def post(self, function: Callable[[], None]) -> None:
        time.sleep(0.05)
        super().post(function)
        self.taken += 1


def test_nothing_is_posted_after_the_threads_are_closed() -> None:
    mailbox = SlowMailbox()
    work = Work(mailbox, 4)
    for _ in range(4):
        work.run(lambda: None, lambda _: None, lambda _: None)
    work.close(10)
    taken = mailbox.taken
    mailbox.close()
    assert taken == 4
