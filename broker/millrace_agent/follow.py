"""Following files that services write, with an event in JSON on each line. Every whole line is taken once.

A file's position is written in the transaction that takes its lines. A file is known by the bytes before that
position, and by its inode if there are few, so a rename or a copy loses and repeats nothing, even while no
agent runs: the renamed file is read to its end, then the files renamed after it, then the new file. Of a
truncated file the copy is read to its end, then the file from its beginning.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.errors import MillraceError
from millrace_agent.intake import Intake, Refused
from millrace_agent.rotation import is_replaced, open_again, open_next
from millrace_agent.spool import Event, FilePosition, Spool

logger = logging.getLogger("millrace.agent")

BLOCK_BYTES = 4 << 20
"""Bytes read at once; also the length of the longest line."""
TAKE_BYTES = 1 << 20
"""Bytes of events after which a transaction takes no more lines."""
TAIL_BYTES = 64
"""Number of bytes before its position by which a file is recognized."""
ROTATED_S = 2.0
"""Time for which a renamed file is still watched: its writer may not have opened the new file yet."""
IDLE_S = 0.1
RETRY_S = 1.0


@dataclass(slots=True)
class FollowedFile:
    """One followed file: the open file, its position and its state."""

    path: Path
    topic: str
    file: io.FileIO | None = None
    offset: int = 0
    tail: bytes = b""
    in_long_line: bool = False
    rotated_at: float | None = None
    caught_up_at: float = 0.0
    """Seconds since the epoch: every whole line written before that time is taken."""
    is_behind: bool = True
    """False if the last look found no whole line that was not taken."""
    unread_bytes: int = 0
    refused: int = 0
    trouble: str | None = None


class Follower:
    """Follows files until it is stopped; `files` are topics by path. For one thread."""

    def __init__(self, spool: Spool, intake: Intake, files: Mapping[Path, str]) -> None:
        self._spool, self._intake = spool, intake
        self.files = [FollowedFile(path.absolute(), topic) for path, topic in files.items()]

    def caught_up(self) -> float:
        """Return seconds since the epoch: every line written before that time is taken."""
        return min((time.time(), *(one.caught_up_at for one in self.files)))

    def behind(self) -> set[str]:
        """Return the topics of files that may have lines which are not taken."""
        return {one.topic for one in self.files if one.is_behind}

    @property
    def troubles(self) -> list[str]:
        return [f"file {one.path}: {one.trouble}" for one in self.files if one.trouble is not None]

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if not self.step():
                stop.wait(RETRY_S if self.troubles else IDLE_S)

    def step(self) -> bool:
        """Read new lines, at most one block of each file; return False if there were no new lines."""
        return any(list(map(self._step, self.files)))

    def _step(self, one: FollowedFile) -> bool:
        began = time.time()
        try:
            took = self._read(one, began)
        except (MillraceError, OSError) as error:
            reason = str(error) if isinstance(error, MillraceError) else error.strerror
            if reason != one.trouble:
                logger.warning("file %s: %s", one.path, reason)
            one.trouble, one.is_behind = reason, True
            return False
        one.trouble, one.is_behind = None, one.caught_up_at != began
        return took

    def _read(self, one: FollowedFile, began: float) -> bool:
        if one.file is None and not self._open(one):
            one.caught_up_at = began
            return False
        assert one.file is not None
        size = os.fstat(one.file.fileno()).st_size
        if size < one.offset or not _continues(one.file, one.offset, one.tail):
            copy = self._open_copy(one.path, one.offset, one.tail)
            if copy is not None:
                self._use(one, copy, one.offset, one.tail)
                return True
            logger.warning("file %s was truncated: it is read from its beginning", one.path)
            one.offset, one.tail, one.in_long_line = 0, b"", False
        one.unread_bytes = size - one.offset
        block = os.pread(one.file.fileno(), BLOCK_BYTES, one.offset)
        whole = block.rfind(b"\n") + 1
        if not whole and len(block) == BLOCK_BYTES:
            whole = BLOCK_BYTES
        if whole:
            one.rotated_at = None
            self._take(one, block[:whole])
            return True
        if not is_replaced(one.path, one.file):
            one.caught_up_at = began
        elif self._is_left(one):
            if block:
                self._take(one, block)  # the last line, which never got its end
            self._begin_next(one)
            return True
        return False

    @staticmethod
    def _is_left(one: FollowedFile) -> bool:
        """Return True once the file has not grown for ROTATED_S after it was renamed.

        Its time of change must show this, too.
        """
        assert one.file is not None
        if one.rotated_at is None:
            one.rotated_at = time.monotonic()
        watched_s = time.monotonic() - one.rotated_at
        renamed_at = os.fstat(one.file.fileno()).st_ctime  # or later: writing moves it, too
        return max(watched_s, time.time() - renamed_at) >= ROTATED_S

    def _take(self, one: FollowedFile, block: bytes) -> None:
        """Take the lines of a block and note the position after them."""
        read = self._intake.of_lines(one.topic)  # raises what is wrong with the topic, not with a line
        events: list[Event] = []
        refused: list[tuple[int, str]] = []
        in_long_line, done, size = one.in_long_line, 0, 0
        for line in io.BytesIO(block):
            if in_long_line:
                in_long_line = not line.endswith(b"\n")
            elif len(line) == BLOCK_BYTES and not line.endswith(b"\n"):
                in_long_line = True
                refused.append((one.offset + done, f"it has more than {BLOCK_BYTES} bytes"))
            elif line.strip():
                try:
                    events += read(line)
                    size += events[-1].size
                except Refused as error:
                    refused.append((one.offset + done, str(error)))
            done += len(line)
            if size > TAKE_BYTES:
                break
        position = self._position(one, block[:done])
        self._spool.take(events, position).result()
        one.offset, one.tail, one.in_long_line = position.offset, position.tail, in_long_line
        one.unread_bytes -= done
        one.refused += len(refused)
        if refused:
            at, why = refused[0]
            logger.warning(
                "file %s: %d lines are no events, the first at byte %d: %s", one.path, len(refused), at, why
            )

    @staticmethod
    def _position(one: FollowedFile, taken: bytes) -> FilePosition:
        """Return the file's position after these bytes."""
        assert one.file is not None
        status = os.fstat(one.file.fileno())
        offset, tail = one.offset + len(taken), (one.tail + taken)[-TAIL_BYTES:]
        return FilePosition(str(one.path), status.st_ino, offset, tail, status.st_mtime_ns)

    # Which file.

    def _open(self, one: FollowedFile) -> bool:
        """Continue the file that was read before, whatever its name is now.

        Return False when there is no file.
        """
        known = self._spool.file_position(str(one.path))
        if known is None:
            return self._begin_next(one)
        is_it = partial(_continues, offset=known.offset, tail=known.tail)
        file = open_again(one.path, known.inode, known.offset, is_it)
        file = file or self._open_copy(one.path, known.offset, known.tail)
        if file is not None:
            self._use(one, file, known.offset, known.tail)
            return True
        logger.warning(
            "file %s is not the file that was read before: what was written later is read from its beginning",
            one.path,
        )
        # A file that was begun and not read yet is as old as the position, and begun again.
        return self._begin_next(one, known.written_ns - (not known.offset))

    @staticmethod
    def _open_copy(path: Path, offset: int, tail: bytes) -> io.FileIO | None:
        """Open a copy of a file that was read up to an offset: it has the same bytes before the offset.

        A copy remains when the file is truncated (copytruncate) or moved to another disk.
        """
        if len(tail) < TAIL_BYTES:
            return None
        return open_again(path, None, offset, partial(_continues, offset=offset, tail=tail))

    def _begin_next(self, one: FollowedFile, written_ns: int | None = None) -> bool:
        """Begin the file that was written after a renamed file, or after a time, or the log. Return False
        when there is none yet.

        The file's position is noted at once, so that the file is found if it is renamed before its first
        line.
        """
        file = open_next(one.path, one.file, written_ns)
        if file is not None:
            self._use(one, file, 0, b"")
            self._spool.take([], self._position(one, b"")).result()
        return file is not None

    @staticmethod
    def _use(one: FollowedFile, file: io.FileIO, offset: int, tail: bytes) -> None:
        if one.file is not None:
            one.file.close()
        one.file, one.offset, one.tail = file, offset, tail
        one.in_long_line, one.rotated_at = False, None

    def close(self) -> None:
        for one in self.files:
            if one.file is not None:
                one.file.close()


def _continues(file: io.FileIO, offset: int, tail: bytes) -> bool:
    return os.pread(file.fileno(), len(tail), offset - len(tail)) == tail
