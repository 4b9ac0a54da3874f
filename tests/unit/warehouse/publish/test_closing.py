"""An hour is published as complete only when its own rows are those that its loads have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.manifest import LoadRows
from millrace_warehouse.load import task
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.closing import unclosed
from millrace_warehouse.publish.publisher import PublishResult
from millrace_warehouse.sequences import count_sequences
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC
from tests.unit.warehouse.mended import Mended
from tests.unit.warehouse.publish.publishing import H10, H11, publish_in

Run = Callable[..., PublishResult]
COMPLETE = {H10: "complete", H11: "complete"}


@pytest.fixture
def mended(tmp_path: Path) -> Mended:
    mended = Mended(tmp_path)
    mended.log.append_events(0, [START, START + 1, START + 2, START + HOUR])
    return mended


@pytest.fixture
def miscounting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that count the second row in the place of the first: as many rows as they write."""

    def miscount(rows: pa.RecordBatch, counts: SequenceCounts) -> None:
        count_sequences(rows.slice(1), counts)
        count_sequences(rows.slice(1, 1), counts)

    monkeypatch.setattr(task, "count_sequences", miscount)


@pytest.fixture
def run(mended: Mended) -> Iterator[Run]:
    storage = mended.storage()
    with connect(storage) as catalog:
        yield lambda *hours, **settings: publish_in(
            storage, catalog, *hours, **{"proven": True, "verdicts": COMPLETE, **settings}
        )


def outcome(result: PublishResult) -> dict[str, str]:
    """Hour -> verdict, of what was published and of what waits."""
    published = {change.hour: f"published {change.verdict.verdict}" for change in result.changes}
    waits = {each.hour: f"waits {each.verdict.verdict}" for each in result.waiting if each.verdict}
    return {**published, **waits}


def test_hours_whose_rows_close_are_published_as_complete(mended: Mended, run: Run) -> None:
    mended.load()
    assert outcome(run()) == {H10: "published complete", H11: "published complete"}


@pytest.mark.usefixtures("miscounting")
def test_an_hour_whose_rows_do_not_close_waits_although_the_auditor_calls_it_complete(
    mended: Mended, run: Run
) -> None:
    mended.load()
    result = run()
    assert outcome(result) == {H10: "waits incomplete", H11: "published complete"}
    (waits,) = result.waiting
    assert waits.verdict is not None
    (reason,) = waits.verdict.reasons
    assert reason.startswith("the rows of load 1 are not those that it counted: 1 missing, 1 too many;")


def test_rows_that_a_clock_a_day_ahead_kept_out_of_an_hour_are_told_from_rows_that_are_gone(
    mended: Mended, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows filed under no hour are not missing: nothing is to be verified."""
    monkeypatch.setattr("millrace_warehouse.load.load.now", lambda: "2015-05-16T10:30:00.000Z")
    mended.log.append_events(0, [START + HOUR // 2])
    mended.load()
    result = run()
    assert outcome(result) == {H10: "waits incomplete", UNFILED: "waits unknown"}
    reasons = [each.verdict.reasons for each in result.waiting if each.hour == H10 and each.verdict]
    assert reasons == [
        ["1 rows of load 1 are of this hour by a clock that was more than a day ahead: they have no hour"]
    ]


@pytest.mark.usefixtures("miscounting")
def test_an_hour_that_is_named_is_published_with_what_is_wrong_beside_it(mended: Mended, run: Run) -> None:
    mended.load()
    result = run(H10)
    assert outcome(result) == {H10: "published incomplete", H11: "published complete"}
    assert result.publication is not None
    assert [list(pair) for pair in result.publication.incomplete] == [[H10, H10]]


def test_a_file_that_cannot_be_read_holds_its_hour_back(mended: Mended, run: Run) -> None:
    mended.load()
    (file,) = (f for f in read_load(mended.topic, 1).files if f.hour == H10)
    path = mended.folder / TOPIC / file.path
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    assert outcome(run()) == {H10: "waits incomplete", H11: "published complete"}


def test_late_rows_that_do_not_close_make_their_published_hour_incomplete(
    mended: Mended, run: Run, request: pytest.FixtureRequest
) -> None:
    mended.load()
    run()
    mended.log.append_events(0, [START + 5, START + 6])
    request.getfixturevalue("miscounting")
    mended.load()
    assert outcome(run()) == {H10: "published incomplete"}


def test_an_hour_that_was_published_incomplete_because_its_rows_do_not_close_stays_so(
    mended: Mended, run: Run, request: pytest.FixtureRequest
) -> None:
    """The next run asks the auditor, who calls it complete, and must look at the rows again itself."""
    request.getfixturevalue("miscounting")
    mended.load()
    assert outcome(run(H10))[H10] == "published incomplete"
    assert outcome(run()) == {}


def test_an_hour_that_was_published_early_becomes_complete_once_it_closes(mended: Mended, run: Run) -> None:
    mended.load()
    run(H10, proven=False, verdicts={H10: "pending"})
    assert outcome(run()) == {H10: "published complete", H11: "published complete"}


def test_rows_of_another_hour_in_a_file_of_this_one_are_too_many(mended: Mended) -> None:
    mended.load()
    files = {file.hour: file for file in read_load(mended.topic, 1).files}
    paths = [mended.folder / TOPIC / files[hour].path for hour in (H10, H11)]
    both = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths])
    pq.write_table(both, paths[0])
    hours = {hour: [LoadRows(load=1, rows=file.rows)] for hour, file in files.items()}
    (rows, sequences) = unclosed(mended.topic, hours)[H10]
    assert "has 4 rows, the load wrote 3" in rows
    assert "0 missing, 1 too many" in sequences
