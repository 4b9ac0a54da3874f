"""The faults, as data: where each is planted and how, and what the auditor must say of it.

A row is planted on a stage of its own (`stage`). Those that no audit of this kind can find are rows as well,
with the reason: docs/audit.md lists them. Each row of audited
events is planted twice: once with the audit header in the value, and once with a record header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.trials.faultaudit import (
    aggregate,
    carriers,
    disks,
    outages,
    people,
    published,
    rejected,
    restored,
    tables,
    uncounted,
)
from tests.trials.faultaudit.place import PAGE_VIEW, WITHOUT_HEADER
from tests.trials.faultaudit.row import Row


def rows() -> list[Row]:
    """Every row; what disturbs all topics comes last.

    Audit records that are lost stay lost for an auditor that begins anew, so its row stands before those.
    """
    parts = (carriers, people, rejected, uncounted, published, tables, restored, outages, disks, aggregate)
    return [each for part in parts for row in part.rows() for each in (row, *_with_record_headers(row))]


def _with_record_headers(row: Row) -> Iterator[Row]:
    """The same fault in a topic whose messages have their audit header among the record's headers."""
    if row.schema is PAGE_VIEW:
        name, what = f"{row.name}-record-header", f"{row.what}; record headers"
        yield replace(row, name=name, what=what, schema=WITHOUT_HEADER)
