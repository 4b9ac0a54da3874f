"""Templates and headers of the services' pages. Texts are escaped, for HTML and for control characters."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from millrace.escaping import escaped, escaped_lines

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of a page that runs scripts and shows content only from files of its own site."""


def templates_in(folder: Path) -> Environment:
    """Return the templates of a folder. Texts are shown in one line, except with the filter `lines`."""
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    templates.filters["lines"] = lambda text: escape(escaped_lines(text))
    return templates


def _shown(value: object) -> object:
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value
