"""Recovery keeps the longest valid prefix above the checkpoint, and never cuts below it.

It reads a partition's directory, cuts the incomplete end that a crash left, and returns the state from which
the log continues. It refuses a log that lost bytes which were on the disk, with one line that names the loss.

A batch is valid if it is at the position that its chain requires and has a right CRC. A missing filler is
written. A mirrored partition is cut back to its last position batch, so that data and position agree. Without
a checkpoint the flushed end is unknown, so only the bytes after the last valid batch of all are cut.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from millrace.errors import MillraceError
from millrace.records import CONTROL_BIT, LENGTH_OVERHEAD, BatchHeader, filler_after, filler_size
from millrace.records.compression import Buffer
from millrace.records.mirror_position import MirrorPosition
from millrace.records.runs import stamp
from millrace_broker.storage import sealed
from millrace_broker.storage.chain import ChainBroken, next_batch, walk_batches, walk_past_damage
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.epochs import EpochMap
from millrace_broker.storage.landmarks import LEAST_BATCH_BYTES, Landmarks, landmarks_path
from millrace_broker.storage.log_start import read_start
from millrace_broker.storage.producer_state import FILE_NAME, ProducerStates
from millrace_broker.storage.segment import (
    Files,
    Segment,
    SegmentFacts,
    Sync,
    segment_path,
    segment_paths,
    sync_directory,
)
from millrace_broker.storage.state import LogState, holds_offsets

logger = logging.getLogger("millrace.storage.recovery")

COPY_BYTES = 1 << 20
ANY_ROOM = 1 << 40


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log that is ready for use: everything in it is on the disk."""

    files: Files
    state: LogState
    checkpointed: int
    """Position up to which the checkpoint in the directory covers the log; -1 without a checkpoint."""
    epochs: EpochMap
    committed: LogState
    """The committed part of a replica's log, as far as known."""


def recover(directory: Path, producers: ProducerStates, now: float, sync: Sync) -> Recovered:
    """Bring a partition's directory to a state from which a log can continue, and fill `producers`.

    Raise MillraceError when bytes below the checkpoint are missing.
    """
    checkpoint = _read_checkpoint(directory)
    segments = open_segments(directory, checkpoint)
    is_new = not segments
    if is_new:
        segments = [Segment.create(directory, 0, now)]
        segments[0].close()
        sync_directory(directory)
    if checkpoint is None:
        first = segments[0].base
        state, start_offset, epochs = LogState(first, first, first, 0, None), first, EpochMap()
        committed = state
    else:
        _load_producers(directory, checkpoint, producers, segments)
        state = checkpoint.state
        epochs = EpochMap(checkpoint.epochs)
        epochs.drop_below(segments[0].base)
        committed = checkpoint.committed or state
        gone = segments[0].base > checkpoint.start
        start_offset = max(segments[0].base, checkpoint.start_offset) if gone else checkpoint.start_offset
        # The name of an empty last file may not be synced after a crash: full recovery syncs it.
        if segments[-1].end == checkpoint.flushed and segments[-1].size > 0:
            _continue(segments[-1], state)
            files = _files(directory, segments, start_offset, state)
            return Recovered(files, state, checkpoint.flushed, epochs, committed)
    flushed = None if checkpoint is None else checkpoint.flushed
    scan = Scan(state, producers, epochs, skip_damage=flushed is None)
    scan.run(segments)
    unfilled = scan.unfilled
    if unfilled is not None and scan.kept.end == unfilled.base_offset + unfilled.size:
        # The filler belongs into its batch's file, so no file may begin at the filler's position.
        segments = [segment for segment in segments if segment.base < scan.kept.end or _discard(segment)]
        kept = _cut(segments, scan.kept)
        scan.complete_filler(kept[-1], unfilled, now)
    else:
        kept = _cut(segments, scan.kept)
    if not is_new:  # an empty file whose name is on the disk needs no flush
        _make_durable(directory, kept, flushed, sync)
    if scan.state.end > scan.kept.end:
        epochs.cut(scan.kept.end)
    checkpointed = -1 if flushed is None else flushed
    files = _files(directory, kept, start_offset, scan.kept)
    return Recovered(files, scan.kept, checkpointed, epochs, committed)


def _files(directory: Path, segments: list[Segment], start_offset: int, state: LogState) -> Files:
    # If a log lost more than its checkpoint, a start after its end would hide new records.
    deleted = min(read_start(directory), state.high_watermark)
    return Files(tuple(segments), max(start_offset, deleted))


def _read_checkpoint(directory: Path) -> Checkpoint | None:
    try:
        checkpoint = Checkpoint.read(directory)
    except sealed.Unreadable as error:
        if not segment_paths(directory):
            raise MillraceError(f"{error} and no segment is left: restore {directory} from a copy") from None
        logger.warning("%s; reading the whole log instead", error)
        return None
    if checkpoint is None and any(path.stat().st_size for path in segment_paths(directory)):
        logger.warning("no checkpoint in %s; reading the whole log instead", directory)
    return checkpoint


