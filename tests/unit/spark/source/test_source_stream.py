"""Micro-batches planned over logs in memory: every record once, limits kept, replays alike, losses told."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition, TopicMetadata
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records import Message, batch_crc, iter_records
from millrace.records.compression import Codec
from millrace_spark.source.options import parse_options
from millrace_spark.source.progress import Progress, advance, ranges_between, share_out
from millrace_spark.source.rows import RowReader
from millrace_spark.source.stream import MillraceStreamReader
from millrace_warehouse.log.messages import frames_of
from millrace_warehouse.log.ranges import Cut, Range, RangeStats
from millrace_warehouse.log.reading import read_cut
from tests.unit.warehouse.log.logs import TOPIC_ID, MemoryLog
from tests.unit.warehouse.memory_log import START, TOPIC
from tests.unit.warehouse.memory_log import MemoryLog as EpochLog

Row = tuple[str, int, int]
Json = dict[str, Any]
_START: Json = {}


@dataclass
class MemoryTopic:
    topic_id: UUID
    logs: list[MemoryLog]


@dataclass
class MemoryCluster(ClusterClient):
    """Topics whose partitions are logs in memory; the client that a stream asks."""

    contents: dict[str, MemoryTopic] = field(default_factory=dict)
    cluster_id: str = "millrace-in-memory"

    def create(self, name: str, partitions: int, topic_id: UUID = TOPIC_ID) -> None:
        self.contents[name] = MemoryTopic(topic_id, [MemoryLog() for _ in range(partitions)])

    def grow(self, dice: random.Random) -> None:
        for topic in self.contents.values():
            for log in topic.logs:
                for _ in range(dice.randrange(4)):
                    if dice.randrange(6) == 0:
                        log.append_control(b"position")
                    log.append([Message(0, None, b"x" * dice.randrange(60))] * dice.choice((1, 2, 9, 700)))

    def topic(self, name: str) -> TopicMetadata:
        if name not in self.contents:
            raise UnknownTopicOrPartition(f"no such topic: {name}")
        topic = self.contents[name]
        return TopicMetadata(name, topic.topic_id, dict.fromkeys(range(len(topic.logs)), 1))

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        return {name: self.topic(name) for name in self.contents}

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        logs = self.contents[topic].logs
        offsets = {
            p: {EARLIEST: log.log_start, LATEST: log.high_watermark}[timestamp] for p, log in enumerate(logs)
        }
        return {p: at for p, at in offsets.items() if partitions is None or p in partitions}

    def fetch(self, topic: str, offsets: Mapping[int, int], **limits: Any) -> dict[int, FetchedPartition]:
        logs = self.contents[topic].logs
        return {p: logs[p].fetch(topic, {p: at}, **limits)[p] for p, at in offsets.items()}

    def close(self) -> None: ...

    def rows(self) -> list[Row]:
        return [
            (name, partition, record.offset)
            for name, topic in self.contents.items()
            for partition, log in enumerate(topic.logs)
            for header, raw in zip(log.headers, log.batches, strict=True)
            if not header.is_control
            for record in iter_records(header, raw)
        ]


def reader(cluster: ClusterClient, **options: str) -> MillraceStreamReader:
    subscription = {} if "subscribe" in options else {"subscribePattern": ".*"}
    parsed = parse_options({"bootstrap": "a:1", "startingOffsets": "earliest", **subscription, **options})
    made = MillraceStreamReader(RowReader(parsed, None))
    made._client = cluster
    return made


def plan(stream: MillraceStreamReader, start: Json, limit: ReadLimit | None = None) -> Json:
    """The next end, through JSON as Spark does it."""
    end = stream.latestOffset(json.loads(json.dumps(start)), limit or stream.getDefaultReadLimit())
    return json.loads(json.dumps(end))  # type: ignore[no-any-return]


def read(cluster: MemoryCluster, stream: MillraceStreamReader, start: Json, end: Json) -> list[Row]:
    rows: list[Row] = []
    for partition in stream.partitions(start, end):
        cut: Cut = partition.value
        stats = RangeStats.for_cut(cut)
        for frames, rejected in frames_of(cut, read_cut(cluster, cut, stats, timeout_s=0), stats):
            assert rejected == []
            rows += [(cut.range.topic, cut.range.partition, offset) for offset in frames.offset.tolist()]
        stream.rows.check_loss(cut, stats)
    return rows


def drain(cluster: MemoryCluster, stream: MillraceStreamReader, start: Json) -> tuple[list[Row], Json]:
    """Micro-batches until nothing is left."""
    rows: list[Row] = []
    for _ in range(300):
        end = plan(stream, start)
        if end == start:
            return rows, end
        rows += read(cluster, stream, start, end)
        start = end
    raise AssertionError("the stream does not come to an end")


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), limit=st.sampled_from([None, 1, 50, 3000]), tasks=st.sampled_from("17"))
def test_every_record_is_in_exactly_one_micro_batch(seed: int, limit: int | None, tasks: str) -> None:
    dice, cluster = random.Random(seed), MemoryCluster()
    cluster.create("A", 2)
    options = {"minPartitions": tasks} | ({"maxOffsetsPerTrigger": str(limit)} if limit else {})
    stream, start = reader(cluster, **options), _START
    rows: list[Row] = []
    assert stream.initialOffset() == {}
    for step in range(4):
        cluster.grow(dice)
        if step == 2:
            cluster.create("B", 1, UUID(int=2))
            cluster.contents["A"].logs.append(MemoryLog())
        end = plan(stream, start)
        last = read(cluster, stream, start, end)
        rows += last
        if dice.randrange(2):  # killed: the query goes on from its checkpoint, some micro-batches again
            stream = reader(cluster, **options)
            assert (
                read(cluster, stream, start, end)
                == rows[len(rows) - len(read(cluster, stream, start, end)) :]
            )
        start = end
    more, end = drain(cluster, stream, start)
    assert sorted(rows + more) == sorted(cluster.rows())
    assert end["offsets"] == {
        name: {str(p): log.high_watermark for p, log in enumerate(topic.logs)}
        for name, topic in cluster.contents.items()
    }


@settings(deadline=None)
@given(
    lags=st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 10**12)),
    limit=st.integers(1, 10**12),
)
def test_a_limit_is_shared_in_proportion_to_the_lags(lags: dict[tuple[str, int], int], limit: int) -> None:
    shares, lagging = share_out(lags, limit), [partition for partition, lag in lags.items() if lag]
    assert shares.keys() == lags.keys()
    assert all(0 < shares[partition] <= lags[partition] for partition in lagging)
    assert sum(shares.values()) <= max(limit, len(lagging))
    assert sum(shares.values()) > min(limit, sum(lags.values())) - len(lags) - 1
    exact = limit / max(1, sum(lags.values()))
    assert all(shares[p] <= max(1.0, lags[p] * exact) + 1 or sum(lags.values()) <= limit for p in lagging)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), limit=st.integers(1, 5000))
def test_a_micro_batch_passes_its_limit_by_a_batch_or_two_of_each_partition(seed: int, limit: int) -> None:
    dice, cluster = random.Random(seed), MemoryCluster()
    cluster.create("A", 3)
    for _ in range(3):
        cluster.grow(dice)
    stream, start = reader(cluster, maxBytesPerTrigger=str(limit)), _START
    largest = max((len(raw) for log in cluster.contents["A"].logs for raw in log.batches), default=0)
    while (end := plan(stream, start)) != start:
        ranges = ranges_between(Progress.from_json(start), Progress.from_json(end), byte_positions=True)
        assert sum(each.end - each.start for each in ranges) <= max(limit, 3) + 3 * 2 * largest
        start = end


def test_on_kafka_a_limit_counts_records_and_bytes_are_an_estimate() -> None:
    cluster = MemoryCluster(cluster_id="4L6g3nShT-eMCtK--X86sw")
    cluster.create("A", 1)
    cluster.contents["A"].logs[0].append([Message(0, None, b"x")] * 100)
    stream = reader(cluster)
    for limit, ends_at in ((ReadMaxRows(7), 7), (ReadMaxBytes(1200), 12), (ReadAllAvailable(), 100)):
        assert plan(stream, {}, limit)["offsets"] == {"A": {"0": ends_at}}
    assert "next_base" not in plan(stream, {})


def test_the_limit_of_a_trigger_is_what_the_options_say() -> None:
    cluster = MemoryCluster()
    assert reader(cluster).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(cluster, maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(cluster, maxBytesPerTrigger="8").getDefaultReadLimit() == ReadMaxBytes(8)


def one_topic(records: int = 5) -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create("A", 1)
    for _ in range(records):
        cluster.contents["A"].logs[0].append([Message(0, None, b"some bytes")])
    return cluster


def test_a_new_query_begins_at_the_end_and_a_crash_in_its_first_micro_batch_skips_nothing() -> None:
    cluster = one_topic()
    stream = reader(cluster, startingOffsets="latest")
    end = plan(stream, {})
    assert read(cluster, stream, {}, end) == []
    cluster.contents["A"].logs[0].append([Message(0, None, b"after the crash")])
    again = reader(cluster, startingOffsets="latest")
    assert again.initialOffset() == {}
    assert read(cluster, again, {}, end) == []
    assert len(drain(cluster, again, end)[0]) == 1


def test_a_query_that_found_no_topics_reads_those_that_come_from_their_start() -> None:
    cluster = MemoryCluster()
    stream = reader(cluster, startingOffsets="latest", subscribePattern="A.*")
    end = plan(stream, {})
    cluster.contents |= one_topic().contents
    assert len(drain(cluster, stream, end)[0]) == 5


def test_available_now_ends_at_what_was_there_when_it_began() -> None:
    cluster = one_topic(20)
    stream = reader(cluster, maxOffsetsPerTrigger="200")
    stream.prepareForTriggerAvailableNow()
    there = cluster.rows()
    end = plan(stream, {})
    rows = read(cluster, stream, {}, end)
    cluster.contents["A"].logs[0].append([Message(0, None, b"too late")])
    cluster.create("B", 1)
    more, end = drain(cluster, stream, end)
    assert rows + more == there
    next_run = reader(cluster)
    next_run.prepareForTriggerAvailableNow()
    assert len(drain(cluster, next_run, end)[0]) == 1


def test_available_now_reads_nothing_when_the_query_begins_at_the_end_of_a_topic_that_grows() -> None:
    cluster = one_topic()
    stream = reader(cluster, startingOffsets="latest")
    stream.prepareForTriggerAvailableNow()
    cluster.contents["A"].logs[0].append([Message(0, None, b"before its first micro-batch")])
    rows, end = drain(cluster, stream, {})
    assert rows == []
    cluster.contents["A"].logs[0].append([Message(0, None, b"after it")])
    next_run = reader(cluster, startingOffsets="latest")
    next_run.prepareForTriggerAvailableNow()
    assert len(drain(cluster, next_run, end)[0]) == 1


def broken(batch: bytes) -> bytes:
    """Return a batch that cannot be unpacked, though its checksum is right."""
    changed = bytearray(batch)
    changed[-20:-10] = bytes(10)
    struct.pack_into(">I", changed, 17, batch_crc(changed))
    return bytes(changed)


def test_on_kafka_a_broken_batch_is_a_row_for_its_part_of_each_micro_batch() -> None:
    cluster = MemoryCluster(cluster_id="4L6g3nShT-eMCtK--X86sw")
    cluster.create("A", 1)
    log = cluster.contents["A"].logs[0]
    log.append([Message(0, None, b"x" * 100)] * 20, Codec.GZIP)
    log.batches[0] = broken(log.batches[0])
    stream = reader(cluster, maxOffsetsPerTrigger="7")
    start, parts = _START, []
    while (end := plan(stream, start)) != start:
        (task,) = stream.partitions(start, end)
        stats = RangeStats.for_cut(task.value)
        for _, rejected in frames_of(task.value, read_cut(cluster, task.value, stats, timeout_s=0), stats):
            parts += [(each.offset, each.records) for each in rejected]
        assert stats.records == stats.rejected
        start = end
    assert parts == [(0, 7), (7, 7), (14, 6)]


def test_a_broken_batch_whose_part_in_the_range_has_expired_has_no_row() -> None:
    cluster = MemoryCluster(cluster_id="4L6g3nShT-eMCtK--X86sw")
    cluster.create("A", 1)
    log = cluster.contents["A"].logs[0]
    log.append([Message(0, None, b"x" * 100)] * 20, Codec.GZIP)
    log.batches[0] = broken(log.batches[0])
    log.log_start = 15  # Apache Kafka returns the whole batch around it
    cut = Cut(Range("A", 0, 0, 7, byte_positions=False), 0, 7)
    stats = RangeStats.for_cut(cut)
    found = [*frames_of(cut, read_cut(cluster, cut, stats, timeout_s=0), stats)]
    assert [rejected for _, rejected in found if rejected] == []
    assert stats.records == stats.rejected == 0


def test_a_topic_created_anew_is_refused_or_read_from_its_start_as_asked() -> None:
    cluster = one_topic()
    _, end = drain(cluster, reader(cluster), {})
    cluster.create("A", 2, UUID(int=9))
    for log in cluster.contents["A"].logs:
        log.append([Message(0, None, b"new")])
    with pytest.raises(MillraceError, match="'A' was deleted and recreated"):
        plan(reader(cluster), end)
    rows, _ = drain(cluster, reader(cluster, failOnDataLoss="false"), end)
    assert rows == [("A", 0, 0), ("A", 1, 0)]


def values(cluster: MemoryCluster, stream: MillraceStreamReader, start: Json, end: Json) -> list[bytes]:
    """Return the values that the tasks of a micro-batch give Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace_spark.source.rows.ClusterClient", lambda *_, **__: cluster)
        tasks = stream.partitions(start, end)
        return [value for task in tasks for rows in stream.read(task) for value in rows["value"].to_pylist()]


