"""Flushes of a partition and the answers that follow; the clock and the flushes are the test's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from millrace.config import LogConfig
from millrace.errors import BrokerError, NotLeader, UnknownTopicOrPartition
from millrace.records import Message, build_batch
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.flush import Outcome
from millrace_broker.partitions.partition import SMALL_FLUSH_BYTES, Outcomes, Partition
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.sides import FlushSide
from tests.unit.storage.logs import batch

FLUSH_S = 0.1


@dataclass
class Flushes:
    """As FlushThreads, but a flush runs when the test says so."""

    due: list[Callable[[], None]] = field(default_factory=list)
    due_soon: list[Callable[[], None]] = field(default_factory=list)
    begun: int = 0

    def submit(self, log: FlushSide, outcome: Outcome) -> None:
        self.begun += 1
        self.due.append(lambda: outcome(log.flush(), None))

    def submit_soon(self, log: FlushSide, outcome: Outcome) -> None:
        self.due_soon.append(lambda: outcome(log.flush(), None))

    def run(self) -> None:
        due, self.due = self.due, []
        for flush in due:
            flush()

    def run_soon(self) -> None:
        due, self.due_soon = self.due_soon, []
        for flush in due:
            flush()


@dataclass(eq=False)
class WaitingFetch:
    """A parked fetch; `published` is what it heard of."""

    any_is_enough: bool = True
    published: int = 0

    def grown(self, partition: Partition, size: int) -> None:
        self.published += size

    def wake(self) -> None:
        """It does not look again."""


@dataclass
class Waiting:
    """A produce request; `answers` counts the times it was answered."""

    acks_all: bool = True
    principal: str = "User:web"
    timeout_ms: int = 30_000
    answers: int = 0
    outcomes: Sequence[int | BrokerError] = ()

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        self.answers += 1
        self.outcomes = outcomes

    def abort(self, reason: str) -> None:
        pytest.fail(reason)


class Clocked:
    def __init__(self, folder: Path, flush: str = "soon") -> None:
        self.now = 100.0
        self.mailbox, self.flushes = Mailbox(lambda: self.now), Flushes()
        self.log = PartitionLog(folder, LogConfig(flush=flush, flush_ms=int(FLUSH_S * 1000)), time.time)
        self.partition = self.led()

    def led(self) -> Partition:
        """The partition as it is when its leadership begins; its log stays the same."""
        return Partition(
            "t",
            0,
            uuid4(),
            0,
            self.log,
            self.mailbox,
            self.flushes,  # type: ignore[arg-type]
            lambda: False,
        )

    def write(self, *, acks_all: bool, size: int = 1, count: int = 1) -> Waiting:
        """Write `count` batches of one message each, as one client or several may send them in one turn."""
        waiting = Waiting(acks_all)
        batches = [memoryview(bytearray(build_batch([Message(1, None, b"x" * size)]))) for _ in range(count)]
        self.partition.stage(batches, waiting)
        self.partition.write()
        return waiting

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.mailbox.run()


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Clocked]:
    made = Clocked(tmp_path / "t-0")
    yield made
    made.log.close()


def test_a_batch_that_is_refused_as_its_partition_goes_must_come_first_if_it_is_led_here_again(
    clocked: Clocked,
) -> None:
    first, second, again = ([memoryview(batch(1, producer=9, sequence=sequence))] for sequence in (0, 1, 0))
    clocked.partition.stage(first, Waiting())
    clocked.partition.close(NotLeader("another broker leads it"))
    clocked.partition = clocked.led()
    waiting = [Waiting(acks_all=False), Waiting(acks_all=False)]
    clocked.partition.stage(second, waiting[0])
    clocked.partition.stage(again, waiting[1])
    clocked.partition.write()
    assert [type(outcome) for one in waiting for outcome in one.outcomes] == [NotLeader, int]


def test_what_nobody_waits_for_is_flushed_when_its_time_has_come(clocked: Clocked) -> None:
    assert clocked.write(acks_all=False).answers == 1
    clocked.passes(FLUSH_S * 0.9)
    assert clocked.flushes.begun == 0
    clocked.passes(FLUSH_S * 0.2)
    assert clocked.flushes.begun == 1


def test_a_flush_that_begins_sooner_takes_the_place_of_the_one_that_was_to_come(clocked: Clocked) -> None:
    clocked.write(acks_all=False)
    waiting = clocked.write(acks_all=True)
    assert (clocked.flushes.begun, waiting.answers) == (1, 0)
    clocked.flushes.run()
    assert waiting.answers == 1
    clocked.passes(FLUSH_S * 0.5)
    clocked.write(acks_all=False)
    clocked.passes(FLUSH_S * 0.9)
    assert clocked.flushes.begun == 1
    clocked.passes(FLUSH_S * 0.2)
    assert clocked.flushes.begun == 2


def share_a_flush(clocked: Clocked, count: int) -> None:
    """Let one flush answer `count` batches."""
    waiting = clocked.write(acks_all=True, count=count)
    clocked.flushes.run()
    assert (clocked.flushes.begun, waiting.answers) == (1, 1)


def test_producers_that_shared_a_flush_share_the_next_one_with_the_first_of_them(clocked: Clocked) -> None:
    share_a_flush(clocked, count=3)
    again = [clocked.write(acks_all=True)]
    clocked.mailbox.run(is_idle=False)
    again.append(clocked.write(acks_all=True))
    assert clocked.flushes.begun == 1
    clocked.mailbox.run(is_idle=True)
    assert clocked.flushes.begun == 2
    clocked.flushes.run()
    assert [one.answers for one in again] == [1, 1]


def test_a_flush_begins_as_soon_as_all_that_shared_the_last_one_wait_again(clocked: Clocked) -> None:
    share_a_flush(clocked, count=2)
    clocked.write(acks_all=True)
    assert clocked.flushes.begun == 1
    clocked.write(acks_all=True)
    assert clocked.flushes.begun == 2
    clocked.mailbox.run()
    clocked.flushes.run()
    assert clocked.flushes.begun == 2


def test_a_flush_waits_no_more_for_producers_that_have_not_come_to_the_last_one(clocked: Clocked) -> None:
    share_a_flush(clocked, count=3)
    clocked.write(acks_all=True)
    clocked.mailbox.run()
    clocked.flushes.run()
    assert clocked.flushes.begun == 2
    clocked.write(acks_all=True)
    assert clocked.flushes.begun == 3


def test_when_all_have_come_nothing_is_left_that_would_begin_the_next_flush_early(clocked: Clocked) -> None:
    share_a_flush(clocked, count=2)
    clocked.write(acks_all=True)
    clocked.write(acks_all=True)
    clocked.flushes.run()
    clocked.write(acks_all=False)
    clocked.mailbox.run()
    assert clocked.flushes.begun == 2


def test_a_flush_of_much_begins_at_once(clocked: Clocked) -> None:
    share_a_flush(clocked, count=2)
    clocked.write(acks_all=True, size=SMALL_FLUSH_BYTES)
    assert clocked.flushes.begun == 2


def test_a_producer_that_had_a_flush_for_itself_waits_for_no_other(clocked: Clocked) -> None:
    clocked.write(acks_all=False, count=3)
    clocked.write(acks_all=True)
    clocked.flushes.run()
    clocked.write(acks_all=True)
    assert clocked.flushes.begun == 2


def test_a_partition_that_is_closed_while_it_expects_more_refuses_who_waits(clocked: Clocked) -> None:
    share_a_flush(clocked, count=2)
    waiting = clocked.write(acks_all=True)
    idle = clocked.partition.close(NotLeader("moved"))
    assert isinstance(waiting.outcomes[0], NotLeader)
    clocked.mailbox.run()
    assert (idle.done(), clocked.flushes.begun) == (True, 1)


def test_a_partition_that_was_closed_is_not_flushed_any_more(clocked: Clocked) -> None:
    clocked.write(acks_all=False)
    idle = clocked.partition.close(UnknownTopicOrPartition("t-0 was deleted"))
    clocked.passes(2 * FLUSH_S)
    assert (clocked.flushes.begun, idle.done()) == (0, True)


def test_a_partition_that_is_closed_during_a_flush_is_idle_after_it(clocked: Clocked) -> None:
    waiting = clocked.write(acks_all=True)
    idle = clocked.partition.close(UnknownTopicOrPartition("t-0 was deleted"))
    assert isinstance(waiting.outcomes[0], UnknownTopicOrPartition)
    assert not idle.done()
    clocked.flushes.run()
    assert (waiting.answers, idle.done()) == (1, True)


def test_who_asks_for_what_is_visible_already_is_answered_at_once(clocked: Clocked) -> None:
    """A mirror's append that is repeated: nothing new will be flushed for it."""
    clocked.write(acks_all=True)
    end, early, late = clocked.log.end, Waiting(), Waiting()
    clocked.partition.answer_when_flushed(end, early)
    assert early.answers == 0
    clocked.flushes.run()
    assert early.answers == 1
    clocked.partition.answer_when_flushed(end, late)
    assert late.answers == 1


