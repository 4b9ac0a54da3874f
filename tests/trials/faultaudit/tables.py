"""Faults of the published table: another program writes its hour anew, and makes a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import TABLE
from millrace_warehouse.publish.catalog import connect, drop_table, table_identifier
from millrace_warehouse.storage import open_storage
from tests.loaded import compact_as_others_do
from tests.trials.faultaudit.published import HOUR, PROVEN, publish, published_complete
from tests.trials.faultaudit.row import Plant, Row
from tests.trials.faultaudit.stage import Says, Stage

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

    yield Row(
        name="table-foreign-rows",
        what="table: another program adds rows 70 to 79 to the hour that was published as complete",
        plant=_foreign_rows,
        says=Says(
            findings=[("unexpected", TABLE, "70-79")],
            sentence=f"^{PROVEN}; .* has 70 rows, publication 1 left 60: another program",
        ),
    )
    yield Row(
        name="table-dropped",
        what="table: another program drops it after its hour was published as complete",
        plant=_dropped,
        says=Says(
            verdict=Verdict.UNKNOWN,
            beside=Verdict.UNKNOWN,
            reason="the published table cannot be counted since .*it is not in the catalog",
            sentence=f"^{PROVEN}; .* does not exist, and publication 1 was made: it was dropped",
        ),
    )


def _written_anew(mistake: Mistake) -> Plant:
    def plant(stage: Stage) -> None:
        stage.traffic()
        stage.load()
        warehouse = str(stage.place.warehouse)
        stage.place.millrace("publish", stage.topic, "--warehouse", warehouse, "--hour", HOUR, "--unasked")
        stage.await_tier(TABLE, 60)
        storage = open_storage(warehouse)
        with connect(storage) as catalog:
            table = catalog.load_table(table_identifier(stage.topic))
            compact_as_others_do(storage, table, stage.topic, HOUR, mistake)

    return plant


def _foreign_rows(stage: Stage) -> None:
    published_complete(stage)
    stage.await_tier(TABLE, 60)
    storage = open_storage(str(stage.place.warehouse))
    with connect(storage) as catalog:
        table = catalog.load_table(table_identifier(stage.topic))
        compact_as_others_do(storage, table, stage.topic, HOUR, _invent)
    stage.sentence += f"; {publish(stage, '--proven')}"


def _dropped(stage: Stage) -> None:
    published_complete(stage)
    stage.await_tier(TABLE, 60)
    with connect(open_storage(str(stage.place.warehouse))) as catalog:
        drop_table(catalog, table_identifier(stage.topic))
    stage.sentence += f"; {publish(stage, '--proven')}"


def _between(rows: pa.Table, first: int, last: int) -> pa.Array:
    """Return a mask of the rows of dc1 with these numbers; most rows are of dc1."""
    if "header" in rows.column_names:
        sequence, instance = (pc.struct_field(rows["header"], name) for name in ("sequence", "instance"))
    else:
        sequence, instance = rows["_sequence"], rows["_instance"]
    mine = pc.equal(instance, pc.mode(instance)[0]["mode"])
    return pc.and_(mine, pc.and_(pc.greater_equal(sequence, first), pc.less_equal(sequence, last)))


def _drop(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(_between(rows, 10, 19)))


def _repeat(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.filter(_between(rows, 20, 29))])


def _drop_and_repeat(rows: pa.Table) -> pa.Table:
    return _repeat(_drop(rows))


def _invent(rows: pa.Table) -> pa.Table:
    added = rows.filter(_between(rows, 20, 29))
    if "header" not in rows.column_names:
        return pa.concat_tables([rows, _with(added, "_sequence", pc.add(added["_sequence"], 50))])
    header = added["header"].combine_chunks()
    names = [field.name for field in header.type]
    columns = [
        pc.add(column, 50) if name == "sequence" else column
        for name, column in zip(names, header.flatten(), strict=True)
    ]
    invented = pa.StructArray.from_arrays(columns, fields=[*header.type])
    return pa.concat_tables([rows, _with(added, "header", invented)])


def _swap(rows: pa.Table) -> pa.Table:
    return _with(rows, "url", rows["url"].combine_chunks()[::-1])


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """Return the rows with other values in a column."""
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), column)
