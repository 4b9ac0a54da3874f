"""Empty hours between rows: one range in the record, few questions, one publication."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_warehouse.history.hours import hour_of, number_of, start_of
from millrace_warehouse.history.layout import read_checked
from millrace_warehouse.history.manifest import HourChange, HourVerdict, Publication, check_hash, decode
from millrace_warehouse.publish import due, hours_table, state
from millrace_warehouse.publish.gate import MOST_HOURS, Judgement
from millrace_warehouse.publish.hours_table import LAST, hours_identifier
from millrace_warehouse.publish.state import TableState
from tests.counted import Counted
from tests.published import TOPIC, Warehouse, warehouse

FIRST, WITHIN, LATEST = "2026-03-08T18", "2026-07-01T12", "2026-11-08T10"
RUN = ("2026-03-08T19", "2026-11-08T09")
"""First and last hour of the empty ones between FIRST and LATEST."""
COMPLETE = HourVerdict(verdict="complete")
PAGE = Path(__file__).parents[4] / "docs" / "warehouse.md"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def complete_until(w: Warehouse) -> str:
    return w.table.properties["millrace.complete-until"]


def rows_of_hours(w: Warehouse) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["publication"], row["hour"]))


def test_one_publication_reaches_rows_that_come_eight_months_after_the_first(w: Warehouse) -> None:
    w.load({FIRST: 1, LATEST: 5})
    result = w.publish(proven=True)
    assert complete_until(w) == "2026-11-08T11"
    assert [(change.hour, change.last) for change in result.changes] == [(FIRST, ""), RUN, (LATEST, "")]
    assert (w.folder / result.path).stat().st_size < 10_000
    assert not w.publish(proven=True).published
    assert w.problems() == []


class Questions(Counted):
    """Counts the questions, and takes those only that an auditor answers."""

    asked = 0

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        self.asked += 1
        assert [*hours] == sorted(hours)
        assert number_of(hours[-1]) - number_of(hours[0]) < MOST_HOURS
        return super().judge(topic, hours)


def test_5900_empty_hours_are_nine_questions_at_most(w: Warehouse) -> None:
    w.load({FIRST: 1, hour_of(number_of(FIRST) + 5_901): 1})
    auditor = Questions(w.storage, lambda *_: COMPLETE)
    result = w.publish(proven=True, auditor=auditor)
    assert len([hour for change in result.changes for hour in change.hours]) == 5_902
    assert auditor.asked <= 9


def test_what_one_publication_does_not_reach_the_next_ones_do(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "EMPTY", 100)
    w.load({FIRST: 1, hour_of(number_of(FIRST) + 251): 1})
    changed = [sum(len(change.hours) for change in w.publish(proven=True).changes) for _ in range(4)]
    assert changed == [101, 100, 51, 0]
    assert complete_until(w) == hour_of(number_of(FIRST) + 252)
    assert w.problems() == []


def test_the_first_empty_hour_that_is_not_complete_ends_a_publication_with_one_question_about_it(
    w: Warehouse,
) -> None:
    w.load({FIRST: 1, LATEST: 5})
    verdicts = {FIRST: "complete", LATEST: "complete"}
    auditor = Questions(w.storage, lambda _, hour: HourVerdict(verdict=verdicts.get(hour, "unknown")))
    assert [change.hour for change in w.publish(proven=True, auditor=auditor).changes] == [FIRST, LATEST]
    assert auditor.asked == 3


def test_an_hour_with_other_words_of_the_auditor_or_with_rejected_messages_is_a_change_of_its_own(
    w: Warehouse,
) -> None:
    class Rejected(Counted):
        def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
            said = super().judge(topic, hours)
            return {
                hour: dataclasses.replace(judged, rejected=3 * (hour == "2026-03-08T20"))
                for hour, judged in said.items()
            }

    w.load({FIRST: 1, "2026-03-09T03": 1})
    accepted = HourVerdict(verdict="complete", reasons=["accepted: burnt down"])
    auditor = Rejected(w.storage, lambda _, hour: accepted if hour == "2026-03-08T23" else COMPLETE)
    result = w.publish(proven=True, auditor=auditor)
    assert [(change.hour[-2:], change.last[-2:]) for change in result.changes] == [
        ("18", ""),
        ("19", ""),
        ("20", ""),
        ("21", "22"),
        ("23", ""),
        ("00", "02"),
        ("03", ""),
    ]
    assert [row["hour"].hour for row in rows_of_hours(w) if row["rejected"] == 3] == [20]
    assert w.problems() == []


def test_late_rows_of_an_hour_within_a_range_are_published_as_those_of_any_other_hour(w: Warehouse) -> None:
    w.load({FIRST: 1, LATEST: 5})
    w.publish(proven=True)
    w.load({WITHIN: 7})
    (change,) = w.publish(verdict="incomplete").changes
    assert (change.hour, change.last, change.kind, change.added) == (WITHIN, "", "late", 7)
    assert complete_until(w) == WITHIN
    (change,) = w.publish(proven=True).changes
    assert (change.hour, change.kind, change.verdict.verdict) == (WITHIN, "verdict", "complete")
    assert complete_until(w) == "2026-11-08T11"
    assert w.problems() == []


def test_the_auditor_takes_back_one_hour_within_a_range(w: Warehouse) -> None:
    w.load({FIRST: 1, LATEST: 5})
    w.publish(proven=True)
    lost = HourVerdict(verdict="incomplete", reasons=["1 missing at dc1"])
    auditor = Counted(w.storage, lambda *_: lost, changed=[start_of(WITHIN)])
    (change,) = w.publish(proven=True, auditor=auditor).changes
    assert (change.hour, change.last, change.kind, change.verdict) == (WITHIN, "", "verdict", lost)
    assert complete_until(w) == WITHIN
    assert w.problems() == []


def test_a_lost_catalog_is_made_again_from_records_with_ranges(w: Warehouse) -> None:
    w.load({FIRST: 1, LATEST: 5})
    w.publish(proven=True)
    for name in (TOPIC, f"{TOPIC}_hours"):
        w.catalog.drop_table(("millrace", name))
    w.publish(rebuild=True)
    assert complete_until(w) == "2026-11-08T11"
    assert [row["last"] for row in rows_of_hours(w) if row["kind"] == "first"] == [
        None,
        start_of(RUN[1]),
        None,
    ]
    assert w.problems() == []


def test_verify_names_a_row_of_a_range_that_lacks_its_last_hour(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = hours_table._rows
    monkeypatch.setattr(hours_table, "_rows", lambda *args: ({**row, LAST: None} for row in rows(*args)))
    w.load({FIRST: 1, LATEST: 5})
    w.publish(proven=True)
    wrong, missing = w.problems()
    assert "PageView_hours has 1 rows that no publication made" in wrong
    assert f"1 rows missing, the first: publication 1, {RUN[0]}, first, complete" in missing


def test_the_pages_query_finds_the_newest_row_of_an_hour_within_a_range_and_of_others(w: Warehouse) -> None:
    w.load({FIRST: 1, LATEST: 5})
    w.publish(proven=True)
    w.load({WITHIN: 7})
    w.publish(verdict="incomplete")
    (query,) = (block for block in PAGE.read_text().split("```") if "PageView_hours" in block)
    query = query.removeprefix("sql\n").replace('lake.millrace."PageView_hours"', "hours")
    assert "'2015-05-17 10:00:00+00:00'" in query
    hours = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow()

    def newest(hour: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            connection.register("hours", hours)
            asked = query.replace("2015-05-17 10:00", f"{start_of(hour):%Y-%m-%d %H:%M}")
            return connection.sql(asked).fetchall()

    assert newest(FIRST) == newest("2026-07-01T11") == newest(RUN[0]) == newest(RUN[1]) == [("complete", 1)]
    assert newest(WITHIN) == [("incomplete", 2)]
    assert newest("2026-11-08T11") == []


# The version before: hours one by one, and no key and no column `last`.


def test_a_table_of_the_version_before_goes_on_with_ranges(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.load({FIRST: 1, "2026-03-09T10": 1})
    with monkeypatch.context() as before:
        before.setattr(state, "_joined", lambda changes, rejected: changes)
        assert len(w.publish(proven=True).changes) == 17
    with w.catalog.load_table(hours_identifier(TOPIC)).update_schema(
        allow_incompatible_changes=True
    ) as table:
        table.delete_column(LAST)
    assert w.problems() == []
    w.load({LATEST: 5})
    assert [change.hours[-1] for change in w.publish(proven=True).changes] == [RUN[1], LATEST]
    assert [row["last"] for row in rows_of_hours(w)] == [*[None] * 17, start_of(RUN[1]), None]
    assert complete_until(w) == "2026-11-08T11"
    assert w.problems() == []


def test_a_record_of_the_version_before_has_no_key_last_and_keeps_its_hash(w: Warehouse) -> None:
    w.load({FIRST: 1, "2026-03-08T19": 1})
    result = w.publish(proven=True)
    values = json.loads((w.folder / result.path).read_text())
    for change in values["changes"]:
        assert change.pop("last") == ""
    old = decode(Publication, json.dumps(values).encode(), "old")
    assert old == read_checked(w.storage, Publication, result.path)
    assert check_hash(old) is None


hour = st.tuples(
    st.integers(0, 40),
    st.sampled_from(
        [COMPLETE, HourVerdict(verdict="complete", reasons=["accepted"]), HourVerdict(verdict="unknown")]
    ),
    st.sampled_from(["2026-11-08T10:00:00", "2026-11-08T10:00:01"]),
)


@given(st.lists(hour, unique_by=lambda each: each[0]), st.sets(st.integers(0, 40)))
def test_ranges_say_what_hours_one_by_one_say(
    hours: list[tuple[int, HourVerdict, str]], rejected: set[int]
) -> None:
    published = TableState.from_publication(None)
    for number, verdict, checked in hours:
        published.publish(hour_of(number_of(FIRST) + number), dataclasses.replace(verdict, checked=checked))
    changes = published.settled()
    counts = {hour_of(number_of(FIRST) + number): 1 for number in rejected}
    record = published.to_publication(TOPIC, "a", "run", None, changes, counts)

    def said(change: HourChange, hour: str) -> HourChange:
        """Return a row of the table of hours as values, without the time of the auditor's answer."""
        verdict = dataclasses.replace(change.verdict, checked=None)
        return dataclasses.replace(change, hour=hour, last="", verdict=verdict)

    ranges = [said(change, hour) for change in record.changes for hour in change.hours]
    assert ranges == [said(change, change.hour) for change in changes]
    assert not any(change.last and {*change.hours} & counts.keys() for change in record.changes)
    assert all(change.verdict.verdict == "complete" for change in record.changes if change.last)
