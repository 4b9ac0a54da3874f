"""Reading a web server's access log as PageView events, and keeping the lines that are no events in a file.

The event time is the time in the log, in UTC. A line's number decides to which of several parts it belongs.
Nothing is published here.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace_audit.reports.counts import FIRST_EVENT_MS, MOST_AHEAD_MS
from millrace_audit.reports.messages import now_ms
from millrace_demo.log_format import BadLine, LogFormat
from millrace_demo.log_lines import RawLine, read_lines

logger = logging.getLogger("millrace.access-log")

REFUSED_BYTES = 64 << 20
"""Largest size of the file of refused lines; further lines are counted only."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line as an event: its number in the file from 1, its time in ms, a PageView's fields."""

    line: int
    time_ms: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Every `of`-th line of a file, beginning with line `number` (from 1)."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that a text such as `1/2` names. Raise MillraceError for any other text."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise MillraceError(f"--part {text!r} is no part: write 1/2 and 2/2 for the two halves")
        return cls(int(match[1]), int(match[2]))

    def takes(self, line: int) -> bool:
        return (line - self.number) % self.of == 0


class RefusedLines:
    """A file of the lines that are no events: an object in JSON for each, with the reason.

    The file is created with the first line. Lines that cannot be written are counted, with one warning.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self._file: int | None = None
        self._left = 0
        self._has_warned = False

    def add(self, line: RawLine, reason: str) -> None:
        self.count += 1
        text = line.text.decode("utf-8", "backslashreplace")
        entry = json.dumps({"line": line.number, "reason": reason, "bytes": line.size, "text": text}) + "\n"
        data = entry.encode()
        try:
            if self._file is None and not self._has_warned:
                # Append each entry with one call: the two parts of a log may share the file.
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
                self._left = REFUSED_BYTES - os.fstat(self._file).st_size
            if self._file is not None and len(data) <= self._left:
                self._left -= os.write(self._file, data)
            elif not self._has_warned:
                self._warn(f"it has {REFUSED_BYTES >> 20} MiB")
        except OSError as error:
            if not self._has_warned:
                self._warn(error.strerror or str(error))
            self.close()

    def _warn(self, why: str) -> None:
        self._has_warned = True
        logger.warning("refused lines are no longer written to %s: %s; they are counted only", self.path, why)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def parse_event(line: RawLine, log_format: LogFormat) -> LogEvent:
    """Return the event of one line. Raise BadLine when the line is no event that can be published."""
    if not line.whole:
        raise BadLine(f"it has {line.size:,} bytes, more than {len(line.text):,}")
    # Bytes that are no UTF-8 stay readable as \xNN, like Apache's own.
    time_ms, fields = log_format.parse(line.text.decode("utf-8", "backslashreplace"))
    if not FIRST_EVENT_MS <= time_ms <= now_ms() + MOST_AHEAD_MS:
        raise BadLine("its time is before the year 2000 or more than a day ahead of this machine's clock")
    return LogEvent(line.number, time_ms, fields)


def events_of(
    lines: Iterable[RawLine], part: Part, log_format: LogFormat, refused: RefusedLines | None = None
) -> Iterator[LogEvent]:
    """Yield the events of a part of the lines, in their order; empty lines are skipped.

    A line that is no event goes to `refused`. Raise MillraceError for it if `refused` is None.
    """
    for line in lines:
        if not part.takes(line.number) or not line.text.strip():
            continue
        try:
            yield parse_event(line, log_format)
        except BadLine as error:
            if refused is None:
                raise MillraceError(f"line {line.number}: {error}") from None
            refused.add(line, str(error))


def read_log(path: Path) -> Iterator[LogEvent]:
    """Yield every event of a log in one of the usual formats.

    Raise MillraceError for a line that is no event.
    """
    log_format = LogFormat()
    for chunk in read_lines(path):
        try:
            yield from events_of(chunk.lines, Part(), log_format)
        except MillraceError as error:
            raise MillraceError(f"{path}, {error}") from None
