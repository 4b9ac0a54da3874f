"""The whole path on a web server's log: every line is in the warehouse once, in its hour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace_demo.table import metadata_location, rows_by_duckdb, rows_by_hour
from tests.access_log import AccessLog
from tests.support import run_millrace


def demo(keep: Path, *options: str) -> tuple[int, str, str]:
    """Run the demo; exit code, last line, all output."""
    result = run_millrace("demo", "--keep", str(keep), *options, timeout_s=1800)
    output = result.stdout + result.stderr
    return result.returncode, result.stdout.splitlines()[-1] if result.stdout else "", output


@pytest.mark.slow
def test_every_line_of_an_access_log_arrives_once_and_in_its_hour(
    tmp_path: Path, access_log: AccessLog
) -> None:
    expected = access_log.hours()
    lines, hours = expected.total(), len(expected)
    code, last, output = demo(tmp_path, "--access-log", str(access_log.path))
    assert last == (
        f"DEMO OK: published={lines} mirrored={lines} loaded={lines} lost=0 duplicated=0"
        f" hours_complete={hours}/{hours}"
    ), output
    assert code == 0
    location = metadata_location(tmp_path / "warehouse", "PageView")
    assert location is not None
    assert rows_by_hour(location) == expected
    if (counted := rows_by_duckdb(location)) is not None:
        assert counted == lines
        assert f"DuckDB counts {lines:,} rows in the table of PageView" in output
    assert f"branch live of PageView: {lines:,} rows, not proven yet, " in output


@pytest.mark.long
def test_nothing_is_lost_with_a_broker_of_each_cluster_and_its_disk(tmp_path: Path) -> None:
    code, last, output = demo(tmp_path, "--events", "20000", "--hours", "2", "--replicas", "3")
    assert last == (
        "DEMO OK: published=20000 mirrored=20000 loaded=20000 lost=0 duplicated=0 hours_complete=4/4"
    ), output
    assert code == 0
    assert "killed for good, with their disks: the brokers dc1-1, dc2-1, offline-1" in output
    assert [(tmp_path / f"{name}-1").exists() for name in ("dc1", "dc2", "offline")] == [False] * 3


@pytest.mark.long
@pytest.mark.parametrize(("fault", "finding"), [("drop", "lost"), ("duplicate", "duplicated")])
def test_a_batch_that_the_mirror_withholds_or_repeats_is_named(
    tmp_path: Path, fault: str, finding: str
) -> None:
    code, last, output = demo(tmp_path, "--events", "20000", "--hours", "2", "--fault", fault)
    assert code == 1, output
    assert re.match(
        rf"DEMO FAILED: published=20000 .*; \d+ {finding}: PageView, server dc\d-web-\d,"
        r" instance \d+, sequences \d+",
        last,
    ), output
    assert re.search(r"audit at tier offline: \d+ (missing|duplicate): PageView, server dc\d-web-\d", output)
