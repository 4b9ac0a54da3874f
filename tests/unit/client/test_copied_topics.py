"""Topics that MirrorMaker 2 fills are seen as one topic of all origins, with lasting partition numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from millrace.client.copied_topics import COPIES_KEY, CopiedTopics, Topic, read_copies
from millrace.client.fetcher import BrokerFetcher
from millrace.errors import ErrorCode, MillraceError
from millrace.records import Message, build_batch
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition

MARK = UUID(int=5)
BOTH = CopiedTopics(("dc1", "dc2"), MARK)


def topic(name: str, *partitions: int, topic_id: int = 7) -> Topic:
    listed = tuple(Topic.Partition(error_code=0, partition_index=p, leader_id=1) for p in partitions)
    return Topic(error_code=0, name=name, topic_id=UUID(int=topic_id), partitions=listed)


def missing(name: str) -> Topic:
    return Topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def seen(topics: tuple[Topic, ...]) -> dict[str | None, list[int]]:
    return {one.name: [p.partition_index for p in one.partitions] for one in topics}


def test_a_record_that_names_no_origins_is_refused_in_one_line() -> None:
    assert CopiedTopics.decode(BOTH.encode(), MARK) == BOTH
    for value in (
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"origins": "dc1"}',
        b'{"origins": [1]}',
        b'{"origins": [""]}',
    ):
        with pytest.raises(MillraceError, match="does not name the origins"):
            CopiedTopics.decode(value, MARK)
    with pytest.raises(MillraceError, match="does not name the origins"):
        CopiedTopics.decode(b"[" * 100_000, MARK)


def test_the_copies_of_all_origins_are_one_topic_beside_the_cluster_s_own() -> None:
    there = [
        topic("dc1.Clicks", 0, 1),
        topic("dc2.Clicks", 0),
        topic("audit-offline", 0),
        topic("dc3.Clicks", 0),
    ]
    everything = seen(BOTH.merged(there, None))
    assert everything == {"Clicks": [10_000, 10_001, 20_000], "audit-offline": [0], "dc3.Clicks": [0]}
    assert seen(BOTH.merged([topic("Clicks", 0), *there], ["Clicks"])) == {
        "Clicks": [0, 10_000, 10_001, 20_000]
    }


def test_a_partition_has_one_name_in_the_cluster_and_one_as_it_is_seen() -> None:
    assert BOTH.names("Clicks") == ["Clicks", "dc1.Clicks", "dc2.Clicks"]
    for seen_as, called, origin in (
        (("Clicks", 3), ("Clicks", 3), None),
        (("Clicks", 10_003), ("dc1.Clicks", 3), "dc1"),
        (("Clicks", 20_000), ("dc2.Clicks", 0), "dc2"),
        (("Clicks", 30_000), ("Clicks", 30_000), None),
    ):
        assert (BOTH.in_cluster(seen_as), BOTH.origin(seen_as[1])) == (called, origin)


def test_a_copy_is_also_there_by_the_name_that_the_cluster_gives_it() -> None:
    assert BOTH.names("dc2.Clicks") == ["dc2.Clicks"]
    assert seen(BOTH.merged([topic("dc2.Clicks", 0, 1)], ["dc2.Clicks"])) == {"dc2.Clicks": [0, 1]}
    assert BOTH.in_cluster(("dc2.Clicks", 1)) == ("dc2.Clicks", 1)


def test_a_topic_keeps_its_id_and_its_numbers_when_another_origin_comes() -> None:
    (before,) = CopiedTopics(("dc1",), MARK).merged([topic("dc1.Clicks", 0)], ["Clicks"])
    (after,) = BOTH.merged([topic("dc1.Clicks", 0), topic("dc2.Clicks", 0, topic_id=8)], ["Clicks"])
    assert before.topic_id == after.topic_id
    assert seen((after,)) == {"Clicks": [10_000, 20_000]}


def test_a_topic_of_which_there_is_no_copy_is_what_it_is() -> None:
    own = topic("audit-offline", 0)
    copies = [missing("dc1.audit-offline"), missing("dc2.audit-offline")]
    assert BOTH.merged([own, *copies], ["audit-offline"]) == (own,)
    (none,) = BOTH.merged([missing("No"), missing("dc1.No"), missing("dc2.No")], ["No"])
    assert (none.name, none.error_code) == ("No", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_what_the_record_says_is_what_was_written() -> None:
    assert CopiedTopics.decode(BOTH.encode(), MARK) == BOTH


class Holding(BrokerFetcher):
    """The leader of a partition with these values under the key, a batch each."""

    def __init__(self, *values: bytes) -> None:
        self._values = values

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, len(self._values)))

    def request(self, offsets: Any, limits: Any, last_epochs: Any = None) -> None:
        ((self._place, self._offset),) = offsets.items()

    def receive(self, buffer: bytearray | None = None) -> dict[TopicPartition, FetchedPartition]:
        base, end = self._offset, len(self._values)
        batch = build_batch([Message(1, COPIES_KEY, self._values[base])], base_offset=base)
        return {self._place: FetchedPartition(0, end, end, 0, memoryview(batch))}


def test_the_newest_record_counts_whatever_a_stranger_wrote_before() -> None:
    assert read_copies(Holding(b"hello", BOTH.encode()), MARK) == BOTH
    assert read_copies(Holding(), MARK) is None
    with pytest.raises(MillraceError, match="does not name the origins"):
        read_copies(Holding(BOTH.encode(), b"hello"), MARK)
