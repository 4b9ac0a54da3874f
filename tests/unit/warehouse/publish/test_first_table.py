"""Several runs that find no table: one of them makes it, and each row is in it once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import HourVerdict
from tests import loaded
from tests.loaded import offsets
from tests.published import Warehouse, warehouse
from tests.unit.warehouse.publish.publishing import publish_in

NINE, TEN = "2015-05-17T09", "2015-05-17T10"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        made.load({NINE: 3})
        made.load({TEN: 2})
        yield made


def test_a_run_that_was_overtaken_by_the_first_publication_adds_nothing_twice(w: Warehouse) -> None:
    rivals = [lambda: w.publish(NINE, TEN)]

    def verdict_of(topic: str, hour: str) -> HourVerdict:
        if rivals:
            rivals.pop()()
        return HourVerdict(verdict="complete")

    w.publish(NINE, auditor=w.auditor(verdict_of))
    assert len(offsets(w.table)) == 5
    assert w.problems(rows=True) == []


def test_a_rebuild_that_was_overtaken_by_another_adds_nothing_twice(w: Warehouse) -> None:
    w.publish(NINE, TEN)
    w.catalog.drop_table(w.table.name())
    rivals = [lambda: w.publish(rebuild=True)]

    def progress(step: str) -> None:
        if step == "files found" and rivals:
            rivals.pop()()

    w.publish(rebuild=True, progress=progress)
    assert len(offsets(w.table)) == 5
    assert w.problems(rows=True) == []


def test_a_rebuild_that_stood_still_drops_no_table_that_another_run_has_rebuilt(w: Warehouse) -> None:
    w.publish(NINE)
    with w.table.update_spec() as update:
        update.add_identity("_topic_partition")  # partitions of another program: the table is recreated
    made: list[Table] = []

    def rebuild_and_publish() -> None:
        w.publish(rebuild=True)
        w.publish(TEN)
        made.append(w.table)

    rivals = [rebuild_and_publish]

    def progress(step: str) -> None:
        if step == "files found" and rivals:
            rivals.pop()()

    w.publish(rebuild=True, progress=progress)
    assert w.table.metadata.table_uuid == made[0].metadata.table_uuid
    assert len(offsets(w.table)) == 5
    assert w.problems(rows=True) == []


def test_a_table_that_another_topic_has_just_made_is_not_taken(w: Warehouse) -> None:
    first, second = "page.view", "page_view"
    for topic in (first, second):
        loaded.load(w.storage, topic, {NINE: 1})
    rivals = [lambda: publish_in(w.storage, w.catalog, NINE, topic=second)]

    def progress(step: str) -> None:
        if step == "hours judged" and rivals:
            rivals.pop()()

    with pytest.raises(MillraceError, match="belongs to topic page_view"):
        publish_in(w.storage, w.catalog, NINE, topic=first, progress=progress)
