"""Groups of member processes, a feed of messages for them, and what must be true of all they did."""

from __future__ import annotations

import bisect
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from tests.compat.programs import Program
from tests.support import REPOSITORY, Process, wait_until

Record = tuple[int, int, str]
"""(partition, offset, value)"""


@dataclass
class Member:
    """One member process and what it has reported."""

    name: str
    process: Process
    killed: bool = False

    def events(self, *kinds: str) -> list[tuple[str, float, Any]]:
        """Events that the member has reported, of these kinds or all."""
        found = [tuple(json.loads(line)) for line in list(self.process.lines) if line.startswith("[")]
        return [event for event in found if not kinds or event[0] in kinds]

    @property
    def delivered(self) -> list[tuple[float, Record]]:
        """(when, record) of all it has read, in order."""
        return [(at, tuple(record)) for _, at, records in self.events("got") for record in records]

    @property
    def partitions(self) -> set[int]:
        """Partitions that the member now reports as assigned."""
        held: set[int] = set()
        for what, _, partitions in self.events("assigned", "revoked"):
            held = held | set(partitions) if what == "assigned" else held - set(partitions)
        return held

    def kill(self) -> None:
        """SIGKILL."""
        self.killed = True
        self.process.kill()

    def close(self) -> None:
        """Have it leave; it must say that it has."""
        assert self.process.stop(timeout_s=30) == 0, self.process.output
        assert self.events("closed"), self.process.output


@dataclass
class Members:
    """The members of one group, past and present."""

    start: Callable[..., Process]
    bootstrap: str
    topic: str
    group: str
    started: list[Member] = field(default_factory=list)

    def add(self, client: str | Program, **options: Any) -> Member:
        """One more member: of a client of `group_member`, or of a program that takes the same options."""
        told = {"bootstrap": self.bootstrap, "topic": self.topic, "group": self.group} | options
        if isinstance(client, Program):
            process = client.start(self.start, do="member", **told)
            name = client.name
        else:
            name = client
            process = self.start(
                json.dumps(told | {"client": client}),
                module="tests.compat.group_member",
                env={"PYTHONPATH": str(REPOSITORY)},
            )
        member = Member(f"{name} {len(self.started)}", process)
        self.started.append(member)
        return member

    @property
    def alive(self) -> list[Member]:
        """Those whose processes run."""
        return [member for member in self.started if member.process.running]

    def balanced(self, partitions: int, *, timeout_s: float = 40) -> None:
        """Wait until the living members share all partitions, fairly and each one once."""

        def shared() -> bool:
            held = [member.partitions for member in self.alive]
            sizes = sorted(map(len, held))
            return sorted(itertools.chain(*held)) == list(range(partitions)) and sizes[-1] - sizes[0] <= 1

        wait_until(f"{len(self.alive)} members share {partitions} partitions", shared, timeout_s=timeout_s)

    def commit_again(self, *, timeout_s: float = 60) -> None:
        """Wait until every living member has committed something that it has not by now."""
        before = {member.name: len(member.events("committed")) for member in self.alive}
        wait_until(
            "all members commit again",
            lambda: all(len(m.events("committed")) > before.get(m.name, 0) for m in self.alive),
            timeout_s=timeout_s,
        )

    def received(self, values: Collection[str], *, timeout_s: float = 60) -> None:
        """Wait until each of these values has been read by somebody."""
        wanted = set(values)

        def missing() -> set[str]:
            return wanted - {value for member in self.started for _, (_, _, value) in member.delivered}

        try:
            wait_until("everything is read", lambda: not missing(), timeout_s=timeout_s)
        except AssertionError as error:
            lost = sorted(missing(), key=int)
            raise AssertionError(f"{error}: {len(lost)} of {len(wanted)} missing: {lost[:5]}...") from None

    def check_deliveries(self) -> int:
        """Order holds, and nothing is read again once it is committed; how many values were read twice."""
        for member in self.started:
            self._check_order(member)
        self._check_commits()
        return self._check_repeated()

    def _check_order(self, member: Member) -> None:
        last: dict[int, int] = defaultdict(lambda: -1)
        for what, _, value in member.events("assigned", "got"):
            if what == "assigned":
                last.clear()  # with other partitions it goes on from what is committed
                continue
            for partition, offset, _ in value:
                assert offset > last[partition], f"{member.name} read {partition} out of order at {offset}"
                last[partition] = offset

    def _check_commits(self) -> None:
        """Nobody reads what somebody was told to be committed by then."""
        committed: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for member in self.started:
            for _, at, offsets in member.events("committed"):
                for partition, offset in offsets.items():
                    committed[int(partition)].append((at, offset))
        highest = {p: list(itertools.accumulate(sorted(commits), _later)) for p, commits in committed.items()}
        for member in self.started:
            for at, (partition, offset, value) in member.delivered:
                before = bisect.bisect_left(highest.get(partition, []), (at, 0))
                behind = highest[partition][before - 1][1] if before else 0
                assert offset >= behind, (
                    f"{member.name} read {value} of {partition}, committed up to {behind}"
                )

    def _check_repeated(self) -> int:
        """Twice is read only what its first reader could not commit."""
        readers: dict[str, list[bool]] = defaultdict(list)
        for member in self.started:
            events = member.events("got", "committed", "refused")
            for event, following in itertools.zip_longest(events, events[1:]):
                if event[0] == "got":
                    done = following is not None and following[0] == "committed"
                    for _, _, value in event[2]:
                        readers[value].append(done)
        repeated = {value: done for value, done in readers.items() if len(done) > 1}
        wrong = [value for value, done in repeated.items() if sum(done) > 1]
        assert not wrong, f"read and committed twice: {wrong[:3]}..."
        return len(repeated)


def _later(before: tuple[float, int], commit: tuple[float, int]) -> tuple[float, int]:
    return commit[0], max(before[1], commit[1])


@contextmanager
def feed(bootstrap: str, topic: str, partitions: int, *, per_second: int = 400) -> Iterator[list[str]]:
    """Produces numbers, round-robin, until the end; the list holds what was acknowledged."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
    )
    sent: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            sent.append((message.value() or b"").decode())

    stopping = threading.Event()

    def produce() -> None:
        for number in itertools.count():
            if stopping.is_set():
                return
            producer.produce(
                topic, str(number).encode(), partition=number % partitions, on_delivery=delivered
            )
            producer.poll(0)
            time.sleep(1 / per_second)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join()
        assert producer.flush(30) == 0


def fill(bootstrap: str, topic: str, partitions: int, count: int, first: int = 0) -> Sequence[str]:
    """Produce so many numbers at once, round-robin; the values."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = [str(first + number) for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(30) == 0
    return values
