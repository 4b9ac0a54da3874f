"""The position batch: how far a mirrored partition has copied its origin, written beside the data itself.

Owns the format and its meaning. Does not decide what is appended when: that is the partition log.

    position batch := control batch, one record, key = CONTROL_KEY,
                      value = POSITION_PREFIX + JSON {cluster, topic, topic_id, partition, start,
                                                      next_offset, next_base, batches, records, dropped}

It travels in the same append as the data it accounts for, so both survive a crash or neither does. Clients
skip it like any control batch; a value without the prefix (a filler's zeros) is not a position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from uuid import UUID

from millrace.compression import Buffer
from millrace.errors import BrokerError, ErrorCode
from millrace.records import BatchHeader, Cursor, iter_records

POSITION_PREFIX = b"millrace position 1\n"


@dataclass(frozen=True, slots=True)
class Origin:
    """The one partition that a mirrored partition copies."""

    cluster: str
    topic: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """How far a mirrored partition has come, and the running totals of what it copied."""

    origin: Origin
    start: int
    """Origin offset where the mirror of this partition began."""
    cursor: Cursor
    """Next origin offset to read, and the byte position expected of the next origin batch."""
    batches: int
    records: int
    dropped: int
    """Control batches and aborted records that were left out."""

    def encode(self) -> bytes:
        """The value of the position batch's one record."""
        fields = {
            "cluster": self.origin.cluster,
            "topic": self.origin.topic,
            "topic_id": self.origin.topic_id.hex,
            "partition": self.origin.partition,
            "start": self.start,
            "next_offset": self.cursor.next_offset,
            "next_base": self.cursor.next_base,
            "batches": self.batches,
            "records": self.records,
            "dropped": self.dropped,
        }
        return POSITION_PREFIX + json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> MirrorPosition | None:
        """The position in a control record's value; None when the record is something else."""
        if not value.startswith(POSITION_PREFIX):
            return None
        fields = json.loads(value[len(POSITION_PREFIX) :])
        origin = Origin(fields["cluster"], fields["topic"], UUID(fields["topic_id"]), fields["partition"])
        return cls(
            origin,
            fields["start"],
            Cursor(fields["next_offset"], fields["next_base"]),
            fields["batches"],
            fields["records"],
            fields["dropped"],
        )

    @classmethod
    def from_batch(cls, header: BatchHeader, batch: Buffer) -> MirrorPosition | None:
        """The position a whole, intact batch records; None for every other batch."""
        if not header.is_control or header.last_offset_delta != 0:
            return None
        record = next(iter_records(header, batch), None)
        return cls.decode(record.value) if record is not None and record.value is not None else None


class PositionMismatch(BrokerError):
    """A mirrored append does not start where the last one ended; `recorded` is where it must start."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def __init__(self, expected: int | None, recorded: MirrorPosition | None) -> None:
        have = "nothing" if recorded is None else str(recorded.cursor.next_offset)
        super().__init__(f"the append starts at origin offset {expected}, recorded is {have}")
        self.recorded = recorded
