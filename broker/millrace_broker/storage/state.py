"""The state of a log at one moment: an immutable snapshot, replaced whole, read without a lock."""

from __future__ import annotations

from typing import NamedTuple

from millrace.records import BatchHeader
from millrace.records.mirror_position import MirrorPosition


class LogState(NamedTuple):
    """A log up to one append. A partition log holds three: as appended, as flushed and as visible."""

    end: int
    """Byte position of the next append."""
    high_watermark: int
    """Offset after the last data record."""
    data_end: int
    """Byte position after the last data batch; only control batches follow."""
    messages: int
    """Number of data records since the log was opened."""
    mirror: MirrorPosition | None

    def after(self, header: BatchHeader, mirror: MirrorPosition | None = None) -> LogState:
        """Return the state after a batch at `end`. `mirror` is the mirror position in the batch, if any."""
        end = self.end + header.size
        mirror = mirror or self.mirror
        if holds_offsets(header, self.end):
            messages = self.messages + (0 if header.is_control else header.records_count)
            return LogState(end, header.next_offset, end, messages, mirror)
        return self._replace(end=end, mirror=mirror)


def holds_offsets(header: BatchHeader, position: int) -> bool:
    """Return True for a data batch and for the control batch by which a repair replaced one.

    A repaired batch begins at its base offset and spans its bytes as offsets, so that readers step to its
    end. A filler does not begin at its base offset, and a position batch spans no offsets.
    """
    return header.base_offset == position and (not header.is_control or header.last_offset_delta > 0)
