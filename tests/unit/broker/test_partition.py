"""When a partition is flushed and who is answered then; the clock and the flushes are the test's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millrace.broker.partition import Outcomes, Partition
from millrace.config import LogConfig
from millrace.errors import BrokerError, UnknownTopicOrPartition
from millrace.mailbox import Mailbox
from millrace.records import Message, build_batch
from millrace.storage.partition_log import PartitionLog

FLUSH_S = 0.1


@dataclass
class Flushes:
    """As FlushThreads, but a flush runs when the test says so."""

    due: list[Callable[[], None]] = field(default_factory=list)
    begun: int = 0

    def submit(self, work: Callable[[], Any], outcome: Callable[[Any, None], None], *more: object) -> None:
        self.begun += 1
        self.due.append(lambda: outcome(work(), None))

    def run(self) -> None:
        due, self.due = self.due, []
        for flush in due:
            flush()


@dataclass
class Waiting:
    """A produce request; `answers` counts the times it was answered."""

    acks_all: bool = True
    answers: int = 0
    outcomes: Sequence[int | BrokerError] = ()

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        self.answers += 1
        self.outcomes = outcomes

    def abort(self, reason: str) -> None:
        pytest.fail(reason)


class Clocked:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.mailbox, self.flushes = Mailbox(lambda: self.now), Flushes()
        self.log = PartitionLog(folder, LogConfig(flush_ms=int(FLUSH_S * 1000)), time.time)
        self.partition = Partition(
            "t",
            0,
            uuid4(),
            self.log,
            self.mailbox,
            self.flushes,  # type: ignore[arg-type]
            lambda: False,
        )

    def write(self, *, acks_all: bool) -> Waiting:
        waiting = Waiting(acks_all)
        batch = memoryview(bytearray(build_batch([Message(1, None, b"x")])))
        self.partition.stage([batch], waiting)
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
    clocked.passes(2 * FLUSH_S)
    assert clocked.flushes.begun == 1


def test_a_partition_that_was_closed_is_not_flushed_any_more(clocked: Clocked) -> None:
    clocked.write(acks_all=False)
    idle: list[None] = []
    clocked.partition.close(UnknownTopicOrPartition("t-0 was deleted"), lambda: idle.append(None))
    clocked.passes(2 * FLUSH_S)
    assert (clocked.flushes.begun, len(idle)) == (0, 1)


def test_a_partition_that_is_closed_during_a_flush_is_idle_after_it(clocked: Clocked) -> None:
    waiting, idle = clocked.write(acks_all=True), list[None]()
    clocked.partition.close(UnknownTopicOrPartition("t-0 was deleted"), lambda: idle.append(None))
    assert isinstance(waiting.outcomes[0], UnknownTopicOrPartition)
    assert idle == []
    clocked.flushes.run()
    assert (waiting.answers, len(idle)) == (1, 1)


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
