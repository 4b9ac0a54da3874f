"""The faults, as data: where each is planted and how, and what the auditor must say of it.

A row is planted on a stage of its own (`stage`). Those that no audit of this kind can find are rows as well,
with the reason: docs/audit.md lists them.
"""

from __future__ import annotations

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
from tests.trials.faultaudit.row import Row


def rows() -> list[Row]:
    """Every row; what disturbs all topics comes last.

    Audit records that are lost stay lost for an auditor that begins anew, so its row stands before those.
    """
    parts = (carriers, people, rejected, uncounted, published, tables, restored, outages, disks, aggregate)
    return [row for part in parts for row in part.rows()]
