"""A reader's position in a partition, and the rule by which the next batch must follow it."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.records.control import filler_size
from millrace.records.header import BatchHeader


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position in a partition: the next offset it wants, and the start of the next batch.

    `next_base` is the byte position after the last batch read, or None when no batch was read yet. It
    distinguishes a gap from the ordinary jump between a batch's last offset and the next batch.
    """

    next_offset: int
    next_base: int | None = None
    epoch: int = -1
    """The leader epoch of the last batch read; -1: not known, or no batch was read yet."""

    def follows(self, header: BatchHeader) -> bool:
        """Return True if no record can lie between this cursor and the batch.

        The batch covers the wanted offset, begins at it (consecutive offsets, as in Apache Kafka), or begins
        where the last one ended in bytes (byte-position offsets, as in Millrace).
        """
        return header.base_offset <= self.next_offset or header.base_offset == self.next_base

    def after(self, header: BatchHeader) -> Cursor:
        if header.is_control and header.last_offset_delta > 0:
            # A filler lies below its base offset; its last offset is its end.
            return Cursor(header.next_offset, header.next_offset, header.partition_leader_epoch)
        # After the filler, if one must follow: a fetch from the next offset skips the filler, because that
        # offset is a byte position inside it.
        next_base = header.base_offset + header.size + filler_size(header)
        return Cursor(header.next_offset, next_base, header.partition_leader_epoch)