@pytest.mark.parametrize("lost", [1, 5, 11, 12, 19])
def test_a_missing_batch_is_seen_however_many_tasks_read_the_range(lost: int) -> None:
    cluster = one_topic(9)
    log = cluster.contents["A"].logs[0]
    for records in (300, 1, 2, 700) * 3:
        log.append([Message(0, None, b"x")] * records)
    after = plan(reader(cluster), {})
    whole = values(cluster, reader(cluster), {}, after)
    data = [number for number, header in enumerate(log.headers) if not header.is_control]
    del log.batches[data[lost]]
    for tasks in (*range(1, 40), 200, 1000):
        with pytest.raises(MillraceError, match="are missing in the middle of the log"):
            values(cluster, reader(cluster, minPartitions=str(tasks)), {}, after)
        lenient = reader(cluster, minPartitions=str(tasks), failOnDataLoss="false")
        assert 0 < len(values(cluster, lenient, {}, after)) < len(whole)


@pytest.mark.parametrize("tasks", [1, 7, 100, 1000])
def test_no_batch_is_missing_in_a_whole_range_however_many_tasks_read_it(tasks: int) -> None:
    for seed in range(5):
        cluster = MemoryCluster()
        cluster.create("A", 1)
        for _ in range(5):
            cluster.grow(random.Random(seed))
        stream = reader(cluster, minPartitions=str(tasks))
        assert len(values(cluster, stream, {}, plan(stream, {}))) == len(cluster.rows())


