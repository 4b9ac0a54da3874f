"""Lines of a log as bytes: from a file, gzip, standard input, or a file that grows and is rotated.

Of a line longer than MAX_LINE_BYTES only the beginning is handed on, and the rest is not kept. Lines are not
parsed or published here.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from millrace.errors import MillraceError
from millrace_agent.rotation import is_replaced, open_again, open_next

logger = logging.getLogger("millrace.access-log")

MAX_LINE_BYTES = 64 * 1024
"""Longest line: servers refuse longer requests. The rest of a longer line is dropped as it arrives."""
READ_BYTES = 256 * 1024
POLL_S = 0.25
SILENCE_S = 5.0
"""Time without a write after which a rotated file is left for the new file: writers change files late."""
BEGINNING_BYTES = 256
"""Number of a file's first bytes by which, besides its inode, the file is recognized."""
STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line without its end: its number in the source, from 1, and at most MAX_LINE_BYTES of it."""

    number: int
    text: bytes
    size: int

    @property
    def whole(self) -> bool:
        return len(self.text) == self.size


@dataclass(frozen=True, slots=True)
class Position:
    """Position in a followed file: the file's identity, and the end of the last whole line that was read."""

    device: int
    inode: int
    offset: int
    line: int
    beginning: str
    """The file's first bytes, at most BEGINNING_BYTES and none after `offset`, in hex."""

    @classmethod
    def load(cls, path: Path) -> Position | None:
        """Read the position that `save` wrote. Return None if there is no file.

        Raise MillraceError for anything else.
        """
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise MillraceError(
                f"--position {path} cannot be read ({error}): name the file of an earlier run, or a new one"
            ) from error

    def save(self, path: Path) -> None:
        """Replace the file's content by this position.

        After a crash the file holds the whole old or the whole new position.
        """
        written = path.with_name(f".{path.name}.new")
        try:
            with written.open("w") as file:
                file.write(json.dumps(asdict(self)))
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
        except OSError as error:
            raise MillraceError(f"--position {path} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that arrived together. Once they are published, everything before `position` is published."""

    lines: Sequence[RawLine]
    read: int = 0
    """Bytes of the source so far; of gzip, compressed bytes."""
    position: Position | None = None
    caught_up: bool = False
    """True when there is nothing more to read at the moment."""


class LineSplitter:
    """Splits bytes into whole lines. It keeps at most MAX_LINE_BYTES of the unfinished line."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.pending = 0
        """Bytes since the end of the last whole line."""
        self._begun = b""

    def receive(self, data: bytes) -> list[RawLine]:
        """Return the lines that end in `data`. The first line may have begun in the data before."""
        *ended, rest = data.split(b"\n")
        lines = [self._end(part) for part in ended]
        self._hold(rest)
        return lines

    def end(self) -> list[RawLine]:
        """Return the last line if it has no line end; empty if all lines have ended."""
        return [self._end(b"")] if self.pending else []

    def _end(self, part: bytes) -> RawLine:
        self._hold(part)
        text, size = self._begun, self.pending
        if text.endswith(b"\r") and len(text) == size:
            text, size = text[:-1], size - 1
        self.number, self._begun, self.pending = self.number + 1, b"", 0
        return RawLine(self.number, text, size)

    def _hold(self, part: bytes) -> None:
        self._begun += part[: MAX_LINE_BYTES - len(self._begun)]
        self.pending += len(part)


def read_lines(path: Path) -> Iterator[Chunk]:
    """Yield all lines of a file, or of standard input for `-`, decompressed if they are gzip.

    Raise MillraceError when the source cannot be read, or read further; the whole lines before that are
    yielded first.
    """
    splitter = LineSplitter()
    try:
        with (
            open(0, "rb", buffering=0, closefd=False)
            if path == STDIN
            else path.open("rb", buffering=0) as raw
        ):
            buffered = io.BufferedReader(cast(io.RawIOBase, raw), READ_BYTES)
            zipped = buffered.peek(2)[:2] == b"\x1f\x8b"
            file = cast(BinaryIO, gzip.GzipFile(fileobj=buffered) if zipped else buffered)
            read = 0
            while data := file.read1(READ_BYTES):  # type: ignore[attr-defined]
                read = buffered.tell() if path != STDIN else read + len(data)
                yield Chunk(splitter.receive(data), read)
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {splitter.number}" if splitter.number else ""
        name = "standard input" if path == STDIN else path
        raise MillraceError(
            f"cannot read {name}{after}: {getattr(error, 'strerror', None) or error}"
        ) from error
    yield Chunk(splitter.end(), read)


class Follower:
    """A reader of the lines of a file that grows, from `start` or its beginning, through rotations, without
    an end.

    A renamed file is read to its end before the next file; a truncated file (copytruncate) is read again from
    its beginning. Rotated files are found by their names: FILE.1, FILE-20260101.
    """

    def __init__(
        self, path: Path, start: Position | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._start, self._clock = path, start, clock

    def chunks(self) -> Iterator[Chunk]:
        """Yield chunks without an end; an empty chunk every POLL_S while nothing arrives.

        Raise MillraceError if reading fails.
        """
        try:
            file, start = None, self._start
            if start is not None:
                is_same_file = partial(_begins_as, position=start)
                file = open_again(self._path, start.inode, start.offset, is_same_file)
            if file is None and start is not None:
                logger.warning(
                    "the file of the position is no longer beside %s: this file is read from its beginning,"
                    " and lines between may be missing",
                    self._path,
                )
                start = None
            if file is None and not self._path.exists():
                logger.warning("%s is not there yet: waiting for it", self._path)
            while True:
                while (file := file or open_next(self._path, None)) is None:
                    yield Chunk((), caught_up=True)
                    time.sleep(POLL_S)
                with file:
                    yield from self._read(file, start)
                    while (following := open_next(self._path, file)) is None:
                        yield Chunk((), caught_up=True)
                        time.sleep(POLL_S)
                file, start = following, None
        except OSError as error:
            raise MillraceError(f"cannot read {self._path}: {error.strerror or error}") from error

    def _read(self, file: io.FileIO, start: Position | None) -> Iterator[Chunk]:
        """Yield the rest of one file, until another file has its name and it has not been written to for
        SILENCE_S.
        """
        splitter = LineSplitter(start.line if start is not None else 0)
        offset, silent_since = start.offset if start is not None else 0, self._clock()
        known = start
        file.seek(offset)
        while True:
            is_cut = os.fstat(file.fileno()).st_size < offset
            if is_cut or (known is not None and not _begins_as(file, known)):
                logger.warning("%s was cut: it is read again from its beginning", self._path)
                splitter, offset, known = LineSplitter(splitter.number), 0, None
                file.seek(0)
            if data := file.read(READ_BYTES):
                lines = splitter.receive(data)
                offset, silent_since = offset + len(data), self._clock()
                known = _position(file, offset - splitter.pending, splitter.number)
                yield Chunk(lines, offset, known)
                continue
            replaced = is_replaced(self._path, file)
            if replaced and self._clock() - silent_since >= SILENCE_S:
                yield Chunk(splitter.end(), offset, _position(file, offset, splitter.number))
                return
            if not replaced:
                silent_since = self._clock()
            yield Chunk((), offset, caught_up=not replaced)
            time.sleep(POLL_S)


def _position(file: io.FileIO, offset: int, line: int) -> Position:
    state = os.fstat(file.fileno())
    beginning = os.pread(file.fileno(), min(offset, BEGINNING_BYTES), 0)
    return Position(state.st_dev, state.st_ino, offset, line, beginning.hex())


def _begins_as(file: io.FileIO, position: Position) -> bool:
    """Return True when the file begins like the position's file.

    The inode alone may be another file's by now.
    """
    return _position(file, position.offset, position.line).beginning == position.beginning
