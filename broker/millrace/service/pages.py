"""The templates of the services' pages. Their texts are escaped, for HTML and for control characters."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from millrace.escaping import escaped, escaped_lines


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