def test_who_watches_hears_of_a_position_when_it_is_visible_and_starts_no_flush(clocked: Clocked) -> None:
    clocked.write(acks_all=False)
    seen: list[str] = []
    clocked.partition.when_visible(clocked.log.end, lambda: seen.append("all"))
    assert (clocked.flushes.begun, seen) == (0, [])
    clocked.passes(2 * FLUSH_S)
    clocked.flushes.run()
    assert seen == ["all"]


def test_a_fetch_that_waits_has_what_comes_flushed_soon_and_once(clocked: Clocked) -> None:
    fetch = WaitingFetch()
    clocked.partition.park(fetch)
    assert clocked.flushes.due_soon == []
    clocked.write(acks_all=False)
    clocked.write(acks_all=False)
    assert (clocked.flushes.begun, len(clocked.flushes.due_soon), fetch.published) == (0, 1, 0)
    clocked.flushes.run_soon()
    assert fetch.published == clocked.log.visible_end == clocked.log.end
    clocked.passes(2 * FLUSH_S)
    assert clocked.flushes.begun == 0


def test_a_fetch_that_comes_after_the_message_hurries_its_flush_too(clocked: Clocked) -> None:
    clocked.write(acks_all=False)
    assert clocked.flushes.due_soon == []
    clocked.partition.park(WaitingFetch())
    assert len(clocked.flushes.due_soon) == 1


