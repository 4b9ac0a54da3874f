"""An auditing reader round by round, on a cluster in memory: what it publishes of what it is shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from millrace.client.cluster_client import TopicMetadata
from millrace.client.runs import OffsetRules
from millrace.errors import ErrorCode, MillraceError, RequestTimedOut
from millrace.records import BatchHeader, Cursor, Message, build_batch
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, Parting
from millrace_audit.reader import reader
from millrace_audit.reader.numbers import ReaderNumbers
from millrace_audit.reader.partition import LEFT_OUT, CannotRead, Partition, PartitionKey
from millrace_audit.reader.reader import AuditReader, ReaderConfig
from millrace_audit.reader.sharing import Membership
from millrace_audit.reports.messages import NOTHING, OFFLINE, AuditRecord, Count, Heartbeat
from millrace_audit.reports.mirrors import NotInZooKeeper
from millrace_audit.reports.turns import Turn
from tests.unit.audit.test_messages import Ids

TOPIC, TOPIC_ID = "t", UUID(int=3)
Offsets = dict[TopicPartition, int | CannotRead]
TURN = Turn(number=4, secret=b"s", cluster_id="c", host="h", pid=1, began=0)


@dataclass
class Cluster:
    """One topic of one partition, whose log is made of batches, and what a reader has published."""

    cluster_id = "kafka"
    log: list[bytes] = field(default_factory=list)
    end: int = 0
    listed: bool = True
    broken: bool = False
    """There is another partition, which cannot be read."""
    published: list[AuditRecord] = field(default_factory=list)
    refuses: bool = False
    open_at: int | None = None
    """Offset at which a transaction is open."""
    asked: list[Cursor] = field(default_factory=list)
    """Positions of all fetches."""
    parting: Parting | None = None
    """Answer to the next fetch: the log was cut there, and has grown again."""

    def append(self, *messages: Message) -> None:
        batch = build_batch(list(messages), base_offset=self.end, leader_epoch=0)
        self.log.append(batch)
        self.end = BatchHeader.of(batch).next_offset

    def topics(self) -> dict[str, TopicMetadata]:
        partitions = {0: 1, 1: 1} if self.broken else {0: 1}
        return {TOPIC: TopicMetadata(TOPIC, TOPIC_ID, partitions)} if self.listed else {}

    def list_offsets(self, topic: str, when: int, partitions: Any = None) -> dict[int, int]:
        return {0: 0}

    def earliest(self, leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 0)

    def written(self, leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, self.end)

    def latest(self, leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        return {name: CannotRead("its disk is broken") if name[1] else self.visible for name in partitions}

    @property
    def visible(self) -> int:
        return self.end if self.open_at is None else self.open_at

    def fetch(
        self, leader: int, cursors: Mapping[TopicPartition, Cursor]
    ) -> dict[TopicPartition, FetchedPartition]:
        answers = {}
        for name, cursor in cursors.items():
            at = cursor.next_offset
            self.asked.append(cursor)
            error = ErrorCode.OFFSET_OUT_OF_RANGE if at > self.end else 0
            batches = [batch for batch in self.log if at < BatchHeader.of(batch).next_offset <= self.visible]
            answers[name] = FetchedPartition(error, self.end, self.end, 0, memoryview(b"".join(batches)))
            if self.parting is not None:
                answers[name] = replace(answers[name], records=memoryview(b""), parting=self.parting)
                self.parting = None
        return answers

    def publish(self, messages: Sequence[bytes], *, keys: Sequence[bytes]) -> None:
        if self.refuses:
            raise MillraceError("away")
        for message in messages:
            record = self.codec.decode(message)
            assert record is not None
            self.published.append(record)

    def close(self) -> None:
        pass

    def news(self) -> list[AuditRecord]:
        """Return the records published since the last call."""
        new, self.published = self.published, []
        return new

    codec: Any = None


class NoAuditor:
    """An auditor that these tests do not ask."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def counted_elsewhere(self) -> None:
        pass

    def close(self) -> None:
        pass

    @classmethod
    def connect(cls, *_: Any) -> NoAuditor:
        return cls()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def reading(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditReader]:
    for name in ("Session", "TurnTaker", "Mirrors"):
        monkeypatch.setattr(reader, name, NoAuditor)
    for name in ("ClusterClient", "Brokers", "AuditPublisher"):
        monkeypatch.setattr(reader, name, lambda *_, **__: cluster)
    monkeypatch.setattr(reader, "SchemaRegistryClient", lambda _: Ids())
    config = ReaderConfig(cluster="dc1", tier="dc1", bootstrap="", registry="", zookeeper="")
    made = AuditReader(config, threading.Event(), ReaderNumbers("dc1"))
    made._turn, cluster.codec = TURN, made._codec
    yield made
    made._registry.close()


