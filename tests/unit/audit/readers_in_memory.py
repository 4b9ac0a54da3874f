"""Audit readers of one tier, each in a thread of its own, with a ZooKeeper and a cluster in memory.

Only one thread runs at a time: every request of a reader gives control back to the test, which decides which
reader continues, stands still, loses its session or is killed there. A seed repeats a run exactly.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency

from millrace.client.cluster_client import EARLIEST, LATEST, TopicMetadata
from millrace.errors import MillraceError, RequestTimedOut
from millrace.records import BatchHeader, Message, build_batch
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition
from millrace_audit.reader import reader
from millrace_audit.reader.numbers import ReaderNumbers
from millrace_audit.reader.reader import AuditReader, ReaderConfig
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC
from tests.unit.audit.test_messages import Ids

STEP_S = 0.005
"""Time that each step takes."""


class Killed(BaseException):
    """The end of a reader's process, wherever it is."""


@dataclass
class Node:
    data: bytes
    owner: int
    czxid: int


class Result:
    """An answer, as kazoo's asynchronous calls return it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float = 0) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class ZooKeeper:
    """The nodes, the watches on them, and the sessions."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.sessions = itertools.count(1)
        self._numbers: dict[str, int] = {}
        self._zxid = 0
        self._watches: dict[tuple[str, bool], set[Callable[[Any], None]]] = {}

    def watch(self, path: str, watcher: Callable[[Any], None] | None, *, of_children: bool = False) -> None:
        if watcher is not None:
            self._watches.setdefault((path, of_children), set()).add(watcher)

    def _fire(self, path: str, *, with_parent: bool) -> None:
        for key in [(path, False), (path.rpartition("/")[0], True)][: 1 + with_parent]:
            for watcher in self._watches.pop(key, set()):
                watcher(None)

    def create(self, path: str, data: bytes, owner: int, *, sequence: bool = False) -> str:
        if sequence:
            parent = path.rpartition("/")[0]
            self._numbers[parent] = self._numbers.get(parent, -1) + 1
            path = f"{path}{self._numbers[parent]:010}"
        if path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = Node(data, owner, self._zxid)
        self._fire(path, with_parent=True)
        return path

    def set(self, path: str, data: bytes) -> None:
        self.check(path)
        self.nodes[path].data = data
        self._fire(path, with_parent=False)

    def check(self, path: str) -> None:
        if path not in self.nodes:
            raise NoNodeError

    def delete(self, path: str) -> None:
        self.check(path)
        del self.nodes[path]
        self._fire(path, with_parent=True)

    def commit(self, operations: Sequence[Callable[[], Any]]) -> list[Any]:
        """Execute all operations or none, as a transaction."""
        self._zxid += 1
        before = {path: Node(node.data, node.owner, node.czxid) for path, node in self.nodes.items()}
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(operation())
            except Exception as error:
                self.nodes = before
                failed = len(results)
                rest = [RuntimeInconsistency()] * (len(operations) - failed - 1)
                return [*[RolledBackError()] * failed, error, *rest]
        return results

    def expire(self, session: int) -> None:
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.delete(path)


