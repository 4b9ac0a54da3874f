"""One partition's log: a list of segments, the last of them open for appends.

It handles bytes and offsets. Topics, leaders, sockets and Kafka's APIs are handled elsewhere.

Three snapshots describe the log, each a part of the snapshot before: as appended, as flushed and as visible.
Readers see the visible snapshot; the end of its records is the high watermark of Kafka's clients. Appends and
changes of the segment list hold the lock; reads take the snapshots and hold no lock. The types of `sides.py`
state which thread may call which method.

In a log with one replica all flushed bytes become visible. In a log with several replicas, only the committed
bytes become visible, and the replication decides which bytes are committed. A follower's log is copied from
its leader's, file by file, and may be cut.

`read` looks at headers, and at a whole batch if it is older than this process. For bytes that are not in the
page cache it waits for the disk, for at most one walk between two landmarks.

    state = log.flush()     # in a thread: everything appended before the call is on the disk
    log.publish(state)      # in the loop: consumers see these records from here on
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from millrace.config import LogConfig
from millrace.errors import (
    BrokerError,
    CorruptMessage,
    MillraceError,
    OffsetOutOfRange,
    PolicyViolation,
    StorageError,
)
from millrace.records import BatchHeader, Cursor, filler_size
from millrace.records.compression import Buffer
from millrace.records.file_slice import FileSlice
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.records.runs import StampedBatch, stamp
from millrace_broker.storage.chain import header_at
from millrace_broker.storage.checkpoint import Checkpoint
from millrace_broker.storage.epochs import EpochMap
from millrace_broker.storage.landmarks import LEAST_BATCH_BYTES, Landmarks, landmarks_path
from millrace_broker.storage.log_start import remove_start, write_start
from millrace_broker.storage.producer_state import ProducerLimit, ProducerState, ProducerStates
from millrace_broker.storage.reading import Reader, first_with_max_timestamp, first_with_timestamp
from millrace_broker.storage.recovery import Recovered, Scan, recover
from millrace_broker.storage.refused import RefusedBatches
from millrace_broker.storage.segment import (
    CutFailed,
    Files,
    Segment,
    SegmentFacts,
    Sync,
    TimeRange,
    remove_directory,
    segment_path,
    sync_directory,
)
from millrace_broker.storage.sides import Flush
from millrace_broker.storage.staging import Staging, append_size, check_append
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.storage.partition_log")

CHECKPOINT_INTERVAL_S = 5.0
ROOM_AGAIN_S = 10.0
"""Seconds without a refused append after which a full disk counts as having room again. Small appends may fit
all the time."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that temporarily prevent opening a file. A sync that fails with such an error may have lost its
bytes."""
_START_NOT_WRITTEN = "where the log starts could not be written down"
IDLE_SECONDS = 60.0
"""Seconds without an append after which a log keeps no file open: of many partitions most are idle."""


class PartitionLog:
    """The log of one partition: appends, reads, flushes, retention."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Callable[[], float],
        sync: Sync = os.fdatasync,
        producer_limit: ProducerLimit | None = None,
        *,
        is_replica: bool = False,
    ) -> None:
        """Create or recover the log in `directory`. Afterwards all visible bytes are on the disk.

        All logs of a broker share `producer_limit`. With `is_replica` the partition has other replicas, so at
        first only bytes that are known to be committed are visible. Raise StorageError when the directory
        cannot be used now. Raise MillraceError when bytes that were on the disk are missing.
        """
        self.directory = directory
        self.config = config
        self._clock = clock
        self._sync = sync
        limit = ProducerLimit() if producer_limit is None else producer_limit
        self._producers = ProducerStates(directory, clock, limit)
        self.is_replica = is_replica
        """True while the partition has other replicas."""
        recovered = self._recover()
        self._take_over(recovered)
        self._visible = recovered.committed if is_replica else recovered.state
        self.refusal: str | None = None
        """Reason for which the log takes no writes until it is opened again; None while it takes writes."""
        self.flush_refusal: str | None = None
        """Reason for which nothing new becomes visible and nothing is written until the log is
        opened again."""
        self.expires_by_time = True
        """False while the clock cannot be trusted: then no segment expires by its age."""
        self._closed = self._directory_changed = False
        self._refused_at: float | None = None
        """Time of the disk's last refusal of a write; None once the disk is known to take all writes."""
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        """Held while a flush uses descriptors, so that no other thread closes them."""
        self._checkpoint_lock = threading.Lock()
        """Held while a checkpoint is written or the files it lists change; taken before the other locks."""
        self._checkpointed, self._checkpoint_at = recovered.checkpointed, clock()
        self._checkpoint_base = 0
        """Base of the last segment at the last attempt to write a checkpoint."""
        if recovered.checkpointed != self.end:
            self._write_checkpoint(recovered.state, self._files)

    def _recover(self) -> Recovered:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Otherwise a power cut may remove the directory with all flushed bytes. The process that created
            # it may have died before this step.
            sync_directory(self.directory.parent)
            return recover(self.directory, self._producers, self._clock(), self._sync)
        except BaseException as error:
            self._producers.clear()  # otherwise they count for ever, and twice after the next try
            if isinstance(error, OSError):
                raise StorageError(f"cannot open the log in {self.directory}: {error}") from error
            raise

    def _take_over(self, recovered: Recovered) -> None:
        self._files = recovered.files
        self.epochs = recovered.epochs
        """Leader epochs of all bytes of this log, including appended bytes that are not flushed yet."""
        self._epoch = max(0, recovered.epochs.last)
        self._appended = recovered.state
        self._flushed = self._flushed_whole = recovered.state
        """State as of the last flush, published or not; and the state at its last whole append. Recovery cuts
        nothing below a checkpoint, so a checkpoint covers only whole appends."""
        self._copying: Scan | None = None
        """Scan of the bytes copied from a leader since this log last led or was opened; None if there are
        none."""
        self._reader = Reader(self.directory, recovered.state.end)

    @property
    def log_start_offset(self) -> int:
        files, end = self._files, self._visible.high_watermark
        start = files.segments[0].base
        if files.start_offset > start:
            start = files.start_offset
        return start if start < end else end  # min and max take three times as long, for each append

    @property
    def high_watermark(self) -> int:
        """Offset after the last visible data record. A visible record is flushed and, with several replicas,
        committed.

        The high watermark never goes back, not even across restarts.
        """
        return self._visible.high_watermark

    @property
    def visible_end(self) -> int:
        return self._visible.end

    @property
    def end(self) -> int:
        return self._appended.end

    @property
    def start(self) -> int:
        """Position of the log's first byte."""
        return self._files.segments[0].base

    @property
    def whole(self) -> LogState:
        """State of the log up to the last whole append. A replica may also hold part of the next append."""
        return self._appended if self._copying is None else self._copying.kept

    @property
    def whole_end(self) -> int:
        return self.whole.end

    @property
    def flushed(self) -> int:
        """Position below which all bytes are on the disk."""
        return self._flushed.end

    @property
    def committed(self) -> int:
        """Position below which all bytes are known to be committed. Readers see exactly these bytes."""
        return self._visible.end

    @property
    def size(self) -> int:
        return self._appended.end - self._files.segments[0].base

    @property
    def appended(self) -> LogState:
        """State of the log up to its last append, flushed or not."""
        return self._appended

    @property
    def mirror_position(self) -> MirrorPosition | None:
        """The position up to which this partition mirrors its origin, as appended.

        None if it is no mirror.
        """
        return self._appended.mirror

    @property
    def snapshot(self) -> tuple[LogState, Files]:
        return self._visible, self._files

    @property
    def counts(self) -> tuple[int, int]:
        """Number of segments on the disk, and of data records appended since the log was opened."""
        return len(self._files.segments), self._appended.messages

    def active_producers(self) -> list[tuple[int, ProducerState]]:
        """Return all remembered idempotent producers, each with its id and its last batches."""
        return self._producers.remembered()

    @property
    def lacks_room(self) -> bool:
        """True after the disk refused an append, until it takes one or `lead` is called."""
        return self._refused_at is not None and self.refusal is None

    @property
    def unflushed_messages(self) -> int:
        return self._appended.messages - self._flushed.messages

    def lead(self, epoch: int) -> None:
        """Stamp the leader epoch `epoch` into later appends, or the log's own last epoch if that is newer."""
        with self._lock:
            self._epoch, self._copying = max(epoch, self.epochs.last), None
            self._refused_at = None

    def append(self, batches: Sequence[Buffer], principals: Sequence[str]) -> list[int | BrokerError]:
        """Append validated batches in order, with one write per segment; return their base offsets.

        `principals` names the sender of each batch. Base offsets are stamped into the given buffers; a
        read-only buffer is copied. A retry of an idempotent producer is answered with its first base offset.
        Nothing is raised: the result has an error in the place of its batch, and StorageError for every batch
        that could not be written for any reason.
        """
        with self._lock:
            if self.refusal is not None:
                self._producers.note_refused(batches, principals, StorageError(self.refusal))
                return [StorageError(self.refusal)] * len(batches)
            if self._appended.mirror is not None:
                refused = PolicyViolation("a mirrored partition takes messages from its origin only")
                return [refused] * len(batches)
            results: list[int | BrokerError] = []
            staging, written = None, 0
            try:
                if plain := self._append_plain(batches, principals):
                    return [*plain]
                staging = self._stage()
                while True:
                    results += staging.add(batches, principals, len(results))
                    if len(results) == len(batches):
                        break
                    self._write(staging)
                    written = len(results)
                    self._roll()
                    staging = self._stage()
                self._write(staging)
            except Exception as error:
                if not isinstance(error, StorageError):
                    logger.exception("a bug while appending to %s", self.directory)
                    error = StorageError(f"cannot append to {self.directory.name}: {error!r}")
                if staging is not None:
                    self._producers.abandon(staging.producers)
                self._producers.note_refused(batches[written:], principals[written:], error)
                results[written:] = [error] * (len(batches) - written)
            return results

    def _append_plain(self, batches: Sequence[Buffer], principals: Sequence[str]) -> Sequence[int]:
        """Append batches that need only their stamp and simply come next, as nearly all appends do: without a
        `Staging`, which takes half as long again as all of this.

        Return their base offsets. Write nothing and return none if a batch needs more.
        """
        state, active, landmarks = self._appended, self._active, self._active.landmarks
        if landmarks is None or self._epoch != self.epochs.last or not batches:
            return ()
        stamped: list[StampedBatch] = []
        bases, end, landmarks_room, messages, next_offset, max_timestamp = stamp(
            batches, 0, state.end, self._epoch, self._room, landmarks.room, LEAST_BATCH_BYTES, stamped
        )
        if len(bases) < len(batches):
            return ()  # what is stamped already will be stamped again
        producers = self._producers.take_next(stamped, principals) if stamped else {}
        if producers is None:
            return ()
        try:
            self._write_to(active, batches, end - state.end)
            active.facts.note(max_timestamp, next_offset)
            landmarks.passed(landmarks_room, next_offset)
            self._producers.commit(producers)  # first: a flush includes everything that it finds appended
            self._appended = LogState(end, next_offset, end, state.messages + messages, None)
        except Exception as error:
            self._producers.abandon(producers)
            if not isinstance(error, StorageError):
                self._refuse_after_bug(error)
            raise
        return bases

    def note_refused(self, batches: Sequence[Buffer], principals: Sequence[str], why: BrokerError) -> None:
        """Note produced batches that the partition refused before an append, for a temporary reason.

        Does not wait while a thread cuts the log.
        """
        self._producers.note_refused(batches, principals, why)

    def take_refused(self, refused: RefusedBatches) -> None:
        """Take over batches that were refused, for a temporary reason, before this log was opened."""
        self._producers.take_refused(refused)

    def append_mirrored(
        self,
        origin: Origin,
        expected: int | None,
        batches: Sequence[Buffer],
        position: MirrorPosition,
        *,
        reset: bool = False,
    ) -> int:
        """Append origin batches and the position after them as one write that continues the recorded
        position.

        `expected` is the recorded next origin offset, None when nothing is recorded. `batches` are whole data
        batches with right CRCs. Without batches only the position moves, because all messages in between were
        left out; with `reset` it may move anywhere. Return the log's end. Raise PositionMismatch,
        PolicyViolation, InvalidRequest, InvalidRecord or StorageError when nothing was written.
        """
        with self._lock:
            if self.refusal is not None:
                raise StorageError(self.refusal)
            recorded = self._appended.mirror
            check_append(self._appended, origin, expected, position, batches, reset=reset)
            size = append_size(batches, position, self._appended.end)
            if 0 < self._active.size > self.config.segment_bytes - size:
                self._roll()
            staging = self._stage()
            timestamp = int(self._clock() * 1000)
            if self._active.size == 0:
                # Every segment of a mirrored partition begins with its position: retention may then delete
                # all other segments, and a torn first append is not mistaken for data.
                nothing = replace(position, cursor=Cursor(position.start), batches=0, records=0, dropped=0)
                staging.place_position(recorded or nothing, timestamp)
            for batch in batches:
                staging.place(batch)
            reset_at = staging.end if reset else recorded.reset_at if recorded is not None else 0
            staging.place_position(replace(position, reset_at=reset_at), timestamp)
            self._write(staging)
            return self._appended.end

    @property
    def _active(self) -> Segment:
        return self._files.segments[-1]

    @property
    def _room(self) -> int:
        """Bytes that still fit into the last file; an empty file takes one batch of any size."""
        return self.config.segment_bytes - self._active.size

    def _stage(self) -> Staging:
        return Staging(self._appended, self._producers, self._active, room=self._room, epoch=self._epoch)

    def _write(self, staging: Staging) -> None:
        """Write the staged batches and count them. Raise StorageError when none of their bytes were kept."""
        if not staging.buffers:
            return
        try:
            self._write_to(self._active, staging.buffers, staging.size)
            if self._epoch != self.epochs.last:
                self.epochs.note(self._epoch, self._appended.end)
            state = staging.written()
            self._producers.commit(
                staging.producers
            )  # first: a flush includes everything that it finds appended
            self._appended = state
        except StorageError:
            raise
        except Exception as error:
            self._refuse_after_bug(error)
            raise

    def _refuse_after_bug(self, error: Exception) -> None:
        """Take no more writes: the file may hold more than is known here; a restart reads it."""
        self.refusal = f"{self.directory} takes no writes until the broker restarts: {error!r}"

    def _write_to(self, active: Segment, buffers: Sequence[Buffer], size: int) -> None:
        """Write to the last file. Raise StorageError when none of the bytes were kept."""
        now = self._clock()
        try:
            active.append(buffers, size, now)
        except OSError as error:
            if isinstance(error, CutFailed):
                self.refusal = f"{self.directory} takes no writes until the broker restarts: {error}"
            self._log_no_room(f"cannot append to {active.path}: {error}")
            raise StorageError(f"cannot append to {active.path.name}: {error.strerror}") from error
        if self._refused_at is not None and not 0 <= now - self._refused_at < ROOM_AGAIN_S:
            self._refused_at = None
            logger.info("%s takes writes again", self.directory)

    def _roll(self) -> None:
        try:
            segment = Segment.create(self.directory, self._appended.end, self._clock())
        except OSError as error:
            reason = f"cannot create a segment in {self.directory}: {error.strerror}"
            self._log_no_room(reason)
            raise StorageError(reason) from error
        self._directory_changed = True
        self._files = replace(self._files, segments=(*self._files.segments, segment))

    def _log_no_room(self, reason: str) -> None:
        """Log a refusal once, until `_write_to` has logged its end: producers retry endlessly."""
        if self._refused_at is None:
            logger.error("%s", reason)
        self._refused_at = self._clock()

    # A replica's log

    def read_raw(self, position: int, max_bytes: int) -> tuple[int, FileSlice | None]:
        """Return the start of the file that holds `position`, and its bytes as appended from `position` on.

        A batch begins at `position`. The slice holds at least this batch with its filler, whatever
        `max_bytes`, and its last batch may be cut off. The slice is None at the log's end.
        """
        files = self._files
        if position < files.segments[0].base:  # retention has just deleted the segment
            raise OffsetOutOfRange(f"position {position} is before the log's start {files.segments[0].base}")
        index = files.index_of(position)
        segment = files.segments[index]
        if position == segment.end and index + 1 < len(files.segments):
            segment = files.segments[index + 1]
        length = min(segment.end, self._appended.end) - position
        if length <= 0:
            return segment.base, None
        try:
            file = segment.open_reader()
            if length > max_bytes:
                first = header_at(file, position, segment.end)
                if first is None:
                    raise CorruptMessage(f"a damaged batch at position {position} in {segment.path}")
                length = max(max_bytes, first.size + filler_size(first))
        except OSError as error:
            raise StorageError(f"cannot read {segment.path}: {error.strerror}") from error
        return segment.base, FileSlice(file, position - segment.base, length)

    def append_copied(self, headers: Sequence[BatchHeader], batches: memoryview, segment: int) -> None:
        """Append the whole batches that come next in the leader's log, from one of its files.

        `headers` are those of `batches`, which were checked to follow this log's end. `segment` is the start
        of the leader's file; this log begins a file there, too. Raise StorageError when the disk refuses:
        then nothing was written, or the log takes no more writes.
        """
        with self._lock:
            if self.refusal is not None:
                raise StorageError(self.refusal)
            if segment > self._active.base and segment == self._appended.end:
                self._roll()
            copying = self._copying or Scan(self._appended, self._producers, self.epochs, skip_damage=False)
            active = self._active
            self._write_to(active, [batches], len(batches))
            self._copying = copying
            try:
                copying.note_all(active, headers, batches)
            except Exception as error:
                logger.exception("a bug while copying to %s", self.directory)
                self._refuse_after_bug(error)
                raise StorageError(str(self.refusal)) from error
            self._appended = copying.state

    def cut(self, position: int) -> None:
        """Cut everything after a batch boundary durably; for a thread. Committed bytes are never cut.

        No other thread may append or read meanwhile. The rest is recovered as after a crash, so less may be
        kept: of a mirrored log up to its last position, of any log up to its last whole append.
        """
        with self._checkpoint_lock, self._flush_lock, self._lock:
            if self.flush_refusal is not None:
                raise StorageError(self.flush_refusal)
            if position < self._visible.end:
                raise MillraceError(f"{self.directory}: a cut at {position} would remove committed bytes")
            self._lower_checkpoint(position)
            first = self._files.segments[0]
            try:
                for segment in reversed(self._files.segments):
                    segment.close()
                    if segment.end > position or (segment.base == position and segment is not first):
                        _cut_file(segment, position, keep=segment is first or segment.base < position)
                sync_directory(self.directory)
            except OSError as error:
                self.refusal = self.flush_refusal = f"{self.directory} cannot be cut: {error}"
                raise StorageError(self.refusal) from error
            self._recover_again()

    def start_over_at(self, position: int, start_offset: int = -1) -> None:
        """Delete everything and begin, empty, at a position; for a thread.

        Readers that have read all records before `position` continue at `start_offset`, which may be lower;
        -1: unknown. No other thread may use the log.
        """
        with self._checkpoint_lock, self._flush_lock, self._lock:
            if self.flush_refusal is not None:
                raise StorageError(self.flush_refusal)
            self._lower_checkpoint(max(position, self._visible.end))
            start_offset = start_offset if 0 <= start_offset <= position else position
            state = LogState(position, start_offset, position, 0, None)
            try:
                old = [segment for segment in self._files.segments if segment.base != position]
                for segment in self._files.segments:
                    segment.close()
                path = segment_path(self.directory, position)
                path.write_bytes(b"")
                sync_directory(self.directory)
                remove_start(self.directory)  # the start of the dropped log, also in the old checkpoint
                # A crash before this leaves a file after a gap, and a crash after it leaves files below the
                # start.
                empty = Files((Segment.open(path, SegmentFacts(position), Landmarks()),), start_offset)
                Checkpoint.of(state, empty, [], EpochMap(), state).write(self.directory)
                self._checkpointed = position
                for segment in old:
                    segment.unlink()
                sync_directory(self.directory)
            except OSError as error:
                self.refusal = self.flush_refusal = f"{self.directory} cannot begin again, empty: {error}"
                raise StorageError(self.refusal) from error
            self._visible = state
            self._recover_again()

    def _lower_checkpoint(self, position: int) -> None:
        """Lower the checkpoint to the committed bytes: a cut below the checkpoint would count as data loss.

        The checkpoint keeps the epochs up to `position`. Raise StorageError if it cannot be written: then
        nothing has changed.
        """
        if self._checkpointed > self._visible.end:
            epochs = EpochMap(self.epochs.starts)
            epochs.cut(position)
            self._write_checkpoint(self._visible, self._files, epochs)
            if self._checkpointed != self._visible.end:
                raise StorageError(f"{self.directory} cannot be cut: its checkpoint could not be written")

    def _recover_again(self) -> None:
        self._producers.clear()
        try:
            self._take_over(self._recover())
        except Exception as error:  # the state in memory differs from the disk
            self.refusal = self.flush_refusal = f"{self.directory} cannot be used until a restart: {error}"
            raise StorageError(self.refusal) from error

    def flush(self) -> LogState:
        """Flush all appended bytes to the disk. Call it in a thread that may wait. One flush runs at a time.

        Raise StorageError when the flush fails. If the disk refused, the log takes no more writes until it is
        opened again, and `flush_refusal` has the reason: after a failed fdatasync the state of the disk is
        unknown. If only descriptors or memory were short, the flush may be retried.
        """
        return self.end_flush(self.begin_flush(), synced=False)

    def begin_flush(self) -> Flush:
        """Begin a flush of all appended bytes: after this call, sync the file system or not, and `end_flush`.

        Until then this thread holds the log's descriptors. Raise StorageError as `flush` does; then there is
        nothing to end.
        """
        self._flush_lock.acquire()
        try:
            if self.flush_refusal is not None:
                raise StorageError(self.flush_refusal)
            state = self._appended  # before the list: the list then covers all of the state
            whole = state if (copying := self._copying) is None else copying.kept
            segments = self._files.segments
            unsynced = [item for item in segments if item.end > self._flushed.end and item.base < state.end]
            changed, self._directory_changed = self._directory_changed, False
            try:
                # Open descriptors before the first fdatasync: if none is left, nothing is lost.
                descriptors = [segment.append_fd() for segment in unsynced]
                if changed:
                    sync_directory(self.directory)
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self._directory_changed |= changed
                    raise StorageError(f"cannot flush {self.directory} now: {error.strerror}") from error
                raise self._flush_failed(error) from error
            return Flush(state, whole, segments, descriptors)
        except BaseException:
            self._flush_lock.release()
            raise

    def end_flush(self, flush: Flush, *, synced: bool) -> LogState:
        """Return the state that is on the disk now. With `synced` the file system was synced since the flush
        began; otherwise sync the log's files. Raise StorageError as `flush` does.
        """
        try:
            state = flush.state
            if not synced:
                try:
                    for fd in flush.descriptors:
                        self._sync(fd)
                except OSError as error:
                    raise self._flush_failed(error) from error
            self._flushed = state
            if flush.whole.end <= state.end:  # otherwise a copy is in progress, which the next flush includes
                self._flushed_whole = flush.whole
            for segment in flush.segments[:-1]:
                if segment.end <= state.end:
                    segment.close()
            return state
        finally:
            self._flush_lock.release()

    def _flush_failed(self, error: OSError) -> StorageError:
        """Take nothing more; return why."""
        reason = f"{self.directory} takes no writes until the broker restarts: flush: {error}"
        self.refusal = self.flush_refusal = reason
        logger.error("%s", reason)
        return StorageError(reason)

    @property
    def checkpoint_is_due(self) -> bool:
        """True if the flushed log has grown, and the last attempt is old or a new segment has begun."""
        return self._checkpoint_is_due(self._flushed_whole)

    def write_due_checkpoint(self) -> None:
        """Write the checkpoint if it is due; for the flush thread, after it has posted its outcome."""
        if not self.checkpoint_is_due or not self._checkpoint_lock.acquire(blocking=False):
            return  # the lock's holder writes one, or waits for a flush and finds it due later
        try:
            if not self._closed:
                self._write_checkpoint(self._flushed_whole, self._files)  # a cut may have come in between
        finally:
            self._checkpoint_lock.release()

    def publish(self, state: LogState) -> bool:
        """Make flushed bytes (with several replicas, committed bytes) visible.

        Return True if there are new records.
        """
        with self._lock:
            before = self._visible
            if state.end <= before.end:
                return False
            self._visible = state
            if state.high_watermark <= state.data_end:
                self._reader.recent.note(state.high_watermark, state.data_end)
            return state.high_watermark > before.high_watermark

    def read(self, offset: int, max_bytes: int) -> FileSlice | None:
        """Return batches from the first batch on that ends after `offset`; None when no such batch is
        visible.

        The slice holds at least one batch, even if that exceeds `max_bytes`. Its last batch may be cut off,
        unless the slice ends at a landmark. The slice ends within its segment, and at the last visible data
        batch. For bytes that were on the disk before this log was opened, the first batch's CRC and every
        batch's position are checked. Nothing else is read: clients check CRCs themselves.

        Raise OffsetOutOfRange for an offset outside the log, CorruptMessage when the first batch is damaged,
        LandmarksMissing when `build_landmarks` must run first, and StorageError when the disk fails. Must be
        called by one thread at a time.
        """
        if self._closed:
            raise StorageError(f"{self.directory} is closed")
        return self._reader.read(self._visible, self._files, self._appended.end, offset, max_bytes)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record not older than `timestamp`, or None.

        For a thread: it reads the headers between two landmarks and one batch, and may build landmarks.
        """
        files = self._files
        return first_with_timestamp(files.segments, timestamp, self._visible.end, files.start_offset)

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp, or None.

        Call it in a thread: it reads as much as two look-ups by time, and more segments only if timestamps
        rise and fall.
        """
        files = self._files
        return first_with_max_timestamp(files.segments, self._visible.end, files.start_offset)

    def build_landmarks(self) -> None:
        """Build the landmarks that `read` missed. Call it in a thread: it reads whole segments."""
        self._reader.build_landmarks()

    def delete_records(self, before: int) -> int:
        """Delete every record before an offset (-1: all records); return the log's new start. Call it in a
        thread.

        On return, the new start survives a power cut and the loss of the checkpoint. Retention later deletes
        files that hold only deleted records. Raise OffsetOutOfRange for an offset after the high watermark,
        and StorageError when the disk refuses.
        """
        with self._checkpoint_lock:
            with self._lock:
                if self._closed:
                    raise StorageError(f"{self.directory} is closed")
                files, flushed, end = self._files, self._flushed_whole, self._visible.high_watermark
            offset = end if before == -1 else before
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(f"offset {before} is past the end, {end}")
            if offset > self.log_start_offset:
                try:
                    write_start(self.directory, offset)
                except OSError as error:
                    raise StorageError(f"{_START_NOT_WRITTEN}: {self.directory.name}: {error}") from error
                if not self._write_checkpoint(flushed, replace(files, start_offset=offset)):
                    raise StorageError(f"{_START_NOT_WRITTEN}: {self.directory.name}")
                with self._lock:
                    self._files = replace(self._files, start_offset=offset)
            return self.log_start_offset

    def recount(self, wrong: Sequence[TimeRange]) -> None:
        """Restart the age of each segment that was last appended to while the clock was wrong."""
        now = self._clock()
        for segment in self._files.segments:
            if any(since <= segment.last_append <= until for since, until in wrong):
                with contextlib.suppress(FileNotFoundError):  # deleted with its topic
                    segment.recount(now)

    def apply_retention(self, leader_start: int | None = None) -> list[int]:
        """Delete the segments that retention no longer keeps; return their bases. Call it in a thread.

        With `leader_start` the log is a follower's, and keeps everything from the start of the leader's log.
        The checkpoint is also written if it is due, so that it covers the flushed bytes even if no flush
        follows.
        """
        now = self._clock()
        config = self.config if self.expires_by_time else replace(self.config, retention_ms=None)
        with self._checkpoint_lock:
            with self._lock:
                if self._closed:
                    return []
                self._producers.expire()
                active = self._active
                is_over = self._files.gives_up(active) or active.is_expired(config, now)
                is_over = is_over or active.is_old(self.config, now)
                is_led = leader_start is None and self._copying is None
                if is_led and is_over and active.facts.next_offset >= 0:
                    self._roll_for_retention(now)
                files, visible, flushed = self._files, self._visible, self._flushed_whole
            # A copy may know more committed bytes than it has flushed; its checkpoint cannot state that.
            kept = min(visible, flushed, key=lambda state: state.end)
            if leader_start is None:
                count = files.expired_count(config, now, kept)
            else:
                count = sum(1 for one in files.segments[:-1] if one.end <= min(leader_start, kept.end))
            # The checkpoint first: recovery deletes a file below its start, and reports a loss if a log
            # begins above its end. On a full disk the write may fail until something was deleted.
            if count > 0 or self._checkpoint_is_due(flushed):
                self._write_checkpoint(flushed, files.without_first(count))
            victims = [item for item in files.segments[:count] if item.end <= self._checkpointed]
            with self._flush_lock, self._lock:
                self._files = self._files.without_first(len(victims))
                self.epochs.drop_below(self._files.segments[0].base)
                if now - self._active.last_append > IDLE_SECONDS and self._appended.end == self._flushed.end:
                    self._active.close()  # the next append opens it again
                for victim in victims:
                    victim.close()
            for victim in victims:
                victim.unlink()
        self._reader.forget()
        return [victim.base for victim in victims]

    def _roll_for_retention(self, now: float) -> None:
        if self.refusal is not None:
            return
        try:
            self._roll()
            staging = self._stage()
            if self._appended.mirror is not None:
                staging.place_position(self._appended.mirror, int(now * 1000))
            self._write(staging)
        except StorageError as error:
            logger.error("retention cannot begin a new segment: %s", error)

    def _checkpoint_is_due(self, state: LogState) -> bool:
        """Return True if the log has grown, and the last attempt is old or a new segment has begun.

        On a full disk the attempts fail, and segments stay without a checkpoint.
        """
        elapsed = self._clock() - self._checkpoint_at
        is_time = not 0 <= elapsed < CHECKPOINT_INTERVAL_S or self._active.base > self._checkpoint_base
        return state.end > self._checkpointed and is_time

    def _write_checkpoint(
        self, state: LogState, files: Files, epochs: EpochMap | None = None, *, closing: bool = False
    ) -> bool:
        """Write the checkpoint, with `epochs` or else the log's own epochs.

        If that fails, log the error and return False.
        """
        self._checkpoint_at, self._checkpoint_base = self._clock(), files.segments[-1].base
        try:
            for segment in files.segments[:-1]:
                if segment.end <= state.end:
                    segment.save_landmarks()
            producers = self._producers.save(state.end, files.segments[-1].base, closing=closing)
            known = self._visible if self._visible.end < state.end else state
            committed = known if self.is_replica else None
            Checkpoint.of(state, files, producers, epochs or self.epochs, committed).write(self.directory)
        except OSError as error:
            logger.error("cannot write the checkpoint in %s: %s", self.directory, error)
            return False
        self._checkpointed = state.end
        return True

    def close(self) -> None:
        """Flush, write the checkpoint and close. A log that could not flush keeps its last checkpoint."""
        if self._closed:
            return
        try:
            flushed = self.flush()
            if not self.is_replica:
                self.publish(flushed)
        except StorageError as error:
            logger.error("closing without a flush: %s", error)
        with self._checkpoint_lock, self._flush_lock, self._lock:
            if self._flushed_whole.end != self._checkpointed or self.is_replica:
                self._write_checkpoint(self._flushed_whole, self._files, closing=True)
            self._shut(f"{self.directory} is closed")

    def delete(self) -> None:
        """Close and remove every file; slices already handed out can still be sent. For a thread."""
        with self._checkpoint_lock, self._flush_lock, self._lock:
            self._shut(f"{self.directory} was deleted")
        doomed = self.directory.with_name(f"{self.directory.name}.deleted")
        self.directory.rename(doomed)
        remove_directory(doomed)

    def _shut(self, reason: str) -> None:
        self._closed = True
        self.refusal = self.flush_refusal = reason
        self._reader.forget()
        self._producers.close()
        for segment in self._files.segments:
            segment.close()


def _cut_file(segment: Segment, position: int, *, keep: bool) -> None:
    """Cut the file at `position`, or remove it unless `keep`.

    On return, the rest of the file is on the disk.
    """
    landmarks_path(segment.path).unlink(missing_ok=True)
    if not keep:
        segment.path.unlink()
        return
    with open(segment.path, "rb+") as file:
        file.truncate(max(0, position - segment.base))
        os.fsync(file.fileno())
