"""One broker on real logs whose loop tests turn by hand, a cluster they change and a disk they hold up."""

from __future__ import annotations

import select
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.config import BrokerConfig, LogConfig
from millrace.errors import BrokerError
from millrace.records import Message, build_batch
from millrace.records.mirror_position import Origin
from millrace.wire.fetch import FetchRequest
from millrace.zookeeper.topic_state import BrokerAddress, PartitionState, TopicState
from millrace_broker.coordination.placement import Load
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.fetch import Reads
from millrace_broker.partitions.partition import Outcomes
from millrace_broker.storage.log_directory import LogDirectory
from millrace_broker.storage.partition_log import PartitionLog
from tests.support import WAIT_S

NEVER_MS = 3_600_000
ORIGIN = Origin("dc1", "t", uuid.UUID(int=1), 0)


def topic(
    name: str, *leaders: int, origin: Origin | None = None, settings: Mapping[str, str] | None = None
) -> TopicState:
    states = {n: PartitionState(at, (at,), {at: ""}, 0, origin) for n, at in enumerate(leaders)}
    return TopicState(name, uuid.uuid4(), settings or {}, states)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception | None = None) -> None:
    """The next call of a method raises; those behind it are as ever."""
    real: Callable[..., Any] = getattr(owner, name)

    def failing(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise error or MemoryError

    monkeypatch.setattr(owner, name, failing)


class FakeCluster:
    """The registries as a value that tests change; ZooKeeper's own behaviour is tested elsewhere."""

    cluster_id = "millrace-test"
    is_connected = True

    def __init__(self, *topics: TopicState) -> None:
        self.brokers = {1: BrokerAddress("127.0.0.1", 1), 2: BrokerAddress("127.0.0.1", 2)}
        self.topics = {topic.name: topic for topic in topics}
        self.stored: list[tuple[str, int]] = []
        self.unreadable: set[str] = set()

    def changed(self) -> None:
        """Replaced by what the broker wants called."""

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback  # type: ignore[method-assign]

    def store(self, places: Iterable[tuple[str, int]]) -> None:
        self.stored = sorted(places)

    def is_gone(self, name: str, topic_id: uuid.UUID) -> bool:
        return name not in self.unreadable

    @property
    def load(self) -> Load:
        """Replicas and leaders of the topics on each broker."""
        return Load.of(state.replicas for one in self.topics.values() for state in one.partitions.values())

    def confirm(self, topic: str | None = None) -> None:
        """The topics that `set` was given are those of ZooKeeper."""

    def zookeeper_time(self) -> float:
        return time.time()

    def set(self, *topics: TopicState) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.changed()


@dataclass
class Outcome:
    """Answers to a produce request."""

    acks_all: bool = False
    principal: str = "User:web"
    timeout_ms: int = 30_000
    heard: list[int | BrokerError] = field(default_factory=list)
    fails: bool = False
    aborted: str = ""

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        assert index == 0
        if self.fails:
            self.fails = False
            raise MemoryError
        self.heard += outcomes

    def abort(self, reason: str) -> None:
        self.aborted = reason

    @property
    def base_offset(self) -> int:
        (outcome,) = self.heard
        assert isinstance(outcome, int)
        return outcome


class Disk:
    """Stands before fdatasync and syncfs: counts, holds it up, or makes it fail."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.syncs = 0
        self.entered = threading.Event()
        self.fails = False

    def fdatasync(self, fd: int) -> None:
        self.entered.set()
        assert self.free.wait(WAIT_S)
        self.syncs += 1
        if self.fails:
            raise OSError(5, "Input/output error")


class Running:
    def __init__(
        self,
        folder: Path,
        cluster: FakeCluster,
        log: LogConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        directory: str = "",
        **settings: Any,
    ) -> None:
        self.cluster, self._stopped = cluster, False
        self.mailbox = Mailbox()
        self.aborted_fetches: list[str] = []
        config = BrokerConfig(broker_id=1, cluster="test", log=log, **settings)
        self.logs = LogDirectory.open(folder, log, time.time)
        registries: Any = cluster
        self.broker = Broker(config, registries, self.logs, self.mailbox, clock, directory=directory)
        self.broker.start()

    def turn(self) -> None:
        self.mailbox.run()
        self.broker.end_of_turn()

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, what
            due_in = self.mailbox.seconds_to_next()
            select.select([self.mailbox.wake_fd], [], [], 0.05 if due_in is None else min(0.05, due_in))
            self.mailbox.drain()
            self.turn()

    def produce(
        self, text: str = "x", *, acks_all: bool = False, topic: str = "t", partition: int = 0, count: int = 1
    ) -> Outcome:
        outcome = Outcome(acks_all)
        batch = bytearray(build_batch([Message(1, None, text.encode())] * count))
        self.broker.produce(topic, partition, memoryview(batch), outcome, 0)
        return outcome

    def fetch(
        self, *places: tuple[str, int, int], min_bytes: int = 1, max_wait: int = NEVER_MS
    ) -> list[Reads]:
        topics = [(name, [(p, offset, 1 << 20, -1, -1)]) for name, p, offset in places]
        answers: list[Reads] = []
        request = FetchRequest(max_wait=max_wait, min_bytes=min_bytes, max_bytes=1 << 20, topics=topics)
        self.broker.fetch(request, answers.append, self.aborted_fetches.append)
        return answers

    def whole_log(self, name: str = "t", partition: int = 0) -> PartitionLog:
        """A log with all its sides, of which the broker gives each thread its own."""
        return self.logs._logs[name, partition]

    def high_watermark(self, name: str = "t", partition: int = 0) -> int:
        return self.broker.partition(name, partition).log.high_watermark

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.broker.finalize()
            self.broker.close()
            self.mailbox.close()


Start = Callable[..., Running]
