"""Repair: replace damage below the checkpoint by control batches, so that readers get past it.

The messages are lost; a repair only records the loss and keeps every other offset where it is. It works on a
partition that no broker has open.

A control batch takes 72 bytes, a data batch of one empty message 68. So small a place cannot be filled,
unless the operator also gives up the intact batch beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from millrace.errors import MillraceError
from millrace.records import MIN_CONTROL_BYTES, BatchHeader, control_batch_of_size
from millrace_broker.storage.checkpoint import FILE_NAME
from millrace_broker.storage.inspection import Damage, InspectedBatch, inspect_partition, read_checkpoint
from millrace_broker.storage.landmarks import landmarks_path


def repair_partition(
    directory: Path, timestamp: int, *, give_up_neighbours: bool = False
) -> Iterator[Damage]:
    """Replace every damaged stretch below the checkpoint and yield each replaced stretch with its loss.

    Raise MillraceError when bytes are missing, or when a stretch is too small for a control batch and the
    intact batch beside it must not be given up. Earlier repairs stay.
    """
    for damage in [finding for finding in inspect_partition(directory) if isinstance(finding, Damage)]:
        if damage.path.name == FILE_NAME or not damage.flushed:
            continue  # recovery writes a new checkpoint, and cuts what was never flushed
        end = damage.position + damage.length
        if damage.reason == "missing":
            raise MillraceError(
                f"{damage.path.parent} lacks positions {damage.position} to {end}: "
                "restore the file that held them from a copy, or delete the topic"
            )
        if damage.length < MIN_CONTROL_BYTES:
            widened = _with_neighbour(directory, damage) if give_up_neighbours else None
            if widened is None:
                raise MillraceError(
                    f"{damage.path}, position {damage.position}: {damage.length} bytes are too few to be "
                    f"replaced; restore the file from a copy, seek consumers to {end}, or give up the batch "
                    "beside them, too, with --give-up-neighbours"
                )
            damage = widened
        batch = _replacement(damage, timestamp)
        # Noted first: a repeated repair finds the damage again, but not its own replacement.
        _note_in_checkpoint(directory, damage, batch)
        _overwrite(damage, batch)
        yield damage


def _with_neighbour(directory: Path, damage: Damage) -> Damage | None:
    """Return the stretch together with the intact data batch after it, else with the batch before it; None
    without either.

    Position batches are no neighbours: a mirrored partition must not lose one.
    """
    checkpoint = read_checkpoint(directory)
    flushed = damage.position if checkpoint is None else checkpoint.flushed
    batches: list[tuple[int, int, int]] = []  # start, end with filler, last offset
    for finding in inspect_partition(directory):
        if not isinstance(finding, InspectedBatch) or finding.path != damage.path:
            continue
        end = finding.position + finding.header.size
        if finding.kind == "filler" and batches and batches[-1][1] == finding.position:
            batches[-1] = (batches[-1][0], end, batches[-1][2])
        elif finding.kind in ("data", "repaired"):
            batches.append((finding.position, end, finding.header.last_offset))
    start, end = damage.position, damage.position + damage.length
    for batch_start, batch_end, last_offset in reversed(batches):
        if end == batch_start and batch_end <= flushed:
            return _widened(damage, start, batch_end, (start, last_offset))
        if start == batch_end:
            return _widened(damage, batch_start, end, (batch_start, end - 1))
    return None


def _widened(damage: Damage, start: int, end: int, lost: tuple[int, int]) -> Damage:
    reason = f"{damage.reason}; given up with the batch beside it"
    return replace(damage, position=start, length=end - start, lost_offsets=lost, reason=reason)


def _replacement(damage: Damage, timestamp: int) -> bytes:
    """Return a batch that readers step over, as long as the damaged stretch: a filler or a control batch."""
    base = damage.position if damage.filler_base is None else damage.filler_base
    last = damage.position + damage.length - 1
    return control_batch_of_size(base, damage.length, timestamp=timestamp, last_offset_delta=last - base)


def _overwrite(damage: Damage, batch: bytes) -> None:
    status = damage.path.stat()
    fd = os.open(damage.path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, batch, damage.position - int(damage.path.stem))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.utime(damage.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # retention counts from it


def _note_in_checkpoint(directory: Path, damage: Damage, batch: bytes) -> None:
    """Let readers of a lost last batch reach the end, and discard the file's landmarks, which are rebuilt."""
    landmarks_path(damage.path).unlink(missing_ok=True)
    checkpoint = read_checkpoint(directory)
    if checkpoint is None:
        return
    end = damage.position + damage.length
    landmarks = dict(checkpoint.landmarks)
    landmarks.pop(int(damage.path.stem), None)
    state = checkpoint.state
    if damage.filler_base is None and end >= state.data_end:
        high_watermark = max(state.high_watermark, BatchHeader.of(batch).next_offset)
        state = state._replace(high_watermark=high_watermark, data_end=end)
    replace(checkpoint, landmarks=landmarks, state=state).write(directory)
