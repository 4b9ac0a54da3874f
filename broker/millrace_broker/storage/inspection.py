"""Inspection of a partition's files from outside: every batch in them, and every place without a valid one.

It reads files and the checkpoint, and opens no log, so it works beside a running broker and never recovers or
cuts anything. CRCs are computed by crcmod, not by the library with which the broker checks and writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from millrace.errors import CorruptMessage, MillraceError
from millrace.records import BatchHeader
from millrace.records.compression import Buffer
from millrace.records.header import CRC_START
from millrace.records.mirror_position import MirrorPosition
from millrace_broker.storage import sealed
from millrace_broker.storage.chain import WRONG_CRC, ChainBroken, LogFile, next_batch, walk_batches
from millrace_broker.storage.checkpoint import FILE_NAME, Checkpoint
from millrace_broker.storage.log_directory import LOCK_NAME, parse_partition_name
from millrace_broker.storage.segment import segment_path, segment_paths
from millrace_broker.storage.state import holds_offsets


@dataclass(frozen=True, slots=True)
class InspectedBatch:
    """One whole batch with a right CRC. `kind` is data, filler, position, repaired or control."""

    path: Path
    position: int
    header: BatchHeader
    kind: str
    mirror: MirrorPosition | None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no valid batch, or that are missing."""

    path: Path
    position: int
    length: int
    reason: str
    flushed: bool
    """False for bytes above the checkpoint: still being written, or cut off by the next recovery."""
    lost_offsets: tuple[int, int] | None = None
    """First and last offset of the lost messages, as far as they can be determined."""
    filler_base: int | None = None
    """Base offset that the replacement of a damaged filler must have; None if there was no filler."""


Finding: TypeAlias = InspectedBatch | Damage


def partition_directories(path: Path) -> list[Path]:
    """Return the partitions in a log directory, or the directory itself when it is a partition."""
    if not path.is_dir():
        raise MillraceError(f"{path} is not a directory: name a broker's log_dir or one partition in it")
    if segment_paths(path) or (path / FILE_NAME).exists():
        return [path]
    partitions = sorted(child for child in path.iterdir() if parse_partition_name(child.name) is not None)
    if not partitions and not (path / LOCK_NAME).exists():
        raise MillraceError(f"{path} holds no partition: name a broker's log_dir or one partition in it")
    return partitions


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """Return the partition's checkpoint; None when it is missing or unreadable."""
    try:
        return Checkpoint.read(directory)
    except sealed.Unreadable:
        return None


def inspect_partition(directory: Path) -> Iterator[Finding]:
    """Yield every batch and every damage in a partition's files, in order of position."""
    checkpoint = read_checkpoint(directory)
    paths = segment_paths(directory)
    if checkpoint is None and any(path.stat().st_size for path in paths):
        reason = "missing or unreadable; the next start of the broker reads the whole log and rewrites it"
        yield Damage(directory / FILE_NAME, 0, 0, reason, flushed=True)
    # Without a checkpoint anything may once have been on the disk.
    flushed = (1 << 63) - 1 if checkpoint is None else checkpoint.flushed
    end = None
    for path, successor in zip(paths, [*paths[1:], None], strict=True):
        base = int(path.stem)
        if end is not None and end < base:
            yield _missing(directory, end, base, flushed)
        try:
            end = base + path.stat().st_size
            if successor is not None:
                end = min(end, int(successor.stem))
            yield from _inspect_segment(path, base, end, flushed)
        except FileNotFoundError:  # a broker runs: retention or the deletion of the topic has just removed it
            if successor is None:
                return
            end = None
    if checkpoint is not None and (end or 0) < flushed:
        yield _missing(directory, end or checkpoint.start, flushed, flushed)


def _missing(directory: Path, start: int, end: int, flushed: int) -> Damage:
    path = segment_path(directory, start)
    return Damage(path, start, end - start, "missing", start < flushed, lost_offsets=(start, end - 1))


def _inspect_segment(path: Path, base: int, end: int, flushed: int) -> Iterator[Finding]:
    start, file = base, LogFile(path, base)
    while start < end:
        try:
            for position, header, batch in walk_batches(file, start, end, crcmod_crc):
                yield _entry(path, position, header, batch)
            return
        except ChainBroken as error:
            # Up to the next batch, or up to the end of the flushed part: another batch begins there.
            limit = flushed if error.position < flushed < end else end
            start = next_batch(file, error.position + 1, limit) or limit
            yield _damage(path, error, start, flushed)


def _damage(path: Path, broken: ChainBroken, end: int, flushed: int) -> Damage:
    position, header, filler_base = broken.position, broken.header, broken.filler_base
    is_control = header is not None and header.is_control and broken.reason == WRONG_CRC
    lost = None
    if filler_base is None and not is_control:
        fits = header is not None and header.base_offset == position and header.size == end - position
        # The offsets of a damaged batch: from its header if the header fits the position, else every
        # position.
        last = max(position, min(header.last_offset, end - 1)) if header is not None and fits else end - 1
        lost = position, last
    return Damage(path, position, end - position, broken.reason, position < flushed, lost, filler_base)


def _entry(path: Path, position: int, header: BatchHeader, batch: bytes) -> InspectedBatch:
    mirror = None
    if not header.is_control:
        kind = "data"
    elif header.base_offset != position:
        kind = "filler"
    elif holds_offsets(header, position):
        kind = "repaired"
    else:
        try:
            mirror = MirrorPosition.from_batch(header, batch)
        except (CorruptMessage, ValueError, KeyError):
            mirror = None  # the CRC is right, but the record is another: a plain control batch
        kind = "control" if mirror is None else "position"
    return InspectedBatch(path, position, header, kind, mirror)


@cache
def _crc_function() -> Callable[[bytes], int]:
    from crcmod.predefined import mkPredefinedCrcFun  # late: only this command needs it

    function: Callable[[bytes], int] = mkPredefinedCrcFun("crc-32c")
    return function


def crcmod_crc(batch: Buffer) -> int:
    """Return the CRC-32C of a batch, computed by the independent implementation."""
    return _crc_function()(bytes(memoryview(batch)[CRC_START:]))
