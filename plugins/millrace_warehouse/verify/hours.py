"""Proof of the table of hours: it has exactly one row for each change that the publications state.

The table is derived, and appended to after each publication. If it lacks the newest changes, that is a note.
Readers join it for verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import UNFILED, hour_of
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.publish.catalog import load_table
from millrace_warehouse.publish.hours_table import LAST, hours_identifier
from millrace_warehouse.publish.table import NUMBER
from millrace_warehouse.verify.check import Check

COLUMNS = ("publication", "kind", "verdict", "added", "removed", "sha256")


def check_hours(check: Check, catalog: Catalog, publications: Iterable[Publication]) -> None:
    """Compare the rows of a topic's table of hours with its publications."""
    stated = list(publications)
    name = ".".join(hours_identifier(check.topic.name))
    try:
        table = load_table(catalog, hours_identifier(check.topic.name))
        found = [] if table is None else _rows(table)
    except MillraceError as error:
        check.problem(f"{name} cannot be read: {error}")
        return
    except Exception as error:  # whatever pyiceberg says of files that are gone or broken
        check.problem(
            f"{name} cannot be read: {type(error).__name__}: {error}; drop the table: the next publication"
            " recreates it"
        )
        return
    through = int(table.properties.get(NUMBER, "0")) if table is not None else 0
    if stated and through < stated[-1].number:
        check.note(f"{name} ends at publication {through}: the next `millrace publish` brings it up to date")
    if table is None:
        return
    # Publications made since the chain was read are left out: the table's property states the last one.
    since = range(stated[-1].number + 1 if stated else 1, through + 1)
    there = Counter(
        (_hour(row["hour"]), *(row[column] for column in COLUMNS), _hour(row.get(LAST)))
        for row in found
        if row["publication"] not in since
    )
    expected = Counter(
        (
            *(
                it.hour,
                publication.number,
                it.kind,
                it.verdict.verdict,
                it.added,
                it.removed,
                publication.sha256,
            ),
            it.last or UNFILED,
        )
        for publication in stated
        if publication.number <= through
        for it in publication.changes
    )
    for difference, what in ((there - expected, "that no publication made"), (expected - there, "missing")):
        if difference:
            hour, number, kind, verdict, *_ = min(difference)
            check.problem(
                f"{name} has {difference.total()} rows {what}, the first: publication {number}, {hour},"
                f" {kind}, {verdict}; drop the table: the next publication recreates it"
            )


def _rows(table: Table) -> list[dict[str, Any]]:
    """Read the table of hours. A table of an older version has no column `last`."""
    columns = tuple(name for name in ("hour", *COLUMNS, LAST) if name in table.schema().column_names)
    rows: list[dict[str, Any]] = table.scan(selected_fields=columns).to_arrow().to_pylist()
    return rows


def _hour(begins: datetime | None) -> str:
    return hour_of(None if begins is None else int(begins.timestamp()) // 3600)
