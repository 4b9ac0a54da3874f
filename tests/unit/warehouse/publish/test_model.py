"""Random histories of loads, editions, publications, faults and foreign changes, against a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue

from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.table import TableChanged
from millrace_warehouse.storage import open_storage
from tests.loaded import compact_as_others_do, load, read_again, rows_by_load_and_hour
from tests.unit.warehouse.publish.publishing import H9, H10, H11, TOPIC, hours_of, publish_in, table_of

HOURS = (H9, H10, H11, UNFILED)
hour = st.sampled_from(HOURS)
rows = st.dictionaries(hour, st.integers(1, 3), min_size=1, max_size=3)


class Histories(RuleBasedStateMachine):
    """Rows by load and hour as they must be in the table, and everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-model-"))
        self.storage = open_storage(str(self.folder))
        self.catalog = connect(self.storage)
        self.loads: list[dict[str, int]] = []
        self.published: set[str] = set()
        self.in_table: dict[tuple[int, str], int] = {}
        self.changed = False

    def teardown(self) -> None:
        self.catalog.close()
        shutil.rmtree(self.folder)

    @rule(rows=rows)
    def something_is_loaded(self, rows: dict[str, int]) -> None:
        load(self.storage, TOPIC, rows)
        self.loads.append(rows)

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), rows=rows)
    def offsets_are_read_again(self, data: st.DataObject, rows: dict[str, int]) -> None:
        number = data.draw(st.integers(1, len(self.loads)))
        most = sum(self.loads[number - 1].values())  # an edition has at most the records of the first
        rows = dict.fromkeys(list(rows)[:most], 1)
        read_again(self.storage, TOPIC, number, rows)
        self.loads[number - 1] = {**rows}

    @precondition(lambda self: self.loads)
    @rule(
        hours=st.sets(hour, max_size=2),
        faults=st.lists(st.sampled_from(["before", "after", "409 after"]), max_size=3),
        rebuild=st.booleans(),
    )
    def hours_are_published(self, hours: set[str], faults: list[str], rebuild: bool) -> None:
        if self.changed and not rebuild:
            with pytest.raises(TableChanged):
                publish_in(self.storage, self.catalog, *hours)
            return
        real, left = self.catalog.commit_table, iter(faults)

        def commit_table(*arguments: Any) -> Any:
            fault = next(left, None)
            if fault == "before":
                raise ConnectionError("no answer, did not land")
            answer = real(*arguments)
            if fault == "after":
                raise ConnectionError("no answer, landed")
            if fault == "409 after":
                raise CommitFailedException("409, landed")
            return answer

        self.catalog.commit_table = commit_table  # type: ignore[assignment,method-assign]
        try:
            publish_in(self.storage, self.catalog, *hours, rebuild=rebuild)
        finally:
            self.catalog.commit_table = real  # type: ignore[method-assign]
        self.published |= hours
        self.changed = False
        self.in_table = {
            (number, hour): count
            for number, load_rows in enumerate(self.loads, 1)
            for hour, count in load_rows.items()
            if hour in self.published
        }

    @precondition(lambda self: self.in_table and not self.changed)
    @rule(data=st.data())
    def others_compact_an_hour(self, data: st.DataObject) -> None:
        hour = data.draw(st.sampled_from(sorted({hour for _, hour in self.in_table})))
        compact_as_others_do(self.storage, table_of(self.catalog), TOPIC, hour)

    @precondition(lambda self: self.in_table and not self.changed)
    @rule()
    def others_delete_every_row(self) -> None:
        table_of(self.catalog).delete(AlwaysTrue())
        self.changed, self.in_table = True, {}

    @precondition(lambda self: self.published and not self.changed)
    @rule()
    def others_drop_the_table(self) -> None:
        self.catalog.drop_table(table_identifier(TOPIC))
        self.changed, self.in_table = True, {}

    @invariant()
    def every_row_is_there_once(self) -> None:
        if not self.published or (self.changed and not self.catalog.table_exists(table_identifier(TOPIC))):
            return
        assert rows_by_load_and_hour(table_of(self.catalog)) == self.in_table
        if not self.changed:
            rows = sum(added - removed for _, _, added, removed in hours_of(self.catalog))
            assert rows == sum(self.in_table.values())


TestHistories = pytest.mark.soak(Histories.TestCase)
TestHistories.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
