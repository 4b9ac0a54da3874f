"""Look of the services' pages: their frame, style, scripts, icons, headers and forms of numbers and times.

Texts are escaped, for HTML and for control characters. A page needs no script to be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from millrace.escaping import escaped, escaped_lines

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of a page that runs scripts and shows content only from files of its own site."""
FILES: Mapping[str, str] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon-good.svg": "image/svg+xml",
    "icon-unknown.svg": "image/svg+xml",
    "icon-bad.svg": "image/svg+xml",
}
"""Files of every page -> media type."""
FAVICON = "icon-good.svg"
"""File at /favicon.ico, which browsers request for answers that are no pages."""
_SITE = Path(__file__).with_name("site")
_WORDS = re.compile(r'"[^"]*"|\'[^\']*\'|\S+')


def file_of_pages(name: str) -> Response:
    """Return one of FILES."""
    return Response((_SITE / name).read_bytes(), media_type=FILES[name], headers=HEADERS)


def templates_in(folder: Path) -> Environment:
    """Return the templates of a folder and their frame, `base.html`.

    Texts are shown in one line, except with the filter `lines`.
    """
    templates = Environment(
        loader=FileSystemLoader([folder, _SITE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.filters["lines"] = lambda text: escape(escaped_lines(text))
    templates.filters.update(words=_words, count=count, when=when, clock=clock, iso=iso, duration=duration)
    return templates


def count(number: int) -> str:
    """Return a number with separators, such as 1,234,567."""
    return f"{number:,}"


def short(number: float) -> str:
    """Return a rounded number for an axis or a narrow column, such as 1.2 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{number:.0f}"


def when(time: datetime) -> str:
    """Return a time to the minute, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def clock(time: datetime, now: datetime) -> str:
    """Return a time of today as hours and minutes, and any other as `when` does."""
    return f"{time:%H:%M}" if time.date() == now.date() else when(time)


def iso(time: datetime) -> str:
    """Return a time to the minute in ISO 8601, as scripts and links read it."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def duration(seconds: float) -> str:
    """Return a duration with at most two units, such as 9 h 14 min."""
    whole = max(int(seconds), 0)
    for unit, size, part, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size:,} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"


def _words(command: str) -> Markup:
    """Return a command whose words do not break at their hyphens."""
    words = _WORDS.findall(escaped(command))
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in words)


def _shown(value: object) -> object:
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value
