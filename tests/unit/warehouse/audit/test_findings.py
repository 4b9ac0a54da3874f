"""Findings of `verify` go to the auditor, with their hour, until a run that looks is clean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.audit import findings
from millrace_warehouse.audit.findings import MOST_REPORTED, Problem, read, to_problems, write
from millrace_warehouse.commands import execute
from millrace_warehouse.history.layout import audited_path, verified_path
from millrace_warehouse.requests import Verify
from tests.published import TOPIC, Warehouse, warehouse

NINE, TEN = "2015-05-17T09", "2015-05-17T10"
NINE_MS = 1_431_853_200_000


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    """Two published hours; somebody counts the warehouse for the auditor."""
    with warehouse(tmp_path / "w") as made:
        made.load({NINE: 3, TEN: 2})
        made.publish(NINE, TEN)
        made.storage.create(audited_path(TOPIC, 1, 1), b"")
        yield made


def verify(w: Warehouse, *, no_catalog: bool = False) -> list[tuple[str | None, str]]:
    """Hour and text of everything that the auditor is told after a run."""
    execute.verify(Verify(warehouse=str(w.folder), no_catalog=no_catalog), lambda _: None)
    found = read(w.stored)
    return [] if found is None else [(problem.hour, problem.text) for problem in found.problems]


def test_a_file_that_was_edited_is_told_with_its_hour_and_taken_back_once_it_is_right(w: Warehouse) -> None:
    assert verify(w) == []
    assert read(w.stored) is None, "nothing was ever wrong"
    (path,) = (path for path in w.data_files() if NINE in path.name)
    right = path.read_bytes()
    path.write_bytes(right[:-1] + b"!")
    (problem,) = {hour for hour, text in verify(w) if path.name in text}
    assert problem == NINE
    path.write_bytes(right)
    assert verify(w) == []
    found = read(w.stored)
    assert found is not None
    assert to_problems(found) == []


def test_a_missing_file_and_foreign_rows_are_told_with_their_hours(w: Warehouse) -> None:
    (path,) = (path for path in w.data_files() if TEN in path.name)
    path.unlink()
    found = verify(w)
    assert {hour for hour, _ in found} == {TEN}
    assert any(text.endswith("is missing: 2 rows are gone") for _, text in found)


def test_what_concerns_no_hour_is_of_the_whole_topic(w: Warehouse) -> None:
    manifest = w.topic / "loads" / "0000000001.json"
    manifest.write_text(manifest.read_text().replace('"reason": null', '"reason": "x"'))
    problems = verify(w)
    assert (None, True) in {(hour, "the manifest was edited" in text) for hour, text in problems}


def test_a_run_takes_back_only_what_it_has_looked_for(w: Warehouse) -> None:
    first = [Problem(text="in the table", hour=NINE)]
    write(w.stored, {"history", "table"}, first)
    assert verify(w, no_catalog=True) == [(NINE, "in the table")]
    assert verify(w) == []


def test_a_whole_run_takes_back_what_was_found_before_the_folder_was_put_back(w: Warehouse) -> None:
    """The auditor still has what an earlier run found, and the folder does not."""
    assert verify(w) == []
    assert read(w.stored) is None, "this run has not read the rows"
    execute.verify(Verify(warehouse=str(w.folder), rows=True), lambda _: None)
    found = read(w.stored)
    assert found is not None
    assert to_problems(found) == []


def test_a_warehouse_that_nobody_counts_is_left_alone(w: Warehouse) -> None:
    w.storage.delete(f"{TOPIC}/audited")
    w.data_files()[0].unlink()
    assert verify(w) == []


def test_the_auditor_is_told_a_bounded_number_of_lines_of_bounded_length(w: Warehouse) -> None:
    many = [Problem(text=f"{n} {'x' * 1000}", hour=NINE) for n in range(MOST_REPORTED + 7)]
    write(w.stored, {"history"}, [*many, Problem(text="of no window", hour="none")])
    found = read(w.stored)
    assert found is not None
    lines = to_problems(found)
    assert len(lines) == MOST_REPORTED + 1
    assert (lines[0].hour, len(lines[0].text)) == (NINE_MS, findings.MOST_LETTERS)
    assert (lines[-1].hour, lines[-1].text) == (None, "and 7 more problems")


def test_findings_that_were_cut_are_named_and_written_anew_by_the_next_run(w: Warehouse) -> None:
    write(w.stored, {"history"}, [Problem(text="wrong", hour=NINE)])
    path = w.folder / verified_path(TOPIC)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MillraceError, match="audited/_verified is not JSON"):
        read(w.stored)
    write(w.stored, {"history"}, [Problem(text="wrong", hour=TEN)])
    found = read(w.stored)
    assert found is not None
    assert [problem.hour for problem in found.problems] == [TEN]
