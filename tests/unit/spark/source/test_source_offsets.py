"""From the options to offsets: frozen as numbers, refused when they cannot be read, moved behind batches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

import pytest

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records import Cursor, Message
from millrace.records.compression import Codec
from millrace_spark.source.offsets import cuts_for, freeze, subscribed, to_batch_ends
from millrace_spark.source.options import Subscription, parse_options
from millrace_warehouse.log.ranges import Range, RangeStats, cut_ranges
from millrace_warehouse.log.reading import read_cut
from tests.unit.warehouse.log.logs import MemoryLog, made_log

NEEDED = {"bootstrap": "localhost:9092", "subscribe": "T"}
ID = UUID(int=1)


class Cluster(ClusterClient):
    """Two partitions: [100, 200), whose offset n was written at time 10 n, and an empty one at 50."""

    def __init__(self, cluster_id: str = "millrace-in-memory") -> None:
        self._cluster_id = cluster_id

    def topic(self, name: str) -> TopicMetadata:
        if name == "missing":
            raise UnknownTopicOrPartition("no such topic")
        return TopicMetadata(name, ID, {0: 1, 1: 2})

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        return {name: self.topic(name) for name in ("U", "T", "TT", "__consumer_offsets")}

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        earliest, latest = {0: 100, 1: 50}, {0: 200, 1: 50}
        times = {p: min(latest[p], max(earliest[p], -(-timestamp // 10))) for p in latest}
        offsets = {EARLIEST: earliest, LATEST: latest}.get(timestamp, times)
        return {p: at for p, at in offsets.items() if partitions is None or p in partitions}


def frozen(**options: str) -> list[Range]:
    return freeze(Cluster(), parse_options({**NEEDED, **options}))


def test_by_default_a_batch_reads_everything_there_is() -> None:
    assert frozen() == [Range("T", 0, 100, 200, topic_id=ID)]


def test_offsets_of_every_partition_as_numbers_or_by_their_ends() -> None:
    starting, ending = json.dumps({"T": {"0": -2, "1": 50}}), json.dumps({"T": {"0": 150, "1": -1}})
    assert frozen(startingOffsets=starting, endingOffsets=ending) == [Range("T", 0, 100, 150, topic_id=ID)]


def test_times_for_all_partitions_or_for_each() -> None:
    one = frozen(
        startingTimestamp="1201", endingTimestamp="1500", startingOffsetsByTimestampStrategy="latest"
    )
    assert one == [Range("T", 0, 121, 150, topic_id=ID)]
    each = json.dumps({"T": {"0": 1300, "1": 0}})
    late = json.dumps({"T": {"0": 99_999, "1": 99_999}})
    several = frozen(
        startingOffsetsByTimestamp=each,
        endingOffsetsByTimestamp=late,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert several == [Range("T", 0, 130, 200, topic_id=ID)], "an end behind every record is the end"


def test_a_time_after_every_record_is_refused_unless_the_end_will_do() -> None:
    with pytest.raises(MillraceError, match=r"T-0 has no record at or after 5000 ms.*Strategy=latest"):
        frozen(startingTimestamp="5000")
    assert frozen(startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": {"0": 99, "1": 50}}, "offset 99 has expired"),
        ({"startingOffsets": {"0": 201, "1": 50}}, "ends at 200, before startingOffsets 201; start earlier"),
        ({"endingOffsets": {"0": 201, "1": 50}}, "ends at 200, before endingOffsets 201"),
        ({"endingOffsets": {"0": 150}}, "names no partition 1"),
        ({"endingOffsets": {"0": 150, "1": 50, "2": 7}}, "has no partition 2"),
    ],
)
def test_offsets_that_cannot_be_read_are_refused(options: dict[str, dict[str, int]], reason: str) -> None:
    with pytest.raises(MillraceError, match=reason):
        frozen(**{name: json.dumps({"T": offsets}) for name, offsets in options.items()})


def test_expired_offsets_are_skipped_only_when_that_is_allowed() -> None:
    starting = json.dumps({"T": {"0": 7, "1": 50}})
    assert frozen(startingOffsets=starting, failOnDataLoss="false") == [Range("T", 0, 100, 200, topic_id=ID)]


def test_a_start_beyond_the_end_reads_nothing_when_that_is_allowed() -> None:
    starting = json.dumps({"T": {"0": 201, "1": 50}})
    assert frozen(startingOffsets=starting, failOnDataLoss="false") == []


def test_a_pattern_takes_whole_names_and_leaves_kafka_s_own_topics_out() -> None:
    assert list(subscribed(Cluster(), Subscription(pattern=".*"))) == ["T", "TT", "U"]
    assert list(subscribed(Cluster(), Subscription(pattern="T"))) == ["T"]


def test_assigned_partitions_are_the_only_ones() -> None:
    topics = subscribed(Cluster(), Subscription(("T",), partitions={"T": (1,)}))
    assert list(topics["T"].partitions) == [1]
    with pytest.raises(MillraceError, match="has no partition 5"):
        subscribed(Cluster(), Subscription(("T",), partitions={"T": (5,)}))


def test_a_missing_topic_is_refused_unless_it_may_be_left_out() -> None:
    subscription = Subscription(("T", "missing"))
    with pytest.raises(UnknownTopicOrPartition):
        subscribed(Cluster(), subscription)
    assert list(subscribed(Cluster(), subscription, missing_ok=True)) == ["T"]


def test_only_millrace_s_offsets_are_taken_for_byte_positions() -> None:
    assert frozen()[0].byte_positions
    kafka = Cluster("4L6g3nShT-eMCtK--X86sw")
    assert not freeze(kafka, parse_options(NEEDED))[0].byte_positions


def test_ranges_become_as_many_tasks_as_asked_for() -> None:
    ranges = [Range("T", 0, 0, 1000), Range("T", 1, 0, 3000)]
    assert len(cuts_for(ranges, 1)) == 2
    assert len(cuts_for(ranges, 8)) >= 8
    assert cuts_for([], 5) == []
    assert len(cuts_for([Range("T", 0, 0, 3)], 10)) == 3


def test_on_kafka_where_offsets_count_records_tasks_are_cut_by_an_estimate_of_their_bytes() -> None:
    kafka = Range("T", 0, 0, 10_000_000, byte_positions=False)
    assert len(cuts_for([kafka], 1)) == 8, "a gigabyte or so in tasks of 128 MiB"
    assert len(cuts_for([Range("T", 0, 0, 3, byte_positions=False)], 10)) == 3, "no task without a record"


def test_an_end_inside_a_batch_or_before_it_moves_behind_it() -> None:
    log = made_log(5)
    for header in log.headers:
        if header.is_control:
            continue
        behind = Cursor(0).after(header)
        for end in (header.base_offset + 1, header.next_offset):
            assert to_batch_ends(log, "T", {0: end})[0] == behind
        if header.base_offset + header.size > header.next_offset and header.next_offset < log.high_watermark:
            between = header.next_offset + 1
            assert to_batch_ends(log, "T", {0: between})[0].next_offset > between


def test_what_was_read_and_has_expired_is_no_loss_when_it_is_known_where_the_next_batch_begins() -> None:
    log = MemoryLog()
    log.append([Message(n, None, b"old" * 20) for n in range(5)], Codec.NONE)
    end = to_batch_ends(log, "T", {0: log.high_watermark})[0]
    log.append([Message(9, None, b"new")])
    log.expire(1)
    for base, gaps in ((end.next_base, 0), (None, 1)):
        (cut,) = cut_ranges([Range("T", 0, end.next_offset, log.high_watermark, base)], 1 << 30)
        stats = RangeStats.for_cut(cut)
        assert sum(len(some.batches) for some in read_cut(log, cut, stats, timeout_s=1)) == 1
        assert len(stats.gaps) == gaps


def test_a_partition_that_gives_no_batch_keeps_its_end() -> None:
    log = MemoryLog()
    log.append([Message(0, None, b"expires")])
    log.append([Message(0, None, b"stays")])
    log.expire(1)
    assert to_batch_ends(log, "T", {0: 1})[0] == Cursor(1)
