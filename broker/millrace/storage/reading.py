"""The read side of a partition's log: from an offset to bytes a socket can be given.

Works on snapshots and holds no lock; one thread reads at a time. Keeps three things between reads: batch
boundaries that a sequential reader will ask for, the files read last, and which damage was already reported.
"""

from __future__ import annotations

import logging
from pathlib import Path

from millrace.errors import CorruptMessage, OffsetOutOfRange, StorageError
from millrace.records.file_slice import FileSlice, ReadFile
from millrace.storage.chain import Chain, HeaderReader, read_batch
from millrace.storage.lookup import Boundaries, locate
from millrace.storage.segment import Files, Segment
from millrace.storage.state import LogState

log = logging.getLogger(__name__)

WARM_FILES = 3
MAX_REPORTED = 100
"""Different kinds of damage and failures that are told of one log; after them there is nothing new to say."""


class Reader:
    """Finds slices in a log's files."""

    def __init__(self, directory: Path, recovered_end: int) -> None:
        """`recovered_end`: what lies below was on the disk before this process opened the log."""
        self.boundaries = Boundaries()
        self._directory = directory
        self._recovered_end = recovered_end
        self._reported: set[str] = set()
        self._warm: dict[Segment, ReadFile] = {}
        """The files read last; others close with the last slice that uses them."""

    def read(
        self, visible: LogState, files: Files, end: int, offset: int, max_bytes: int
    ) -> FileSlice | None:
        """What `PartitionLog.read` says, for one pair of snapshots; `end` is the log's, flushed or not."""
        if offset >= visible.high_watermark:
            # Up to the log's end an offset is good, it is only early: a producer may have been told of it.
            if offset > end:
                raise OffsetOutOfRange(f"offset {offset} is past the end, {visible.high_watermark}")
            return None
        if offset < files.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start, {files.segments[0].base}")
        try:
            return self._slice(visible, files, offset, max_bytes)
        except CorruptMessage as error:
            self._report(f"{error}; `millrace log verify {self._directory}` names every damaged batch")
            raise
        except FileNotFoundError:
            raise OffsetOutOfRange(f"offset {offset} was just given up by retention") from None
        except OSError as error:
            self._report(f"cannot read {self._directory}: {error}")
            raise StorageError(f"cannot read {self._directory}: {error}") from error

    def _report(self, what: str) -> None:
        """Say it once: clients ask again and again."""
        if what not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(what)
            log.error("%s", what)

    def _slice(self, visible: LogState, files: Files, offset: int, max_bytes: int) -> FileSlice:
        index = files.index_of(offset)
        segment = files.segments[index]
        file = self._file(segment)
        position = segment.base
        if offset > position:
            limit = min(segment.end, visible.end)
            position = locate(segment, file.fileno(), offset, limit, self.boundaries)
        if position == segment.end and index + 1 < len(files.segments):
            segment = files.segments[index + 1]
            file = self._file(segment)
        limit = min(segment.end, visible.data_end)
        headers = HeaderReader(file.fileno(), segment.base)
        first_bytes = self._check_first(headers, file.fileno(), segment, position, limit)
        length = max(first_bytes, min(max_bytes, limit - position))
        self.boundaries.note_slice(headers, position, position + length)
        return FileSlice(file, position - segment.base, length)

    def _file(self, segment: Segment) -> ReadFile:
        """The segment's read side: one of those used last, or newly opened in the place of the oldest."""
        file = self._warm.get(segment)
        if file is None:
            file = segment.open_reader()
            kept = list(self._warm.items())[1 - WARM_FILES :]
            self._warm = dict([*kept, (segment, file)])
        return file

    def forget(self) -> None:
        """Let go of the files, from any thread: what was deleted frees its space, idle ones are closed.

        Called every few seconds: whoever reads on opens a file again, which costs less than keeping count.
        """
        self._warm = {}

    def _check_first(
        self, headers: HeaderReader, fd: int, segment: Segment, position: int, limit: int
    ) -> int:
        """The size of the batch a slice begins with; CorruptMessage when it is damaged."""
        header = headers.header(position)
        if header is None or not Chain(position).accepts(header, limit):
            raise CorruptMessage(f"a damaged batch at position {position} in {segment.path}")
        if position < self._recovered_end and read_batch(fd, segment.base, position, header) is None:
            raise CorruptMessage(f"the batch at position {position} in {segment.path} fails its CRC")
        return header.size
