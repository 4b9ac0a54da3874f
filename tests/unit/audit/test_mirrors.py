"""Facts that auditor and readers learn of a copy in an Apache Kafka from the mirror's own topic there."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

import pytest

from millrace.client import mirrormaker
from millrace.client.cluster_client import EARLIEST
from millrace.client.copied_topics import CopiedTopics
from millrace.client.kafka_positions import Copy, positions_topic
from millrace.client.mirrormaker import syncs_topic
from millrace.errors import RequestTimedOut
from millrace.records import Cursor, build_batch, control_batch
from millrace.records.header import BatchHeader
from millrace.records.messages import Message
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.fetch import FetchedPartition
from millrace_audit.reports.mirrors import NO_ID, Mirrors, NotInZooKeeper

TOPIC_ID = UUID(int=7)
ORIGIN = Origin("dc1", "Clicks", UUID(int=9), 3)
POSITIONS = positions_topic("dc1")


class Kafka:
    """Partition 0 of two topics, as a client sees them."""

    cluster_id = "of-an-apache-kafka"
    copies: CopiedTopics | None = None

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {"Clicks": [], POSITIONS: []}

    def append(self, topic: str, *values: tuple[bytes | None, bytes]) -> int:
        """A transaction's batch and its mark; the offset behind the last record."""
        base = self.end(topic)
        batch = build_batch([Message(0, key, value) for key, value in values], base_offset=base)
        self.logs[topic] += [batch, control_batch(base + len(values), b"", timestamp=0)]
        return base + len(values)

    def end(self, topic: str) -> int:
        log = self.logs[topic]
        return BatchHeader.of(log[-1]).next_offset if log else 0

    def list_offsets(self, topic: str, when: int, partitions: object) -> dict[int, int]:
        return {0: 0 if when == EARLIEST else self.end(topic)}

    def fetch(self, topic: str, offsets: Mapping[int, int], **_: object) -> dict[int, FetchedPartition]:
        left = [one for one in self.logs[topic] if BatchHeader.of(one).next_offset > offsets[0]]
        end = self.end(topic)
        return {0: FetchedPartition(0, end, end, 0, memoryview(b"".join(left)))}

    def record(self, next_offset: int, records_end: int) -> None:
        position = MirrorPosition(ORIGIN, 0, Cursor(next_offset, next_offset), 1, 1, 0)
        self.append(POSITIONS, (Copy(TOPIC_ID, 0).key(), position.encode(records_end)))


def asked(mirrors: Mirrors, read: int) -> tuple[int | None, int]:
    position, through = mirrors.position("Clicks", TOPIC_ID.hex, 0, ORIGIN, read)
    return None if position is None else position.cursor.next_offset, through


def test_the_newest_position_accounts_for_a_copy_up_to_its_next_record() -> None:
    kafka = Kafka()
    mirrors = Mirrors(None, kafka)  # type: ignore[arg-type]
    assert mirrors.in_kafka
    assert asked(mirrors, 0) == (None, 0), "nothing is copied"
    kafka.record(100, kafka.append("Clicks", (None, b"a"), (None, b"b")))
    assert asked(mirrors, 3) == (100, 3), "behind the last record is but the mark of the transaction"
    assert asked(mirrors, 0) == (100, 2), "what it accounts for is not read yet"
    end = kafka.append("Clicks", (None, b"c"))
    assert asked(mirrors, end) == (100, 2), "the record that was read is not accounted for yet"
    kafka.record(150, end)
    assert asked(mirrors, end) == (150, end)


