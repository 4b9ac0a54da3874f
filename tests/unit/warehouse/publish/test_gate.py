"""An hour is published as complete only when its rows are, load by load, those that were judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_audit.answer import Changes, LoadHour
from millrace_warehouse.history.hours import start_of
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.manifest import HourVerdict, LoadRows
from millrace_warehouse.publish.closing import unclosed
from millrace_warehouse.publish.gate import Judgement
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.publisher import PublishResult
from tests.counted import counted_loads
from tests.published import TOPIC, Warehouse, warehouse

TEN, ELEVEN, TWELVE, THIRTEEN = (f"2015-05-17T{hour}" for hour in (10, 11, 12, 13))


class Memory:
    """An auditor that keeps what it has counted, whatever becomes of the warehouse."""

    def __init__(self, w: Warehouse) -> None:
        self._w = w
        self.loads: dict[str, Sequence[LoadHour]] = {}
        self.verdicts: dict[str, str] = {}
        self.rejected: dict[str, int] = {}
        self.reasons: dict[str, list[str]] = {}
        self.changed: list[datetime] = []
        self.asked: list[str] = []

    def count(self) -> None:
        """Count everything that is there now, and call each of these hours complete."""
        self.loads = {**counted_loads(self._w.storage, TOPIC)}
        self.verdicts |= dict.fromkeys((TEN, ELEVEN, TWELVE, THIRTEEN), "complete")

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        self.asked += hours
        return {
            hour: Judgement(
                verdict=HourVerdict(
                    verdict=self.verdicts.get(hour, "unknown"), reasons=self.reasons.get(hour, [])
                ),
                loads=self.loads.get(hour, ()),
                rejected=self.rejected.get(hour, 0),
            )
            for hour in hours
        }

    def changes(self, topic: str, since: str | None) -> Changes:
        done = int(since or 0)
        return Changes(str(len(self.changed)), self.changed[done:], more=False)


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


@pytest.fixture
def auditor(w: Warehouse) -> Memory:
    return Memory(w)


def verdicts(result: PublishResult) -> dict[str, str]:
    """Hour -> verdict, of what was published and of what waits."""
    published = {change.hour: f"{change.kind} {change.verdict.verdict}" for change in result.changes}
    waits = {each.hour: f"waits {each.verdict.verdict}" for each in result.waiting if each.verdict}
    return {**published, **waits}


def reasons(result: PublishResult, hour: str) -> str:
    said = {change.hour: change.verdict for change in result.changes}
    said |= {each.hour: each.verdict for each in result.waiting if each.verdict}
    return "; ".join(said[hour].reasons)


def test_rows_of_a_load_that_the_auditor_has_not_counted_wait(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10})
    auditor.count()
    w.load({TEN: 7})
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "waits pending"}
    assert "load 2 (edition 1) has 7 rows that the auditor has not counted yet" in reasons(result, TEN)
    auditor.count()
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {TEN: "first complete"}


def test_a_load_that_is_made_while_the_auditor_is_asked_is_not_published_unjudged(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10})
    auditor.count()

    class Meanwhile(Memory):
        def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
            judged = auditor.judge(topic, hours)
            if len(auditor.asked) == 1:
                w.load({TEN: 7})
            return judged

        def changes(self, topic: str, since: str | None) -> Changes:
            return auditor.changes(topic, since)

    assert verdicts(w.publish(proven=True, auditor=Meanwhile(w))) == {TEN: "waits pending"}


@pytest.mark.parametrize("is_edition", [False, True])
def test_what_is_made_and_counted_before_the_auditor_is_asked_once_more_is_no_difference(
    w: Warehouse, auditor: Memory, is_edition: bool
) -> None:
    w.load({TEN: 10})
    auditor.count()
    made: list[Callable[[], object]] = [partial(w.load, {TEN: 7}), partial(w.load, {TEN: 5})]
    if is_edition:
        made[1] = partial(w.read_again, 1, {TEN: 10})

    class Meanwhile(Memory):
        def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
            if made and self.asked:
                made.pop(0)()
                auditor.count()
            judged = auditor.judge(topic, hours)
            if not self.asked:
                made.pop(0)()
            self.asked += hours
            return judged

    result = w.publish(TEN, auditor=Meanwhile(w))
    assert verdicts(result) == {TEN: "first complete"}
    assert result.publication is not None
    assert result.publication.rows == (17 if is_edition else 22)


def test_a_run_that_begins_again_after_a_conflict_asks_the_auditor_again(
    w: Warehouse, auditor: Memory
) -> None:
    """Its second try reads on behind the changed verdict, which no later run would ask about."""
    w.load({TEN: 10, THIRTEEN: 3})
    auditor.count()

    class Meanwhile(Memory):
        def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
            judged = auditor.judge(topic, hours)
            if auditor.verdicts[TEN] == "complete":
                w.publish(THIRTEEN, auditor=auditor)  # the other run's commit
                auditor.verdicts[TEN] = "incomplete"
                auditor.changed.append(start_of(TEN))
            return judged

        def changes(self, topic: str, since: str | None) -> Changes:
            return auditor.changes(topic, since)

    assert verdicts(w.publish(proven=True, auditor=Meanwhile(w)))[TEN] == "waits incomplete"


def test_late_rows_that_were_not_counted_make_their_hour_incomplete_until_they_are(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10})
    auditor.count()
    w.publish(proven=True, auditor=auditor)
    w.load({TEN: 7})
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {TEN: "late pending"}
    auditor.count()
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "verdict complete"}
    assert result.publication is not None
    assert result.publication.complete_until == ELEVEN


def test_an_hour_whose_load_is_gone_is_not_published_as_empty_and_complete(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10})
    w.load({TWELVE: 10})
    auditor.count()
    auditor.loads[ELEVEN] = [LoadHour(3, 1, "0" * 64, 40)]
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "first complete", TWELVE: "first complete"}
    assert result.publication is not None
    assert result.publication.complete_until == ELEVEN


def test_a_warehouse_that_was_put_back_from_an_older_copy_publishes_nothing_as_complete(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 20})
    shutil.copytree(w.topic, w.folder / "copy")
    w.load({TEN: 40})
    auditor.count()
    shutil.rmtree(w.topic)
    (w.folder / "copy").rename(w.topic)
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "waits incomplete"}
    assert "the auditor counted 40 rows of load 2 that this warehouse does not have" in reasons(result, TEN)
    assert f"`millrace audit {TOPIC} --replace-loads" in reasons(result, TEN)


def test_a_load_that_was_made_again_with_other_rows_is_not_the_one_that_was_counted(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 20})
    shutil.copytree(w.topic, w.folder / "copy")
    w.load({TEN: 40})
    auditor.count()
    shutil.rmtree(w.topic)
    (w.folder / "copy").rename(w.topic)
    w.load({TEN: 30})
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "waits incomplete"}
    assert "load 2 (edition 1) is not the one that the auditor counted" in reasons(result, TEN)


def test_an_edition_that_the_auditor_has_not_counted_waits(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 20})
    auditor.count()
    w.publish(proven=True, auditor=auditor)
    w.read_again(1, {TEN: 19})
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {TEN: "reload pending"}
    auditor.count()
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {TEN: "verdict complete"}


def test_a_file_in_which_the_auditor_found_fewer_rows_holds_its_hour_back(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10})
    auditor.count()
    (judged,) = auditor.loads[TEN]
    auditor.loads[TEN] = [LoadHour(1, 1, judged.sha256, 9)]
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "waits incomplete"}
    assert "load 1 has 10 rows of the hour, and the auditor found 9 in its files" in reasons(result, TEN)


def test_a_complete_hour_that_the_auditor_takes_back_is_taken_back_in_the_table(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10, ELEVEN: 5})
    auditor.count()
    before = w.publish(proven=True, auditor=auditor).publication
    assert before is not None
    assert before.complete_until == TWELVE
    auditor.verdicts[TEN] = "incomplete"
    auditor.changed.append(start_of(TEN))
    after = w.publish(proven=True, auditor=auditor)
    assert verdicts(after) == {TEN: "verdict incomplete"}
    assert after.publication is not None
    assert after.publication.complete_until == TEN
    assert w.table.properties["millrace.complete-until"] == TEN


def test_an_hour_that_only_waits_for_more_rows_is_not_taken_back(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10})
    auditor.count()
    w.publish(proven=True, auditor=auditor)
    auditor.verdicts[TEN] = "pending"
    auditor.changed.append(start_of(TEN))
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {}


def test_an_hour_that_waited_for_more_rows_when_its_verdict_changed_is_asked_about_until_it_does_not(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10, ELEVEN: 5})
    auditor.count()
    w.publish(proven=True, auditor=auditor)
    auditor.verdicts |= {TEN: "pending", ELEVEN: "incomplete"}
    auditor.changed += [start_of(TEN), start_of(ELEVEN)]
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {ELEVEN: "verdict incomplete"}
    auditor.verdicts[TEN] = "carried"  # a window that has changed before; the pending window is as it was
    assert verdicts(w.publish(proven=True, auditor=auditor)) == {TEN: "verdict carried"}
    auditor.verdicts |= {TEN: "complete", ELEVEN: "complete"}
    w.publish(proven=True, auditor=auditor)
    auditor.asked.clear()
    w.publish(proven=True, auditor=auditor)
    assert auditor.asked == []


def test_only_hours_whose_verdict_has_changed_are_asked_about_again(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10, ELEVEN: 5})
    auditor.count()
    auditor.changed = [start_of(TEN), start_of(ELEVEN)]
    w.publish(proven=True, auditor=auditor)
    auditor.asked.clear()
    w.publish(proven=True, auditor=auditor)
    assert auditor.asked == []


def test_a_table_from_before_there_was_a_cursor_has_its_newest_hours_asked_about(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10, ELEVEN: 5})
    auditor.count()
    w.publish(TEN, ELEVEN, auditor=auditor)  # by name: no cursor is kept
    auditor.changed = [start_of(TEN), start_of(ELEVEN), start_of(TWELVE)]
    auditor.asked.clear()
    w.publish(proven=True, auditor=auditor)
    assert auditor.asked == [TEN, ELEVEN]


def test_rows_of_another_hour_in_a_file_are_a_difference(w: Warehouse) -> None:
    """A file without audit headers has more rows than its load wrote; `test_closing` has the other case."""
    w.load({TEN: 10, ELEVEN: 4})
    files = {file.hour: w.topic / file.path for file in read_load(w.stored, 1).files}
    both = [pq.read_table(files[hour], partitioning=None) for hour in (TEN, ELEVEN)]
    pq.write_table(pa.concat_tables(both), files[TEN])
    problems = unclosed(w.stored, {TEN: [LoadRows(load=1, rows=10)]})
    assert "has 14 rows, the load wrote 10" in problems[TEN][0]


def test_a_file_without_headers_that_lost_rows_holds_its_hour_back(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10})
    auditor.count()
    (path,) = w.data_files(1)
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 4), path)
    result = w.publish(proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "waits incomplete"}
    assert "has 4 rows, the load wrote 10" in reasons(result, TEN)


def test_the_number_of_rejected_messages_stands_beside_the_hour(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10, ELEVEN: 5})
    auditor.count()
    auditor.verdicts[TEN], auditor.rejected[TEN] = "incomplete", 50
    result = w.publish(TEN, proven=True, auditor=auditor)
    assert verdicts(result) == {TEN: "first incomplete", ELEVEN: "first complete"}
    assert result.publication is not None
    assert result.publication.rejected == {TEN: 50}
    hours = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().sort_by("hour")
    assert hours.column("rejected").to_pylist() == [50, 0]


def test_the_reasons_of_a_complete_hour_stand_in_the_table_of_hours(w: Warehouse, auditor: Memory) -> None:
    w.load({TEN: 10})
    auditor.count()
    auditor.reasons[TEN] = ["web-1 has closed nothing; accepted: burnt down"]
    assert verdicts(w.publish(TEN, proven=True, auditor=auditor)) == {TEN: "first complete"}
    hours = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow()
    assert hours.column("reasons").to_pylist() == [auditor.reasons[TEN]]


def test_a_table_of_hours_from_before_gets_the_column_of_rejected_messages(
    w: Warehouse, auditor: Memory
) -> None:
    w.load({TEN: 10})
    auditor.count()
    w.publish(proven=True, auditor=auditor)
    with w.catalog.load_table(hours_identifier(TOPIC)).update_schema() as update:
        update.delete_column("rejected")
    w.load({ELEVEN: 5})
    auditor.count()
    auditor.verdicts[ELEVEN], auditor.rejected[ELEVEN] = "incomplete", 7
    w.publish(ELEVEN, auditor=auditor)
    hours = w.catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().sort_by("hour")
    assert hours.column("rejected").to_pylist() == [None, 7]
