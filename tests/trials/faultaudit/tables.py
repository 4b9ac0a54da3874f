"""Faults of the published table: another program writes its hour anew, and makes a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import TABLE
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.loaded import compact_as_others_do
from tests.trials.faultaudit.row import Plant, Row
from tests.trials.faultaudit.stage import Says, Stage

_HOUR = "2015-05-17T10"
"""Hour of both windows of a stage."""
Mistake = Callable[[pa.Table], pa.Table]


def rows() -> Iterator[Row]:
    missing, twice = ("missing", TABLE, "10-19"), ("duplicate", TABLE, "20-29")
    for name, what, mistake, findings in (
        ("drop", "without rows 10 to 19", _drop, [missing]),
        ("repeat", "with rows 20 to 29 twice", _repeat, [twice]),
        ("drop-and-repeat", "with rows 20 to 29 for 10 to 19", _drop_and_repeat, [missing, twice]),
        ("swap", "with each row's content in another row", _swap, []),
    ):
        yield Row(
            name=f"table-{name}",
            what=f"table: the hour is written anew {what}",
            plant=_written_anew(mistake),
            says=Says(findings=findings) if findings else Says(verdict=Verdict.COMPLETE),
            unseen="" if findings else "Columns other than the audit header",
        )


def _written_anew(mistake: Mistake) -> Plant:
    def plant(stage: Stage) -> None:
        stage.traffic()
        stage.load()
        warehouse = str(stage.place.warehouse)
        stage.place.millrace("publish", stage.topic, "--warehouse", warehouse, "--hour", _HOUR, "--unasked")
        stage.await_tier(TABLE, 60)
        storage = open_storage(warehouse)
        with connect(storage) as catalog:
            table = catalog.load_table(table_identifier(stage.topic))
            compact_as_others_do(storage, table, stage.topic, _HOUR, mistake)

    return plant


def _between(rows: pa.Table, first: int, last: int) -> pa.Array:
    """Return a mask of the rows of dc1 with these numbers."""
    sequence = pc.struct_field(rows["header"], "sequence")
    mine = pc.equal(pc.struct_field(rows["header"], "server"), "dc1-web")
    return pc.and_(mine, pc.and_(pc.greater_equal(sequence, first), pc.less_equal(sequence, last)))


def _drop(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(_between(rows, 10, 19)))


def _repeat(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.filter(_between(rows, 20, 29))])


def _drop_and_repeat(rows: pa.Table) -> pa.Table:
    return _repeat(_drop(rows))


def _swap(rows: pa.Table) -> pa.Table:
    index = rows.schema.get_field_index("url")
    urls = rows["url"].combine_chunks()
    return rows.set_column(index, rows.schema.field(index), urls[::-1])