def test_a_reader_is_told_of_what_it_was_told_to_read_however_much_is_copied_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka()
    mirrors = Mirrors(None, kafka)  # type: ignore[arg-type]
    monkeypatch.setattr(mirrors, "origin", lambda *_: ORIGIN)
    place = ("Clicks", TOPIC_ID.hex, 0)
    end = kafka.append("Clicks", (None, b"a"))
    assert mirrors.copied_end(*place, end) is None, "nobody says what it copies"
    kafka.record(100, end)
    assert mirrors.copied_end(*place, end + 1) == end + 1, "the mark included"
    for more in range(3):
        kafka.record(101 + more, kafka.append("Clicks", (None, b"b")))
    assert asked(mirrors, end + 1) == (100, end + 1)
    newest = kafka.end("Clicks")
    assert mirrors.copied_end(*place, newest) == newest
    assert asked(mirrors, newest) == (103, newest)


def test_a_position_moves_also_when_nothing_was_copied() -> None:
    kafka = Kafka()
    mirrors = Mirrors(None, kafka)  # type: ignore[arg-type]
    kafka.record(100, kafka.append("Clicks", (None, b"a")))
    kafka.record(130, 1)  # aborted transactions of the origin
    assert asked(mirrors, 2) == (130, 2)


def synced(kafka: Kafka, topic: str, partition: int, offset: int, copy_offset: int) -> None:
    """Append MirrorMaker's offset sync for a record of an origin partition."""
    key = struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", partition)
    kafka.append(syncs_topic("dc1"), (key, struct.pack(">qq", offset, copy_offset)))


def test_mirrormaker_s_newest_word_says_how_far_a_copy_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrormaker, "FRESH_SECONDS", 0.0)
    kafka = Kafka()
    kafka.copies = CopiedTopics(("dc0", "dc1"), TOPIC_ID)
    kafka.logs[syncs_topic("dc1")] = []
    mirrors = Mirrors(None, kafka)  # type: ignore[arg-type]
    place = ("Clicks", TOPIC_ID.hex, 20_003)
    origin = mirrors.origin(*place)
    assert origin == Origin("dc1", "Clicks", NO_ID, 3)
    assert mirrors.position(*place, origin, 0) == (None, 0)
    assert mirrors.copied_end(*place, 0) == 0

    synced(kafka, "Clicks", 3, 99, 41)
    synced(kafka, "Clicks", 2, 7, 7)
    assert mirrors.position(*place, origin, 0) == (None, 0), "a reader is told of what it was told to read"
    assert mirrors.copied_end(*place, 42) == 42
    position, through = mirrors.position(*place, origin, 0)
    assert position is not None
    assert (position.cursor.next_offset, through) == (100, 42)

    synced(kafka, "Clicks", 3, 60, 80)  # it was killed, and copies again what it had not noted as copied
    assert mirrors.copied_end(*place, 81) == 81
    position, through = mirrors.position(*place, origin, 0)
    assert position is not None
    assert (position.cursor.next_offset, through) == (100, 81), "what is behind 60 is there already"


def test_the_aggregate_s_own_topics_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> Origin | None:
        raise NotInZooKeeper("ZooKeeper does not know it")

    kafka = Kafka()
    mirrors = Mirrors(None, kafka)  # type: ignore[arg-type]
    for says in (unknown, lambda *_: None):
        with monkeypatch.context() as patched:
            patched.setattr(mirrors, "origin", says)
            assert mirrors.copied_end("Clicks", TOPIC_ID.hex, 0, 9) is None
    kafka.copies = CopiedTopics(("dc1",), TOPIC_ID)
    assert mirrors.origin("Clicks", TOPIC_ID.hex, 0) is None
    assert mirrors.copied_end("Clicks", TOPIC_ID.hex, 0, 9) is None


def test_what_a_zookeeper_that_is_away_does_not_tell_is_not_taken_for_the_aggregate_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> Origin | None:
        raise RequestTimedOut("ZooKeeper is away")

    mirrors = Mirrors(None, Kafka())  # type: ignore[arg-type]
    monkeypatch.setattr(mirrors, "origin", away)
    with pytest.raises(RequestTimedOut):
        mirrors.copied_end("Clicks", TOPIC_ID.hex, 0, 9)