def test_only_who_waits_for_any_byte_hurries_a_flush_and_no_longer_than_it_waits(clocked: Clocked) -> None:
    hurries = WaitingFetch()
    clocked.partition.park(WaitingFetch(any_is_enough=False))
    clocked.partition.park(hurries)
    clocked.partition.leave(hurries)
    clocked.partition.leave(hurries)
    clocked.write(acks_all=False)
    assert clocked.flushes.due_soon == []
    clocked.partition.park(hurries)
    assert len(clocked.flushes.due_soon) == 1


def test_a_flush_that_is_owed_or_due_does_not_wait_behind_one_that_may_wait(clocked: Clocked) -> None:
    clocked.partition.park(WaitingFetch())
    clocked.write(acks_all=False)
    waiting = clocked.write(acks_all=True)
    assert (len(clocked.flushes.due_soon), clocked.flushes.begun) == (1, 1)
    clocked.flushes.run()
    assert waiting.answers == 1
    clocked.write(acks_all=False)
    clocked.passes(1.1 * FLUSH_S)
    assert (len(clocked.flushes.due_soon), clocked.flushes.begun) == (1, 2)


def test_a_log_that_could_not_be_flushed_is_not_hurried_until_it_can(clocked: Clocked) -> None:
    clocked.partition.park(WaitingFetch())
    clocked.write(acks_all=False)
    clocked.flushes.due_soon.clear()
    clocked.partition._flushed_soon(None, OSError("no descriptor"))
    clocked.write(acks_all=False)
    assert clocked.flushes.due_soon == []
    clocked.passes(FLUSH_S)
    clocked.flushes.run()
    clocked.write(acks_all=False)
    assert len(clocked.flushes.due_soon) == 1


@pytest.mark.parametrize("acks_all", [False, True])
def test_who_waits_where_leadership_has_come_back_hears_of_what_was_being_flushed_when_it_went(
    clocked: Clocked, acks_all: bool
) -> None:
    clocked.partition.park(WaitingFetch())
    clocked.write(acks_all=acks_all)
    before = clocked.flushes.due_soon, clocked.flushes.due
    clocked.flushes.due_soon, clocked.flushes.due = [], []
    clocked.partition.close(NotLeader("another broker leads t-0 now"))
    again, fetch, seen = clocked.led(), WaitingFetch(any_is_enough=False), list[str]()
    again.when_visible(clocked.log.end, lambda: seen.append("all"))
    again.park(fetch)
    for flush in (*before[0], *before[1]):
        flush()
    clocked.passes(2 * FLUSH_S)
    clocked.flushes.run()
    assert (fetch.published, seen) == (clocked.log.end, ["all"])
    assert clocked.log.visible_end == clocked.log.end


def test_a_partition_is_idle_when_no_flush_of_either_kind_runs(clocked: Clocked) -> None:
    clocked.partition.park(WaitingFetch())
    clocked.write(acks_all=False)
    clocked.write(acks_all=True)
    idle = clocked.partition.close(UnknownTopicOrPartition("t-0 was deleted"))
    clocked.flushes.run_soon()
    assert not idle.done()
    clocked.flushes.run()
    assert idle.done()


def test_in_batches_nothing_hurries_a_flush(tmp_path: Path) -> None:
    clocked = Clocked(tmp_path / "t-0", flush="batch")
    clocked.partition.park(WaitingFetch())
    clocked.write(acks_all=False)
    assert (clocked.flushes.due_soon, clocked.flushes.begun) == ([], 0)
    clocked.passes(1.1 * FLUSH_S)
    assert clocked.flushes.begun == 1
    clocked.log.close()