def count(record: AuditRecord) -> tuple[int, int, int]:
    assert isinstance(record, Count)
    return record.start, record.end, sum(foreign.messages for foreign in record.foreign)


def test_nothing_is_said_to_be_counted_while_a_listing_lacks_what_was_counted_before(
    cluster: Cluster, reading: AuditReader
) -> None:
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    cluster.news()
    cluster.listed = False  # a broker that has just started knows no topics yet
    reading._beat_due = 0
    reading.count_once()
    assert cluster.news() == []
    cluster.listed = True
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    second, back = cluster.news()
    assert count(second) == (1, 2, 1)
    assert isinstance(back, Heartbeat)
    assert not back.positions


def test_a_turn_says_nothing_before_all_is_listed_that_was_counted_in_the_one_before(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading._covered = {PartitionKey(TOPIC_ID.hex, 0): Cursor(0), PartitionKey("d" * 32, 0): Cursor(5)}
    reading.count_once()
    assert cluster.news() == []
    monkeypatch.setattr(reader, "GONE_S", 0)
    reading.count_once()
    (beat,) = cluster.news()
    assert isinstance(beat, Heartbeat)
    assert [position.topic_id for position in beat.positions] == [TOPIC_ID.hex]


def test_a_topic_that_earlier_turns_counted_and_the_topics_leave_out_is_named_and_never_gone(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "GONE_S", 0)
    key = PartitionKey(TOPIC_ID.hex, 0)
    reading._config, reading._covered = replace(reading._config, topics=["another"]), {key: Cursor(0)}
    cluster.append(Message(0, None, b"plain"))
    for _ in range(2):
        reading._beat_due = 0
        reading.count_once()
        (beat,) = cluster.news()
        assert isinstance(beat, Heartbeat)
        assert all(position.offset is not None for position in beat.positions)
        (left_out,) = beat.unreadable
        assert (left_out.topic_id, left_out.cause) == (key.topic_id, LEFT_OUT)
    assert not reading._numbers.troubles(), "an operator has chosen it"


def test_a_log_that_ends_inside_the_last_batch_that_was_read_is_read_as_it_was_cut_back() -> None:
    """The next batch of the same log begins at the cursor's `next_base`, so an earlier end shows a cut."""
    rules = OffsetRules.of_cluster("kafka", None)
    partition = Partition(TOPIC, PartitionKey(TOPIC_ID.hex, 0), rules, Cursor(0))
    partition.cursor = Cursor(10, 881, 0)
    for end, is_behind in ((10, False), (11, True), (880, True), (881, False), (882, True)):
        partition.noted(end)
        assert partition.behind == is_behind, end


def test_a_topic_is_looked_for_behind_the_end_of_what_is_reported(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.listed = False
    cluster.append(Message(0, None, b"plain"))

    def begins_now(*_: object) -> dict[int, int]:
        cluster.listed = True
        return {0: 700}

    monkeypatch.setattr(cluster, "list_offsets", begins_now)
    reading.count_once()
    counted, beat = cluster.news()
    assert count(counted) == (0, 1, 1)
    assert isinstance(beat, Heartbeat)
    assert beat.reported_through == 700


def test_a_heartbeat_has_no_later_time_than_the_end_of_what_is_reported(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later time would prove that no hello and no report was written since."""

    def away(*_: object) -> dict[int, int]:
        raise MillraceError("broker 1 is away")

    known = cluster.list_offsets
    monkeypatch.setattr(cluster, "list_offsets", away)
    cluster.append(Message(0, None, b"plain"))
    with pytest.raises(MillraceError, match="broker 1 is away"):
        reading.count_once()
    (counted,) = cluster.news()
    assert count(counted) == (0, 1, 1), "no end is known yet, and so no heartbeat is sent"
    monkeypatch.setattr(cluster, "list_offsets", known)
    reading.count_once()
    (first,) = cluster.news()
    assert isinstance(first, Heartbeat)
    assert first.positions
    monkeypatch.setattr(reader, "now_ms", lambda: first.time + 60_000)
    monkeypatch.setattr(cluster, "list_offsets", away)
    cluster.append(Message(0, None, b"plain"))
    with pytest.raises(MillraceError, match="broker 1 is away"):
        reading.count_once()
    counted, second = cluster.news()
    assert count(counted) == (1, 2, 1)
    assert isinstance(second, Heartbeat)
    assert second.time == first.time


def test_a_reader_keeps_its_share_while_only_the_end_of_the_reports_is_unknown(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> dict[int, int]:
        raise MillraceError("broker 1 is away")

    now, left = 100.0, list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(cluster, "list_offsets", away)
    monkeypatch.setattr(Membership, "is_shared", True)
    monkeypatch.setattr(reading, "release_turn", lambda: left.append(True))
    for _ in range(5):
        now += reader.GIVE_UP_S - 1
        cluster.append(Message(0, None, b"plain"))
        with pytest.raises(MillraceError, match="broker 1 is away"):
            reading.count_once()
    assert sum(count(record)[2] for record in cluster.news()) == 5
    assert not left


def test_a_topic_that_listings_lack_for_long_is_gone_and_counted_on_when_it_is_back(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "GONE_S", 0)
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    first, _ = cluster.news()
    assert count(first) == (0, 1, 1)
    cluster.listed = False
    reading.count_once()
    (gone,) = cluster.news()
    assert isinstance(gone, Heartbeat)
    assert [position.offset for position in gone.positions] == [None]
    cluster.listed = True
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    second, back = cluster.news()
    assert count(second) == (1, 2, 1)
    assert isinstance(back, Heartbeat)
    assert [position.offset for position in back.positions] == [2]


def test_each_topic_has_its_own_time_to_be_listed_again(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic is gone because another one was away before it."""
    now, ids = 100.0, {"a": UUID(int=1), "b": UUID(int=2)}
    listed = ["a", "b"]
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(
        cluster, "topics", lambda: {name: TopicMetadata(name, ids[name], {0: 1}) for name in listed}
    )
    reading.count_once()
    cluster.news()
    for now, listed in ((101.0, ["b"]), (110.0, ["a"]), (119.0, ["a"])):  # noqa: B007  # the cluster reads both
        reading._beat_due = 0
        reading.count_once()
    assert cluster.news() == []
    now = 120.0
    reading.count_once()
    (beat,) = cluster.news()
    assert isinstance(beat, Heartbeat)
    assert [(position.topic, position.offset) for position in beat.positions] == [("b", None)]


def test_nothing_is_said_to_be_counted_before_transactions_that_were_open_then_have_ended(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an open one lie messages that are acknowledged, may be reported, and cannot be read."""
    ends = iter(range(700, 800))
    monkeypatch.setattr(cluster, "list_offsets", lambda *_: {0: next(ends)})
    cluster.append(Message(0, None, b"plain"))
    cluster.append(Message(0, None, b"of a transaction"))
    cluster.append(Message(0, None, b"plain"))
    cluster.open_at = 1
    reading.count_once()
    (first,) = cluster.news()
    assert count(first) == (0, 1, 1)
    cluster.open_at, cluster.end = 3, 3
    cluster.append(Message(0, None, b"of the next one"))
    reading.count_once()
    second, beat = cluster.news()
    assert count(second) == (1, 3, 2)
    assert isinstance(beat, Heartbeat)
    assert beat.reported_through == 700, "as it was when that transaction was open"
    reading._beat_due = 0
    reading.count_once()
    assert cluster.news() == []
    monkeypatch.setattr("millrace_audit.reader.partition.OPEN_S", 0)
    reading.count_once()
    (stuck,) = cluster.news()
    assert isinstance(stuck, Heartbeat)
    assert [(bad.offset, "a transaction has been open" in bad.cause) for bad in stuck.unreadable] == [
        (3, True)
    ]
    monkeypatch.setattr(Partition, "is_due", lambda _: True)
    cluster.open_at = None
    reading.count_once()
    third, free = cluster.news()
    assert count(third) == (3, 4, 1)
    assert isinstance(free, Heartbeat)
    assert not free.unreadable


def test_a_topic_that_was_deleted_long_ago_stops_no_heartbeat_of_a_busy_cluster(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come between two questions make every claim wait for the next round."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def written_to(leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        cluster.append(Message(0, None, b"x"))
        return dict.fromkeys(partitions, cluster.end)

    monkeypatch.setattr(cluster, "written", written_to)
    reading._covered = {PartitionKey(TOPIC_ID.hex, 0): Cursor(0), PartitionKey("ab" * 16, 0): Cursor(7)}
    for _ in range(60):
        reading.count_once()
        now += 1
    assert sum(isinstance(record, Heartbeat) for record in cluster.news()) > 10


@dataclass
class TwoLeaders(Cluster):
    """Two partitions on two brokers, each with five messages; transactions hide those behind `shown`."""

    shown: dict[int, int] = field(default_factory=lambda: {0: 1, 1: 1})
    ends: dict[int, int] = field(default_factory=lambda: {0: 1, 1: 1})
    second_is_away: bool = False

    def topics(self) -> dict[str, TopicMetadata]:
        return {TOPIC: TopicMetadata(TOPIC, TOPIC_ID, {0: 1, 1: 2})}

    def _say(self, leader: int, names: Collection[TopicPartition], what: Mapping[int, int]) -> Offsets:
        if leader == 2 and self.second_is_away:
            raise CannotRead("away")
        return {name: what[name[1]] for name in names}

    def latest(self, leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        return self._say(leader, partitions, self.shown)

    def written(self, leader: int, partitions: Collection[TopicPartition]) -> Offsets:
        return self._say(leader, partitions, self.ends)

    def fetch(
        self, leader: int, cursors: Mapping[TopicPartition, Cursor]
    ) -> dict[TopicPartition, FetchedPartition]:
        log = [build_batch([Message(0, None, b"x")], base_offset=at) for at in range(5)]
        return {
            name: FetchedPartition(
                0, 5, 5, 0, memoryview(b"".join(log[cursor.next_offset : self.shown[name[1]]]))
            )
            for name, cursor in cursors.items()
        }


@pytest.mark.parametrize("cluster", [TwoLeaders()])
def test_a_partition_that_could_not_be_asked_holds_a_claim_by_what_it_holds_afterwards(
    cluster: TwoLeaders, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def beats_of_a_round() -> int:
        nonlocal now
        now += 2
        reading.count_once()
        return sum(isinstance(record, Heartbeat) for record in cluster.news())

    assert beats_of_a_round() == 1
    cluster.second_is_away, cluster.ends = True, {0: 3, 1: 3}
    reading._beat_due = 0
    assert beats_of_a_round() == 0, "a transaction is open in the first partition"
    cluster.second_is_away, cluster.shown = False, {0: 3, 1: 1}
    assert beats_of_a_round() == 0, "one is open in the second, too, and its messages are acknowledged"
    cluster.shown = {0: 3, 1: 3}
    assert beats_of_a_round() == 1


def test_a_truncated_log_is_said_to_be_and_counted_on_behind_that_word(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.append(Message(0, None, b"plain"))
    cluster.append(Message(0, None, b"gone"))
    reading.count_once()
    cluster.news()
    cluster.log.pop()
    cluster.end = 1
    reading.count_once()
    (stuck,) = cluster.news()
    assert isinstance(stuck, Heartbeat)
    assert [bad.offset for bad in stuck.unreadable] == [2]
    monkeypatch.setattr("millrace_audit.reader.partition.TRUNCATED_S", 0)
    monkeypatch.setattr(Partition, "is_due", lambda _: True)
    reading.count_once()
    cut, free = cluster.news()
    assert isinstance(cut, Heartbeat)
    assert [(log.counted, log.end) for log in cut.truncated] == [(2, 1)]
    assert isinstance(free, Heartbeat)
    assert not free.unreadable
    cluster.append(Message(0, None, b"new"), Message(0, None, b"new"))
    reading.count_once()
    again, beat = cluster.news()
    assert count(again) == (1, 3, 2)
    assert isinstance(beat, Heartbeat)
    assert not beat.truncated


def test_a_truncated_log_is_reported_before_it_is_counted_again_also_while_no_heartbeat_is_sent(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.append(Message(0, None, b"plain"))
    cluster.append(Message(0, None, b"gone"))
    reading.count_once()
    cluster.news()
    cluster.log.pop()
    cluster.end = 1
    monkeypatch.setattr("millrace_audit.reader.partition.TRUNCATED_S", 0)
    reading._covered = {PartitionKey("d" * 32, 0): Cursor(5)}  # its broker lists nothing yet
    reading._all_positions_due = 0.0
    reading.count_once()
    cluster.append(Message(0, None, b"new"), Message(0, None, b"new"))
    reading.count_once()
    cut, again = cluster.news()
    assert isinstance(cut, Heartbeat)
    assert (cut.time, [(log.counted, log.end) for log in cut.truncated]) == (NOTHING, [(2, 1)])
    assert count(again) == (1, 3, 2)


def test_a_log_that_was_cut_and_has_grown_is_said_to_be_before_it_is_counted_again(
    cluster: Cluster, reading: AuditReader
) -> None:
    cluster.append(Message(0, None, b"plain"))
    cluster.append(Message(0, None, b"gone"))
    reading.count_once()
    cluster.news()
    cluster.log.pop()
    cluster.end, cluster.parting = 1, Parting(0, 1)
    cluster.append(Message(0, None, b"new"), Message(0, None, b"new"))
    reading.count_once()
    cut, again, beat = cluster.news()
    assert isinstance(cut, Heartbeat)
    assert (cut.time, [(log.counted, log.end) for log in cut.truncated]) == (NOTHING, [(2, 1)])
    assert count(again) == (1, 3, 2)
    assert isinstance(beat, Heartbeat)
    assert beat.number > cut.number
    assert not beat.truncated


def test_a_log_that_was_cut_and_has_grown_but_is_still_shorter_is_counted_again_from_where_it_was_cut(
    cluster: Cluster, reading: AuditReader
) -> None:
    """Counting from its end would miss that the offsets below hold other messages."""
    for value in (b"plain", b"gone", b"gone", b"gone"):
        cluster.append(Message(0, None, value))
    reading.count_once()
    cluster.news()
    del cluster.log[1:]
    cluster.end, cluster.parting = 1, Parting(0, 1)
    cluster.append(Message(0, None, b"new"), Message(0, None, b"new"))
    reading.count_once()
    assert Cursor(3, epoch=0) in cluster.asked, "an offset that the log has, so that it compares the epoch"
    cut, again, beat = cluster.news()
    assert isinstance(cut, Heartbeat)
    assert [(log.counted, log.end) for log in cut.truncated] == [(4, 1)]
    assert isinstance(again, Count)
    assert (count(again), again.expired.pairs()) == ((1, 3, 2), [])
    assert isinstance(beat, Heartbeat)
    assert not beat.unreadable


def test_a_log_that_was_cut_and_grew_while_no_reader_ran_is_noticed_by_the_next_reader(
    cluster: Cluster, reading: AuditReader
) -> None:
    key = PartitionKey(TOPIC_ID.hex, 0)
    cluster.append(Message(0, None, b"kept"))
    cluster.append(Message(0, None, b"gone"))
    reading.count_once()
    counted, beat = cluster.news()
    assert isinstance(counted, Count)
    assert isinstance(beat, Heartbeat)
    assert [position.leader_epoch for position in beat.positions] == [counted.leader_epoch] == [0]
    reading._partitions.clear()
    reading._all_positions_due = 0.0
    reading._covered = {key: Cursor(counted.end, epoch=counted.leader_epoch)}
    cluster.log.pop()
    cluster.end, cluster.parting = 1, Parting(0, 1)
    cluster.append(Message(0, None, b"new"), Message(0, None, b"new"))
    reading.count_once()
    assert Cursor(counted.end, epoch=0) in cluster.asked, "the first fetch has the epoch of the position"
    cut, again, _ = cluster.news()
    assert isinstance(cut, Heartbeat)
    assert [(log.counted, log.end) for log in cut.truncated] == [(2, 1)]
    assert count(again) == (1, 3, 2)


def test_a_copy_is_said_to_have_come_further_when_its_mirror_did_so_without_a_message(
    cluster: Cluster, reading: AuditReader
) -> None:
    origin = Origin("dc1", TOPIC, TOPIC_ID, 0)

    class Mirror:
        through, next_offset = 0, 0

        def copied_end(self, *_: object) -> None:
            return None

        def origin(self, *_: object) -> Origin:
            return origin

        def position(self, *_: object) -> tuple[MirrorPosition, int]:
            return MirrorPosition(origin, 0, Cursor(self.next_offset), 1, 1, 0), self.through

    mirror, ends = Mirror(), list[list[tuple[int, int, int | None]]]()
    reading._config = replace(reading._config, tier=OFFLINE)
    reading._mirrors = mirror  # type: ignore[assignment]
    cluster.append(Message(0, None, b"plain"))
    for through, next_offset in ((1, 7), (1, 8), (2, 9)):
        mirror.through, mirror.next_offset = through, next_offset
        for partition in reading._partitions.values():
            partition.ask_at = 0
        reading.count_once()
        counts = [record for record in cluster.news() if isinstance(record, Count)]
        ends.append([(c.start, c.end, None if c.origin is None else c.origin.end) for c in counts])
    assert ends == [[(0, 1, 7)], [(1, 1, 8)], []], "behind it is something that is not visible yet"


def test_what_keeps_a_reader_from_the_mirrors_positions_is_said_once(
    cluster: Cluster, reading: AuditReader, caplog: pytest.LogCaptureFixture
) -> None:
    class Mirror:
        def copied_end(self, *_: object) -> None:
            return None

        def origin(self, *_: object) -> Origin:
            return Origin("dc1", TOPIC, TOPIC_ID, 0)

        def position(self, *_: object) -> tuple[MirrorPosition, int]:
            raise MillraceError("a record that is no position")

    reading._config = replace(reading._config, tier=OFFLINE)
    reading._mirrors = Mirror()  # type: ignore[assignment]
    for _ in range(3):
        cluster.append(Message(0, None, b"plain"))
        reading.count_once()
    said = [record.message for record in caplog.records if "no position" in record.message]
    assert said == ["the mirror's position is not known: a record that is no position; trying again"]


class AwayMirror:
    """ZooKeeper does not say what anything is a copy of, or the leader not how far it has come."""

    in_kafka = False
    zookeeper_is_away = leader_is_away = True

    def copied_end(self, *_: object) -> None:
        return None

    def origin(self, *_: object) -> Origin:
        if self.zookeeper_is_away:
            raise RequestTimedOut("ZooKeeper is away")
        return Origin("dc1", TOPIC, TOPIC_ID, 0)

    def position(self, *_: object) -> tuple[MirrorPosition | None, int]:
        if self.leader_is_away:
            raise MillraceError("the leader is away")
        return None, 0


def test_nothing_of_a_copy_is_counted_before_it_is_known_what_it_copies(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = AwayMirror()
    monkeypatch.setattr(Partition, "is_due", lambda _: True)
    monkeypatch.setattr(reader, "COUNT_BYTES", 0)  # a count is published early, before the round is over
    reading._config = replace(reading._config, tier=OFFLINE)
    reading._mirrors = mirror  # type: ignore[assignment]
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    (beat,) = cluster.news()
    assert isinstance(beat, Heartbeat)
    assert [bad.cause for bad in beat.unreadable] == ["ZooKeeper is away"]
    mirror.zookeeper_is_away = False
    reading.count_once()
    counts = [record for record in cluster.news() if isinstance(record, Count)]
    assert [(c.start, c.end, c.origin and c.origin.cluster) for c in counts] == [(0, 1, "dc1")]


@pytest.mark.parametrize("in_kafka", [True, False])
def test_only_of_an_apache_kafka_is_a_topic_its_own_that_zookeeper_does_not_know(
    cluster: Cluster, reading: AuditReader, in_kafka: bool
) -> None:
    class Mirror(AwayMirror):
        def origin(self, *_: object) -> Origin:
            raise NotInZooKeeper("ZooKeeper does not know t-0 (any more)")

    mirror = Mirror()
    mirror.in_kafka = in_kafka
    reading._config = replace(reading._config, tier=OFFLINE)
    reading._mirrors = mirror  # type: ignore[assignment]
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    counts = [record for record in cluster.news() if isinstance(record, Count)]
    assert [(c.start, c.end, c.origin) for c in counts] == ([(0, 1, None)] if in_kafka else [])


def test_what_was_counted_while_the_registry_was_away_is_told_when_it_is_back(
    cluster: Cluster, reading: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> int:
        raise MillraceError("the registry is away")

    reading.count_once()  # of the records of the audit, heartbeats alone are known to the registry
    cluster.append(Message(0, None, b"plain"))
    with monkeypatch.context() as patched:
        patched.setattr(Ids, "register", away)
        with pytest.raises(MillraceError, match="registry is away"):
            reading.count_once()
    cluster.append(Message(0, None, b"plain"))
    cluster.news()
    reading.count_once()
    assert [count(record) for record in cluster.news() if isinstance(record, Count)] == [(0, 2, 2)]


def test_a_partition_that_cannot_be_read_takes_no_other_with_it(
    cluster: Cluster, reading: AuditReader
) -> None:
    cluster.broken = True
    for end in (1, 2):
        cluster.append(Message(0, None, b"plain"))
        reading.count_once()
        counted, beat = cluster.news()
        assert count(counted) == (end - 1, end, 1)
        assert isinstance(beat, Heartbeat)
        assert [(bad.partition, bad.cause) for bad in beat.unreadable] == [(1, "its disk is broken")]


def test_heartbeats_of_a_turn_are_numbered_also_when_one_is_sent_again(
    cluster: Cluster, reading: AuditReader
) -> None:
    reading.count_once()
    cluster.refuses = True
    cluster.append(Message(0, None, b"plain"))
    with pytest.raises(MillraceError, match="away"):
        reading.count_once()
    cluster.refuses = False
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    cluster.append(Message(0, None, b"plain"))
    reading.count_once()
    news = cluster.news()
    assert [record.number for record in news if isinstance(record, Heartbeat)] == [1, 2, 3]
    assert [count(record) for record in news if isinstance(record, Count)] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 3, 1),
    ]
