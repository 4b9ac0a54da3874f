"""A fault as a row of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.trials.faultaudit.place import PAGE_VIEW
from tests.trials.faultaudit.stage import Says, Stage

Plant = Callable[[Stage], None]
HOME = "dc1"
"""Datacenter in which faults of one datacenter are planted; dc2 goes on undisturbed."""
SMALL = {"segment.bytes": "1024"}
"""Settings of a topic each of whose batches has a segment of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault."""

    name: str
    """Name of the row and of its topic."""
    what: str
    plant: Plant
    """Does it all: traffic, the fault, and whatever makes the auditor's verdict final."""
    says: Says
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the topic in the datacenters."""
    schema: Mapping[str, Any] = field(default_factory=lambda: PAGE_VIEW)
    """Schema of the topic's events."""
    is_strong: bool = False
    """True if the topic's fingerprints are strong."""
    mirror: str = ""
    """The edit of `batches` that the mirror makes with the topic."""
    is_counted: bool = True
    """False if no reader counts the topic until the row allows it."""
    unseen: str = ""
    """Name of the fault in docs/audit.md, "What the audit cannot see": nothing finds it, and `says` is the
    report on a topic where nothing is wrong."""
