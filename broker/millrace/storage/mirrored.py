"""What a mirrored append must satisfy before a byte of it is written.

An append is accepted only if it continues the recorded position (compare-and-append), so a retry, a zombie
or a speculative task can neither lose nor duplicate. Knows no files.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import InvalidRequest, PolicyViolation
from millrace.records import LENGTH_OVERHEAD, BatchHeader
from millrace.records.compression import Buffer
from millrace.records.header import OFFSETS
from millrace.records.mirror_position import MirrorPosition, Origin, PositionMismatch
from millrace.storage.staging import position_size, size_in_log
from millrace.storage.state import LogState


def check_append(
    state: LogState,
    origin: Origin,
    expected: int | None,
    position: MirrorPosition,
    batches: Sequence[Buffer],
    *,
    reset: bool,
) -> None:
    """Refuse an append that does not continue the recorded position; a reset may move it anywhere.

    Raises PolicyViolation for a partition that is no mirror of this origin, PositionMismatch for an append
    that does not start where the last one ended, or InvalidRequest.
    """
    recorded = state.mirror
    if position.origin != origin:
        raise InvalidRequest(f"the position is of {position.origin}, the append of {origin}")
    if recorded is None and state.end > 0:
        raise PolicyViolation("the partition holds messages that were produced to it; it cannot be a mirror")
    if recorded is not None and recorded.origin != origin:
        raise PolicyViolation(f"the partition mirrors {recorded.origin}, not {origin}")
    if expected != (None if recorded is None else recorded.cursor.next_offset):
        raise PositionMismatch(expected, recorded)
    if not reset:
        check_progress(recorded, position, batches)
    elif batches:
        raise InvalidRequest("a reset moves the position and appends no batches")


def append_size(batches: Sequence[Buffer], position: MirrorPosition, end: int) -> int:
    """Bytes that batches and the position behind them take in a log that ends at `end`, or a few more."""
    size = position_size(position, end)
    for batch in batches:
        _, length, last_offset_delta = OFFSETS.unpack_from(batch)
        plain = last_offset_delta < length
        size += length + LENGTH_OVERHEAD if plain else size_in_log(BatchHeader.of(batch))
    return size


def check_progress(
    recorded: MirrorPosition | None, position: MirrorPosition, batches: Sequence[Buffer]
) -> None:
    """Refuse an append whose position and batches disagree or step back; gaps are the mirror's business."""
    start = position.start if recorded is None else recorded.cursor.next_offset
    if recorded is not None:
        if position.start != recorded.start:
            raise InvalidRequest(f"the mirror began at {recorded.start}; only a reset may change that")
        totals = (position.batches, position.records, position.dropped)
        recorded_totals = (recorded.batches, recorded.records, recorded.dropped)
        if any(new < old for new, old in zip(totals, recorded_totals, strict=True)):
            raise InvalidRequest("the running totals of a mirrored partition never go back")
        if not batches and position.cursor.next_offset == start:
            raise InvalidRequest("a mirrored append without batches must at least move the position")
    next_offset = start
    for index, batch in enumerate(batches):
        # The first batch may begin before the position: an origin answers with the whole batch.
        base, _, last_offset_delta = OFFSETS.unpack_from(batch)
        after = base + last_offset_delta + 1
        if after <= next_offset or (index > 0 and base < next_offset):
            raise InvalidRequest(f"origin batch {base} does not follow offset {next_offset}")
        next_offset = after
    if position.cursor.next_offset < next_offset:
        raise InvalidRequest(
            f"the batches reach origin offset {next_offset}, the position only {position.cursor.next_offset}"
        )
