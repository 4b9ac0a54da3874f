"""Start of a new reader: from what earlier readers have signed, reading no further than it must."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition
from millrace.errors import MillraceError
from millrace.records import Cursor, Message, build_batch
from millrace.records.compression import Codec
from millrace_audit.reader import coverage
from millrace_audit.reader.coverage import covered
from millrace_audit.reader.partition import PartitionKey
from millrace_audit.reports.messages import NOTHING, AuditCodec, Count, Heartbeat, ReaderPosition, Truncated
from millrace_audit.reports.turns import TurnBook
from tests.unit.audit.test_messages import Ids

A, B = PartitionKey("a" * 32, 0), PartitionKey("b" * 32, 1)
MINUTE, DAY = 60, 24 * 3600
OWN = 9
"""The turn of the reader that begins."""
OWN_BEAT = Heartbeat(time=NOTHING, tier="dc1")


def count(key: PartitionKey, start: int, end: int, epoch: int = -1) -> Count:
    topic_id, partition = key
    made = Count(time=1, tier="dc1", topic="t", topic_id=topic_id, partition=partition, start=start, end=end)
    return replace(made, leader_epoch=epoch)


NUMBERS = itertools.count(1)


def beat(*positions: tuple[PartitionKey, int | None]) -> Heartbeat:
    there = [ReaderPosition("t", *key, at) for key, at in positions]
    return Heartbeat(time=2, tier="dc1", number=next(NUMBERS), positions=there)


@dataclass
class Topic:
    """A counts topic: (seconds ago, turn, record) in order; `read_from` is how far back somebody looked."""

    records: list[tuple[float, int, Count | Heartbeat]]
    read_from: int = 1 << 60
    bootstrap: str = "b:1"

    def list_offsets(self, topic: str, when: int, partitions: list[int]) -> dict[int, int]:
        if when in (EARLIEST, LATEST):
            return {0: 0 if when == EARLIEST else len(self.records)}
        ago = time.time() - when / 1000
        return {0: next((i for i, (at, _, _) in enumerate(self.records) if at <= ago), len(self.records))}

    def read(self, *arguments: Any) -> Iterator[tuple[int, Count | Heartbeat]]:
        start, end = arguments[-2:]
        self.read_from = min(self.read_from, start)
        return iter([(turn, record) for _, turn, record in self.records[start:end]])


def ends(topic: Topic, *partitions: PartitionKey, patch: pytest.MonkeyPatch) -> dict[PartitionKey, int]:
    """As `covered` says, when the reader's first heartbeat is there."""
    if all(turn != OWN for _, turn, _ in topic.records):
        topic.records.append((0, OWN, OWN_BEAT))
    return ends_shown(topic, *partitions, patch=patch)


def ends_shown(topic: Topic, *partitions: PartitionKey, patch: pytest.MonkeyPatch) -> dict[PartitionKey, int]:
    patch.setattr(coverage, "_records", topic.read)
    found = cursors(topic, *partitions)
    return {key: cursor.next_offset for key, cursor in found.items()}


def cursors(topic: Topic, *partitions: PartitionKey) -> coverage.Ends:
    before = max((turn for _, turn, _ in topic.records if turn < OWN), default=None)
    return covered(topic, "audit-counts", "dc1", None, None, OWN, before, partitions)  # type: ignore[arg-type]


@pytest.mark.parametrize("ago", [MINUTE, 5 * DAY])
def test_a_topic_that_does_not_show_the_readers_own_heartbeat_may_lack_counts_too(
    monkeypatch: pytest.MonkeyPatch, ago: float
) -> None:
    topic = Topic([(ago, 1, beat((A, 10))), (ago, 1, count(A, 10, 50))])
    with pytest.raises(MillraceError, match="does not return a record that was just acknowledged"):
        ends_shown(topic, A, patch=monkeypatch)


def test_it_goes_on_where_the_last_count_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Count | Heartbeat] = [
        beat((A, 10), (B, 0)),
        count(A, 10, 50),
        count(B, 0, 7),
        count(A, 50, 80),
    ]
    topic = Topic([(MINUTE, 1, record) for record in records])
    assert ends(topic, A, B, patch=monkeypatch) == {A: 80, B: 7}


def test_a_count_that_comes_twice_or_out_of_turn_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, Count | Heartbeat]] = [
        (1, beat((A, 0))),
        (1, count(A, 0, 50)),
        (2, beat()),
        (1, count(A, 50, 80)),
        (2, count(A, 50, 60)),
        (2, count(A, 50, 60)),
        (2, count(A, 70, 90)),
        (1, count(A, 60, 99)),
    ]
    topic = Topic([(MINUTE, turn, record) for turn, record in said])
    assert ends(topic, A, patch=monkeypatch) == {A: 60}


def test_it_reads_back_to_the_newest_heartbeat_that_names_all_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = [(5 * DAY, 1, count(A, n, n + 1)) for n in range(100)]
    topic = Topic(
        [*old, (5 * MINUTE, 1, beat((A, 100), (B, 5))), (MINUTE, 1, count(A, 100, 130)), (0, OWN, OWN_BEAT)]
    )
    assert ends(topic, A, B, patch=monkeypatch) == {A: 130, B: 5}
    assert topic.read_from == 100


