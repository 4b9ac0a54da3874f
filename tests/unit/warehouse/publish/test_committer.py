"""Entries of a table in its manifests: by hours, few small, each as its commit left it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table

from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.publish.committer import branch_files, head_files
from tests.published import Warehouse, warehouse

HOURS = [f"2015-05-{day:02d}T{hour:02d}" for day in (17, 18) for hour in range(24)]


def manifests(table: Table) -> list[ManifestFile]:
    head = table.current_snapshot()
    return list(head.manifests(table.io)) if head is not None else []


def entries(table: Table) -> dict[str, ManifestEntry]:
    live = [entry for each in manifests(table) for entry in each.fetch_manifest_entry(table.io)]
    by_path = {entry.data_file.file_path: entry for entry in live}
    assert len(by_path) == len(live)
    return by_path


@pytest.fixture
def w(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("millrace_warehouse.publish.branch_commit.MANIFEST_FILES", 8)
    monkeypatch.setattr("millrace_warehouse.publish.branch_commit.SMALL_MANIFESTS", 3)
    with warehouse(tmp_path / "w") as w:
        yield w


def test_a_commit_of_many_files_writes_manifests_of_neighbouring_hours(w: Warehouse) -> None:
    hours = [*reversed(HOURS[:19]), UNFILED]
    w.load(dict.fromkeys(hours, 1))
    w.publish(*hours)
    spans = []
    for manifest in manifests(w.table):
        found = [entry.data_file.partition[0] for entry in manifest.fetch_manifest_entry(w.table.io)]
        assert len(found) <= 8
        spans.append(sorted(hour for hour in found if hour is not None))
    assert [len(span) for span in spans] == [7, 8, 4]
    assert all(first[-1] < second[0] for first, second in pairwise(spans))
    assert w.problems(rows=True) == []


def test_small_manifests_are_put_together_and_keep_what_is_said_of_each_file(w: Warehouse) -> None:
    w.load(dict.fromkeys(HOURS[:16], 1))
    w.publish(*HOURS[:16])
    seen: dict[str, tuple[int | None, int | None]] = {}
    for number in range(20):
        w.load({HOURS[number % 16]: 1})
        w.publish()
        now = {path: (entry.snapshot_id, entry.sequence_number) for path, entry in entries(w.table).items()}
        assert len(now) == 17 + number
        assert {path: now[path] for path in seen} == seen
        seen = now
        files = [
            (each.added_files_count or 0) + (each.existing_files_count or 0) for each in manifests(w.table)
        ]
        assert sum(count < 4 for count in files) <= 3
        assert max(files) <= 8
    assert w.problems(rows=True) == []


def test_rows_that_are_read_again_leave_manifests_of_other_hours_as_they_are(w: Warehouse) -> None:
    w.load(dict.fromkeys(HOURS[:32], 1))
    w.publish(*HOURS[:32])
    w.load({HOURS[2]: 2})
    w.publish()
    before = {each.manifest_path for each in manifests(w.table)}
    w.read_again(2, {HOURS[3]: 2})
    w.publish()
    assert len(before - {each.manifest_path for each in manifests(w.table)}) == 1
    assert w.problems(rows=True) == []


def test_files_of_hours_are_found_in_those_manifests_that_may_have_them(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.load({**dict.fromkeys(HOURS[:31], 1), UNFILED: 1})
    w.publish(*HOURS[:31], UNFILED)
    table = w.table
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def noted(self: ManifestFile, *arguments: object, **named: object) -> list[ManifestEntry]:
        read.append(self.manifest_path)
        return fetch(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", noted)
    for hours, most in (([HOURS[0]], 1), ([UNFILED], 1), ([HOURS[0], HOURS[30]], 2), ([HOURS[40]], 0)):
        read.clear()
        found = head_files(table, hours)
        assert {hour: len(files) for hour, files in found.items()} == {h: 1 for h in hours if h != HOURS[40]}
        assert len(read) == most
    assert len(list(branch_files(table))) == 32
