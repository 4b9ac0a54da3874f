"""What a verification finds of one topic. A problem is one line that names the file, the load or the hour."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TopicReport:
    """What was found of one topic: its loads, its publications, and the table."""

    topic: str
    loads: int = 0
    """Editions counted."""
    publications: int = 0
    files: int = 0
    """Data files of loads."""
    expired: int = 0
    """Data files of loads that are gone because the table, or a newer edition, has their rows."""
    rows: int = 0
    """Of the newest edition of each load."""
    published: int | None = None
    """Rows of the table, counted in its own files; None without a catalog or before the first publication."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the next run puts right by itself, or what nobody has published yet."""
