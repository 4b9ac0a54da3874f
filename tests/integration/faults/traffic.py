"""Clients that go on through every fault: producers that number their messages, readers that never stop.

All are confluent-kafka's, with the settings people use. What a delivery report or a record says is told to
the ledger; an error that a client's own retries should have hidden is kept and fails the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType

import confluent_kafka

from tests.integration.faults.ledger import Found, Ledger
from tests.support import WAIT_S

PADDING = b"." * 40
WAITING = 400
"""Messages without a delivery report, at most, per producer."""
_CONNECTION = frozenset(
    {
        confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
        confluent_kafka.KafkaError._TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to produce."""

    name: str
    idempotent: bool = True
    acks: str = "all"
    codec: str = "none"


LZ4 = Kind(name="lz4", codec="lz4")
PLAIN = Kind(name="plain")
REPEATING = Kind(name="repeating", idempotent=False)
"""Repeats what it does not know to be stored; keeps its order, because it sends one request at a time."""
HASTY = Kind(name="hasty", idempotent=False, acks="1")
"""Its delivery reports promise nothing: what it stored may be lost until a consumer was shown it."""


@dataclass
class NumberedProducer:
    """Sends `<kind> <number>` to every partition and knows what was stored."""

    bootstrap: str
    ledger: Ledger
    kind: Kind
    partitions: int
    sent: list[int] = field(init=False)
    stored: list[list[int]] = field(init=False)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sent = [0] * self.partitions
        self.stored = [[] for _ in range(self.partitions)]
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": self.kind.idempotent,
                "acks": self.kind.acks,
                "linger.ms": 2,
                "batch.num.messages": 30,
                "compression.type": self.kind.codec,
                "delivery.timeout.ms": 120_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 5000,
                "log_level": 0,
                **({} if self.kind.idempotent else {"max.in.flight": 1, "retries": 1000}),
            }
        )

    def step(self) -> None:
        """Send one message to each partition, unless too many still wait."""
        self._producer.poll(0)
        if len(self._producer) < WAITING:
            for partition in range(self.partitions):
                self._send(partition)

    def _send(self, partition: int) -> None:
        number = self.sent[partition]
        self.sent[partition] += 1
        value = b"%s %d %s" % (self.kind.name.encode(), number, PADDING)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.errors.append(f"{self.kind.name} message {number} of partition {partition}: {error}")
                return
            self.stored[partition].append(number)
            offset = message.offset()
            if self.kind.acks == "all" and offset is not None and offset >= 0:
                self.ledger.tell(partition, offset, value, f"{self.kind.name} producer")

        self._producer.produce(self.ledger.topic, value, partition=partition, on_delivery=delivered)

    @property
    def stored_count(self) -> int:
        """Messages with a delivery report."""
        return sum(map(len, self.stored))

    def finish(self) -> None:
        """Wait until every message is stored; AssertionError names one that is not."""
        assert self._producer.flush(WAIT_S) == 0, f"{self.kind.name}: not everything was stored within 60 s"
        assert not self.errors, self.errors[0]

    def check(self, partition: int, found: Found, *, whole: bool = True) -> None:
        """Nothing this producer sent is missing or out of order in what was read; nor twice if it says so.

        Without `whole` the last of it may be missing: it is still on its way.
        """
        prefix = self.kind.name.encode() + b" "
        numbers = [int(value.split()[1]) for value in found.values() if value.startswith(prefix)]
        if not self.kind.idempotent:
            numbers = list(dict.fromkeys(numbers))
        place = f"{self.ledger.topic}-{partition}, {self.kind.name} producer"
        if self.kind.acks == "all":
            sent = self.sent[partition] if whole else len(numbers)
            assert numbers == list(range(sent)), f"{place}: lost, repeated or out of order"
        else:
            assert numbers == sorted(numbers), f"{place}: out of order"


