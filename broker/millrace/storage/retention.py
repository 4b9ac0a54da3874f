"""Which segments a partition no longer keeps. Decides; the partition log deletes."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.config import LogConfig
from millrace.storage.segment import Segment
from millrace.storage.state import LogState


def is_expired(segment: Segment, config: LogConfig, now: float) -> bool:
    """True when nothing was appended to the segment for longer than retention allows."""
    return config.retention_ms is not None and now - segment.last_append > config.retention_ms / 1000


def expired_count(segments: Sequence[Segment], config: LogConfig, now: float, flushed: LogState) -> int:
    """How many segments at the front may go; never the last one, never one that is not flushed.

    Of a mirrored log never the last that holds anything: it holds the position.
    """
    size = segments[-1].end - segments[0].base
    count = 0
    kept = 2 if flushed.mirror is not None and segments[-1].size == 0 else 1
    for segment in segments[:-kept]:
        too_large = config.retention_bytes is not None and size > config.retention_bytes
        if segment.end > flushed.end or not (too_large or is_expired(segment, config, now)):
            break
        size -= segment.size
        count += 1
    return count
