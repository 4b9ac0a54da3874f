"""Publishing hours as a Spark job: any number of hours of one topic in one application."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from millrace_warehouse.history.staging import Progress
from millrace_warehouse.table.merge import DirectMerge, Merge, merge_files
from millrace_warehouse.table.publish import (
    HourlyRun,
    HourResult,
    publish_hours,
    publish_late_hours,
    publish_unpublished_hours,
)

from millrace_audit.client import completeness
from millrace_spark.jobs.entry import in_tasks
from millrace_warehouse.commands.steps import to_stderr
from millrace_warehouse.commands.verbs import Hourly
from millrace_warehouse.history.manifest import UNASKED, Verdict
from millrace_warehouse.load.hour_files import HOUR_MS, LAST_HOUR, hour_of
from millrace_warehouse.storage.filesystem import Filesystem, open_filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST = hour_of(LAST_HOUR * HOUR_MS)
"""Where clocks that are fast by any amount are filed."""
TOGETHER = 50
"""Hours in one Spark task at most."""


def publish(spark: SparkSession, request: Hourly) -> list[HourResult]:
    """Publish every hour that has news: those named, those with late rows, those never published."""
    fs = open_filesystem(request.warehouse, spark)
    run = HourlyRun(
        fs=fs,
        merge=_merge(spark, fs, request.sink),
        verdict_of=partial(verdict_of, request.auditor),
        run_id=request.run_id,
        progress=_hour_by_hour(to_stderr(f"hourly {request.topic}")),
    )
    results = publish_hours(run, request.topic, request.hours, also_empty=request.late)
    if request.late:
        results += publish_late_hours(run, request.topic)
    if request.unpublished:
        results += publish_unpublished_hours(run, request.topic, request.unproven_after_s)
    return list(
        {result.hour: result for result in results}.values()
    )  # of an hour the last, which is the newest


def _hour_by_hour(progress: Progress) -> Progress:
    """Says of each hour only that it is published: its other steps are of interest when one of them fails."""

    def step(name: str) -> None:
        if ": " not in name or name.endswith(" published"):
            progress(name)

    return step


def _merge(spark: SparkSession, fs: Filesystem, sink: str) -> Merge:
    if sink == "direct":
        return DirectMerge(fs, partial(in_tasks, spark, merge_files, together=TOGETHER))
    from millrace_spark.spark_sink import SparkMerge

    return SparkMerge(spark, fs)


def verdict_of(auditor: str, topic: str, hour: str) -> Verdict:
    """What the auditor at that URL says of an hour; without one every verdict is `unasked`."""
    if not auditor:
        return Verdict(verdict=UNASKED)
    if hour == LAST:
        return Verdict(verdict="unknown", reasons=["the calendar ends with this hour: nobody can be asked"])
    start = datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)
    answer = completeness(auditor, topic, start, start + timedelta(hours=1))
    reasons = [reason for window in answer.windows for reason in window.reasons]
    return Verdict(
        verdict=answer.verdict,
        watermark=None if answer.watermark is None else answer.watermark.isoformat(),
        checked=datetime.now(UTC).isoformat(timespec="seconds"),
        reasons=list(dict.fromkeys(reasons)),
    )
