"""The warehouse's reader misses nothing that was erased, neither in the loads nor in the table."""

from __future__ import annotations

import dataclasses

from millrace_warehouse.audit.loads import Loads
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.audit.tables import PublishedTable
from millrace_warehouse.history import layout
from millrace_warehouse.history.stored import ERASED, HELD_ENTRIES
from tests.unit.warehouse.erase.scene import ELEVEN, MEMBER, MEMBERS, TEN, TWELVE, WITH_MEMBER, Scene
from tests.unit.warehouse.memory_log import START, event


def tell(scene: Scene, loads: Loads) -> list[tuple[int, int]]:
    """Sequences that came and went, by each edition that was told of."""
    told = []
    for manifest in loads.to_report():
        found = read_back(scene.storage, manifest)
        counts = loads.accounted(manifest, found)
        (record,) = loads.records(manifest, counts, found)
        loads.add_report(manifest, counts, found.unkeyed)
        told.append((record.counts.total, record.removed.total))
    return told


def hours(scene: Scene, table: PublishedTable, loads: Loads) -> dict[str, int]:
    return {found.hour: found.counts.total for found in table.to_report(scene.catalog, loads)}


def test_erased_rows_are_accounted_for_in_loads_and_in_the_table(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    loads, table = Loads(scene.stored), PublishedTable(scene.stored)
    assert tell(scene, loads) == [(8, 0), (2, 0)]
    assert hours(scene, table, loads) == {TEN: 7, ELEVEN: 2}
    scene.erase(id="4711")
    assert tell(scene, loads) == [(0, 0), (0, 0), (0, 0)], "the load that fences, and two editions"
    assert hours(scene, table, loads) == {TEN: 7, ELEVEN: 2}


def test_late_rows_that_a_load_left_out_are_accounted_for_in_the_hour_they_belong_to(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    scene.erase(id="4711")
    loads, table = Loads(scene.stored), PublishedTable(scene.stored)
    tell(scene, loads)
    hours(scene, table, loads)
    scene.send(MEMBER, hour=1, times=2)
    scene.load_new()
    assert tell(scene, loads) == [(2, 0)]
    assert hours(scene, table, loads) == {ELEVEN: 4}


def test_an_erasure_cannot_account_for_what_was_never_there(scene: Scene) -> None:
    loads = Loads(scene.stored)
    tell(scene, loads)
    scene.erase(id="4711")
    second = layout.read_edition(scene.stored, 1, 2)
    first, *rest = second.erased_sequences
    more = dataclasses.replace(first, ranges=[*first.ranges, [1_000, 1_009]])
    claimed = dataclasses.replace(second, erased_sequences=[more, *rest])
    found = read_back(scene.storage, claimed)
    assert found.erased.total == 13
    assert loads.accounted(claimed, found).total == 8


def test_the_sequences_of_many_producers_outlive_what_expires(scene: Scene) -> None:
    schema = (WITH_MEMBER, MEMBERS)
    scene.log.append(
        0, [event(0, START, instance=n, schema=schema, memberId=MEMBER) for n in range(HELD_ENTRIES + 1)]
    )
    scene.load_new()
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.erase(id="4711")
    assert len([*scene.topic.glob(f"rows/*/{ERASED}")]) == 1
    scene.expire()
    assert scene.problems(rows=True) == []
