"""The page of the load benchmark, made from figures without any server."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.bench.load import cells, figures, report
from tests.bench.load.accounting import COLLECTOR, COMPILER, PYTHON, TASKS, WORKERS
from tests.bench.load.ways import WAYS

MB, GB = 1_000_000, 1_000_000_000


def run(wall_s: float, rows: int = 5_000_000, **groups: float) -> dict[str, Any]:
    """A load of so long; CPU seconds by group, by their short names."""
    names = {
        "tasks": TASKS,
        "compiler": COMPILER,
        "collector": COLLECTOR,
        "workers": WORKERS,
        "python": PYTHON,
    }
    broker = groups.pop("broker", 0.2)
    used = {names[name]: seconds for name, seconds in groups.items()}
    return {
        "rows": rows,
        "wall_s": wall_s,
        "groups": used,
        "cpu_s": sum(used.values()),
        "broker_cpu_s": broker,
        "output_bytes": 120 * MB,
        "files": 16,
        "peak_rss": 900 * MB,
    }


def mirrored(title: str, seconds: float, cpu_s: float, target_cpu_s: float = 0.0) -> dict[str, Any]:
    """A copy of 2 GB, a hundredth of which was there when it was first looked."""
    return {
        "title": title,
        "missing": None,
        "records": 7_000_000,
        "data_bytes": 2 * GB,
        "seconds": seconds,
        "part": 0.99,
        "cpu_s": cpu_s,
        "target_cpu_s": target_cpu_s,
        "origin_cpu_s": 1.0,
        "life_cpu_s": cpu_s + 2,
        "life_s": seconds + 4,
        "groups": {},
        "peak_rss": 300 * MB,
    }


RESULT: dict[str, Any] = {
    "versions": ["pyspark 4.3.0"],
    "runs": [
        {"command": "make bench-load", "date": "2026-01-02 03:04 UTC", "version": "0.1.0 (abc)", "busy": 0.01}
    ],
    "machine": {"cores": "2", "cpu": "some CPU", "memory": "24 GiB", "kernel": "6", "python": "3.11"},
    "load": {
        "data": {"messages": 5_000_000, "batches": 10_000, "bytes": 256 * MB},
        "millrace": {
            "title": "Millrace",
            "missing": None,
            "once": [run(8.0, workers=5.0, compiler=3.0, python=2.0)],
            "warm": [run(2.8, workers=4.0, tasks=1.0)],
        },
        "millrace-table": {
            "title": "Millrace: load, publish",
            "missing": None,
            "once": [run(10.0, workers=5.0, compiler=3.0, python=4.0)],
            "warm": [run(3.0, workers=4.0, tasks=1.0, python=1.0)],
        },
        "spark-kafka": {
            "title": "Spark's Kafka source, from_avro: Parquet",
            "missing": None,
            "once": [
                run(14.0, tasks=20.0, compiler=8.0, collector=2.0),
                run(16.0, tasks=20.0, compiler=8.0, collector=1.0),
                run(17.0, tasks=30.0, compiler=8.0, collector=2.0),
            ],
            "warm": [run(12.0, tasks=22.0), run(10.0, tasks=16.0), run(10.0, tasks=10.0, collector=1.0)],
        },
        "spark-iceberg": {
            "title": "Spark's Kafka source, from_avro: Iceberg",
            "missing": None,
            "once": [run(20.0, tasks=36.0)],
            "warm": [run(9.0, tasks=12.0)],
        },
        "spark-kafka-on-kafka": {
            "title": "the same, from Apache Kafka",
            "missing": None,
            "once": [run(15.0, tasks=30.0)],
            "warm": [],
        },
        "raw": {
            "title": "raw limits",
            "missing": None,
            "limits": {"fetch": {"rows": 5e6, "cpu_s": 0.5, "wall_s": 1.0, "peak_rss": 1e8}},
        },
    },
    "decoder": {
        "bench-decode": {
            "title": "decoder alone",
            "missing": None,
            "rates": {
                "PageView": {"by columns, to Arrow": 5.5},
                "long and string": {"by columns, to Arrow": 4.0},
            },
        }
    },
    "mirror": {
        "millrace-mirror": mirrored("Millrace → Millrace", 5.0, 3.96),
        "millrace-mirror-of-kafka": mirrored("Apache Kafka → Millrace", 8.0, 3.96),
        "mirrormaker": mirrored("MirrorMaker 2", 40.0, 39.6, 9.9),
    },
}


def lines(text: str, *words: str) -> list[str]:
    """Lines of the page that hold all the words."""
    return [line for line in text.splitlines() if all(word in line for word in words)]


def level(key: str, result: dict[str, Any] = RESULT) -> float | None:
    """Return the measured value of the level with that key."""
    return next(level.measured for level in figures.levels(result) if level.key == key)


def test_the_page_says_of_each_level_what_was_measured_and_whether_it_is_reached() -> None:
    page = report.half(RESULT)

    assert lines(page, "- Run: `make bench-load`, 2026-01-02 03:04 UTC, Millrace 0.1.0 (abc);", " 1% of all")
    assert lines(page, "| decoder alone, PageView", "≥ 5 M", "5.5 M", "| yes |")
    assert lines(page, "| decoder alone, long and string", "4 M", "| **no** |")
    assert lines(page, "| a load, its tasks", "≥ 1 M", "1.25 M", "| yes |")
    assert lines(page, "| a load, the whole command", "≥ 0.4 M", "0.5 M", "| yes |")
    assert lines(page, "| mirror of Apache Kafka |", "≥ 300 MB/s", "248 MB/s", "| **no** |")


def test_a_missed_level_says_by_how_much_and_what_held_the_load_up() -> None:
    result = copy.deepcopy(RESULT)
    result["load"]["millrace"]["once"] = [run(16.0, workers=15.0, compiler=3.0, python=2.0)]
    page = report.half(result)

    assert lines(page, "- *a load, the whole command", "is 38% below its level. Bottleneck: not all cores")
    assert lines(page, "- *mirror of Apache Kafka* is 18% below its level. Bottleneck: waiting (mirror 0.49")
    assert not lines(page, "- *a load, its tasks")


def test_a_rate_is_that_of_the_median_run_and_the_page_has_the_range_too() -> None:
    runs = RESULT["load"]["spark-kafka"]["once"]
    assert figures.per_cpu(runs) == pytest.approx(5_000_000 / 30)
    assert figures.per_wall(runs) == pytest.approx(5_000_000 / 16)
    page = report.half(RESULT)
    assert lines(page, "from_avro: Parquet |", "| 30.0 (29.0 to 40.0) | 16.0 (14.0 to 17.0) |")


def test_a_way_that_was_never_warm_stands_with_its_whole_command_alone() -> None:
    assert len(lines(report.half(RESULT), "| the same, from Apache Kafka |")) == 1


def test_ratios_compare_the_same_form_of_both() -> None:
    assert level("spark-kafka-cpu") == pytest.approx(30 / 10)
    assert level("spark-kafka-wall") == pytest.approx(16 / 8)
    assert level("spark-kafka-warm") == pytest.approx(16 / 5)
    assert level("spark-iceberg-cpu") == pytest.approx(36 / 12)
    assert level("spark-iceberg-warm") == pytest.approx(12 / 6)


def test_the_mirrors_cpu_is_for_what_was_copied_while_the_clock_ran() -> None:
    copied = RESULT["mirror"]["mirrormaker"]

    assert figures.mirror_mb_per_s(copied) == pytest.approx(2000 * 0.99 / 40)
    assert figures.mirror_cpu_per_gb(copied) == pytest.approx(20)
    assert figures.mirror_cpu_per_gb(copied, with_target=True) == pytest.approx(25)
    times = [each.measured for each in figures.levels(RESULT) if each.key == "mirror-cpu"]
    assert times == [pytest.approx(10), pytest.approx(12.5)]
    assert lines(report.half(RESULT), "| Millrace → Millrace |", "| 396 |", "| the same process |")


@pytest.mark.parametrize(
    ("load", "verdict"),
    [
        (run(10.0, tasks=15.0, compiler=4.0), "all cores, mostly JVM tasks ("),
        (run(10.0, workers=5.0, broker=9.5), "broker (broker 0.95"),
        (run(10.0, workers=6.0, python=1.0), "not all cores busy, mostly Python workers ("),
    ],
)
def test_the_bottleneck_is_who_used_most_when_all_cores_were_busy(load: dict[str, Any], verdict: str) -> None:
    assert figures.bottleneck(load, cores=2).startswith(verdict)


@pytest.mark.parametrize(
    ("copied", "verdict"),
    [
        (mirrored("", 4.0, 3.9), "the mirror (mirror 0.97, origin 0.25)"),
        (
            mirrored("", 10.0, 16.0, 3.0),
            "all cores, mostly the mirror (mirror 1.60, origin 0.10, target 0.30)",
        ),
        (mirrored("", 10.0, 4.0), "waiting ("),
    ],
)
def test_a_mirror_that_uses_a_whole_core_sets_the_pace(copied: dict[str, Any], verdict: str) -> None:
    assert figures.mirror_bottleneck(copied, cores=2).startswith(verdict)


def test_another_way_that_is_better_is_named_and_one_within_the_noise_is_not() -> None:
    result = copy.deepcopy(RESULT)
    result["load"]["spark-kafka"]["once"] = [run(7.8, tasks=4.0)]
    result["mirror"]["mirrormaker"]["seconds"] = 4.0

    page = report.half(result)

    assert lines(
        page, "- *Spark's Kafka source, from_avro: Parquet*, whole command: 2.50 times the records per CPU"
    )
    assert not lines(page, "whole command", "per second.")
    assert lines(page, "- *MirrorMaker 2*: 2.00 times, MB/s.")
    assert not lines(report.half(RESULT), "- *MirrorMaker 2*")


def test_what_is_missing_or_failed_stands_on_the_page_and_in_the_exit_code() -> None:
    result = copy.deepcopy(RESULT)
    result["mirror"]["mirrormaker"] = {"title": "MirrorMaker 2", "missing": "no Maven"}
    result["load"]["spark-kafka"] = {"title": "Spark", "missing": None, "failed": "exit code 1: why"}
    del result["decoder"]

    found = report.problems(result)

    assert found == [
        "load: spark-kafka failed: exit code 1: why",
        "decoder was not measured",
        "mirror: mirrormaker is missing: no Maven",
    ]
    assert all(f"- **{problem}**" in report.half(result) for problem in found)
    assert report.problems(RESULT) == []


def test_a_page_without_any_figure_can_be_made() -> None:
    page = report.half({})

    assert "not measured" in page
    assert {each.met for each in figures.levels({})} == {None}


def test_every_way_has_a_name_of_its_own_and_every_mirror_a_title() -> None:
    names = [name for some in cells.CELLS.values() for name in some]

    assert len(names) == len(set(names))
    assert set(cells.MIRRORS) == set(cells.CELLS["mirror"])
    assert {way.name for way in WAYS} < set(cells.CELLS["load"])


def test_the_rates_are_read_from_what_bench_decode_prints() -> None:
    printed = (
        "long and string: 195 bytes a message, million records per CPU-second\n"
        "  by columns, to Arrow           12.48\n"
        "PageView: 251 bytes a message, million records per CPU-second\n"
        "  by columns, to Arrow            2.59\n"
        "  unzip, frame and decode         0.96\n"
        "something else: 3\n"
    )

    assert cells.decoder_rates(printed) == {
        "long and string": {"by columns, to Arrow": 12.48},
        "PageView": {"by columns, to Arrow": 2.59, "unzip, frame and decode": 0.96},
    }
    assert cells.decoder_rates("Traceback\n") == {}
