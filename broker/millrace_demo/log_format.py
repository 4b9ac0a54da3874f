"""Formats of web servers' access logs, which turn a line into a PageView's time and fields. No files are read
here.

By default a line is in the combined or common format, perhaps with a virtual host before it (Apache's
vhost_combined) or more values after it (nginx's "main" and additions to it). Any other format is given as in
LogFormat or log_format. No pattern here can match a character in two ways, so any line costs time in
proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

from millrace.errors import MillraceError

_QUOTED = r'(?:[^"\\]|\\.)*'
_REST = rf'(?: (?:"{_QUOTED}"|[^\s"]\S*))*(?: "{_QUOTED})?'
_LOCAL_TIME = r"\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}"
# host identity user [time] "request" status bytes "referrer" "user agent", then words and quoted values.
# The identity, which is `-` after a virtual host, distinguishes a virtual host from a user of several words.
# Real logs hold lines that were cut in their last field: the rest of that field is kept.
_USUAL = re.compile(
    r"(?:\S+ (?=[^\s-]\S* - )|)(?P<client>\S+) \S+ \S+"
    rf' \[(?P<time>{_LOCAL_TIME})\] "(?P<request>{_QUOTED})" (?P<status>\d{{3}}) (?P<bytes>\d{{1,18}}|-)'
    rf'(?: "(?P<referrer>{_QUOTED})" "(?P<agent>{_QUOTED})(?:"{_REST})?)?\s*',
    re.ASCII,
)
_ESCAPED = re.compile(r'\\(["\\])')

# Patterns by field. A quoted value, or one that is no field of a PageView, is read up to the next literal.
_VALUES = {
    "time_local": _LOCAL_TIME,
    "time_bracketed": rf"\[{_LOCAL_TIME}\]",
    "time_iso": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:Z|[+-]\d{2}:\d{2})",
    "time_s": r"\d{1,11}(?:\.\d{1,9})?",
    "time_ms": r"\d{1,14}",
    "status": r"\d{3}",
    "bytes": r"\d{1,18}|-",
    "upstream": r"[^\s,]+(?:(?:, | : )[^\s,]+)*",
}
_TIMES = tuple(name for name in _VALUES if name.startswith("time"))
_APACHE = {
    **{"h": "client", "a": "client", "t": "time_bracketed", "r": "request", "m": "method", "U": "url"},
    **{"H": "protocol", "s": "status", "b": "bytes", "B": "bytes", "O": "bytes"},
    **{"{referer}i": "referrer", "{user-agent}i": "agent", "{sec}t": "time_s", "{msec}t": "time_ms"},
}
_NGINX = {
    **{"remote_addr": "client", "time_local": "time_local", "time_iso8601": "time_iso", "msec": "time_s"},
    **{"request": "request", "request_method": "method", "request_uri": "url", "uri": "url"},
    **{"server_protocol": "protocol", "status": "status", "body_bytes_sent": "bytes", "bytes_sent": "bytes"},
    **{"http_referer": "referrer", "http_user_agent": "agent"},
}
_APACHE_VALUE = re.compile(r"%[!\d,<>]*(?P<of>\{[^}]*\})?(?P<name>\^[A-Za-z]{2}|[A-Za-z])")
_NGINX_VALUE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<name>\w+))")
MOST_VALUES = 64
"""Most values in one format."""


class BadLine(ValueError):
    """A line is not in the format; the text has the reason."""


class LogFormat:
    """One server's format; without a text, the usual formats.

    Raise MillraceError for a text that is no format.
    """

    def __init__(self, text: str | None = None) -> None:
        self._pattern = _USUAL if text is None else _pattern_of(text)
        self._problem = (
            "it is in no usual format: name its own with --format"
            if text is None
            else "it is not in --format"
        )

    def parse(self, line: str) -> tuple[int, dict[str, Any]]:
        """Return (time in ms, a PageView's fields without the header) of a line.

        Raise BadLine when the line cannot be read.
        """
        match = self._pattern.fullmatch(line)
        if match is None:
            raise BadLine(self._problem)
        values: Mapping[str, str | None] = match.groupdict()
        request = values.get("request")
        if request is not None:
            method, url, protocol = _request(_unescaped(request))
        else:
            method, url, protocol = (
                _absent(values.get(name)) or "" for name in ("method", "url", "protocol")
            )
        size = values.get("bytes")
        return _time_of(values), {
            "memberId": None,  # the log's user is a name, not a member's number
            "clientAddress": match["client"],
            "method": method,
            "url": url,
            "protocol": protocol,
            "referrer": _absent(values.get("referrer")),
            "userAgent": _absent(values.get("agent")),
            "status": int(match["status"]),
            "bytes": None if size is None or size == "-" else int(size),
        }


def _pattern_of(text: str) -> re.Pattern[str]:
    """Return the pattern of a LogFormat or a log_format.

    Raise MillraceError when no PageView can be read with it.
    """
    parts = list(_parts(text.replace(r"\"", '"').replace("%U%q", "%U")))
    fields = [part for part, is_value in parts if is_value]
    for (left, left_is_value), (right, right_is_value) in pairwise(parts):
        if left_is_value and right_is_value:
            raise MillraceError(
                f"--format has {left or '?'} and {right or '?'} side by side: put a blank between them"
            )
    missing = [
        words
        for words, names in (
            ("the client (%h or $remote_addr)", ("client",)),
            ("the time (%t or $time_local)", _TIMES),
            ('the request ("%r" or "$request")', ("request", "url")),
            ("the status (%>s or $status)", ("status",)),
        )
        if not set(names) & set(fields)
    ]
    if missing or len(fields) > MOST_VALUES:
        wrong = f"lacks {' and '.join(missing)}" if missing else f"has more than {MOST_VALUES} values"
        raise MillraceError(
            f"--format {wrong}: copy it from LogFormat or log_format of the server's configuration"
        )
    pattern, seen = "", set()
    for index, (part, is_value) in enumerate(parts):
        if not is_value:
            pattern += re.escape(part)
            continue
        before = parts[index - 1][0] if index else ""
        after = parts[index + 1][0] if index + 1 < len(parts) else ""
        value = _QUOTED if before[-1:] == '"' == after[:1] else _VALUES.get(part)
        if value is None:
            value = f"[^{re.escape(after[0])}]*" if after else ".*"
        name = f"?P<{part}>" if part not in ("", "upstream") and part not in seen else "?:"
        seen.add(part)
        pattern += f"({name}{value})"
    return re.compile(rf"{pattern}\s*", re.ASCII)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield literals and values in order: (text, False) or (field, True).

    The field "" is a value that PageView lacks.
    """
    nginx = _NGINX_VALUE.search(text) is not None
    end = 0
    for match in (_NGINX_VALUE if nginx else _APACHE_VALUE).finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        end = match.end()
        if nginx:
            name = match["braced"] or match["name"]
            yield _NGINX.get(name, "upstream" if name.startswith("upstream_") else ""), True
        else:
            yield _APACHE.get(f"{(match['of'] or '').lower()}{match['name']}", ""), True
    if end < len(text):
        yield text[end:], False


def _request(text: str) -> tuple[str, str, str]:
    """Return method, URL and protocol.

    A text that is no HTTP request (a scan's garbage) counts as the URL.
    """
    parts = text.split(" ")
    if len(parts) < 2:
        return "", text, ""
    if len(parts) > 2 and parts[-1].startswith("HTTP/"):
        return parts[0], " ".join(parts[1:-1]), parts[-1]
    return parts[0], " ".join(parts[1:]), ""  # HTTP/0.9 names no protocol


def _absent(text: str | None) -> str | None:
    return None if text is None or text in ("", "-") else _unescaped(text)


def _unescaped(text: str) -> str:
    r"""Return the text with `\"` and `\\` unescaped; `\xNN`, a byte that is not printable, stays as it is."""
    return _ESCAPED.sub(r"\1", text)


def _time_of(values: Mapping[str, str | None]) -> int:
    if (usual := values.get("time")) is not None:
        return _time_ms("time_local", usual)
    return next(_time_ms(kind, value) for kind in _TIMES if (value := values.get(kind)) is not None)


@lru_cache(maxsize=4096)  # a busy server writes many lines of one second
def _time_ms(kind: str, text: str) -> int:
    try:
        match kind:
            case "time_s":
                return int(float(text) * 1000)
            case "time_ms":
                return int(text)
            case "time_iso":
                return int(datetime.fromisoformat(text).timestamp()) * 1000
            case _:
                return int(datetime.strptime(text.strip("[]"), "%d/%b/%Y:%H:%M:%S %z").timestamp()) * 1000
    except (ValueError, OverflowError) as error:
        raise BadLine(f"{text} is no time") from error
