"""Checks of a load in the load benchmark: rows are counted where readers would find them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.load.accounting import WORKERS, Used
from tests.bench.load.latency import percentiles, report
from tests.bench.load.loading import LoadFailed, Origin, check, data_files, rows_by_hour
from tests.bench.load.servers import Broker
from tests.bench.load.ways import WAYS

USED = Used(wall_s=1.0, groups={WORKERS: 0.5}, peak_rss=1)


def write(path: Path, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": list(range(rows))}), path)


def test_rows_are_counted_by_the_hour_of_their_folder_or_file_whoever_wrote_it(tmp_path: Path) -> None:
    write(tmp_path / "PageView/rows/0000000001-ab/2015-05-17T08-00000-a.parquet", 3)
    write(tmp_path / "PageView/rows/0000000001-ab/2015-05-17T08-00001-b.parquet", 4)
    write(tmp_path / "date=2015-05-17/hour=9/c.parquet", 5)
    write(tmp_path / "bench/page_views/data/_time_hour=2015-05-17-10/f.parquet", 8)
    write(tmp_path / "_temporary/0/date=2015-05-17/hour=08/d.parquet", 6)
    write(tmp_path / "PageView/rows/0000000001-ab/rejected-00000-e.parquet", 7)

    found = {"2015-05-17T08": 7, "2015-05-17T09": 5, "2015-05-17T10": 8}
    assert rows_by_hour(data_files(tmp_path)) == found


@pytest.mark.parametrize("expected", [{"2015-05-17T08": 4}, {"2015-05-17T08": 3, "2015-05-17T09": 1}, {}])
def test_a_load_that_wrote_anything_else_than_was_produced_has_failed(
    tmp_path: Path, expected: dict[str, int]
) -> None:
    write(tmp_path / "date=2015-05-17/hour=8/a.parquet", 3)
    origin = Origin(broker=Broker(address="", pid=1), registry="", rows_by_hour=expected)

    with pytest.raises(LoadFailed, match="produced were"):
        check(WAYS[0], origin, tmp_path, USED, 0.0)


def test_a_load_that_wrote_what_was_produced_tells_its_rows_files_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "date=2015-05-17/hour=8/a.parquet"
    write(file, 3)
    origin = Origin(broker=Broker(address="", pid=1), registry="", rows_by_hour={"2015-05-17T08": 3})

    run = check(WAYS[0], origin, tmp_path, USED, 0.25)

    assert (run.rows, run.files, run.output_bytes) == (3, 1, file.stat().st_size)
    assert (run.used.cpu_s, run.broker_cpu_s) == (0.5, 0.25)


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles([float(value) for value in range(101)][::-1])

    assert found == {"count": 101, "p50": 50.0, "p99": 99.0, "max": 100.0}
    assert percentiles([7.0]) == {"count": 1, "p50": 7.0, "p99": 7.0, "max": 7.0}


def test_a_late_event_misses_its_level() -> None:
    seconds = {"count": 30_000, "p50": 0.012, "p99": 0.3, "max": 0.5}
    slow = {"count": 100_000, "p50": 38.0, "p99": 68.0, "max": 130.6}
    page = report(
        {"aggregate": seconds, "aggregate_with_loads": seconds, "warehouse": slow, "loads": [8.4, 8.6]}
    )
    assert "| dc1 → aggregate cluster, p50 | ≤ 0.015 s | 0.012 s | yes |" in page
    assert "| dc1 → aggregate cluster, p99 | ≤ 0.05 s | 0.3 s | **no** |" in page
    assert "| dc1 → warehouse, p50 | ≤ 60 s | 38 s | yes |" in page
    assert "| dc1 → warehouse, max | ≤ 120 s | 131 s | **no** |" in page
    assert "| dc1 → aggregate cluster | 30,000 | 0.012 | 0.300 | 0.500 |" in page