def open_segments(directory: Path, checkpoint: Checkpoint | None) -> list[Segment]:
    """Return the segments in order. Raise MillraceError when a segment that was on the disk is missing or too
    short.

    Files below the checkpoint's start, which an interrupted retention left, are deleted.
    """
    facts = {} if checkpoint is None else {item.base: item for item in checkpoint.segments}
    segments = []
    for path in segment_paths(directory):
        base = int(path.stem)
        if checkpoint is not None and base < checkpoint.start:
            logger.info("deleting %s: retention had given it up", path)
            Segment.open(path).unlink()
        elif checkpoint is None or base >= checkpoint.flushed:
            segments.append(Segment.open(path, SegmentFacts(base), Landmarks()))  # noted by the scan
        else:
            segments.append(Segment.open(path, facts.get(base), checkpoint.landmarks.get(base)))
    for before, after in pairwise(segments):
        if before.end < after.base and (checkpoint is None or after.base <= checkpoint.flushed):
            _refuse(directory, before.end, after.base)
        _truncate(before, after.base)
    if checkpoint is not None and (segments or checkpoint.flushed > 0):
        if not segments or segments[0].base > checkpoint.flushed:
            _refuse(directory, checkpoint.start, segments[0].base if segments else checkpoint.flushed)
        if segments[0].base > checkpoint.start:
            # The oldest files may be deleted by hand to make room; readers see the later start offset.
            logger.error("%s: the files below %s are gone", directory, segments[0].path.name)
        if segments[-1].end < checkpoint.flushed:
            _refuse(directory, segments[-1].end, checkpoint.flushed)
    return segments


def _load_producers(
    directory: Path, checkpoint: Checkpoint, producers: ProducerStates, segments: list[Segment]
) -> None:
    """Restore the producers of all batches below the checkpoint."""
    flushed = checkpoint.flushed
    start = producers.load(checkpoint.producers, flushed)
    if start is None:
        logger.warning("%s is missing or damaged: reading every header instead", directory / FILE_NAME)
        start = 0
    for segment in segments:
        first, limit = max(start, segment.base), min(segment.end, flushed)
        if first < limit:
            for position, header in walk_past_damage(segment.open_reader(), first, limit):
                producers.replay(header, position + header.size)


def _refuse(directory: Path, start: int, end: int) -> None:
    raise MillraceError(
        f"{directory} lost the bytes from position {start} to {end}: restore the file that held them, "
        f"{segment_path(directory, start).name} or the one before it, from a copy, or delete the topic"
    )