class Client:
    """The part of kazoo's client that readers use."""

    def __init__(self, zookeeper: ZooKeeper, session: MemorySession) -> None:
        self._zookeeper, self._session = zookeeper, session
        self.listeners: list[Callable[[str], object]] = []
        self.add_listener = self.listeners.append

    def _owner(self, *, ephemeral: bool) -> int:
        return self._session.id if ephemeral else 0

    def _run(self, operation: Callable[[], Any]) -> Result:
        (result,) = self._zookeeper.commit([operation])
        return Result(result)

    def ensure_path_async(self, path: str) -> Result:
        self._zookeeper.nodes.setdefault(path, Node(b"", 0, 0))
        return Result(None)

    def sync_async(self, path: str) -> Result:
        return Result(None)

    def create_async(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Result:
        owner = self._owner(ephemeral=ephemeral)
        return self._run(lambda: self._zookeeper.create(path, data, owner, sequence=sequence))

    def set_async(self, path: str, data: bytes) -> Result:
        return self._run(lambda: self._zookeeper.set(path, data))

    def delete_async(self, path: str) -> Result:
        return self._run(lambda: self._zookeeper.delete(path))

    def exists_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Result:
        self._zookeeper.watch(path, watch)
        return Result(self._zookeeper.nodes.get(path))

    def get_children_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Result:
        self._zookeeper.watch(path, watch, of_children=True)
        names = [name.rpartition("/") for name in self._zookeeper.nodes]
        return Result([name for parent, _, name in names if parent == path])

    def transaction(self) -> Any:
        operations: list[Callable[[], Any]] = []
        zookeeper = self._zookeeper

        def create(path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False) -> None:
            owner = self._owner(ephemeral=ephemeral)
            operations.append(lambda: zookeeper.create(path, data, owner, sequence=sequence))

        def check(path: str, _: int) -> None:
            operations.append(lambda: zookeeper.check(path))

        return SimpleNamespace(
            create=create,
            check=check,
            set_data=lambda path, data: operations.append(lambda: zookeeper.set(path, data)),
            delete=lambda path: operations.append(lambda: zookeeper.delete(path)),
            commit_async=lambda: Result(zookeeper.commit(operations)),
        )


class MemorySession:
    """A session like `millrace.zookeeper.session.Session`; an expired one is replaced at its next call."""

    zookeeper = "memory"

    def __init__(self, zookeeper: ZooKeeper, step: Callable[[], None]) -> None:
        self._nodes, self._step = zookeeper, step
        self.client, self.id = Client(zookeeper, self), next(zookeeper.sessions)
        self.is_expired = False
        self.is_silent = False
        """No request is answered, and the session lasts."""

    def call(self, operation: Callable[..., Result], *arguments: Any, **options: Any) -> Any:
        self._step()
        if self.is_silent:
            raise RequestTimedOut("ZooKeeper does not answer")
        if self.is_expired:
            self.is_expired, self.id = False, next(self._nodes.sessions)
            for listener in self.client.listeners:
                listener(KazooState.LOST)
        answer = operation(*arguments, **options)
        self._step()  # a process may end before it has the answer
        return answer.get()

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        return sorted(self.call(self.client.get_children_async, path, watch))

    def read_all(self, paths: Any, watch: Any = None) -> dict[str, tuple[bytes, Any]]:
        self._step()
        if self.is_silent:
            raise RequestTimedOut("ZooKeeper does not answer")
        there = {path: self._nodes.nodes[path] for path in paths if path in self._nodes.nodes}
        return {
            path: (node.data, SimpleNamespace(ephemeralOwner=node.owner, czxid=node.czxid, ctime=0))
            for path, node in there.items()
        }

    def get(self, path: str) -> tuple[bytes, Any] | None:
        return self.read_all([path]).get(path)

    def expire(self) -> None:
        self.is_expired = True
        self._nodes.expire(self.id)

    def close(self) -> None:
        self._nodes.expire(self.id)


@dataclass
class Log:
    """A partition: its batches, and the time of each."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    times: list[int] = field(default_factory=list)
    """Time at which each message became visible."""

    def append(self, time_ms: int, *messages: Message) -> None:
        batch = build_batch(list(messages), base_offset=self.end, leader_epoch=0)
        self.batches.append(batch)
        self.end = BatchHeader.of(batch).next_offset
        self.times += [time_ms] * len(messages)

    def read(self, at: int) -> FetchedPartition:
        first = next((n for n, b in enumerate(self.batches) if BatchHeader.of(b).next_offset > at), None)
        data = b"" if first is None else b"".join(self.batches[first : first + 3])
        return FetchedPartition(0, self.end, self.end, 0, memoryview(data))


@dataclass(eq=False)
class Process:
    """One reader; `step` gives control back to the test."""

    world: World
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_built: bool = False
    is_killed: bool = False
    is_done: bool = False
    stands_still: bool = False
    error: BaseException | None = None
    stopping: bool = False
    fails: bool = False
    """The next request to the cluster fails."""
    is_cut_off: bool = False
    """All requests to the cluster fail."""
    wakes_at: float = 0.0
    """Time until which the process sleeps."""
    unsent: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Messages under way, which arrive even if the process is killed or stands still."""

    def __post_init__(self) -> None:
        self.session = MemorySession(self.world.zookeeper, self.step)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            made = self.world.reader(self)
            made.run(lambda: None)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.world.back.release()

    def step(self) -> None:
        self.world.back.release()
        self.go.acquire()
        if self.is_killed:
            raise Killed

    # The event that stops the reader.

    def is_set(self) -> bool:
        return self.stopping

    def set(self) -> None:
        self.stopping, self.wakes_at = True, 0.0

    def wait(self, timeout_s: float) -> bool:
        self.wakes_at = self.world.now_s + timeout_s
        self.step()
        return self.stopping

    # The cluster, as this reader sees it.

    cluster_id = "kafka"
    bootstrap = "memory"

    def _request(self) -> None:
        self.step()
        if self.fails or self.is_cut_off:
            self.fails = False
            raise MillraceError("no broker answers")

    def topics(self) -> dict[str, TopicMetadata]:
        self._request()
        return {
            name: TopicMetadata(name, topic_id, {p: 1 for t, p in self.world.logs if t == name})
            for name, topic_id in self.world.ids.items()
        }

    def list_offsets(self, topic: str, when: int, partitions: Any = None) -> dict[int, int]:
        self._request()
        if topic == AUDIT_TOPIC:
            return {0: self.world.reported_end()}
        return (
            {0: 0 if when != LATEST else self.world.counts.end}
            if when in (EARLIEST, LATEST)
            else {
                0: next(
                    (n for n, t in enumerate(self.world.counts.times) if t >= when), self.world.counts.end
                )
            }
        )

    def fetch(self, where: Any, cursors: Mapping[Any, Any], **_: Any) -> dict[Any, FetchedPartition]:
        self.step()
        if where == COUNTS_TOPIC:
            return {0: self.world.counts.read(cursors[0])}
        return {name: self.world.logs[name].read(cursor.next_offset) for name, cursor in cursors.items()}

    def earliest(self, leader: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def latest(self, leader: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.step()
        return {name: self.world.logs[name].end for name in partitions}

    written = latest

    def create_topic(self, *_: Any) -> None:
        pass

    def publish(self, messages: Sequence[bytes], *, keys: Sequence[bytes]) -> None:
        self.unsent = list(zip(keys, messages, strict=True))
        while self.unsent:
            self._request()
            if self.unsent:
                self.deliver()
        self._request()  # a message without an acknowledgement may be there

    def deliver(self) -> None:
        key, value = self.unsent.pop(0)
        self.world.counts.append(self.world.now_ms(), Message(0, key, value))

    def close(self) -> None:
        pass


class World:
    """A tier `dc1`, its logs and its readers."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int, start_ms: int) -> None:
        self.dice, self.now_s, self._start_ms = random.Random(seed), 0.0, start_ms
        self.zookeeper, self.back = ZooKeeper(), threading.Semaphore(0)
        self.schemas = Ids()
        self.ids: dict[str, UUID] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.counts = Log()
        self.processes: list[Process] = []
        self.reported_end: Callable[[], int] = lambda: 0
        self._starting: Process | None = None
        patch.setattr("time.monotonic", lambda: self.now_s)
        patch.setattr("time.time", lambda: self.now_ms() / 1000)
        patch.setattr(reader, "now_ms", self.now_ms)
        patch.setattr("millrace_audit.reports.turn_taker.now_ms", self.now_ms)
        patch.setattr(reader, "Mirrors", lambda *_: None)
        patch.setattr(reader, "SchemaRegistryClient", lambda _: self.schemas)
        patch.setattr(reader, "Session", SimpleNamespace(connect=lambda _: self._of_starting().session))
        for name in ("ClusterClient", "Brokers", "AuditPublisher"):
            patch.setattr(reader, name, lambda *_, **__: self._of_starting())

    def add_log(self, topic: str, partition: int) -> None:
        self.logs[topic, partition] = Log()

    def now_ms(self) -> int:
        return self._start_ms + int(self.now_s * 1000)

    def _of_starting(self) -> Process:
        assert self._starting is not None
        return self._starting

    def start(self) -> Process:
        """Start a reader; until it is built no other reader runs."""
        process = Process(self)
        self.processes.append(process)
        self._starting = process
        while not process.is_built:
            self.run(process)
        return process

    def reader(self, process: Process) -> AuditReader:
        config = ReaderConfig(
            cluster="dc1", tier="dc1", bootstrap="", registry="", zookeeper="", interval_ms=100
        )
        made = AuditReader(config, process, ReaderNumbers("dc1"))  # type: ignore[arg-type]
        process.is_built = True
        return made

    def run(self, process: Process) -> None:
        """Let a reader continue until its next request."""
        self.now_s += STEP_S
        process.go.release()
        self.back.acquire()
        if process.error is not None:
            raise process.error

    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.is_done]

    def kill(self, process: Process) -> None:
        process.is_killed, process.stands_still = True, False
        while not process.is_done:
            self.run(process)

    def close(self) -> None:
        for process in self.alive():
            self.kill(process)