def test_an_unfinished_micro_batch_whose_messages_are_lost_is_refused_or_gives_none_as_asked() -> None:
    cluster = one_topic(4)
    before = plan(reader(cluster), {})
    cluster.contents["A"].logs[0].append([Message(0, None, b"some more")])
    after = plan(reader(cluster), before)
    lenient = reader(cluster, failOnDataLoss="false")
    assert values(cluster, lenient, before, after) == [b"some more"]

    shorter = one_topic(2)
    with pytest.raises(MillraceError, match=r"messages that were there are lost.* a new checkpoint"):
        values(shorter, reader(shorter), before, after)
    assert values(shorter, lenient, before, after) == []

    cluster.create("A", 1, UUID(int=9))
    cluster.contents["A"].logs[0].append([Message(0, None, b"new")])
    with pytest.raises(MillraceError, match=r"'A' was deleted and recreated .* a new checkpoint"):
        values(cluster, reader(cluster), before, after)
    assert values(cluster, lenient, before, after) == []
    assert drain(cluster, lenient, after)[0] == [("A", 0, 0)]

    del cluster.contents["A"]
    assert values(cluster, lenient, before, after) == []


def test_a_topic_that_is_gone_is_refused_or_left_out_as_asked() -> None:
    cluster = one_topic()
    cluster.create("B", 1, UUID(int=2))
    _, end = drain(cluster, reader(cluster), {})
    del cluster.contents["B"]
    with pytest.raises(MillraceError, match="'B', which this query has read so far, is gone"):
        plan(reader(cluster), end)
    with pytest.raises(UnknownTopicOrPartition):
        plan(reader(cluster, subscribe="A,B"), end)
    lenient = reader(cluster, subscribe="A,B", failOnDataLoss="false")
    cluster.contents["A"].logs[0].append([Message(0, None, b"more")])
    rows, end = drain(cluster, lenient, end)
    assert len(rows) == 1
    assert "B" in end["offsets"], "it may come back"


