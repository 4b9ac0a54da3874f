"""Drivers on a cluster, as far as that needs no Spark; test_spark_cluster.py has the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands.job import Invocation, run_job
from millrace_spark.jobs.elsewhere import SENT, SentJob, _DriverRun, submit
from millrace_spark.jobs.standalone import DriverState, Master
from millrace_warehouse.commands.hours import parse_hours
from millrace_warehouse.requests import Load
from millrace_warehouse.storage.local import LocalStorage

CLUSTER_MODE = {"spark.submit.deployMode": "cluster"}
ARGUMENT_BYTES = 128 << 10
"""Largest size of one environment variable in Linux."""


@contextmanager
def answers(answer: dict[str, Any], host: str, port: int = 0) -> Iterator[int]:
    """The port of somebody who gives every request this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def test_of_several_masters_the_one_that_is_active_is_believed() -> None:
    # In Spark's own words.
    words = "java.lang.Exception: Current state is not alive: STANDBY. Can only request driver status"
    standby = {"action": "SubmissionStatusResponse", "success": False, "message": words}
    active = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
    with answers(standby, "127.0.0.1") as port, answers(active, "127.0.0.2", port):
        conf = {"spark.master.rest.port": str(port)}
        assert Master("spark://127.0.0.1:1,127.0.0.2:1", conf).state("driver-1") == DriverState("RUNNING")
        with pytest.raises(MillraceError, match="not alive: STANDBY"):
            Master("spark://127.0.0.1:1", conf).state("driver-1")


def test_a_master_that_takes_no_drivers_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    settings = {"topics": ["A"], "warehouse": str(tmp_path), "run_id": "r"}
    conf = {**CLUSTER_MODE, "spark.master.rest.port": "1"}
    with pytest.raises(MillraceError, match=r"spark\.master\.rest\.enabled=true") as caught:
        submit("load", settings, master="spark://127.0.0.1:7077", on_line=print, conf=conf)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [({"master": "yarn"}, "not for yarn"), ({"archives": ["environment.tar.gz#environment"]}, "--archives")],
)
def test_what_cannot_run_on_the_cluster_is_refused_before_anything_starts(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    request = Load(topics=["A"], warehouse=str(tmp_path), bootstrap="b:1", registry="http://r")
    with pytest.raises(ConfigError, match=says):
        run_job("load", request, Invocation(conf=CLUSTER_MODE, **options))


def test_a_year_of_hours_travels_in_one_variable_which_nobody_else_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = SentJob(settings={"hours": parse_hours([], "2015-01-01", "2016-01-01")}, conf={}, answer="a")
    monkeypatch.setenv(SENT, sent.packed())
    assert len(sent.packed()) < ARGUMENT_BYTES
    assert SentJob.take() == sent
    with pytest.raises(KeyError):
        SentJob.take()


class OneDriver:
    """A master whose only driver runs."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def submit(self, *_: object) -> str:
        return "driver-1"

    def state(self, driver: str) -> DriverState:
        return DriverState("RUNNING")

    def kill(self, driver: str) -> None:
        self.killed.append(driver)


def run_of(tmp_path: Path, master: OneDriver, topic: str) -> _DriverRun:
    settings = {"warehouse": str(tmp_path), "run_id": "run", "topics": [topic]}
    return _DriverRun("load", settings, master, lambda line: None)  # type: ignore[arg-type]


def test_a_driver_that_does_something_else_by_now_is_ended_before_another_one_begins(tmp_path: Path) -> None:
    master = OneDriver()
    begun = run_of(tmp_path, master, "A").begin({})
    assert run_of(tmp_path, master, "A").resume() == begun
    assert master.killed == []
    assert run_of(tmp_path, master, "B").resume() is None
    assert master.killed == ["driver-1"]


def test_a_driver_that_cannot_be_written_down_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError("the disk is full")

    master = OneDriver()
    run = run_of(tmp_path, master, "A")
    monkeypatch.setattr(LocalStorage, "create", full)
    with pytest.raises(OSError, match="full"):
        run.begin({})
    assert master.killed == ["driver-1"]
