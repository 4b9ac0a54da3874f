"""A topic in memory that reads like one behind a broker: real batches, offsets that are byte positions.

Stands in for a `ClusterClient`, and builds the runs that load from it; the tasks, the decoder, the storage
and every file they write are the real ones.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fastavro
import pyarrow.parquet as pq

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.client.errors import no_topic
from millrace.errors import ErrorCode
from millrace.records import BatchHeader, Cursor, Message, build_batch, control_batch, iter_records
from millrace.records.compression import Codec
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.fetch import FetchedPartition, Parting
from millrace_broker.storage.epochs import EpochMap
from millrace_warehouse.context import Progress
from millrace_warehouse.history.layout import Topic, loads_after, newest_editions, read_edition
from millrace_warehouse.history.schemas import first_schema, pinned, with_own_columns
from millrace_warehouse.load.load import LoadRun
from millrace_warehouse.load.range_writer import LoadContext, Pinned
from millrace_warehouse.storage import Storage, open_storage

T = TypeVar("T")
R = TypeVar("R")

TOPIC = "PageView"
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "PageView",
    "fields": [
        {
            "name": "header",
            "type": {
                "type": "record",
                "name": "AuditHeader",
                "fields": [
                    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    {"name": "server", "type": "string"},
                    {"name": "service", "type": "string"},
                    {"name": "instance", "type": "long"},
                    {"name": "sequence", "type": "long"},
                ],
            },
        },
        {"name": "url", "type": "string"},
    ],
}
SCHEMA_ID = 7
START = 1_431_856_800_000
"""2015-05-17T10:00:00Z in ms."""
HOUR = 3_600_000


def event(
    sequence: int,
    time_ms: int,
    *,
    instance: int = 1,
    server: str = "web1",
    schema: tuple[int, dict[str, Any]] = (SCHEMA_ID, SCHEMA),
    **fields: Any,
) -> Message:
    """One encoded PageView, or whatever the schema (id, schema) makes of the fields."""
    header = {"time": time_ms, "server": server, "service": "web", "instance": instance, "sequence": sequence}
    body = io.BytesIO()
    body.write(b"\0" + schema[0].to_bytes(4, "big"))
    fastavro.schemaless_writer(body, schema[1], {"header": header, "url": f"/{sequence}", **fields})
    return Message(time_ms, None, body.getvalue())


def with_field(name: str, type_: Any, default: Any, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    """The schema with one more field."""
    return {**schema, "fields": [*schema["fields"], {"name": name, "type": type_, "default": default}]}


@dataclass
class Partition:
    """The bytes of one partition from `start` on."""

    log: bytearray = field(default_factory=bytearray)
    high_watermark: int = 0
    start: int = 0
    lost: set[int] = field(default_factory=set)
    """Bases of batches that are not served any more."""

    def batches(self) -> Iterator[BatchHeader]:
        position = self.start
        while (header := BatchHeader.parse(self.log, position)) is not None:
            yield header
            position += header.size


class MemoryLog(ClusterClient):
    """One topic, and the client that reads it."""

    bootstrap = "memory:9092"
    cluster_id = "millrace-in-memory"

    def __init__(self, partitions: int = 2, topic: str = TOPIC) -> None:
        self.name = topic
        self.topic_id = uuid.uuid4()
        self.partitions = {index: Partition() for index in range(partitions)}
        self.sequence = 0
        self.epoch = 0
        self.schemas = {SCHEMA_ID: SCHEMA}
        """Schemas that the registry knows; the one with the largest id is the newest."""

    def append(self, partition: int, messages: Sequence[Message], codec: Codec = Codec.NONE) -> None:
        """One batch, visible at once."""
        one = self.partitions[partition]
        one.log += build_batch(messages, codec=codec, base_offset=len(one.log), leader_epoch=self.epoch)
        *_, last = one.batches()
        one.high_watermark = last.next_offset

    def append_events(
        self,
        partition: int,
        times_ms: Iterable[int],
        *,
        batch: int = 10,
        schema: int = SCHEMA_ID,
        **fields: Any,
    ) -> None:
        """Events with the next sequence numbers, in batches of at most `batch`."""
        messages = []
        for time_ms in times_ms:
            messages.append(event(self.sequence, time_ms, schema=(schema, self.schemas[schema]), **fields))
            self.sequence += 1
        for index in range(0, len(messages), batch):
            self.append(partition, messages[index : index + batch])

    def append_control(self, partition: int, value: bytes = b"") -> None:
        """A control batch; the high watermark stays, as on a broker."""
        log = self.partitions[partition].log
        log += control_batch(len(log), value, timestamp=START)

    def lose(self, partition: int, batch: int) -> tuple[int, int]:
        """Let a batch in the middle vanish: its offsets stay empty. [first, last) of what is missing."""
        headers = list(self.partitions[partition].batches())
        self.partitions[partition].lost.add(headers[batch].base_offset)
        before = headers[batch - 1].next_offset if batch else headers[batch].base_offset
        return before, headers[batch + 1].base_offset

    def expire(self, partition: int, batches: int) -> None:
        """Let the first batches go, as retention does."""
        one = self.partitions[partition]
        headers = list(one.batches())
        one.start = headers[batches].base_offset if batches < len(headers) else len(one.log)

    def topic(self, name: str) -> TopicMetadata:
        if name != self.name:
            raise no_topic(name, self.bootstrap)
        return TopicMetadata(name, self.topic_id, dict.fromkeys(self.partitions, 1))

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        wanted = self.partitions if partitions is None else partitions
        if timestamp == EARLIEST:
            return {p: min(self.partitions[p].start, self.partitions[p].high_watermark) for p in wanted}
        if timestamp == LATEST:
            return {p: self.partitions[p].high_watermark for p in wanted}
        return {p: self._offset_at(self.partitions[p], timestamp) for p in wanted}

    @staticmethod
    def _offset_at(one: Partition, timestamp: int) -> int:
        for header in (header for header in one.batches() if not header.is_control):
            batch = one.log[header.base_offset : header.base_offset + header.size]
            for table_schema in iter_records(header, batch):
                if table_schema.timestamp >= timestamp:
                    return table_schema.offset
        return one.high_watermark

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_bytes: int,
        max_wait_ms: int,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        last_epochs: Mapping[int, int] | None = None,
    ) -> dict[int, FetchedPartition]:
        fetched = {p: self._read(self.partitions[p], offset, max_bytes) for p, offset in offsets.items()}
        for p, epoch in (last_epochs or {}).items():
            one, starts = self.partitions[p], EpochMap()
            for header in one.batches():
                starts.note(max(starts.last, header.partition_leader_epoch), header.base_offset)
            if offsets[p] > len(one.log):
                continue  # which is an error of its own
            if parting := starts.parting(epoch, offsets[p], len(one.log)):
                fetched[p] = replace(fetched[p], records=memoryview(b""), parting=Parting(*parting))
        return fetched

    def put_back(self, partition: int, batches: int) -> None:
        """Only the first batches of a partition are there, as in an older copy; then another epoch begins."""
        one = self.partitions[partition]
        headers = list(one.batches())
        del one.log[headers[batches].base_offset :]
        one.high_watermark = headers[batches - 1].next_offset
        self.epoch += 1

    def _read(self, one: Partition, offset: int, max_bytes: int) -> FetchedPartition:
        has_expired = offset < one.start and not any(h.base_offset <= offset for h in one.batches())
        if has_expired or offset > len(one.log):
            error = ErrorCode.OFFSET_OUT_OF_RANGE
            return FetchedPartition(error, one.high_watermark, one.high_watermark, one.start, memoryview(b""))
        visible = [h for h in one.batches() if h.base_offset < one.high_watermark]
        wanted = [h for h in visible if h.last_offset >= offset and h.base_offset not in one.lost]
        begin = wanted[0].base_offset if wanted else 0
        end = wanted[-1].base_offset + wanted[-1].size if wanted else 0
        end = min(end, begin + max(max_bytes, wanted[0].size if wanted else 0))
        batches = [(h.base_offset, h.base_offset + h.size) for h in wanted if h.base_offset not in one.lost]
        cut = [bytes(one.log[first : min(last, end)]) for first, last in batches if begin <= first < end]
        records = memoryview(b"".join(cut))
        return FetchedPartition(0, one.high_watermark, one.high_watermark, one.start, records)

    def close(self) -> None:
        pass


def filled_log() -> MemoryLog:
    """Two partitions, three hours, times that step back, a control batch in the middle."""
    log = MemoryLog()
    log.append_events(0, [START + n * 97_003 for n in range(100)])
    log.append_control(0)
    log.append_events(0, [START + HOUR - n * 1_003 for n in range(50)])
    log.append_events(1, [START + 2 * HOUR + n for n in range(30)])
    return log


def no_progress(step: str) -> None:
    """Say nothing."""


def local_run(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Every task here and now, one after the other."""
    return [function(task) for task in tasks]


