"""The page about freshness, and the rows that its readers count."""

from __future__ import annotations

import pytest

from tests.bench.load.fresh_reader import Looks, RowTwice
from tests.bench.load.freshness import Measured, conditions, report

OURS = Measured(
    title="Millrace",
    rows=1000,
    cpu_s=0.5,
    end_cpu_s=0.25,
    peak_rss=150_000_000,
    latencies={"pyiceberg": [3.0] * 990 + [12.5] * 10 + [14.0], "DuckDB": [4.0, 6.0, 9.0]},
)
PEER = Measured(
    title="Spark", rows=1000, cpu_s=2.0, compiler_s=0.25, peak_rss=900_000_000, latencies={"DuckDB": [7.0]}
)


def test_missed_levels_come_first_and_each_writer_has_its_figures() -> None:
    page = report({"millrace": OURS, "spark-stream": PEER}, "local")

    levels = [line for line in page.splitlines() if line.startswith("| dc1")]
    assert levels == [
        "| dc1 → pyiceberg, p99 | ≤ 10 s | 12.5 s | **no** |",
        "| dc1 → DuckDB, p50 | ≤ 5 s | 6 s | **no** |",
        "| dc1 → pyiceberg, p50 | ≤ 5 s | 3 s | yes |",
        "| dc1 → DuckDB, p99 | ≤ 10 s | 9 s | yes |",
    ]
    assert "- *dc1 → pyiceberg, p99* is 25% above its level." in page
    assert "| Millrace | pyiceberg | 1,001 | 3.00 | 12.50 | 14.00 |" in page
    assert "| Spark | DuckDB | 1 | 7.00 | 7.00 | 7.00 |" in page
    assert "| Millrace | 1,000 | 500 | 0 | 750 | 150 |" in page
    assert "| Spark | 1,000 | 2,000 | 250 | 2,000 | 900 |" in page


def test_a_large_topic_on_spark_has_its_own_level() -> None:
    page = report({"millrace": OURS}, "spark")

    levels = [line for line in page.splitlines() if line.startswith("| dc1")]
    assert levels == [
        "| dc1 → pyiceberg, p50 | ≤ 15 s | 3 s | yes |",
        "| dc1 → DuckDB, p50 | ≤ 15 s | 6 s | yes |",
    ]


def test_a_peer_that_cannot_run_is_named_and_has_no_figures() -> None:
    missing = Measured(title="Spark", missing="install Maven")

    page = report({"millrace": OURS, "spark-stream": missing}, "local")

    assert "- **Spark is missing: install Maven**" in page
    assert "| Spark |" not in page


@pytest.mark.parametrize(("busy", "other"), [(0.9, True), (0.0, False)])
def test_a_busy_machine_is_named(busy: float, other: bool) -> None:
    lines = conditions("--page", "2026-11-29 10:00 UTC", busy)

    assert "--page`, 2026-11-29 10:00 UTC, commit " in lines
    assert f"other processes used {busy:.0%} of all cores before it" in lines
    assert ("Other work ran on the same cores" in lines) is other


def test_a_reader_asks_for_rows_behind_its_newest_and_gives_their_times_by_partition() -> None:
    looks = Looks()

    assert looks.add([(1, 700, 4_000), (0, 404, 2_000), (0, 0, 1_000)]) == {0: [1.0, 2.0], 1: [4.0]}
    assert looks.missing() == (
        "(_topic_partition = 0 and _offset > 404) or (_topic_partition = 1 and _offset > 700)"
    )


def test_a_row_that_is_there_twice_ends_the_reader() -> None:
    with pytest.raises(RowTwice, match="offset 404 of partition 0 is there twice"):
        Looks().add([(0, 404, 2_000), (0, 0, 1_000), (0, 404, 2_000)])