class Scan:
    """Follows the chain through the segments and notes the last position at which the log may end."""

    def __init__(
        self, state: LogState, producers: ProducerStates, epochs: EpochMap, *, skip_damage: bool
    ) -> None:
        self.state = state
        self.kept = state
        self.unfilled: BatchHeader | None = None
        """The last data batch, while its necessary filler is missing."""
        self._producers, self._epochs = producers, epochs
        self._skip_damage = skip_damage

    def run(self, segments: list[Segment]) -> None:
        """Read everything from the state's end on, up to the first break of the chain."""
        for segment, successor in zip(segments, [*segments[1:], None], strict=True):
            limit = segment.end if successor is None else successor.base
            if limit < self.state.end or (limit == self.state.end and successor is not None):
                continue
            if segment.base > self.state.end:
                return
            if not self._read(segment, min(limit, segment.end)):
                if not self._skip_damage or successor is None:
                    return
                self._skip_to(segment, limit)

    def _skip_to(self, segment: Segment, position: int) -> None:
        logger.warning(
            "%s: bytes %d to %d are damaged; they are kept", segment.path, self.state.end, position
        )
        self.state = self.state._replace(end=position)
        if segment.landmarks is not None:
            segment.landmarks.next_offset = None

    def _read(self, segment: Segment, limit: int) -> bool:
        """Read one segment. Return True when its chain reaches `limit` with nothing missing."""
        file = segment.open_reader()
        while True:
            try:
                for position, header, batch in walk_batches(file, self.state.end, limit):
                    self.note(segment, header, batch, position)
                return self.unfilled is None
            except ChainBroken as error:
                resumed = next_batch(file, error.position + 1, limit) if self._skip_damage else None
                if resumed is None:
                    return False
                self._skip_to(segment, resumed)

    def _note_epoch(self, header: BatchHeader, position: int) -> None:
        """Note the epoch, which the CRC does not cover. An epoch below the epoch before it shows damage.

        While damage is skipped such an epoch is ignored: one wrong epoch must not cost all batches after it.
        """
        epoch = max(0, header.partition_leader_epoch)
        if epoch >= self._epochs.last:
            self._epochs.note(epoch, position)
        elif not self._skip_damage:
            raise ChainBroken("a leader epoch falls", position, header, None)

    def note_all(self, segment: Segment, headers: Sequence[BatchHeader], data: memoryview) -> None:
        """Add the batches of `data` as `note` does, those of the same epoch together.

        Into data batches their own position and epoch are written again.
        """
        start, first = 0, 0
        plain: list[memoryview] = []
        for index, header in enumerate(headers):
            end = start + header.batch_length + LENGTH_OVERHEAD
            if header.partition_leader_epoch == self._epochs.last and not header.attributes & CONTROL_BIT:
                plain.append(data[start:end])
            else:
                self._note_plain(segment, headers[first:index], plain)
                self.note(segment, header, data[start:end], self.state.end)
                plain, first = [], index + 1
            start = end
        self._note_plain(segment, headers[first:], plain)

    def _note_plain(
        self, segment: Segment, headers: Sequence[BatchHeader], batches: Sequence[memoryview]
    ) -> None:
        """Add data batches of the last epoch. Most of them need only to be counted."""
        done, landmarks = 0, segment.landmarks
        assert landmarks is not None, "the last segment has its landmarks in memory"
        while done < len(batches):
            state = self.state
            room = landmarks.room if state.mirror is None else 0
            bases, end, room, messages, next_offset, max_timestamp = stamp(
                batches, done, state.end, self._epochs.last, ANY_ROOM, room, LEAST_BATCH_BYTES, None
            )
            if bases:
                segment.facts.note(max_timestamp, next_offset)
                landmarks.passed(room, next_offset)
                self.state = self.kept = LogState(end, next_offset, end, state.messages + messages, None)
                self.unfilled = None
                done += len(bases)
            else:
                self.note(segment, headers[done], batches[done], state.end)
                done += 1

    def note(self, segment: Segment, header: BatchHeader, batch: Buffer, position: int) -> None:
        """Add a batch that follows all other batches. Raise ChainBroken if its epoch is lower."""
        self._note_epoch(header, position)
        facts = segment.facts
        is_filler = header.base_offset != position
        if segment.landmarks is not None and not is_filler:
            segment.landmarks.note_header(header, facts.max_timestamp)
        if holds_offsets(header, position):
            facts.max_timestamp = max(facts.max_timestamp, header.max_timestamp)
            facts.next_offset = header.next_offset
        if self.state.mirror is None:
            self._producers.replay(header, position + header.size)
        self.state = self.state.after(header, MirrorPosition.from_batch(header, batch))
        self.unfilled = header if not is_filler and filler_size(header) > 0 else None
        # A mirrored partition begins and ends with a position batch.
        if self.state.mirror is None or self.state.mirror is not self.kept.mirror:
            self.kept = self.state

    def complete_filler(self, segment: Segment, header: BatchHeader, now: float) -> None:
        """Write the filler that is missing after a crash."""
        filler = filler_after(header, timestamp=header.max_timestamp)
        assert filler is not None
        segment.append([filler], len(filler), now)
        segment.close()  # the next append opens it again; a failed recovery would leave it open
        self.kept = self.kept._replace(end=self.kept.end + len(filler))


def _truncate(segment: Segment, end: int) -> None:
    """Cut the part of a file past the log position where it must end."""
    if segment.end > end:
        logger.warning("%s: cutting %d bytes that are no valid batch", segment.path, segment.end - end)
        status = segment.path.stat()
        os.truncate(segment.path, end - segment.base)
        os.utime(segment.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # retention counts from it
        segment.size = end - segment.base


def _discard(segment: Segment) -> bool:
    logger.warning("%s lies after the last valid batch, deleting it", segment.path)
    segment.unlink()
    return False


def _cut(segments: list[Segment], state: LogState) -> list[Segment]:
    """Cut the log at its end, delete the files after it, return the others."""
    kept = [segment for segment in segments if segment.base <= state.end or _discard(segment)]
    _truncate(kept[-1], state.end)
    _continue(kept[-1], state)
    return kept


def _continue(last: Segment, state: LogState) -> None:
    """Make the last segment ready for appends: forget the batches that a power cut destroyed."""
    last.facts.next_offset = state.high_watermark if state.data_end > last.base else -1
    last.landmarks = last.known_landmarks().below(state.end)
    landmarks_path(last.path).unlink(missing_ok=True)


def _make_durable(directory: Path, segments: list[Segment], flushed: int | None, sync: Sync) -> None:
    """Write the recovered bytes to the disk, so that they may become visible.

    After a failed fdatasync the kernel may hold pages that count as clean but never reached the disk. Only if
    the same bytes are written again is the result of the next fdatasync reliable.
    """
    for segment in segments:
        if flushed is not None and segment.end <= flushed and segment is not segments[-1]:
            continue
        status = segment.path.stat()
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if flushed is not None:
                position = max(0, flushed - segment.base)
                while chunk := os.pread(fd, COPY_BYTES, position):
                    position += os.pwrite(fd, chunk, position)
            try:
                sync(fd)
            except OSError as error:
                # A second try might succeed without the bytes being on the disk, as with any flush.
                raise MillraceError(f"cannot open the log in {directory}: flush: {error}") from error
        finally:
            os.close(fd)
        os.utime(segment.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    sync_directory(directory)