def pin(log: MemoryLog, storage: Storage, topic: str, used: int) -> Pinned:
    """The newest schema record of the log; the first one is made of its newest schema."""
    table_schema = pinned(Topic(storage, topic), used)
    if table_schema is None:
        newest = max(log.schemas)
        table_schema = first_schema(Topic(storage, topic), newest, log.schemas[newest])
    table_schema = with_own_columns(Topic(storage, topic), table_schema, log.schemas.get)
    return Pinned.from_schema(table_schema, lambda: log, log.schemas.get)


def load_run(
    log: MemoryLog,
    warehouse: Path | Storage,
    run_id: str = "run-1",
    *,
    progress: Progress = no_progress,
    **changes: Any,
) -> LoadRun:
    """A run that loads from memory, with small cuts."""
    storage = open_storage(str(warehouse)) if isinstance(warehouse, Path) else warehouse
    settings: dict[str, Any] = {
        "storage": storage,
        "client": log,
        "pin": partial(pin, log, storage),
        "run_tasks": local_run,
        "run_id": run_id,
        "cut_bytes": 2_000,
        "progress": progress,
        **changes,
    }
    context = LoadContext(**{name: settings.pop(name) for name in LoadContext.__slots__ if name in settings})
    return LoadRun(context=context, **settings)


