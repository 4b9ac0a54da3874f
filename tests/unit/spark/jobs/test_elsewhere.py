"""Drivers on a cluster, as far as that needs no Spark; test_spark_cluster.py has the rest."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_airflow.job import Job
from millrace_spark.commands.job import Invocation, run_job
from millrace_spark.jobs import elsewhere, entry
from millrace_spark.jobs.drivers import KEEP_S, UNKNOWN, Driver, DriverFiles, DriverState, SentJob
from millrace_spark.jobs.elsewhere import _DriverRun, submit
from millrace_spark.jobs.standalone import Master
from millrace_spark.jobs.yarn import Yarn, web_addresses
from millrace_warehouse.commands.hours import parse_hours
from millrace_warehouse.requests import Load
from millrace_warehouse.storage.local import LocalStorage
from tests.peers.hdfs import site_xml
from tests.support import WAIT_S, wait_until

CLUSTER_MODE = {"spark.submit.deployMode": "cluster"}
DRIVER = Driver(attempt="a", asked="b")
ARGUMENT_BYTES = 128 << 10
"""Largest size of one environment variable in Linux."""


Answer = Callable[[str, str, Any], Any]
"""From method, path and body of a request to its answer; None is a 404, an OSError ends the connection."""


@contextmanager
def server(answer: Answer, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Yield the port of an HTTP server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            try:
                found = answer(
                    self.command, self.path.partition("?")[0], json.loads(self.rfile.read(size) or "0")
                )
            except OSError:
                return
            body = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, port), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield http.server_port
        finally:
            http.shutdown()


def answers(answer: dict[str, Any], host: str, port: int = 0) -> Any:
    """Yield the port of a server that gives every request this answer."""
    return server(lambda *_: answer, host, port)


def test_of_several_masters_the_one_that_is_active_is_believed() -> None:
    # In Spark's own words.
    words = "java.lang.Exception: Current state is not alive: STANDBY. Can only request driver status"
    standby = {"action": "SubmissionStatusResponse", "success": False, "message": words}
    active = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
    with answers(standby, "127.0.0.1") as port, answers(active, "127.0.0.2", port):
        conf = {"spark.master.rest.port": str(port)}
        assert Master("spark://127.0.0.1:1,127.0.0.2:1", conf).state("driver-1").word == "RUNNING"
        with pytest.raises(MillraceError, match="not alive: STANDBY"):
            Master("spark://127.0.0.1:1", conf).state("driver-1")


def test_a_master_that_takes_no_drivers_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    settings = {"topics": ["A"], "warehouse": str(tmp_path), "run_id": "r"}
    conf = {**CLUSTER_MODE, "spark.master.rest.port": "1"}
    with pytest.raises(MillraceError, match=r"spark\.master\.rest\.enabled=true") as caught:
        submit("load", settings, master="spark://127.0.0.1:7077", on_line=print, conf=conf)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.glob(".drivers/*")] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"master": "k8s://https://127.0.0.1:1"}, "not for k8s://"),
        (
            {"master": "spark://127.0.0.1:{port}", "archives": ["environment.tar.gz#environment"]},
            "--archives",
        ),
        ({"master": "yarn"}, "no ResourceManager in yarn-site.xml"),
    ],
)
def test_what_cannot_run_on_the_cluster_is_refused_before_anything_starts(
    options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(variable, raising=False)
    request = Load(topics=["A"], warehouse=str(tmp_path), bootstrap="b:1", registry="http://r")
    with answers({}, "127.0.0.1") as port:
        invocation = Invocation(
            conf=CLUSTER_MODE, **{**options, "master": options["master"].format(port=port)}
        )
        with pytest.raises(ConfigError, match=says):
            run_job("load", request, invocation)


def test_a_year_of_hours_travels_in_one_variable() -> None:
    hours = parse_hours([], "2015-01-01", "2016-01-01")
    sent = SentJob(job="load", settings={"hours": hours}, conf={}, environment={"A": "a"}, driver=DRIVER)
    assert len(sent.packed()) < ARGUMENT_BYTES
    assert SentJob.unpacked(sent.packed()) == sent


class Cluster:
    """A cluster whose drivers run until a test or a command ends them."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.sent: list[SentJob] = []
        self.at_submission: Callable[[SentJob], object] = self.start
        self.asked = Counter[str]()

    def start(self, sent: SentJob) -> None:
        self.states[sent.driver.tag] = "RUNNING"
        sent.begin(sent.driver.tag)

    def submit(self, sent: SentJob) -> str:
        self.sent.append(sent)
        self.at_submission(sent)
        return sent.driver.tag

    def state(self, driver: str) -> DriverState:
        self.asked[driver] += 1
        word = self.states.get(driver, UNKNOWN)
        return DriverState(word, ended=word not in ("RUNNING", "SUBMITTED"), waiting=word == "SUBMITTED")

    def kill(self, driver: str) -> None:
        if self.states.get(driver) in ("RUNNING", "SUBMITTED"):
            self.states[driver] = "KILLED"

    def end(self, sent: SentJob, result: str) -> None:
        sent.reply(json.dumps({"result": result}))
        self.states[sent.driver.tag] = "FINISHED"