class Reader:
    """A consumer of every partition, in a thread of its own, from the beginning until it is stopped."""

    def __init__(self, bootstrap: str, ledger: Ledger, partitions: int) -> None:
        self._ledger, self._partitions = ledger, partitions
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self.seen: list[Found] = [{} for _ in range(partitions)]
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 5000,
                "fetch.error.backoff.ms": 50,
                "log_level": 0,
            }
        )
        beginning = confluent_kafka.OFFSET_BEGINNING
        places = [
            confluent_kafka.TopicPartition(self._ledger.topic, partition, beginning)
            for partition in range(self._partitions)
        ]
        try:
            consumer.assign(places)
            while not self._stop.is_set():
                for message in consumer.consume(500, 0.05):
                    self._take(message)
        except Exception as error:  # the thread's end must not hide why
            self.problems.append(repr(error))
        finally:
            consumer.close()

    def _take(self, message: confluent_kafka.Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in _CONNECTION:
                self.problems.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        seen = self.seen[partition]
        if seen and offset <= next(reversed(seen)):
            self.problems.append(
                f"offset {offset} of partition {partition} came after {next(reversed(seen))}"
            )
        seen[offset] = value
        self._ledger.tell(partition, offset, value, "reader")

    def wait_for(self, partition: int, found: Found, timeout_s: float = WAIT_S) -> None:
        """Wait until it has seen all of this; AssertionError when it sees something else instead.

        Messages that became visible after `found` was read may come behind.
        """
        deadline = time.monotonic() + timeout_s
        while len(self.seen[partition]) < len(found) and time.monotonic() < deadline and not self.problems:
            time.sleep(0.02)
        assert not self.problems, self.problems[0]
        seen = dict(islice(self.seen[partition].items(), len(found)))
        assert seen == found, f"the reader's partition {partition} is not what is there"


class GroupMember:
    """A consumer in a group, in a thread of its own, that commits what it has read twice a second."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"group-of-{topic}",
                "enable.auto.commit": False,
                "on_commit": self._committed,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 20_000,
            }
        )
        self._topic = topic
        self.read = 0
        self.last_commit: float = 0.0
        """Time of the last successful commit, by the monotonic clock."""
        self.longest_commit_s = 0.0
        self._committing_since: float | None = None
        self.refused: list[confluent_kafka.KafkaError] = []
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="member", daemon=True)

    def __enter__(self) -> GroupMember:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            self._consumer.subscribe([self._topic])
            due = time.monotonic()
            while not self._stop.is_set():
                for message in self._consumer.consume(500, 0.05):
                    error = message.error()
                    if error is None:
                        self.read += 1
                    elif error.code() not in _CONNECTION:
                        self.problems.append(str(error))
                # One at a time, and reading on: a commit without ZooKeeper may last for seconds.
                if self.read and self._committing_since is None and time.monotonic() > due:
                    self._commit()
                    due = time.monotonic() + 0.5
        except Exception as error:  # the thread's end must not hide why
            self.problems.append(repr(error))
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        self._committing_since = time.monotonic()
        try:
            self._consumer.commit()
        except confluent_kafka.KafkaException as error:
            self._committed(error.args[0], [])

    def _committed(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        assert self._committing_since is not None
        if error is None:
            self.last_commit = time.monotonic()
        elif error.code() != confluent_kafka.KafkaError._NO_OFFSET:
            self.refused.append(error)
        self.longest_commit_s = max(self.longest_commit_s, time.monotonic() - self._committing_since)
        self._committing_since = None


def run(producers: Sequence[NumberedProducer], seconds: float) -> None:
    """Let all of them send for a while, at a pace that leaves the machine time for others."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for producer in producers:
            producer.step()
        time.sleep(0.001)


def run_until_stored(producers: Sequence[NumberedProducer], more: int, timeout_s: float = WAIT_S) -> None:
    """Let all of them send until each has `more` delivery reports than now."""
    goals = [producer.stored_count + more for producer in producers]
    deadline = time.monotonic() + timeout_s
    while any(each.stored_count < goal for each, goal in zip(producers, goals, strict=True)):
        assert time.monotonic() < deadline, f"not {more} messages stored within {timeout_s} s"
        run(producers, 0.02)
