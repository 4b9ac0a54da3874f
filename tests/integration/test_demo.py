"""The whole path on a real web server's log: every line is in the warehouse once, in its hour."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support import REPOSITORY, access_log, run_millrace

TIME = re.compile(r"\[(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]")


def hours_of_the_log(path: Path) -> Counter[str]:
    """Lines of the log per hour (UTC), read without Millrace's parser."""
    hours: Counter[str] = Counter()
    for line in path.read_text(errors="replace").splitlines():
        match = TIME.search(line)
        assert match is not None, line
        time = datetime.strptime(match[1], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
        hours[f"{time:%Y-%m-%dT%H}"] += 1
    return hours


def demo(keep: Path, *options: str) -> tuple[int, str, str]:
    """Run the demo; exit code, last line, all output."""
    paths = [f"--{name}={REPOSITORY / name}" for name in ("dags", "schemas")]
    deployment = f"--deployment={REPOSITORY / 'deploy' / 'local.toml'}"
    result = run_millrace("demo", "--keep", str(keep), deployment, *paths, *options, timeout_s=500)
    output = result.stdout + result.stderr
    return result.returncode, result.stdout.splitlines()[-1] if result.stdout else "", output


def test_every_line_of_a_real_log_arrives_once_and_in_its_hour(tmp_path: Path) -> None:
    log = access_log()
    expected = hours_of_the_log(log)
    code, last, output = demo(tmp_path, "--access-log", str(log))
    assert last == (
        "DEMO OK: published=10000 mirrored=10000 loaded=10000 lost=0 duplicated=0 hours_complete=84/84"
    ), output
    assert code == 0
    found = {}
    for folder in (tmp_path / "warehouse" / "PageView.hourly").glob("date=*/hour=*/rev=1"):
        hour = f"{folder.parents[1].name.removeprefix('date=')}T{folder.parent.name.removeprefix('hour=')}"
        found[hour] = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    assert found == expected
    assert len(found) == 84
    assert sum(found.values()) == 10_000


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