def test_a_turn_that_ended_before_it_named_all_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[tuple[float, int, Count | Heartbeat]] = [
        (3 * DAY, 1, beat((A, 0), (B, 0))),
        (3 * DAY, 1, count(B, 0, 40)),
        (2 * MINUTE, 2, Heartbeat(time=NOTHING, tier="dc1")),
        (2 * MINUTE, 2, count(A, 0, 20)),
        (1 * MINUTE, OWN, OWN_BEAT),
        (1 * MINUTE, 2, count(A, 20, 30)),
    ]
    topic = Topic(records)
    assert ends(topic, A, B, patch=monkeypatch) == {A: 20, B: 40}, "not what came behind its own beginning"
    assert topic.read_from == 0


def test_a_partition_that_went_is_counted_on_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic([(MINUTE, 1, beat((A, 3), (B, 9))), (MINUTE, 1, beat((B, None)))])
    topic.records += [(MINUTE, 1, count(B, 0, 9)), (MINUTE, 1, count(B, 9, 12))]
    assert ends(topic, A, patch=monkeypatch) == {A: 3, B: 12}, "the first count is an old one, sent again"


def test_a_reader_that_shares_a_tier_states_positions_and_truncated_logs_without_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = Heartbeat(time=NOTHING, tier="dc1", positions=[ReaderPosition("t", *B, 4)])
    cut = Heartbeat(time=NOTHING, tier="dc1", truncated=[Truncated("t", *B, 9, 6)])
    said: list[Count | Heartbeat] = [
        beat((A, 3)),
        began,
        count(B, 4, 9),
        beat((A, 3)),
        cut,
        count(B, 6, 8),
        beat((A, 5)),
    ]
    topic = Topic([(MINUTE, 1, record) for record in said])
    assert ends(topic, A, B, patch=monkeypatch) == {A: 5, B: 8}


def test_a_heartbeat_that_comes_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = beat((A, 3)), beat((A, 9), (B, 4))
    late = replace(old, positions=[ReaderPosition("t", *A, 99)])
    topic = Topic([(MINUTE, 1, record) for record in (old, new, late)])
    assert ends(topic, A, B, patch=monkeypatch) == {A: 9, B: 4}


def test_a_log_that_was_truncated_is_counted_on_from_where_it_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = beat((A, 0), (B, 9)), beat()
    cut = replace(second, truncated=[Truncated("t", *A, 50, 30), Truncated("t", *B, 4, 3)])
    said: list[Count | Heartbeat] = [first, count(A, 0, 50), cut, count(A, 30, 40)]
    topic = Topic([(MINUTE, 1, record) for record in said])
    assert ends(topic, A, B, patch=monkeypatch) == {A: 40, B: 9}


def test_a_position_has_the_epoch_of_the_newest_record_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = [ReaderPosition("t", *A, 10, 3), ReaderPosition("t", *B, 8, 2)]
    full = Heartbeat(time=2, tier="dc1", number=next(NUMBERS), positions=positions)
    later = replace(beat(), truncated=[Truncated("t", *B, 8, 5)])
    said: list[Count | Heartbeat] = [full, count(A, 10, 20, 4), later]
    topic = Topic([(MINUTE, 1, record) for record in said])
    topic.records.append((0, OWN, OWN_BEAT))
    monkeypatch.setattr(coverage, "_records", topic.read)
    assert cursors(topic, A, B) == {A: Cursor(20, epoch=4), B: Cursor(5)}
    topic.records[1:2] = []
    assert cursors(topic, A, B)[A] == Cursor(10, epoch=3)


def test_what_a_reader_says_when_its_turn_is_over_does_not_hide_that_of_the_turn_before_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic(
        [
            (3 * 3600, 4, beat((A, 0))),
            (2 * 3600, 5, beat((A, 0))),
            (2 * 3600, 5, count(A, 0, 500)),
            (MINUTE, 4, count(A, 0, 20)),
            (MINUTE, 4, beat((A, 20))),
            (0, OWN, OWN_BEAT),
        ]
    )
    assert ends(topic, A, patch=monkeypatch) == {A: 500}


def test_a_new_tier_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends(Topic([]), A, patch=monkeypatch) == {}


def test_a_batch_that_nobody_can_take_apart_stops_no_reader() -> None:
    batch = build_batch([Message(0, None, b"says it is compressed")], attributes=Codec.GZIP)

    class Client:
        def fetch(self, *_: Any, **__: Any) -> dict[int, FetchedPartition]:
            return {0: FetchedPartition(0, 1, 1, 0, memoryview(batch))}

    class Book:
        def signed(self, *_: Any) -> None:
            return None

    client, book = cast(ClusterClient, Client()), cast(TurnBook, Book())
    assert [*coverage._records(client, "audit-counts", "dc1", AuditCodec(Ids()), book, 0, 1)] == []
