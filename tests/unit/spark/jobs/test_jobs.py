"""What the jobs put together around loads and hours: the auditor's verdict, the origin of a partition."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark import SparkContext

import millrace_spark.jobs.hourly
import millrace_spark.jobs.load
from millrace.records import Cursor
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace_audit.answer import Completeness
from millrace_spark.jobs import entry
from millrace_spark.jobs.hourly import publish, verdict_of
from millrace_spark.jobs.load import TopicFailure, load_topics
from millrace_warehouse.commands.verbs import Hourly, Load
from millrace_warehouse.history.manifest import OriginPartition
from millrace_warehouse.load.load import LoadResult, LoadRun, load_topic
from millrace_warehouse.load.writing import origin_of
from tests.brokers import free_port
from tests.support import WAIT_S
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog, filled_log, hourly_run, load_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW = {
    "start": "2015-05-17T10:00:00Z",
    "end": "2015-05-17T10:10:00Z",
    "verdict": "unknown",
    "revision": 0,
    "acknowledged": 1,
    "failed": 0,
    "tiers": {"dc1": 1},
    "findings": [],
    "reasons": ["web1 is silent"],
}


def test_the_verdict_of_an_hour_is_the_auditor_s_with_its_reasons_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str, datetime, datetime]] = []

    def answer(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        asked.append((url, topic, start, end))
        return Completeness.from_json(
            {
                "topic": topic,
                "from": start.isoformat(),
                "to": end.isoformat(),
                "verdict": "unknown",
                "watermark": "2015-05-17T09:50:00+00:00",
                "windows": [WINDOW, WINDOW],
            }
        )

    monkeypatch.setattr(millrace_spark.jobs.hourly, "completeness", answer)
    verdict = verdict_of("http://auditor", TOPIC, "2015-05-17T10")
    assert (verdict.verdict, verdict.watermark) == ("unknown", "2015-05-17T09:50:00+00:00")
    assert verdict.reasons == ["web1 is silent"]
    (question,) = asked
    assert question[:2] == ("http://auditor", TOPIC)
    assert [time.isoformat() for time in question[2:]] == [
        "2015-05-17T10:00:00+00:00",
        "2015-05-17T11:00:00+00:00",
    ]


def test_a_job_says_one_line_for_each_hour_it_publishes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    hours = ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]
    monkeypatch.setattr(millrace_spark.jobs.hourly, "_merge", lambda *_: hourly_run(tmp_path).merge)
    settings = Hourly(topic=TOPIC, hours=hours, warehouse=str(tmp_path), run_id="run", late=True)
    results = publish(cast("SparkSession", MagicMock()), settings)
    assert [(each.hour, each.published) for each in results] == [(hour, True) for hour in hours]
    assert capsys.readouterr().err.splitlines() == [
        f"step: hourly {TOPIC}: {step}"
        for step in (
            "written",
            "verified",
            *(f"{n} of 3: {hour} published" for n, hour in enumerate(hours, 1)),
        )
    ]


def test_nobody_is_asked_about_the_last_hour_of_the_calendar() -> None:
    verdict = verdict_of("http://127.0.0.1:1", TOPIC, "9999-12-31T23")
    assert (verdict.verdict, len(verdict.reasons)) == ("unknown", 1)


def test_without_an_auditor_nobody_is_asked() -> None:
    assert verdict_of("", TOPIC, "2015-05-17T10").verdict == "unasked"


def test_a_position_batch_tells_where_a_partition_comes_from() -> None:
    log = MemoryLog(2)
    client: Any = log
    origin = Origin("dc1", TOPIC, log.topic_id, 3)
    for partition, value in (
        (0, b"no position"),
        (1, MirrorPosition(origin, 0, Cursor(5), 1, 1, 0).encode(0)),
    ):
        log.append_events(partition, [START])
        log.append_control(partition, value)
        log.append_events(partition, [START])
    assert origin_of(client, TOPIC, 0, 0) is None
    assert origin_of(client, TOPIC, 1, 0) == OriginPartition(
        cluster="dc1", topic=TOPIC, topic_id=log.topic_id.hex, partition=3
    )


def test_a_load_of_hours_that_no_schedule_will_publish_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = datetime.now(UTC).isoformat()[: len("2015-05-17T10")]

    def loaded(run: LoadRun, topic: str) -> LoadResult:
        return LoadResult(
            topic=topic,
            run_id="run",
            load=1,
            published=True,
            rows=5,
            rejected=0,
            hours={"2015-05-17T10": 2, "2015-05-17T11": 1, now: 2},
            gaps=(),
            message="",
            notes=["first"],
        )

    monkeypatch.setattr(millrace_spark.jobs.load, "load_topic", loaded)
    (tmp_path / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=11" / "rev=1").mkdir(parents=True)
    settings = Load(
        topics=[TOPIC],
        bootstrap="127.0.0.1:1",
        registry="http://127.0.0.1:1",
        warehouse=str(tmp_path),
        run_id="run",
    )
    (result,) = load_topics(cast("SparkSession", MagicMock()), settings)
    assert isinstance(result, LoadResult)
    first, note = result.notes
    assert first == "first"
    assert "2 row(s) of 1 hour(s) are loaded and in no table: 2015-05-17T10 (2);" in note


def test_a_small_topic_does_not_wait_for_a_big_one_and_each_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_is_done = threading.Event()

    def load_when_told(run: LoadRun, topic: str) -> LoadResult:
        if topic == "Big":
            assert small_is_done.wait(WAIT_S)
        if topic == "Broken":
            raise ZeroDivisionError("no such\nluck")
        small_is_done.set()
        return LoadResult(
            topic=topic,
            run_id="run",
            load=1,
            published=True,
            rows=1,
            rejected=0,
            hours={},
            gaps=(),
            message="",
        )

    monkeypatch.setattr(millrace_spark.jobs.load, "load_topic", load_when_told)
    settings = Load(
        topics=["Big", "Broken", "Small"],
        bootstrap="127.0.0.1:1",
        registry="http://127.0.0.1:1",
        warehouse=str(tmp_path),
        run_id="run",
    )
    spark = MagicMock()
    results = load_topics(spark, settings)
    assert [result.topic for result in results] == ["Big", "Small", "Broken"]
    error = "Broken: unexpected ZeroDivisionError: no such; see the job's output"
    assert results[2] == TopicFailure(topic="Broken", error=error)
    pools = [call.args for call in spark.sparkContext.setLocalProperty.call_args_list]
    assert sorted(pools) == [("spark.scheduler.pool", topic) for topic in settings.topics]


def test_the_end_of_the_drivers_jvm_is_told_once_and_not_for_each_topic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(run: LoadRun, topic: str) -> LoadResult:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(millrace_spark.jobs.load, "load_topic", refused)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port()))
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    settings = {
        "topics": ["A", "B", "C"],
        "bootstrap": "127.0.0.1:1",
        "registry": "http://127.0.0.1:1",
        "warehouse": str(tmp_path / "warehouse"),
        "run_id": "run",
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    monkeypatch.setattr(sys, "argv", ["entry.py", "load", str(tmp_path / "settings.json")])
    monkeypatch.setattr("ctypes.CDLL", MagicMock())
    monkeypatch.setattr(entry, "ExecutorWatch", MagicMock())
    monkeypatch.setattr(entry, "_session", MagicMock())
    with pytest.raises(SystemExit):
        entry.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"].startswith("the driver's JVM has ended (killed, or out of memory): ")