class Commands:
    """Commands of one run, each in a thread, and the cluster with their drivers."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.cluster, self.folder, self._pool = Cluster(), folder, pool
        self.timeout_s = WAIT_S
        self.files = DriverFiles(self.settings("A"))

    def settings(self, topic: str) -> dict[str, Any]:
        return {"warehouse": str(self.folder), "run_id": "run", "topics": [topic]}

    def run(self, topic: str = "A", on_line: Any = print) -> Any:
        """Run a command to its end."""
        cluster: Any = self.cluster
        settings = self.settings(topic)
        return _DriverRun("load", settings, cluster, on_line, self.timeout_s).result({})

    def start(self, topic: str = "A") -> Any:
        """Start a command. Return the future of its result once it waits for a driver."""
        lines: list[str] = []
        future = self._pool.submit(self.run, topic, lines.append)
        wait_until("the command waits", lambda: lines or future.done())
        return future

    def die_in(self, moment: Callable[[SentJob], object]) -> SentJob:
        """Kill a command in its submission, after `moment`. Return the job that it sends."""

        def die(sent: SentJob) -> None:
            moment(sent)
            raise SystemError

        self.cluster.at_submission = die
        with pytest.MonkeyPatch.context() as killed:
            killed.setattr(_DriverRun, "_end", lambda *_: None)
            with pytest.raises(SystemError):
                self.run()
        self.cluster.at_submission = self.cluster.start
        return self.cluster.sent[-1]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr("os.setsid", refuse)  # the test run stays in its group
    monkeypatch.setattr(elsewhere, "POLL_S", 0.02)
    monkeypatch.setattr(elsewhere, "UNKNOWN_S", 0.5)
    with ThreadPoolExecutor(4) as pool:
        commands = Commands(tmp_path, pool)
        yield commands
        for sent in commands.cluster.sent:  # a test that fails leaves commands that wait
            commands.cluster.states[sent.driver.tag] = "KILLED"


def test_a_command_whose_run_another_command_has_taken_leaves_the_others_claim_and_answer(
    commands: Commands,
) -> None:
    first = commands.start("A")
    second = commands.start("B")
    with pytest.raises(MillraceError, match="ended as KILLED without an answer"):
        first.result(20)
    third = commands.start("B")
    assert len(commands.cluster.sent) == 2, "the third command waits for the driver of the second"
    commands.cluster.end(commands.cluster.sent[1], "B")
    assert second.result(20) == third.result(20) == "B"
    assert commands.files.claimed() is None


def test_every_command_that_waits_for_a_driver_gets_its_answer_and_a_later_one_begins_again(
    commands: Commands,
) -> None:
    waiting = [commands.start(), commands.start()]
    (sent,) = commands.cluster.sent
    commands.cluster.end(sent, "all")
    assert [each.result(20) for each in waiting] == ["all", "all"]
    commands.cluster.at_submission = lambda sent: commands.cluster.end(sent, "again")
    assert commands.run() == "again"


def test_a_run_whose_new_driver_is_unknown_stays_claimed_and_the_same_run_waits_for_it(
    commands: Commands,
) -> None:
    commands.cluster.at_submission = lambda sent: sent.begin(sent.driver.tag)  # hidden from this user
    with pytest.raises(MillraceError, match=r"UNKNOWN without an answer.*run again with --run-id run"):
        commands.run()
    (sent,) = commands.cluster.sent
    assert commands.files.claimed() == sent.driver
    commands.cluster.end(sent, "found")
    assert commands.run() == "found"
    assert len(commands.cluster.sent) == 1


def test_a_driver_that_the_cluster_gets_after_its_command_was_killed_is_waited_for(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "UNKNOWN_S", WAIT_S)
    sent = commands.die_in(lambda sent: None)
    late = threading.Timer(0.1, commands.cluster.start, [sent])
    late.start()
    waiting = commands.start()
    late.join()
    commands.cluster.end(sent, "late")
    assert waiting.result(20) == "late"
    assert len(commands.cluster.sent) == 1


def test_a_driver_that_stays_unknown_is_replaced_and_does_no_work_if_it_comes_later(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = commands.die_in(lambda sent: None)
    waiting = commands.start()
    assert len(commands.cluster.sent) == 2
    monkeypatch.setattr(entry, "_run", lambda *_: pytest.fail("it worked"))
    with pytest.raises(SystemExit, match=r"^millrace: run run is another driver's by now, or was stopped"):
        entry.run_sent(late, "driver-7")
    commands.cluster.end(commands.cluster.sent[1], "second")
    assert waiting.result(20) == "second"


def test_of_two_drivers_with_one_attempt_the_second_does_no_work(commands: Commands) -> None:
    # A master took the request, its answer was lost, and another master got it again.
    sent = commands.die_in(lambda sent: None)
    sent.begin("driver-1")
    with pytest.raises(MillraceError, match="driver driver-2 ends"):
        sent.begin("driver-2")
    assert commands.files.id_of(sent.driver) == "driver-1"


@pytest.mark.parametrize("moment", ["submission", "wait"])
def test_a_command_that_is_told_to_stop_once_the_cluster_has_the_driver_ends_it(
    commands: Commands, moment: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def start_and_stop(sent: SentJob) -> None:
        commands.cluster.start(sent)
        stop()

    if moment == "submission":
        commands.cluster.at_submission = start_and_stop
    with pytest.raises(KeyboardInterrupt):
        commands.run(on_line=stop)
    assert [*commands.cluster.states.values()] == ["KILLED"]
    with pytest.raises(MillraceError, match="or was stopped"):
        commands.cluster.sent[0].begin("driver-1")


def test_a_driver_is_asked_for_each_second_at_first_and_less_often_later(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "LATER_S", 0.2)
    monkeypatch.setattr(elsewhere, "LATER_POLL_S", 1.0)
    waiting = commands.start()
    (sent,) = commands.cluster.sent
    wait_until("the driver was asked for", lambda: commands.cluster.asked[sent.driver.tag] >= 3)
    time.sleep(0.5)
    before, began = commands.cluster.asked[sent.driver.tag], time.monotonic()
    time.sleep(0.5)
    asked = commands.cluster.asked[sent.driver.tag] - before
    assert asked <= 1 + (time.monotonic() - began) / elsewhere.LATER_POLL_S
    commands.cluster.end(sent, "all")
    waiting.result(20)


def test_a_driver_that_the_cluster_does_not_start_is_waited_for_with_a_line_and_a_limit(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "SAY_AFTER_S", 0.1)
    commands.timeout_s = 0.5
    cluster, lines = commands.cluster, list[str]()
    cluster.at_submission = lambda sent: cluster.states.update({sent.driver.tag: "SUBMITTED"})
    with pytest.raises(MillraceError, match=r"not started the driver .*SUBMITTED.*--run-id run goes on"):
        commands.run(on_line=lines.append)
    assert sum("has not started" in line for line in lines) == 1
    assert [*cluster.states.values()] == ["KILLED"]
    assert commands.files.claimed() is None


def test_a_driver_that_runs_may_take_longer_than_the_limit_of_its_start(commands: Commands) -> None:
    commands.timeout_s = 0.2
    waiting = commands.start()
    (sent,) = commands.cluster.sent
    time.sleep(2 * commands.timeout_s)
    commands.cluster.end(sent, "all")
    assert waiting.result(20) == "all"


def test_the_limit_is_a_time_of_spark(tmp_path: Path) -> None:
    conf = {"spark.millrace.executors.timeout": "soon"}
    with pytest.raises(ConfigError, match="soon is not a time like 90s, 10m or 1h"):
        submit("load", {"warehouse": str(tmp_path)}, master="spark://a:1", on_line=print, conf=conf)


def test_what_drivers_leave_is_deleted_after_a_week(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.die_in(commands.cluster.start).reply("{}")
    assert len([*(tmp_path / ".drivers").iterdir()]) == 3
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + KEEP_S + 60)
    commands.files.sweep()
    assert [*(tmp_path / ".drivers").iterdir()] == []


STOPPED = """
import sys, time
from pathlib import Path
from millrace.signals import interruptible
from millrace_spark.jobs.drivers import DriverState
from millrace_spark.jobs.elsewhere import _DriverRun
folder = Path(sys.argv[1])

