"""The position batch: a mirrored partition's progress in copying its origin, written beside the data itself.

Owns the format and its meaning. The partition log decides when a position is appended.

    position batch := control batch, one record, key = CONTROL_KEY,
                      value = POSITION_PREFIX + JSON {cluster, topic, topic_id, partition, start,
                                                      next_offset, next_base, epoch, batches, records,
                                                      dropped, reset_at, numbered, records_end}

A position batch is part of the same append as the data that it accounts for, so a crash keeps both or none of
them. Clients skip it like any control batch. A value without the prefix (a filler's zeros) is not a position.

The batches of one append are neighbours in the origin, too, and the last of them ends at the position:
counted back from a position, the origin's offset of each batch is known exactly. `records_end` is an offset
of the log that holds the position: the one after the last record before it. A mirror of this log that finds
batches missing uses it to decide whether records were among them. `epoch` is the origin's, of the last batch
read there; positions of older versions have none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.errors import BrokerError, ErrorCode
from millrace.records import BatchHeader, Cursor, iter_records
from millrace.records.compression import Buffer

POSITION_PREFIX = b"millrace position 1\n"
_PLAIN_FIELDS = ("start", "batches", "records", "dropped", "reset_at", "numbered")


@dataclass(frozen=True, slots=True)
class Origin:
    """The partition that a mirrored partition copies."""

    cluster: str
    topic: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """A mirrored partition's next origin offset, and running totals of the copied messages."""

    origin: Origin
    start: int
    """Origin offset where the mirror of this partition began."""
    cursor: Cursor
    """Next origin offset to read, and the byte position expected of the next origin batch."""
    batches: int
    records: int
    dropped: int
    """Control batches and aborted records that were left out."""
    reset_at: int = 0
    """Offset in this log at which an operator last moved the position. Before it, origin offsets may be of
    other records."""
    numbered: bool = False
    """True when the origin numbers its records, as Apache Kafka does; else its offsets are byte positions."""

    def encode(self, records_end: int) -> bytes:
        """Return the value of the position batch's one record; `records_end` as described above."""
        fields = {
            "cluster": self.origin.cluster,
            "topic": self.origin.topic,
            "topic_id": self.origin.topic_id.hex,
            "partition": self.origin.partition,
            "next_offset": self.cursor.next_offset,
            "next_base": self.cursor.next_base,
            "epoch": self.cursor.epoch,
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
            "records_end": records_end,
        }
        return POSITION_PREFIX + json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> MirrorPosition | None:
        """Return the position in a control record's value; None when the record is something else."""
        fields = _fields(value)
        if fields is None:
            return None
        return cls(
            origin=Origin(fields["cluster"], fields["topic"], UUID(fields["topic_id"]), fields["partition"]),
            cursor=Cursor(fields["next_offset"], fields["next_base"], fields.get("epoch", -1)),
            **{name: fields[name] for name in _PLAIN_FIELDS},
        )

    @classmethod
    def from_batch(cls, header: BatchHeader, batch: Buffer) -> MirrorPosition | None:
        """Return the position in a whole, intact batch; None for every other batch."""
        return cls.decode(_value(header, batch))


def records_end(header: BatchHeader, batch: Buffer) -> int | None:
    """Return the offset after the last record before a position batch, in its own log.

    None for every other batch.
    """
    return stated_end(_value(header, batch))


def stated_end(value: bytes) -> int | None:
    """`records_end` of an encoded position; None when the value is something else."""
    fields = _fields(value)
    return None if fields is None else int(fields["records_end"])


def _value(header: BatchHeader, batch: Buffer) -> bytes:
    if not header.is_control or header.last_offset_delta != 0:
        return b""
    record = next(iter_records(header, batch), None)
    return b"" if record is None else record.value or b""


def _fields(value: bytes) -> dict[str, Any] | None:
    return json.loads(value[len(POSITION_PREFIX) :]) if value.startswith(POSITION_PREFIX) else None


class PositionMismatch(BrokerError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A mirrored append does not start where the last one ended; it must start at `recorded`."""

    def __init__(self, expected: int | None, recorded: MirrorPosition | None) -> None:
        have = "nothing" if recorded is None else str(recorded.cursor.next_offset)
        super().__init__(f"the append starts at origin offset {expected}, but the recorded one is {have}")
        self.recorded = recorded