@dataclass(frozen=True)
class Row:
    """One loaded row, and the file it is in."""

    sequence: int
    time: datetime
    partition: int
    offset: int
    load: int
    hour: str
    """The hour that the manifest gives for the row's file."""


def rows_of(warehouse: Path | Storage, topic: str = TOPIC) -> list[Row]:
    """Every row of the newest edition of each load, by sequence, read from the files the plainest way."""
    storage = open_storage(str(warehouse)) if isinstance(warehouse, Path) else warehouse
    newest, rows = newest_editions(Topic(storage, topic)), []
    for first in loads_after(Topic(storage, topic), 0):
        manifest = read_edition(Topic(storage, topic), first.load, newest.get(first.load, 1))
        for file in manifest.files:
            table = pq.read_table(io.BytesIO(storage.read(f"{topic}/{file.path}")))
            assert table.num_rows == file.rows
            rows += [
                Row(
                    row["header"]["sequence"],
                    row["header"]["time"],
                    row["_topic_partition"],
                    row["_offset"],
                    row["_load"],
                    file.hour,
                )
                for row in table.to_pylist()
            ]
    return sorted(rows, key=lambda row: row.sequence)


def append_position(log: MemoryLog) -> None:
    """Append the position that closes every append to a mirrored partition: the end of its records."""
    position = MirrorPosition(Origin("dc1", TOPIC, log.topic_id, 0), 0, Cursor(1), 1, 1, 0)
    log.append_control(0, position.encode(log.partitions[0].high_watermark))


def mirrored_log() -> MemoryLog:
    """Three appends of a mirror, each closed by its position."""
    log = MemoryLog(1)
    for _ in range(3):
        log.append_events(0, [START] * 5)
        append_position(log)
    return log