def test_offsets_that_expired_between_micro_batches_fail_the_query_or_are_skipped_as_asked() -> None:
    cluster = one_topic(10)
    limited = reader(cluster, maxOffsetsPerTrigger="100")
    end = plan(limited, {})
    first = read(cluster, limited, {}, end)
    cluster.contents["A"].logs[0].expire(6)
    with pytest.raises(MillraceError, match="expired while the query ran"):
        drain(cluster, reader(cluster), end)
    rows, _ = drain(cluster, reader(cluster, failOnDataLoss="false"), end)
    assert len(first) < 6
    assert len(rows) == 4


def test_what_was_read_may_expire() -> None:
    cluster = one_topic(4)
    log = cluster.contents["A"].logs[0]
    _, end = drain(cluster, reader(cluster), {})
    log.append([Message(0, None, b"new")])
    log.expire(4)
    rows, _ = drain(cluster, reader(cluster), end)
    assert rows == [("A", 0, log.log_start)]


def test_a_log_that_is_shorter_than_what_was_read_is_refused_or_gone_on_with_as_asked() -> None:
    cluster = one_topic(4)
    _, end = drain(cluster, reader(cluster), {})
    shorter = one_topic(2)
    with pytest.raises(MillraceError, match="messages that were there are lost"):
        plan(reader(shorter), end)
    lenient = reader(shorter, failOnDataLoss="false")
    rows, end = drain(shorter, lenient, end)
    shorter.contents["A"].logs[0].append([Message(0, None, b"more")])
    assert rows == []
    assert len(drain(shorter, lenient, end)[0]) == 1


