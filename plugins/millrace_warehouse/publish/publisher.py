"""Publish: the rows that loads have written become rows of an Iceberg table, by reference, in one commit.

Owns the order of a publication and what happens when two run, when an answer is lost and when somebody else
has changed the table. Copies nothing and starts no Spark; does not know what an auditor is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from millrace_warehouse.history.manifest import HourChange, LoadRows, Publication, Verdict
from millrace_warehouse.storage.verbs import Storage

VerdictOf = Callable[[str, str], Verdict]
"""Topic and hour (`2015-05-17T10`) -> what the auditor says of it; UNASKED when nobody is asked."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRun:
    """What a command wants published, and how; the same for each of its topics."""

    storage: Storage
    catalog: Catalog
    """As `publish.catalog.connect` opens it."""
    run_id: str
    verdict_of: VerdictOf
    hours: Sequence[str] = ()
    """Hours to publish whatever their verdict, `2015-05-17T10` or UNFILED; those without rows as empty."""
    proven: bool = False
    """Publish every hour that waits and is complete."""
    unproven_after_s: float | None = None
    """Publish also hours of unknown verdict that ended so long ago; never those that are incomplete."""
    dry_run: bool = False
    """Say what would be published; nothing is written."""
    rebuild: bool = False
    """Make the table again from history and what is left of it; see `rebuild`."""
    progress: Progress = lambda step: None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingHour:
    """An hour that has rows and is not published."""

    hour: str
    rows: int
    verdict: Verdict | None
    """None when nobody was asked because nothing named the hour."""
    loads: Sequence[LoadRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """What a run has published, or would publish."""

    topic: str
    table: str
    """`millrace.PageView`, the name in the catalog."""
    published: bool
    """True when this run made a publication; False when there was nothing to change, or for a dry run."""
    publication: Publication | None
    """The newest publication; for a dry run the one that would be made; None before the first."""
    path: str = ""
    """Of the publication's record, from the warehouse's root."""
    snapshot_id: int | None = None
    """The head of the table's main branch."""
    metadata_location: str = ""
    """Of the table, for readers that want no catalog."""
    changes: Sequence[HourChange] = ()
    """What the publication of this run did; empty when it made none."""
    waiting: Sequence[WaitingHour] = ()
    """Hours with rows that stay unpublished, ascending, UNFILED last."""


def publish_topic(run: PublishRun, topic: str) -> PublishResult:
    """Bring the table to the newest load: late rows, editions, and the hours that are due, in one commit.

    Nothing to change is no commit. MillraceError, in a sentence that says what to do, when the table is not
    what the newest publication left, and when the catalog does not answer.
    """
    raise NotImplementedError
