"""Report of the warehouse's reader on branch `live`: the time through which the branch shows the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_audit.reports.messages import FOR_EVER
from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.audit.tables import LIVE_STEP_MS, PublishedTable
from millrace_warehouse.context import Context
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import switch_off
from tests.published import Warehouse, warehouse
from tests.unit.warehouse.publish.live_scenes import live, tail
from tests.unit.warehouse.publish.publishing import H9, H10


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def reported(w: Warehouse) -> int | None:
    table = PublishedTable(w.stored)
    list(table.to_report(w.catalog, Loads(w.stored)))
    return table.live_through()


def minute_of_head(w: Warehouse) -> int:
    head = w.table.metadata.snapshot_by_name(LIVE)
    assert head is not None
    return head.timestamp_ms - head.timestamp_ms % LIVE_STEP_MS


def test_no_time_is_reported_of_a_table_without_the_branch(w: Warehouse) -> None:
    w.load({H9: 1})
    assert reported(w) is None, "there is no table"
    w.publish(H9)
    assert reported(w) is None
    live(w).follow(on=True)
    assert reported(w) is not None
    switch_off(Context(storage=w.storage, catalog=w.catalog), w.stored)
    assert reported(w) is None


def test_a_branch_that_lacks_no_row_is_reported_before_and_after_a_publication(w: Warehouse) -> None:
    w.load({H9: 1, H10: 1})
    live(w).follow(on=True)
    assert reported(w) == FOR_EVER
    w.publish(H9)
    live(w).follow()
    assert reported(w) == FOR_EVER


def test_a_branch_that_lacks_a_load_is_reported_up_to_its_commit(w: Warehouse) -> None:
    w.load({H9: 1})
    live(w).follow(on=True)
    w.load({H9: 1})
    assert reported(w) == minute_of_head(w)


def test_a_tail_is_reported_up_to_its_commit_because_its_loader_may_have_read_on(w: Warehouse) -> None:
    w.load({H9: 1})
    live(w).follow(tail(w), on=True)
    assert reported(w) == minute_of_head(w)


def test_no_time_is_reported_of_a_branch_that_another_program_has_made(w: Warehouse) -> None:
    w.load({H9: 1})
    w.publish(H9)
    live(w).follow(on=True)
    main = w.table.current_snapshot()
    assert main is not None
    w.table.manage_snapshots().remove_branch(LIVE).commit()
    assert reported(w) is None, "the branch is gone"
    w.table.manage_snapshots().create_branch(main.snapshot_id, LIVE).commit()
    assert reported(w) is None