class Slow:
    def submit(self, sent):
        (folder / "submitted").touch()
        return sent.driver.tag
    def state(self, driver):
        return DriverState("RUNNING")
    def kill(self, driver):
        time.sleep(3)
        (folder / "ended").touch()

settings = {"warehouse": str(folder), "run_id": "run", "topics": ["A"]}
with interruptible():
    _DriverRun("load", settings, Slow(), print, 600).result({})
"""


def test_a_job_of_airflow_that_is_stopped_ends_a_driver_though_that_takes_longer_than_its_group_lives(
    tmp_path: Path,
) -> None:
    job = Job.start([sys.executable, "-c", STOPPED, str(tmp_path)], tmp_path / "jobs", "load")
    wait_until("the driver is submitted", (tmp_path / "submitted").exists)
    job.kill(timeout_s=1)
    wait_until("the driver is ended", (tmp_path / "ended").exists)
    wait_until("nothing of the job runs", lambda: not job.alive())
    assert list((tmp_path / ".drivers").iterdir()) == []


def test_a_run_that_cannot_be_claimed_submits_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise MillraceError("the disk is full")

    monkeypatch.setattr(Master, "_ask", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(LocalStorage, "create", full)
    settings = {"topics": ["A"], "warehouse": str(tmp_path), "run_id": "r"}
    with pytest.raises(MillraceError, match="full"):
        submit("load", settings, master="spark://127.0.0.1:7077", on_line=print, conf=CLUSTER_MODE)


def test_a_driver_whose_master_did_not_answer_is_waited_for_by_the_id_that_it_notes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "POLL_S", 0.02)
    asked: list[str] = []

    def answer(method: str, path: str, body: Any) -> dict[str, Any]:
        asked.append(path.rpartition("submissions/")[2])
        if method == "POST":
            sent = SentJob.unpacked(body["environmentVariables"]["MILLRACE_SENT_JOB"])
            sent.begin("driver-7")
            sent.reply('{"result": "done"}')
            raise ConnectionError
        return {"success": True, "driverState": "FINISHED"}

    settings = {"topics": ["A"], "warehouse": str(tmp_path), "run_id": "r"}
    with server(answer) as port:
        conf = {**CLUSTER_MODE, "spark.master.rest.port": str(port)}
        run = partial(submit, "load", settings, on_line=print, conf=conf)
        assert run(master="spark://127.0.0.1:7077") == "done"
    assert asked == ["create", "status/driver-7"]


RM = "yarn.resourcemanager"


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ({f"{RM}.hostname": "rm"}, ["http://rm:8088"]),
        ({f"{RM}.hostname": "rm", f"{RM}.webapp.address": "web:1"}, ["http://web:1"]),
        ({f"{RM}.hostname": "rm", "yarn.http.policy": "HTTPS_ONLY"}, ["https://rm:8090"]),
        (
            {f"{RM}.ha.rm-ids": "a, b", f"{RM}.hostname.a": "x", f"{RM}.webapp.address.b": "y:1"},
            ["http://x:8088", "http://y:1"],
        ),
    ],
)
def test_the_addresses_of_resource_managers_are_those_of_the_configuration(
    settings: dict[str, str], addresses: list[str]
) -> None:
    assert web_addresses(settings) == addresses


def manager(state: str, applications: list[dict[str, Any]], paths: list[str] | None = None) -> Answer:
    """Return the answers of a ResourceManager, which adds what it is asked for to `paths`."""

    def answer(method: str, path: str, body: Any) -> Any:
        name = path.removeprefix("/ws/v1/cluster/")
        (paths if paths is not None else []).append(name)
        if name in ("info", "apps"):
            found = {"app": applications} if applications else None
            return {"clusterInfo": {"haState": state}} if name == "info" else {"apps": found}
        return next(({"app": app} for app in applications if name == f"apps/{app['id']}"), None)

    return answer


def test_an_application_is_asked_for_by_its_id_once_that_is_known_and_may_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {
        "id": "application_1",
        "state": "RUNNING",
        "finalStatus": "UNDEFINED",
        "applicationTags": "millrace-1",
    }
    applications, paths = [ours], list[str]()
    with server(manager("ACTIVE", applications, paths)) as port:
        settings = {f"{RM}.webapp.address": f"127.0.0.1:{port}"}
        (tmp_path / "yarn-site.xml").write_text(site_xml(settings))
        monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
        yarn = Yarn([])
        assert [yarn.state("millrace-1").word for _ in range(3)] == ["RUNNING"] * 3
        assert paths == ["apps", "apps/application_1", "apps/application_1"]
        applications.clear()
        state = yarn.state("millrace-1")
    assert (state.word, state.ended) == (UNKNOWN, True)


def test_a_resource_manager_is_found_behind_a_standby_and_by_references_in_yarns_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"id": "application_1", "state": "RUNNING", "finalStatus": "UNDEFINED"}
    ours = {**other, "id": "application_2", "state": "ACCEPTED", "applicationTags": "a,millrace-1"}
    starting = manager("INITIALIZING", [])
    with server(manager("ACTIVE", [other, ours])) as port, server(starting, "127.0.0.2", port):
        settings = {
            f"{RM}.ha.rm-ids": "gone,starting,active",
            f"{RM}.webapp.address.starting": f"127.0.0.2:{port}",
            f"{RM}.hostname.gone": "127.0.0.9",
            f"{RM}.hostname.active": "127.0.0.1",
            f"{RM}.webapp.address.gone": "127.0.0.1:1",
            f"{RM}.webapp.address.active": f"${{{RM}.hostname.active}}:{port}",
        }
        (tmp_path / "yarn-site.xml").write_text(site_xml(settings))
        monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
        state = Yarn([]).state("millrace-1")
        settings[f"{RM}.ha.rm-ids"] = "gone,starting"
        (tmp_path / "yarn-site.xml").write_text(site_xml(settings))
        with pytest.raises(MillraceError, match="INITIALIZING"):
            Yarn([]).state("millrace-1")
    assert (state.word, state.ended) == ("ACCEPTED", False)


def test_an_authority_of_the_resource_managers_certificate_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yarn-site.xml").write_text(site_xml({f"{RM}.hostname": "rm"}))
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("MILLRACE_HDFS_CA", str(tmp_path / "gone.pem"))
    with pytest.raises(ConfigError, match=r"MILLRACE_HDFS_CA names .*gone\.pem, which is no PEM file here"):
        Yarn([])