def test_a_log_that_was_cut_back_and_has_grown_past_what_was_read_is_refused_or_gone_on_with_as_asked() -> (
    None
):
    log = EpochLog(2)
    for partition in (0, 1):
        log.append_events(partition, [START + n for n in range(10)], batch=1)
    stream = reader(log, subscribe=TOPIC)
    end = plan(stream, plan(stream, {}))
    log.append_events(1, [START])
    end = plan(stream, end)
    log.put_back(0, 2)
    log.append_events(0, [START + n for n in range(20)], batch=1)
    with pytest.raises(MillraceError, match=f"{TOPIC}-0 was read up to offset .* its log was cut back"):
        plan(stream, end)
    lenient = reader(log, subscribe=TOPIC, failOnDataLoss="false")
    end = plan(lenient, end)
    log.append_events(0, [START])
    assert plan(stream, end) != end, "the query has gone on in the present log"


def test_a_start_behind_the_end_is_refused() -> None:
    stream = reader(one_topic(), subscribe="A", startingOffsets='{"A": {"0": 999999}}')
    with pytest.raises(MillraceError, match="before startingOffsets 999999"):
        plan(stream, {})


def test_a_foreign_checkpoint_is_refused() -> None:
    with pytest.raises(MillraceError, match="not of this source"):
        plan(reader(one_topic()), {"A": {"0": 5}})


def test_progress_survives_its_json() -> None:
    progress = Progress(
        {("A", 10): 5, ("A", 9): 6}, {"A": TOPIC_ID}, {("A", 9): 70}, {("A", 10): 5}, {("A", 9): 3}
    )
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
    assert list(progress.to_json()["offsets"]["A"]) == ["9", "10"]
    latest = Progress({("A", 10): 5, ("A", 9): 6}, {"A": TOPIC_ID})
    assert advance(progress, latest, {}, None).offsets == progress.offsets
