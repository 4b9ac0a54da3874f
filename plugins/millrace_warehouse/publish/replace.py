"""Takes the rows of earlier editions out of the table: whole files if possible, else by copying the other
rows.

A file with rows of one load has the same smallest and largest `_load`. A file that `compact` wrote may hold
rows of many loads. The removed rows are counted by hour: unless their number is the edition's, nothing is
published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Progress
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.publish.contents import stated_loads
from millrace_warehouse.publish.rewriting import Rewriting


def take_out(
    topic: Topic, table: Table, loads: Collection[int], expected: Mapping[str, int], progress: Progress
) -> tuple[list[DataFile], list[DataFile]]:
    """Return the files that leave the table, and new files with their rows of other loads.

    `expected` states the number of rows that leave each hour. Raise MillraceError when the table has more or
    fewer.
    """
    removed: list[DataFile] = []
    added: list[DataFile] = []
    rewriting = Rewriting(topic, table)
    files = head_files(table, expected)
    count = Count(progress, "hours rewritten", len(expected), "rows")
    for hour, rows in sorted(expected.items()):
        gone = 0
        for file in files.get(hour, ()):
            bounds = stated_loads(table, file)
            if bounds is not None and not any(bounds[0] <= load <= bounds[1] for load in loads):
                continue
            whole = bounds is not None and bounds[0] == bounds[1]
            kept = None if whole else rewriting.write(hour, [file], without=loads)
            if kept is not None and kept.record_count == file.record_count:
                continue
            removed.append(file)
            added += [kept] if kept is not None else []
            gone += file.record_count - (kept.record_count if kept is not None else 0)
        if gone != rows:
            raise MillraceError(
                f"the table of {topic} has {gone:,} rows in hour {hour} of re-loaded loads, and"
                f" should have {rows:,}: run `millrace verify`, then `millrace publish {topic} --rebuild`"
            )
        count.add(records=gone)
    rewriting.finish()
    return removed, added
