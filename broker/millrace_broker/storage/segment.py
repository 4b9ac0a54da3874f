"""One file of a partition's log, appended at its end and read anywhere; and the list of files that form a
log.

A segment has its file, its base position, two facts about its content, its landmarks, and its expiry. The
partition log handles batches and offsets, and decides when to roll. Appends and reads use separate
descriptors: with one shared file position a reader would move the position at which the writer writes.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from millrace.config import LogConfig
from millrace.records.compression import Buffer
from millrace_broker.storage.chain import LogFile
from millrace_broker.storage.landmarks import (
    Landmarks,
    build_landmarks,
    landmarks_path,
    read_landmarks,
    write_landmarks,
)
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.storage.segment")

IOV_MAX = os.sysconf("SC_IOV_MAX")
WRITE_BYTES = 32 << 10
"""Most bytes of one system call. The page cache takes its memory in blocks as large as the call, and Linux
has blocks up to this size at hand. Larger blocks cost up to five times the CPU for each byte in a virtual
machine that returns free memory to its host."""
_BUILDING = threading.Lock()
"""Held by the only thread of the process that builds landmarks: several threads would keep the
loop waiting."""
_SEGMENT_NAME = re.compile(r"\d{20}\.log")

Sync: TypeAlias = Callable[[int], None]
"""Type of os.fdatasync, and of its replacement in a test."""
TimeRange: TypeAlias = tuple[float, float]
"""Pair of times in seconds since the epoch, both ends included."""


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def segment_paths(directory: Path) -> list[Path]:
    """Return the paths of a partition's segments in order; files of other names are ignored."""
    return sorted(path for path in directory.glob("*.log") if _SEGMENT_NAME.fullmatch(path.name))


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names in a directory survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_directory(directory: Path) -> None:
    """Remove a partition's directory. If the directory is a link, remove the link and its target."""
    if directory.is_symlink():
        shutil.rmtree(directory.resolve(), ignore_errors=True)  # an interrupted start may have removed it
        directory.unlink()
    else:
        shutil.rmtree(directory)


class CutFailed(OSError):
    """A failed write left bytes at the end of the file that could not be cut off."""


@dataclass(slots=True)
class SegmentFacts:
    """Facts about a segment that must be known without reading it; the checkpoint keeps them."""

    base: int
    max_timestamp: int = -1
    """Largest timestamp of any record, ms; -1 when there is none. May be too large, never too small."""
    next_offset: int = -1
    """Offset after the last record; -1 when the segment holds no data."""

    def note(self, max_timestamp: int, next_offset: int) -> None:
        """Note appended records, by their largest timestamp and the offset after them."""
        self.next_offset = next_offset
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp


class Segment:
    """A file named after the log position of its first byte."""

    __slots__ = (
        "_append_fd",
        "_builds",
        "_directory",
        "_reader",
        "base",
        "begun",
        "facts",
        "landmarks",
        "last_append",
        "size",
    )

    def __init__(
        self,
        directory: Path,
        base: int,
        size: int,
        facts: SegmentFacts,
        last_append: float,
        landmarks: Landmarks | None,
    ) -> None:
        self._directory = directory
        self.base = base
        self.size = size
        self.facts = facts
        self.landmarks = landmarks
        """The landmarks in memory; None when they are in the segment's file of landmarks, or do not exist."""
        self.last_append = last_append
        """Time of the last append, in seconds since the epoch: retention counts from here."""
        self.begun = last_append
        """Time of creation. For a file that existed at the broker's start, the time of its last append at
        that start."""
        self._append_fd: int | None = None
        self._reader: weakref.ref[LogFile] | None = None
        self._builds = 0

    @classmethod
    def create(cls, directory: Path, base: int, now: float) -> Segment:
        """Create a new, empty segment, open for appends. The caller syncs the directory."""
        segment = cls(directory, base, 0, SegmentFacts(base), now, Landmarks())
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        segment._append_fd = os.open(segment.path, flags, 0o644)
        return segment

    @classmethod
    def open(
        cls, path: Path, facts: SegmentFacts | None = None, landmarks: Landmarks | None = None
    ) -> Segment:
        """Open an existing segment. Without `facts` its largest timestamp counts as the largest possible."""
        status, base = path.stat(), int(path.stem)
        facts = facts or SegmentFacts(base, (1 << 63) - 1, -1)
        return cls(path.parent, base, status.st_size, facts, status.st_mtime, landmarks)

    @property
    def path(self) -> Path:
        """The segment's file: made when it is needed, as thousands of paths take much memory."""
        return segment_path(self._directory, self.base)

    @property
    def end(self) -> int:
        return self.base + self.size

    def append_fd(self) -> int:
        if self._append_fd is None:
            self._append_fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return self._append_fd

    def append(self, buffers: Sequence[Buffer], total: int, now: float) -> None:
        """Write all `total` bytes or none. Raise OSError after a failure, when the file was cut back.

        Raise CutFailed when the file now ends in bytes that do not belong to the log.
        """
        fd = self.append_fd()
        try:
            self._write_all(fd, buffers, total)
        except OSError as error:
            try:
                os.ftruncate(fd, self.size)
            except OSError as cut_error:
                raise CutFailed(cut_error.errno, f"{error}; cutting it off failed: {cut_error}") from error
            raise
        self.size += total
        self.last_append = now

    def _write_all(self, fd: int, buffers: Sequence[Buffer], total: int) -> None:
        for pending in _pieces(buffers, total, self.size):
            missing = sum(map(len, pending))
            while (written := os.writev(fd, pending)) < missing:
                if written == 0:
                    raise OSError(errno.EIO, "the file system took no bytes")
                missing -= written
                done = 0
                while written >= len(pending[done]):
                    written -= len(pending[done])
                    done += 1
                pending[: done + 1] = [memoryview(pending[done])[written:]]

    def open_reader(self) -> LogFile:
        """Return the file's read side, shared by all current readers. It closes with the last reader."""
        file = None if self._reader is None else self._reader()
        if file is None:
            file = LogFile(self.path, self.base)
            self._reader = weakref.ref(file)
        return file

    def known_landmarks(self) -> Landmarks:
        """Return the landmarks from memory or from their file; empty landmarks when there are none."""
        landmarks = self.landmarks
        return read_landmarks(self.path, self.size) if landmarks is None else landmarks

    def build_landmarks(self) -> Landmarks:
        """Build the landmarks from every header of the segment, keep and return them; for a thread."""
        before = self._builds
        with _BUILDING:
            if self._builds == before:  # otherwise another thread has built them meanwhile
                logger.info("building the landmarks of %s", self.path)
                end = self.end
                self._keep_landmarks(build_landmarks(self.open_reader(), end), end)
                self._builds += 1
        return self.known_landmarks()

    def _keep_landmarks(self, built: Landmarks, end: int) -> None:
        landmarks = self.landmarks  # read once: closing may save and clear it meanwhile
        if landmarks is not None:
            landmarks.begin_with(built, end)
            return
        try:
            write_landmarks(self.path, self.size, built)
        except OSError as error:
            logger.error("cannot write %s: %s", landmarks_path(self.path), error)
            self.landmarks = built

    def save_landmarks(self) -> None:
        """Move the landmarks from memory to their file, once the segment is whole and on the disk."""
        landmarks = self.landmarks
        if landmarks is not None:
            write_landmarks(self.path, self.size, landmarks)
            self.landmarks = None

    def recount(self, now: float) -> None:
        """Let the segment's age begin now. The file's times keep the new age over a restart."""
        os.utime(self.path, (now, now))
        self.last_append = self.begun = now

    def is_expired(self, config: LogConfig, now: float) -> bool:
        """Return True when nothing was appended for longer than retention allows."""
        return config.retention_ms is not None and now - self.last_append > config.retention_ms / 1000

    def is_old(self, config: LogConfig, now: float) -> bool:
        """Return True when the segment is older than `segment_ms`, so that nothing more may be appended to
        it.
        """
        return config.segment_ms is not None and now - self.begun > config.segment_ms / 1000

    def unlink(self) -> None:
        """Remove the segment's files. Slices that were handed out keep the content."""
        landmarks_path(self.path).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the append side. Slices that were handed out keep the read side open."""
        if self._append_fd is not None:
            os.close(self._append_fd)
            self._append_fd = None


def _pieces(buffers: Sequence[Buffer], total: int, position: int) -> Iterable[list[Buffer]]:
    """Return each system call's buffers: large appends are cut where the file's WRITE_BYTES blocks end."""
    is_small = total <= WRITE_BYTES and len(buffers) <= IOV_MAX
    return ([*buffers],) if is_small else _cut(buffers, position)


def _cut(buffers: Sequence[Buffer], position: int) -> Iterator[list[Buffer]]:
    piece, room = list[Buffer](), WRITE_BYTES - position % WRITE_BYTES
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            piece.append(rest[:room])
            room -= len(piece[-1])
            rest = rest[len(piece[-1]) :]
            if room == 0:
                room = WRITE_BYTES
            elif len(piece) < IOV_MAX:
                continue
            yield piece
            piece = []
    if piece:
        yield piece


@dataclass(frozen=True, slots=True)
class Files:
    """The segments in order, and the offset before which all records were given up.

    Retention gives up whole segments; after `delete_records` the offset may lie in the first segment.
    """

    segments: tuple[Segment, ...]
    start_offset: int

    def expired_count(self, config: LogConfig, now: float, flushed: LogState) -> int:
        """Return the number of oldest segments that retention gives up: never the last segment, and never an
        unflushed one.

        A mirrored log also keeps the last segment that holds anything: it holds the position.
        """
        size = self.segments[-1].end - self.segments[0].base
        kept = 2 if flushed.mirror is not None and self.segments[-1].size == 0 else 1
        for count, segment in enumerate(self.segments[:-kept]):
            too_large = config.retention_bytes is not None and size > config.retention_bytes
            unwanted = too_large or self.gives_up(segment) or segment.is_expired(config, now)
            if segment.end > flushed.end or not unwanted:
                return count
            size -= segment.size
        return max(0, len(self.segments) - kept)

    def gives_up(self, segment: Segment) -> bool:
        """Return True if every record of a segment is given up already."""
        return 0 <= segment.facts.next_offset <= self.start_offset

    def without_first(self, count: int) -> Files:
        """Return the files that are left when retention deletes `count` of the oldest segments."""
        gone = max((victim.facts.next_offset for victim in self.segments[:count]), default=-1)
        return Files(self.segments[count:], max(gone, self.start_offset))

    def index_of(self, offset: int) -> int:
        return max(0, bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1)
