"""The page `docs/benchmarks.md`: generated parts in one file, each between marks of its own.

A benchmark writes its part and leaves everything else as it is, byte for byte. What a half says is its
benchmark's business.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "benchmarks.md"


def write_half(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks of that half; a page without them gets them at its end."""
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
    half = f"{begin}{text.rstrip()}\n{end}"
    old = page.read_text() if page.exists() else ""
    before, found, rest = old.partition(begin)
    if found:
        _, closed, after = rest.partition(end)
        if not closed:
            raise ValueError(f"{page}: {begin.strip()} has no {end.strip()}")
        page.write_text(f"{before}{half}{after}")
    else:
        page.write_text(f"{old}{half}")
