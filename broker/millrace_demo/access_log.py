"""A web server's access log in Apache's combined format, read as PageView events; publishes nothing.

The event time is the time in the log, in UTC. A line's number decides to which of several parts it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError

SHOWN_BAD_LINES = 5

# host identity user [time] "request" status bytes "referrer" "user agent"; quotes inside are escaped by \.
# Real logs hold lines that were cut in their last field: what is left of it is kept.
_LINE = re.compile(
    r"(?P<client>\S+) (?P<identity>\S+) (?P<user>\S+)"
    r" \[(?P<time>\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]"
    r' "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    r'(?: "(?P<referrer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)"?)?\s*'
)
_ESCAPED = re.compile(r'\\(["\\])')


class BadLine(ValueError):
    """A line that is not in combined format; the text says what is wrong with it."""


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
        """`1/2` and the like; MillraceError when it is not."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise MillraceError(f"--part {text!r} is no part: write 1/2 and 2/2 for the two halves")
        return cls(int(match[1]), int(match[2]))

    def takes(self, line: int) -> bool:
        return (line - self.number) % self.of == 0


def parse_line(line: str) -> tuple[int, dict[str, Any]]:
    """(time in ms, a PageView's fields without the header) of one line; BadLine when it is not one."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadLine("it is not in combined format")
    method, url, protocol = _request(_unescaped(match["request"]))
    return _time_ms(match["time"]), {
        "memberId": None,  # the log's user is a name, not a member's number
        "clientAddress": match["client"],
        "method": method,
        "url": url,
        "protocol": protocol,
        "referrer": _absent(match["referrer"]),
        "userAgent": _absent(match["agent"]),
        "status": int(match["status"]),
        "bytes": None if match["bytes"] == "-" else int(match["bytes"]),
    }


def _request(text: str) -> tuple[str, str, str]:
    """Method, URL and protocol; what is no HTTP request (a scan's garbage) is all URL."""
    parts = text.split(" ")
    if len(parts) < 2:
        return "", text, ""
    if len(parts) > 2 and parts[-1].startswith("HTTP/"):
        return parts[0], " ".join(parts[1:-1]), parts[-1]
    return parts[0], " ".join(parts[1:]), ""  # HTTP/0.9 names no protocol


def _absent(text: str | None) -> str | None:
    return None if text is None or text in ("", "-") else _unescaped(text)


def _unescaped(text: str) -> str:
    r"""The text with `\"` and `\\` as they were; `\xNN`, a byte that cannot be printed, stays as it is."""
    return _ESCAPED.sub(r"\1", text)


def _time_ms(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp()) * 1000
    except ValueError as error:
        raise BadLine(f"{text} is no time") from error


def read_log(path: Path, part: Part = Part(), bad: list[str] | None = None) -> Iterator[LogEvent]:
    """Every event of a part of the file, in its order; empty lines are none.

    A line that cannot be read is named in `bad`; without that list it is a MillraceError.
    """
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if not part.takes(number) or not line.strip():
                    continue
                try:
                    # Bytes that are no UTF-8 stay readable, as Apache's own \xNN.
                    text = line.rstrip("\r\n").encode("utf-8", "surrogateescape")
                    yield LogEvent(number, *parse_line(text.decode("utf-8", "backslashreplace")))
                except BadLine as error:
                    if bad is None:
                        raise MillraceError(f"{path}, line {number}: {error}") from None
                    bad.append(f"line {number}: {error}")
    except OSError as error:
        raise MillraceError(f"cannot read {path}: {error.strerror or error}") from error


def check_log(path: Path, part: Part = Part(), *, skip_bad_lines: bool = False) -> tuple[int, int]:
    """How many events the part has, and how many lines that cannot be read.

    MillraceError naming these lines, if there are any and `skip_bad_lines` is not set: nothing is to be
    published then.
    """
    bad: list[str] = []
    events = sum(1 for _ in read_log(path, part, bad))
    if bad and not skip_bad_lines:
        more = f"; and {len(bad) - SHOWN_BAD_LINES} more" if len(bad) > SHOWN_BAD_LINES else ""
        raise MillraceError(
            f"{path}: {len(bad)} lines cannot be read, nothing was published"
            f" ({'; '.join(bad[:SHOWN_BAD_LINES])}{more}): mend them or use --skip-bad-lines"
        )
    return events, len(bad)
