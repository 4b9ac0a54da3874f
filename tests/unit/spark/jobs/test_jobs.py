"""The jobs' work around loads: many topics at a time, the origin of a partition."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark import SparkContext

from millrace.records import Cursor
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace_spark.jobs import entry, load
from millrace_spark.jobs.load import load_topics, on_executors
from millrace_warehouse.commands import loads
from millrace_warehouse.commands.loads import TopicFailure
from millrace_warehouse.history.manifest import OriginPartition
from millrace_warehouse.load.load import LoadResult, LoadRun
from millrace_warehouse.load.range_writer import origin_of
from millrace_warehouse.requests import Load
from tests.brokers import free_port
from tests.support import WAIT_S
from tests.unit.warehouse.memory_log import START, TOPIC, MemoryLog


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

    monkeypatch.setattr(loads, "load_topic", load_when_told)
    settings = Load(
        topics=["Big", "Broken", "Small"],
        bootstrap="127.0.0.1:1",
        registry="http://127.0.0.1:1",
        warehouse=str(tmp_path),
        run_id="run",
    )
    results = load_topics(MagicMock(), settings)
    assert [result.topic for result in results] == ["Big", "Small", "Broken"]
    error = "Broken: unexpected ZeroDivisionError: no such; see the job's output"
    assert results[2] == TopicFailure(topic="Broken", error=error)


def test_each_thread_s_tasks_have_a_share_of_the_cores() -> None:
    spark = MagicMock()
    with ThreadPoolExecutor(2) as pool:
        together = threading.Barrier(2)
        list(pool.map(lambda _: (together.wait(WAIT_S), on_executors(spark)(len, ["task"])), range(2)))
    shares = {call.args for call in spark.setLocalProperty.call_args_list}
    assert len(shares) == 2
    assert {name for name, _ in shares} == {"spark.scheduler.pool"}


def test_the_end_of_the_drivers_jvm_is_told_once_and_not_for_each_topic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(run: LoadRun, topic: str) -> LoadResult:
        run.context.run_tasks(len, ["task"])
        raise AssertionError("there is no JVM")

    monkeypatch.setattr(loads, "load_topic", refused)
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
    monkeypatch.setattr(entry, "_context", MagicMock())
    monkeypatch.setattr(load, "in_tasks", MagicMock(side_effect=ConnectionRefusedError(111, "refused")))
    with pytest.raises(SystemExit):
        entry.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"].startswith("the driver's JVM has ended (killed, or out of memory): ")
