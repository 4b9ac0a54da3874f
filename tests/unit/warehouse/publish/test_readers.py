"""State of branch `live` as `millrace tables` describes and prints it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.errors import MillraceError
from millrace_warehouse.commands.publishing import tables
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import loads_after
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.files import entries_of
from millrace_warehouse.publish.layouts import TableLayouts
from millrace_warehouse.publish.live import Live, Tail
from millrace_warehouse.publish.readers import LiveDescription, describe_table, open_live
from tests.published import TOPIC, Warehouse, warehouse

NINE, TEN = "2015-05-17T09", "2015-05-17T10"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


def follow(w: Warehouse, tail: Tail | None = None) -> None:
    Live(Context(storage=w.storage, catalog=w.catalog), w.stored).follow(tail, on=True)


def live(w: Warehouse) -> LiveDescription:
    described = describe_table(w.storage, w.catalog, TOPIC).live
    assert described is not None
    return described


def printed(w: Warehouse) -> str:
    done = CliRunner().invoke(tables, [TOPIC, "--warehouse", str(w.folder)])
    assert done.exit_code == 0, done.output
    return re.sub(r" +", " ", done.stdout)


def test_a_table_without_the_branch_has_only_lines_of_published_rows(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    assert describe_table(w.storage, w.catalog, TOPIC).live is None
    shown = printed(w)
    assert "\nlive: off\n" in shown
    assert "not proven" not in shown
    with pytest.raises(MillraceError, match="has no branch live of PageView: set live = true"):
        open_live(w.catalog, TOPIC)


def test_a_table_that_was_never_published_has_only_lines_of_the_branch(w: Warehouse) -> None:
    w.load({NINE: 3, TEN: 2})
    follow(w)
    described = describe_table(w.storage, w.catalog, TOPIC)
    assert (described.publication, described.rows, described.loads_behind) == (0, 0, 1)
    assert described.readers == {}
    assert (live(w).rows, live(w).rows_not_proven, live(w).behind_s) == (5, 5, 0.0)
    shown = printed(w)
    assert "live: shows every load, 5 rows not proven\n" in shown
    assert "\n# DuckDB: branch live, not proven (one snapshot: for later rows run" in shown
    assert "\n# DuckDB (" not in shown


def test_a_line_of_an_ordinary_warehouse_shows_its_code_as_it_is_written(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    readers = describe_table(w.storage, w.catalog, TOPIC).readers
    metadata = w.table.metadata_location
    code = f"import polars; scan = polars.scan_iceberg('{metadata}'); print(scan.collect())"
    assert readers["polars"] == f'python -c "{code}"'
    assert f"\"INSTALL iceberg; LOAD iceberg; FROM iceberg_scan('{metadata}')\"" in readers["DuckDB"]


@pytest.mark.parametrize("folder", ["plain", "it's", "it's $HOME `x`", "it's !1", "both \" and '", "\\"])
def test_a_shell_takes_a_line_as_its_words_whatever_the_path_holds(tmp_path: Path, folder: str) -> None:
    with warehouse(tmp_path / folder) as made:
        made.load({NINE: 3})
        made.publish(NINE)
        described = describe_table(made.storage, made.catalog, TOPIC)
    print_words = f"printf '%s\\n' {described.readers['polars']}"
    words = subprocess.check_output(["/bin/sh", "-c", print_words], text=True)
    python, c, code = words.splitlines()
    assert (python, c) == ("python", "-c")
    assert f"polars.scan_iceberg({described.metadata_location!r})" in code


def test_the_branch_is_behind_since_its_last_commit_when_a_load_or_publication_is_not_shown(
    w: Warehouse,
) -> None:
    w.load({NINE: 3, TEN: 2})
    w.publish(NINE)
    follow(w)
    assert (live(w).rows, live(w).rows_not_proven, live(w).behind_s) == (5, 2, 0.0)
    head = w.table.metadata.snapshot_by_name(LIVE)
    assert head is not None
    w.load({TEN: 1})
    before = time.time()
    behind = live(w).behind_s
    assert before <= head.timestamp_ms / 1000 + behind <= time.time()
    assert "s, 2 rows not proven\n" in printed(w)
    follow(w)
    assert (live(w).rows_not_proven, live(w).behind_s) == (3, 0.0)


def test_a_branch_with_a_tail_may_lack_what_came_after_its_last_commit(w: Warehouse) -> None:
    w.load({NINE: 3})
    follow(w)
    w.load({NINE: 2})
    (second,) = loads_after(w.stored, 1)
    entries = list(entries_of(w.stored, second, [NINE], TableLayouts(w.stored, w.table.metadata)))
    tail = Tail(load=3, attempt="a", ends={0: 7}, schema=1, entries=entries, lease_s=60.0)
    follow(w, tail)
    assert live(w).behind_s > 0


def test_a_branch_that_another_program_has_dropped_is_named(w: Warehouse) -> None:
    w.load({NINE: 3})
    w.publish(NINE)
    follow(w)
    w.table.manage_snapshots().remove_branch(LIVE).commit()
    assert (live(w).snapshot_id, live(w).readers) == (None, {})
    shown = printed(w)
    assert "live: dropped by another program" in shown
    assert "\n# DuckDB (one snapshot: for later rows run `millrace tables` again)\n" in shown
    with pytest.raises(MillraceError, match="has dropped branch live of PageView"):
        open_live(w.catalog, TOPIC)


def test_a_table_that_is_neither_published_nor_live_is_refused(w: Warehouse) -> None:
    w.load({NINE: 3})
    with pytest.raises(MillraceError, match="has no published table of PageView"):
        describe_table(w.storage, w.catalog, TOPIC)
