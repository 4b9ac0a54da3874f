"""Branch `live`: what waits and what is proven, under one name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import Table

from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import CatalogError
from millrace_warehouse.publish.live import Live, switch_off
from tests.loaded import AVRO, offsets, pin
from tests.published import TOPIC, Warehouse, warehouse
from tests.unit.warehouse.publish.live_scenes import tail

NINE, TEN, ELEVEN = "2015-05-17T09", "2015-05-17T10", "2015-05-17T11"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def live(w: Warehouse) -> Live:
    return Live(Context(storage=w.storage, catalog=w.catalog), w.stored)


def live_offsets(table: Table) -> list[int]:
    """Every row's offset in the branch, sorted."""
    rows = table.scan(selected_fields=("_offset",)).use_ref(LIVE).to_arrow()
    return sorted(rows["_offset"].to_pylist())


def head(table: Table) -> int:
    return table.metadata.refs[LIVE].snapshot_id


def test_the_branch_shows_rows_of_loads_before_any_publication(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    live(w).follow(on=True)
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    assert offsets(w.table) == []
    w.load({TEN: 1})
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4, 5]
    assert w.problems(rows=True) == []


def test_a_table_whose_branch_is_off_stays_as_it_is(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    before = w.table.metadata_location
    assert live(w).follow() is None
    assert w.table.metadata_location == before


def test_each_row_is_in_the_branch_once_before_and_after_its_publication(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    live(w).follow(on=True)
    w.load({NINE: 1, ELEVEN: 2})
    w.publish(NINE)
    assert offsets(w.table) == [0, 1, 2, 5]
    live(w).follow()
    assert live_offsets(w.table) == list(range(8))
    w.load({NINE: 1})
    live(w).follow()
    assert live_offsets(w.table) == list(range(9)), "late rows of a published hour"
    w.publish()
    live(w).follow()
    assert live_offsets(w.table) == list(range(9))
    assert w.problems(rows=True) == []


def test_nothing_is_committed_when_the_branch_is_up_to_date(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    before = w.table.metadata_location
    live(w).follow()
    live(w).follow(on=True)
    assert w.table.metadata_location == before


def test_the_branch_takes_back_the_right_to_delete_files_from_other_programs(w: Warehouse) -> None:
    w.load({NINE: 3})
    live(w).follow(on=True)
    with w.table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "true"})
    live(w).follow()
    assert w.table.properties["gc.enabled"] == "false"


def test_rows_that_another_program_deletes_from_main_stay_in_the_branch(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.load({NINE: 2, TEN: 1})
    w.publish(NINE)
    live(w).follow(on=True)
    w.table.delete("_load == 2")
    w.load({TEN: 1})
    live(w).follow()
    assert live_offsets(w.table) == list(range(7))
    assert offsets(w.table) == [0, 1, 2]
    w.publish(rebuild=True)
    assert live_offsets(w.table) == list(range(7))
    assert offsets(w.table) == [0, 1, 2, 3, 4]
    assert w.problems(rows=True) == []


def change_partitions(w: Warehouse) -> None:
    with w.table.update_spec() as update:
        update.add_identity("_topic_partition")


def remove_manifests(w: Warehouse) -> None:
    for manifest in (w.topic / "table/metadata").glob("*-m0.avro"):
        manifest.unlink()


@pytest.mark.parametrize("change", [change_partitions, remove_manifests])
@pytest.mark.parametrize("on", [True, False])
def test_a_table_that_a_rebuild_makes_again_has_the_branch_if_it_had_it_before(
    w: Warehouse, change: Callable[[Warehouse], None], on: bool
) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    if on:
        live(w).follow(on=True)
    before = w.table.metadata.table_uuid
    change(w)
    assert w.publish(rebuild=True).notes == []
    assert w.table.metadata.table_uuid != before
    assert offsets(w.table) == [0, 1, 2]
    assert (LIVE in w.table.metadata.refs) == on
    assert not on or live_offsets(w.table) == [0, 1, 2, 3, 4]
    assert w.problems(rows=True) == []


def test_rows_that_a_reload_moved_are_shown_in_the_edition_that_the_publication_names(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    w.read_again(1, {NINE: 2, TEN: 3})
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    w.publish()
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    assert len(offsets(w.table)) == 2


def test_a_publication_is_made_for_an_edition_whose_rows_all_wait(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.load({TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    w.read_again(2, {TEN: 1})
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    result = w.publish()
    assert (result.published, result.changes) == (True, [])
    assert len(live_offsets(w.table)) == 4
    assert not w.publish().published
    w.read_again(2, {})
    assert w.publish().published
    assert live_offsets(w.table) == offsets(w.table) == [0, 1, 2]
    assert w.problems(rows=True) == []


def test_a_load_that_is_made_while_the_branch_follows_is_shown_once(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.load({NINE: 3})
    live(w).follow(on=True)
    w.load({TEN: 2})
    listed = layout.loads_after

    def after_another_load(topic: layout.Topic, after: int) -> Iterator[LoadManifest]:
        monkeypatch.undo()
        w.load({TEN: 1})
        return listed(topic, after)

    monkeypatch.setattr(layout, "loads_after", after_another_load)
    live(w).follow()
    live(w).follow()
    assert live_offsets(w.table) == list(range(6))


def test_a_dropped_branch_and_one_of_another_program_are_made_anew(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    live(w).follow(on=True)
    w.table.manage_snapshots().remove_branch(LIVE).commit()
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    main = w.table.current_snapshot()
    assert main is not None
    w.table.manage_snapshots().remove_branch(LIVE).create_branch(main.snapshot_id, LIVE).commit()
    assert live_offsets(w.table) == []
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]


def test_the_branch_gets_the_columns_of_a_promotion_before_main(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    live(w).follow(on=True)
    x = {"name": "x", "type": ["null", "long"], "default": None}
    pin(w.storage, TOPIC, {**AVRO, "fields": [*AVRO["fields"], x]})
    w.load({TEN: 2})
    live(w).follow()
    assert "x" in w.table.schema().column_names
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]
    w.load({TEN: 1})
    w.publish()
    assert w.problems(rows=True) == []
    w.publish(TEN)
    live(w).follow()
    assert offsets(w.table) == live_offsets(w.table) == list(range(6))
    assert w.problems(rows=True) == []


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"load": 2}', '{"load": 2, "attempt": "a", "ends": 1, "until": "x"}']
)
def test_a_property_that_another_program_wrote_is_no_tail(w: Warehouse, text: str) -> None:
    w.load({NINE: 3})
    live(w).follow(on=True)
    w.table.transaction().set_properties({"millrace.tail": text}).commit_transaction()
    w.load({TEN: 2})
    assert w.publish(NINE).notes == []
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]


def test_few_snapshots_and_manifests_are_kept_after_many_loads(w: Warehouse) -> None:
    w.load({NINE: 1})
    w.publish(NINE)
    branch = live(w)
    branch.follow(on=True)
    for _ in range(40):
        w.load({TEN: 1})
        branch.follow()
    table = w.table
    assert live_offsets(table) == list(range(41))
    assert len(table.metadata.snapshots) <= 12 + 2
    newest = table.metadata.snapshot_by_name(LIVE)
    assert newest is not None
    assert len(newest.manifests(table.io)) <= 11
    assert newest.summary is not None
    assert newest.summary["total-records"] == "41"
    branch.sweep(0.0)
    assert len(list((w.topic / "table/metadata").glob("snap-*.avro"))) == len(table.metadata.snapshots)
    assert live_offsets(w.table) == list(range(41))


def test_switched_off_the_branch_and_its_properties_are_gone(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    assert w.table.properties["gc.enabled"] == "false"
    switch_off(Context(storage=w.storage, catalog=w.catalog), w.stored)
    table = w.table
    assert LIVE not in table.metadata.refs
    assert "gc.enabled" not in table.properties
    assert len(table.metadata.snapshots) == 1
    assert live(w).follow() is None
    assert w.problems(rows=True) == []


def test_a_tag_on_a_snapshot_of_the_branch_stays_when_the_branch_is_switched_off(w: Warehouse) -> None:
    w.load({NINE: 3})
    live(w).follow(on=True)
    named = w.table.metadata.refs[LIVE].snapshot_id
    w.table.manage_snapshots().create_tag(named, "query").commit()
    w.load({TEN: 2})
    live(w).follow()
    switch_off(Context(storage=w.storage, catalog=w.catalog), w.stored)
    assert LIVE not in w.table.metadata.refs
    assert w.table.metadata.refs["query"].snapshot_id == named
    assert len(w.table.scan(snapshot_id=named).to_arrow()) == 3


def test_every_command_that_changes_the_table_brings_the_branch_up_to_date(w: Warehouse) -> None:
    for _ in range(3):
        w.load({NINE: 2, TEN: 1})
    live(w).follow(on=True)
    w.publish(NINE)
    assert is_up_to_date(w)
    w.compact()
    assert is_up_to_date(w)
    w.expire()
    live(w).follow()
    assert live_offsets(w.table) == list(range(9))
    assert w.problems(rows=True) == []


def test_a_publication_is_made_although_the_branch_cannot_follow(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.load({NINE: 3})
    live(w).follow(on=True)

    def fail(*_: object, **__: object) -> None:
        raise CatalogError("the catalog does not answer")

    monkeypatch.setattr(Live, "follow", fail)
    result = w.publish(NINE)
    assert result.published
    assert result.notes == [
        "PageView: branch live is behind until the next load or publication: the catalog does not answer"
    ]


def test_verify_reports_files_that_the_branch_lacks_and_notes_that_it_is_behind(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    assert w.verify().problems == []
    w.load({TEN: 1})
    report = w.verify()
    assert report.problems == []
    assert "PageView: branch live is behind until the next load or publication" in report.notes
    monkeypatch.setattr("millrace_warehouse.publish.live.entries_of", lambda *_: [])
    live(w).follow()
    monkeypatch.undo()
    (problem,) = w.problems()
    assert problem.startswith("millrace.PageView: branch live lacks file://")


def is_up_to_date(w: Warehouse) -> bool:
    before = w.table.metadata_location
    live(w).follow()
    return w.table.metadata_location == before


@pytest.mark.parametrize(("ahead_s", "is_taken_over"), [(0.0, False), (200.0, False), (86_400.0, True)])
def test_a_lease_from_a_clock_that_was_far_ahead_is_no_lease(
    w: Warehouse, ahead_s: float, is_taken_over: bool
) -> None:
    w.load({NINE: 3})
    first = tail(w)

    def ahead() -> float:
        return time.time() + ahead_s

    before = Live(Context(storage=w.storage, catalog=w.catalog, clock=ahead), w.stored)
    before.follow(first, on=True)
    shown = live(w).follow(replace(first, attempt="0001-fedcba9876543210"))
    assert shown is not None
    assert (shown.attempt != first.attempt) == is_taken_over
    assert live_offsets(w.table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("pattern", ["snap-*.avro", "*.avro"])
def test_a_branch_whose_own_files_are_gone_is_made_anew(w: Warehouse, pattern: str) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    live(w).follow(on=True)
    main = w.table.current_snapshot()
    assert main is not None
    kept = {main.manifest_list, *(each.manifest_path for each in main.manifests(w.table.io))}
    for path in (w.topic / "table/metadata").glob(pattern):
        if not any(name.endswith(path.name) for name in kept):
            path.unlink()
    assert w.problems() == []
    w.load({TEN: 1})
    live(w).follow()
    assert live_offsets(w.table) == [0, 1, 2, 3, 4, 5]
