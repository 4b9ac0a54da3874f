"""Tasks on Spark are counted while the job runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace import steps
from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_spark.jobs.tasks import in_tasks
from tests.support import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_task_is_counted_with_its_records_and_bytes_when_it_ends_and_not_with_its_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = tmp_path / "counted"

    class Copied:  # here, so that the workers get the class itself: they cannot import this module
        figures = 500, 2_000_000

    def copy(number: int) -> Copied:
        deadline = time.monotonic() + WAIT_S
        while number == 1 and time.monotonic() < deadline:
            if counted.exists():
                raise MillraceError("no such partition")
            time.sleep(0.05)
        return Copied()

    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if line.startswith("1 of 2 ranges (50%), 500 records, 2.0 MB, "):
            counted.touch()

    monkeypatch.setattr(steps, "OFTEN_S", 0.0)
    count = Count(note, "ranges")
    with pytest.raises(MillraceError, match="no such partition"):
        in_tasks(spark.sparkContext, copy, range(2), count)
    count.expect(0)
    assert lines[0] == "0 of 2 ranges (0%), 0 s"
    assert lines[-1].startswith("2 of 2 ranges (100%), 500 records, 2.0 MB, ")
