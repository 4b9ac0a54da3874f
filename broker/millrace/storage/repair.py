"""Repair: turn what is damaged below the checkpoint into control batches, so that readers get past it.

The messages are lost; this only says so and keeps every other offset where it is. Works on a partition that
no broker has open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from millrace.errors import MillraceError
from millrace.records import MIN_CONTROL_BYTES, BatchHeader, control_batch_of_size
from millrace.storage.checkpoint import FILE_NAME
from millrace.storage.inspection import Damage, inspect_partition, read_checkpoint
from millrace.storage.segment import SegmentFacts


def repair_partition(directory: Path, timestamp: int) -> Iterator[Damage]:
    """Replace every damaged stretch below the checkpoint and give back what was lost there.

    Raises MillraceError when bytes are missing, or too few for a control batch; what came before is done.
    """
    damaged = [found for found in inspect_partition(directory) if isinstance(found, Damage) and found.flushed]
    for damage in damaged:
        if damage.path.name == FILE_NAME:
            continue  # recovery writes a new one
        end = damage.position + damage.length
        if damage.reason == "missing":
            raise MillraceError(
                f"{damage.path.parent} lacks positions {damage.position} to {end}: "
                "restore the file that held them from a copy, or delete the topic"
            )
        if damage.length < MIN_CONTROL_BYTES:
            raise MillraceError(
                f"{damage.path}, position {damage.position}: {damage.length} bytes are too few to be "
                f"replaced; restore the file from a copy, or seek consumers to {end}"
            )
        batch = _replacement(damage, timestamp)
        # Noted first: a repair cut short in between finds the damage again, but never what it has replaced.
        _note_in_checkpoint(directory, damage, batch)
        _overwrite(damage, batch)
        yield damage


def _replacement(damage: Damage, timestamp: int) -> bytes:
    """A control batch that spans the stretch as offsets, so that readers step to its end; or a filler."""
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
    """Let look-ups search back far enough, and let readers of a lost last batch reach the end."""
    checkpoint, header = read_checkpoint(directory), BatchHeader.parse(batch)
    if checkpoint is None or header is None:
        return
    base, end = int(damage.path.stem), damage.position + damage.length
    facts = [
        SegmentFacts(
            item.base,
            item.max_timestamp,
            max(item.largest_unit, damage.length) if item.base == base else item.largest_unit,
            item.next_offset,
        )
        for item in checkpoint.segments
    ]
    checkpoint = replace(checkpoint, segments=tuple(facts))
    if damage.filler_base is None and end >= checkpoint.data_end:
        high_watermark = max(checkpoint.high_watermark, header.next_offset)
        checkpoint = replace(checkpoint, high_watermark=high_watermark, data_end=end)
    checkpoint.write(directory)
