"""Operators, sensor and triggers, without a database: what they run, defer to, render and return."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from millrace.errors import ConfigError
from millrace_airflow import job as jobs_of_tasks
from millrace_airflow import waiting
from millrace_airflow.hooks.millrace import MillraceHook
from millrace_airflow.job import Job, JobFailed
from millrace_airflow.operators.job import MillraceJobOperator
from millrace_airflow.operators.load import LoadTopicOperator, MirrorTopicOperator, ReloadHoursOperator
from millrace_airflow.operators.publish import PUBLISHED, PublishOperator, table_asset
from millrace_airflow.operators.schemas import RegisterSchemasOperator
from millrace_airflow.operators.upkeep import CompactOperator, ExpireOperator
from millrace_airflow.sensors.completeness import CompletenessSensor
from millrace_airflow.settings import MillraceSettings
from millrace_airflow.triggers import completeness as completeness_trigger
from millrace_airflow.triggers import job as triggers_job
from millrace_airflow.triggers.completeness import CompletenessTrigger, ProvedHoursTrigger, proved_hours
from millrace_airflow.triggers.job import JobTrigger
from millrace_audit.answer import Completeness, Window
from millrace_registry.client import RegistryUnavailable
from tests.support import wait_until

LOAD_OPTIONS = ("topics_matching", "max_bytes", "until", "max_rejected")
MIRROR = ("topic", "origin", "max_bytes")
PUBLISH = ("topic", "start", "end", "unproven_after")
REASON, AGE = ("topic", "start", "end", "reason"), ("topic", "older_than")
T = TypeVar("T", bound=BaseTrigger)
SETTINGS = MillraceSettings(bootstrap="b:1", registry="r", auditor="a", warehouse="/w")
HOURS: dict[str, Any] = {"start": "2015-05-17T10:00:00Z", "end": "2015-05-17T12:00:00Z"}


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extra = {
        "registry": "http://r",
        "auditor": "http://a",
        "warehouse": "/w",
        "job_dir": str(tmp_path / "jobs"),
    }
    value = {"conn_type": "millrace", "host": "b:1", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps(value))


def context(**values: Any) -> Any:
    task = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    return {"ti": task, **values}


class Python(MillraceJobOperator):
    """The operators' common part with a command that needs no cluster."""

    def __init__(self, *, code: str, **options: Any) -> None:
        super().__init__(poll_s=0.01, **options)
        self.code = code

    def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
        return [sys.executable, "-c", self.code]


def python(code: str, **options: Any) -> Python:
    return Python(task_id="t", code=code, **options)


def deferred(operator: BaseOperator) -> BaseTrigger:
    """The trigger it defers to, after the round trip that Airflow's database puts it through."""
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(context())
    assert deferral.value.method_name == "execute_complete"
    trigger: BaseTrigger = deferral.value.trigger
    return again(trigger)


def again(trigger: T) -> T:
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    built: T = type(trigger)(**json.loads(json.dumps(arguments)))
    assert built.serialize() == trigger.serialize()
    return built


def first_event(trigger: BaseTrigger, timeout_s: float = 20) -> Any:
    async def first() -> TriggerEvent:
        return await asyncio.wait_for(anext(aiter(trigger.run())), timeout_s)

    return asyncio.run(first()).payload


def jobs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "jobs").iterdir())


def test_a_task_returns_what_its_command_printed_and_leaves_no_folder_behind(tmp_path: Path) -> None:
    assert python("print('{\"rows\": 1}')").execute(context()) == {"rows": 1}
    assert jobs(tmp_path) == []


def test_a_failing_command_fails_the_task_with_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"no topic PageView: create it$"):
        python("import sys; sys.exit('millrace: no topic PageView: create it')").execute(context())
    assert jobs(tmp_path) == []


def test_settings_of_spark_reach_the_command_and_stand_in_no_log_and_no_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Load(LoadTopicOperator):
        def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
            code = "import json, sys; from millrace_spark.commands.job import Invocation;"
            code += "print(json.dumps([sys.argv[1:], Invocation().conf]))"
            return [sys.executable, "-c", code, *super().command(settings, run_id)]

        def finish(self, result: Any, context: Any) -> Any:
            return result

    confs = {"spark.hadoop.fs.s3a.secret.key": "a = b\\c", "spark.cores.max": "4"}
    lines: list[str] = []
    operator = Load(task_id="l", topics="T", spark_conf=confs)
    monkeypatch.setattr(operator.log, "info", lambda text, *values: lines.append(text % values))
    words, read = operator.execute(context())
    assert read == confs
    assert [text for text in (*words, *lines) if "b\\c" in text] == []
    assert f"spark_conf: {', '.join(confs)}" in lines


def test_a_deferred_task_goes_on_with_the_result_when_the_trigger_has_fired(tmp_path: Path) -> None:
    operator = python("print('[2]')", deferrable=True)
    trigger = deferred(operator)
    assert isinstance(trigger, JobTrigger)
    event = first_event(trigger)
    assert operator.execute_complete(context(), event) == [2]
    assert jobs(tmp_path) == []


def test_a_restarted_triggerer_finds_the_job_again(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('[3]')"
    operator = python(code, deferrable=True)
    trigger = deferred(operator)
    with pytest.raises(TimeoutError):  # the triggerer goes away while the job runs
        first_event(trigger, timeout_s=0.2)
    go.touch()
    assert operator.execute_complete(context(), first_event(again(trigger))) == [3]


def test_a_deferred_job_that_takes_too_long_is_stopped_and_fails_the_task(tmp_path: Path) -> None:
    limit = timedelta(seconds=0.1)
    operator = python("import time; time.sleep(60)", deferrable=True, execution_timeout=limit)
    event = first_event(deferred(operator))
    assert Job(Path(event["directory"])).ended()
    with pytest.raises(AirflowTaskTimeout, match=r"execution_timeout=0:00:00\.1"):
        operator.execute_complete(context(), event)


def test_clearing_a_deferred_task_stops_its_job(tmp_path: Path) -> None:
    trigger = deferred(python("import time; time.sleep(60)", deferrable=True))
    [directory] = jobs(tmp_path)
    assert not Job(directory).ended()
    asyncio.run(trigger.on_kill())
    assert Job(directory).ended()


def test_killing_a_running_task_stops_its_job(tmp_path: Path) -> None:
    operator = python("import time; time.sleep(60)", deferrable=True)
    deferred(operator)  # leaves the job running, as in the middle of `execute`
    operator.on_kill()
    [directory] = jobs(tmp_path)
    assert Job(directory).ended()


def test_a_task_that_is_interrupted_takes_its_job_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Job, *arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        python("import time; time.sleep(60)").execute(context())
    [directory] = jobs(tmp_path)
    wait_until("the job has ended", Job(directory).ended)


@pytest.mark.parametrize("fields", [("topics",), LOAD_OPTIONS, MIRROR, PUBLISH, REASON, AGE, ("topic",)])
def test_templates_are_rendered_before_the_command_is_made(fields: Sequence[str]) -> None:
    bounds: dict[str, Any] = dict.fromkeys(LOAD_OPTIONS, "{{ x }}")
    operators: dict[Sequence[str], BaseOperator] = {
        ("topics",): LoadTopicOperator(task_id="a", topics=["{{ x }}", "B"]),
        LOAD_OPTIONS: LoadTopicOperator(task_id="l", **bounds),
        MIRROR: MirrorTopicOperator(task_id="b", **dict.fromkeys(MIRROR, "{{ x }}")),
        PUBLISH: PublishOperator(
            task_id="c", topic="{{ x }}", start="{{ x }}", end="{{ x }}", unproven_after="{{ x }}"
        ),
        REASON: ReloadHoursOperator(
            task_id="d", topic="{{ x }}", start="{{ x }}", end="{{ x }}", reason="{{ x }}"
        ),
        AGE: ExpireOperator(task_id="e", topic="{{ x }}", older_than="{{ x }}"),
        ("topic",): CompactOperator(task_id="f", topic="{{ x }}"),
    }
    operator = operators[fields]
    operator.render_template_fields({"x": "1"})  # type: ignore[typeddict-unknown-key]
    rendered = [getattr(operator, field) for field in fields]
    assert "{{" not in str(rendered)
    assert "1" in str(rendered)


def test_the_data_interval_names_the_hours_by_default() -> None:
    interval: Any = {"data_interval_start": "S", "data_interval_end": "E"}
    for operator in (PublishOperator(task_id="a", topic="T"), CompletenessSensor(task_id="b", topic="T")):
        operator.render_template_fields(interval)
        assert (operator.start, operator.end) == ("S", "E")


def answer(*hours: str, published: bool = True, waiting: int = 0) -> dict[str, Any]:
    """Return a topic's answer in `millrace publish --json`."""
    verdict: dict[str, Any] = {"verdict": "complete", "watermark": None, "checked": None, "reasons": []}
    change = {"last": "", "kind": "first", "loads": [], "verdict": verdict, "added": 7, "removed": 0}
    return {
        "topic": "PageView",
        "table": "millrace.PageView",
        "published": published,
        "publication": 12,
        "path": "PageView/publications/0000000012-0123456789abcdef.json",
        "sha256": "5" * 64,
        "snapshot_id": 8_446_744_073_709_551_615,
        "metadata_location": "file:///w/PageView/table/metadata/00012.metadata.json",
        "rows": 12_345_678,
        "complete_from": "2015-01-01T00",
        "complete_until": "2015-05-17T11",
        "changes": [{"hour": hour, **change} for hour in hours],
        "hours": len(hours),
        "waiting": [{"hour": "2015-05-18T00", "rows": 3, "verdict": None, "loads": []}] * waiting,
    }


def finished(operator: PublishOperator, said: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return a task's result after its command answered `said`, and the asset events the task sends."""
    events = OutletEventAccessors()
    returned: dict[str, Any] = operator.finish([said], context(outlet_events=events))
    return returned, events[PUBLISHED].asset_alias_events


def test_the_assets_event_says_what_was_published_and_where_that_is_written_down() -> None:
    operator = PublishOperator(task_id="p", topic="PageView")
    assert operator.outlets == [PUBLISHED]
    returned, (event,) = finished(operator, answer("2015-05-17T11", "2015-05-17T10", "none", waiting=2))
    asset = table_asset("PageView")
    assert (event.dest_asset_key.name, event.dest_asset_key.uri) == (asset.name, asset.uri)
    assert event.extra == {
        "publication": 12,
        "path": "PageView/publications/0000000012-0123456789abcdef.json",
        "sha256": "5" * 64,
        "snapshot_id": 8_446_744_073_709_551_615,
        "complete_until": "2015-05-17T11",
        "rows": 12_345_678,
        "hours": 3,
        "first_hour": "2015-05-17T10",
        "last_hour": "2015-05-17T11",
    }
    assert returned == {**event.extra, "published": True, "waiting": 2}


def test_dags_by_partition_get_an_event_for_each_hour_and_the_newest_of_very_many() -> None:
    operator = PublishOperator(task_id="p", topic="PageView")
    events = OutletEventAccessors()
    operator.finish([answer("2015-05-17T11", "2015-05-17T10", "none")], context(outlet_events=events))
    keyed = events[table_asset("PageView")]
    assert operator.outlets == [PUBLISHED, table_asset("PageView")]
    assert keyed.partition_keys == {"2015-05-17T10:00:00", "2015-05-17T11:00:00"}
    assert keyed.extra == {"publication": 12}
    many = [f"2015-05-{day:02}T{hour:02}" for day in range(1, 32) for hour in range(24)]
    many += [f"2015-06-{day:02}T{hour:02}" for day in range(1, 31) for hour in range(24)]
    operator.finish([answer(*many)], context(outlet_events=(events := OutletEventAccessors())))
    assert events[table_asset("PageView")].partition_keys == {f"{hour}:00:00" for hour in many[-1_000:]}


def test_each_hour_of_a_run_of_empty_hours_has_an_event_of_its_own() -> None:
    operator = PublishOperator(task_id="p", topic="PageView")
    said = answer("2015-05-17T22")
    said["changes"].append({**said["changes"][0], "hour": "2015-05-17T23", "last": "2015-05-18T01"})
    said["hours"] = 4
    events = OutletEventAccessors()
    returned = operator.finish([said], context(outlet_events=events))
    assert events[table_asset("PageView")].partition_keys == {
        "2015-05-17T22:00:00",
        "2015-05-17T23:00:00",
        "2015-05-18T00:00:00",
        "2015-05-18T01:00:00",
    }
    assert (returned["hours"], returned["last_hour"]) == (4, "2015-05-18T01")


def test_a_task_that_made_no_publication_has_no_event() -> None:
    operator = PublishOperator(task_id="a", topic="PageView")
    returned, events = finished(operator, answer(published=False))
    assert events == []
    assert operator.outlets == [PUBLISHED]
    assert (returned["published"], returned["hours"], returned["last_hour"]) == (False, 0, None)


def test_a_years_backfill_has_an_event_and_a_result_below_a_kilobyte() -> None:
    start = datetime(2015, 1, 1, tzinfo=UTC)
    hours = [f"{start + timedelta(hours=hour):%Y-%m-%dT%H}" for hour in range(8760)]
    operator = PublishOperator(task_id="p", topic="PageView")
    returned, (event,) = finished(operator, answer(*hours, waiting=5_000))
    assert (event.extra["hours"], event.extra["last_hour"]) == (8760, "2015-12-31T23")
    assert len(json.dumps(event.extra)) < 1_000
    assert len(json.dumps(returned)) < 1_000


def test_an_asset_is_a_table_in_a_catalog_and_two_warehouses_have_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert table_asset("Page.View-1", "lake").uri == "iceberg://lake/millrace/Page_View_1"
    eu = {"registry": "http://r", "auditor": "http://a", "warehouse": "/eu"}
    for extra, catalog in ((eu, "millrace_eu"), ({**eu, "catalog": "lake"}, "lake")):
        connection = json.dumps({"conn_type": "millrace", "host": "b:1", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_EU", connection)
        operator = PublishOperator(task_id="p", topic="PageView", conn_id="millrace_eu")
        _, (event,) = finished(operator, answer("2015-05-17T10"))
        assert event.dest_asset_key.uri == f"iceberg://{catalog}/millrace/PageView"
        assert event.dest_asset_key.uri == table_asset("PageView", catalog).uri
    assert table_asset("PageView") == Asset("iceberg://millrace_default/millrace/PageView", group="millrace")


def test_the_plan_of_a_load_is_kept_under_the_task_not_under_the_try() -> None:
    with DAG("d", schedule=None):
        operator = LoadTopicOperator(task_id="load", topics="PageView")
    command = operator.command(SETTINGS, "run-1")
    assert command[command.index("--run-id") + 1] == "run-1"
    assert command[command.index("load") + 1] == "PageView"


def test_a_load_may_succeed_though_it_sets_records_aside() -> None:
    for accepted in (True, False):
        load = LoadTopicOperator(task_id="l", topics="T", accept_rejected=accepted)
        assert load.is_final([SET_ASIDE]) != accepted


FLAGS = {"accept_rejected": "--accept-rejected", "live": "--live"}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(
    ("value", "is_on"),
    [(True, True), (False, False), (None, False), ("True", True), ("False", False), ("", False)],
)
def test_a_flag_of_a_load_is_a_value_or_a_template(name: str, value: object, is_on: bool) -> None:
    given: dict[str, Any] = {name: "{{ x }}" if isinstance(value, str) else value}
    load = LoadTopicOperator(task_id="l", topics="T", **given)
    load.render_template_fields({"x": value})  # type: ignore[typeddict-unknown-key]
    command = load.command(SETTINGS, "run")
    assert [word for word in command if word in FLAGS.values()] == ([FLAGS[name]] if is_on else [])
    assert str(value) not in [*filter(None, command)], "it would be a topic"


@pytest.mark.parametrize("name", FLAGS)
def test_a_template_that_says_neither_is_a_mistake(name: str) -> None:
    given: dict[str, Any] = {name: "maybe"}
    with pytest.raises(ConfigError, match=f"{name} 'maybe' is neither true nor false"):
        LoadTopicOperator(task_id="l", topics="T", **given).command(SETTINGS, "run")


def test_a_load_of_a_pattern_with_bounds_needs_no_topic_by_name() -> None:
    given: dict[str, Any] = {
        "topics_matching": "Page.*",
        "max_bytes": "2GiB",
        "until": "2015-05-18",
        "max_rejected": "1%",
    }
    command = LoadTopicOperator(task_id="load", **given).command(SETTINGS, "run-1")
    for name, value in given.items():
        assert command[command.index(f"--{name.replace('_', '-')}") + 1] == value


def test_a_publication_names_hours_proven_ones_or_none() -> None:
    hours = PublishOperator(task_id="h", topic="T", **HOURS).command(SETTINGS, "run-1")
    assert hours[hours.index("--from") + 1] == "2015-05-17T10:00:00Z"
    assert not {"--proven", "--unproven-after"} & {*hours}
    none: dict[str, Any] = {"start": None, "end": None}
    late = PublishOperator(task_id="l", topic="T", **none).command(SETTINGS, "run-1")
    assert not {"--from", "--to", "--proven"} & {*late}
    proven = PublishOperator(task_id="u", topic="T", proven=True, unproven_after="3d", **none)
    words = proven.command(SETTINGS, "run-1")
    assert "--proven" in words
    assert words[words.index("--unproven-after") + 1] == "3d"
    with pytest.raises(ConfigError, match="give start and end, or None for both"):
        PublishOperator(task_id="x", topic="T", start=None).command(SETTINGS, "run-1")


def test_a_folder_without_schemas_is_one_clear_line_and_no_retry_helps(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"no \.avsc file in .*: give the folder"):
        RegisterSchemasOperator(task_id="s", schemas_dir=str(tmp_path)).execute(context())


@pytest.mark.parametrize(
    "operator",
    [
        RegisterSchemasOperator(task_id="s", schemas_dir="schemas", conn_id="nowhere"),
        PublishOperator(task_id="p", topic="T", conn_id="nowhere"),
        CompletenessSensor(task_id="w", topic="T", conn_id="nowhere"),
    ],
    ids=lambda operator: operator.task_id,
)
def test_a_connection_that_does_not_exist_is_one_clear_line_and_no_retry_helps(
    operator: BaseOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: MillraceHook, conn_id: str) -> None:
        raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")

    monkeypatch.setattr(MillraceHook, "get_connection", unknown)
    with pytest.raises(AirflowFailException, match="there is no connection 'nowhere': create it in Airflow"):
        operator.execute(context())


def test_a_registry_that_is_away_is_asked_again_by_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise RegistryUnavailable("no registry answers")

    monkeypatch.setattr("millrace_registry.directory.apply", away)
    with pytest.raises(RegistryUnavailable):
        RegisterSchemasOperator(task_id="s", schemas_dir="schemas").execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
def test_options_that_the_command_refuses_fail_the_task_without_a_retry(
    tmp_path: Path, deferrable: bool
) -> None:
    operator = python(
        "import sys; print('no such option', file=sys.stderr); sys.exit(2)", deferrable=deferrable
    )
    with pytest.raises(AirflowFailException, match="exit code 2: no such option"):
        operator.execute_complete(context(), first_event(deferred(operator))) if deferrable else (
            operator.execute(context())
        )
    assert jobs(tmp_path) == []


SET_ASIDE = {"topic": "T", "load": 7, "rejected": 3}


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    ("printed", "accepts", "is_final"),
    [
        ([SET_ASIDE, {"topic": "U", "load": 1, "rejected": 0}], False, True),
        ([SET_ASIDE, {"topic": "U", "left_out": "no schema is registered for it"}], False, True),
        ([SET_ASIDE, {"topic": "U", "error": "no broker answers"}], False, False),
        ([{**SET_ASIDE, "rejected": 0}], False, False),
        ([SET_ASIDE], True, False),
        ("nothing", False, False),
    ],
)
def test_a_load_that_is_there_with_rejected_records_fails_without_a_retry_that_would_find_it_again(
    tmp_path: Path, printed: Any, accepts: bool, is_final: bool, deferrable: bool
) -> None:
    class Load(LoadTopicOperator):
        def command(self, settings: MillraceSettings, run_id: str) -> list[str]:
            code = (
                f"import sys; print({json.dumps(printed)!r}); sys.exit('millrace: loaded, but 3 in rejected')"
            )
            return [sys.executable, "-c", code]

    load = Load(task_id="l", topics=["T", "U"], accept_rejected=accepts, deferrable=deferrable, poll_s=0.01)
    failure = AirflowFailException if is_final else JobFailed
    with pytest.raises(failure, match="failed with exit code 1: loaded, but 3 in rejected"):
        load.execute_complete(context(), first_event(deferred(load))) if deferrable else (
            load.execute(context())
        )
    assert jobs(tmp_path) == []


WATCHED = """
import sys, time
from pathlib import Path
from millrace_airflow.command_line import run_id_of_task
from millrace_airflow.job import Job
Job.start([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), run_id_of_task("d", "r", "t"))
time.sleep(1000)
"""


@pytest.fixture
def dead_worker(tmp_path: Path) -> str:
    """Return a task's command whose worker was killed; the job goes on when the file `go` exists."""
    began, go = tmp_path / "began", tmp_path / "go"
    code = f"import os, time\nopen({str(began)!r}, 'a').write('x')\n"
    code += f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('[4]')"
    worker = subprocess.Popen([sys.executable, "-c", WATCHED, str(tmp_path / "jobs"), code])
    wait_until("the job has begun", began.exists)
    worker.kill()
    worker.wait()
    return code


def test_the_next_try_takes_over_the_job_of_a_worker_that_died(tmp_path: Path, dead_worker: str) -> None:
    threading.Timer(0.5, (tmp_path / "go").touch).start()
    assert python(dead_worker).execute(context()) == [4]
    assert (tmp_path / "began").read_text() == "x", "the command ran once"
    assert jobs(tmp_path) == []


def test_a_job_that_ended_while_nobody_watched_is_not_run_again(tmp_path: Path, dead_worker: str) -> None:
    (tmp_path / "go").touch()
    [directory] = jobs(tmp_path)
    wait_until("the job has ended", Job(directory).ended)
    assert python(dead_worker, deferrable=False).execute(context()) == [4]
    assert (tmp_path / "began").read_text() == "x", "the command ran once"


def test_the_next_try_takes_the_result_of_a_deferred_job_whose_task_could_not_go_on(tmp_path: Path) -> None:
    parent = tmp_path / "jobs"
    command = [sys.executable, "-c", "print(7)"]
    deferred_job = Job.start(command, parent, "name")
    deferred_job.leave_to_trigger()
    wait_until("the job has ended", deferred_job.ended)
    taken = Job.take_over(command, parent, "name")
    assert taken is not None
    assert taken.result() == 7


def test_nobody_takes_over_a_job_that_is_watched_or_of_other_words(tmp_path: Path) -> None:
    command, parent = [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "jobs"
    job = Job.start(command, parent, "name")
    assert Job.take_over(command, parent, "name") is None, "this process watches it"
    job.stop_watching()
    assert Job.take_over([*command, "x"], parent, "name") is None
    job.kill()


def test_a_job_whose_end_cannot_be_read_now_is_taken_over_later(tmp_path: Path) -> None:
    command, parent = [sys.executable, "-c", "print(7)"], tmp_path / "jobs"
    job = Job.start(command, parent, "name")
    wait_until("the job has ended", job.ended)
    job.stop_watching()
    status = (job.directory / "status.json").read_text()
    (job.directory / "status.json").write_text("cut off")
    assert Job.take_over(command, parent, "name") is None
    (job.directory / "status.json").write_text(status)
    assert Job.take_over(command, parent, "name") is not None


def test_a_deferred_job_is_taken_over_when_no_trigger_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, parent = [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "jobs"
    Job.start(command, parent, "name").leave_to_trigger()
    monkeypatch.setattr(jobs_of_tasks, "CLEARED_S", 0.2)
    taken = Job.take_over(command, parent, "name")
    assert taken is not None, "its trigger is gone"
    taken.leave_to_trigger()
    monkeypatch.setattr(jobs_of_tasks, "CLEARED_S", 20.0)
    threading.Timer(0.3, taken.kill).start()
    assert Job.take_over(command, parent, "name") is None, "its task was cleared, and the trigger stopped it"


def test_a_job_that_is_being_stopped_is_not_taken_over_though_its_command_takes_long_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, parent = tmp_path / "begun", tmp_path / "go", tmp_path / "jobs"
    # As a command that ends its driver on a cluster: it leaves its group, and the job stays alive.
    code = "import os, signal, sys, time\n"
    code += f"def end(*_):\n  os.setsid()\n  while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    code += "  sys.exit(143)\n"
    code += f"signal.signal(signal.SIGTERM, end)\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n"
    command = [sys.executable, "-c", code]
    job = Job.start(command, parent, "name")
    wait_until("the command has begun", begun.exists)
    try:
        job.kill(timeout_s=0.5)
        job.stop_watching()  # the worker has ended
        assert job.alive()
        monkeypatch.setattr(jobs_of_tasks, "CLEARED_S", 0.2)
        assert Job.take_over(command, parent, "name") is None
    finally:
        go.touch()
    wait_until("the command has ended", job.ended)
    assert Job.take_over(command, parent, "name") is None


def test_a_result_that_nobody_came_back_for_is_not_taken_for_ever(tmp_path: Path) -> None:
    command, parent = [sys.executable, "-c", "print(7)"], tmp_path / "jobs"
    ended = Job.start(command, parent, "name")
    wait_until("the job has ended", ended.ended)
    ended.stop_watching()
    old = time.time() - jobs_of_tasks.RESULT_S - 60
    os.utime(ended.directory / "status.json", (old, old))
    assert Job.take_over(command, parent, "name") is None


def test_a_triggerer_that_cannot_see_the_job_fails_the_task_and_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = python("import time; time.sleep(60)", deferrable=True)
    trigger = deferred(operator)
    [directory] = jobs(tmp_path)
    monkeypatch.setattr(triggers_job, "LOST_S", 0.1)
    elsewhere = directory.rename(tmp_path / "elsewhere")
    event = first_event(trigger)
    assert event["lost"]
    elsewhere.rename(directory)
    with pytest.raises(AirflowFailException, match=r"need one job_dir; the job is stopped"):
        operator.execute_complete(context(), event)
    assert jobs(tmp_path) == []


def test_a_folder_that_is_away_for_a_moment_ends_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = python("print('[5]')", deferrable=True)
    trigger = deferred(operator)
    faults, really = iter([JobFailed("no job folder"), OSError("stale file handle")]), Job.ended

    def ended(job: Job) -> bool:
        for fault in faults:
            raise fault
        return really(job)

    monkeypatch.setattr(Job, "ended", ended)
    assert operator.execute_complete(context(), first_event(trigger)) == [5]
    assert list(faults) == []


def test_a_task_that_is_stopped_before_it_has_a_job_leaves_none_running(tmp_path: Path) -> None:
    operator = python("import time; time.sleep(60)")
    operator.on_kill()
    with pytest.raises(JobFailed, match="exit code -15"):
        operator.execute(context())
    assert jobs(tmp_path) == []


def test_a_task_that_is_stopped_after_its_job_has_ended_succeeds(tmp_path: Path) -> None:
    operator = python("print('[5]')")
    assert operator.execute(context()) == [5]
    operator.on_kill()
    assert jobs(tmp_path) == []


def test_a_timeout_while_a_job_begins_leaves_none_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pid = subprocess.run, tmp_path / "pid"

    def then_time_out(*arguments: Any, **options: Any) -> None:
        run(*arguments, **options)
        wait_until("the command runs", lambda: pid.exists() and pid.read_text())
        raise AirflowTaskTimeout("Timeout")

    monkeypatch.setattr(subprocess, "run", then_time_out)
    operator = python(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    with pytest.raises(AirflowTaskTimeout):
        operator.execute(context())
    operator.on_kill()
    assert jobs(tmp_path) == []
    wait_until("the command is gone", lambda: not Path("/proc", pid.read_text()).exists())


@pytest.mark.slow
@pytest.mark.parametrize(("state", "stops"), [("deferred", False), (None, True), ("failed", True)])
def test_a_trigger_that_another_triggerer_has_by_now_does_not_stop_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None, stops: bool
) -> None:
    trigger = deferred(python("import time; time.sleep(60)", deferrable=True))
    [directory] = jobs(tmp_path)
    trigger.task_instance = context()["ti"]
    asked: list[dict[str, Any]] = []

    def states(**wanted: Any) -> dict[str, Any]:
        asked.append(wanted)
        return {"r": {"t": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    asyncio.run(trigger.on_kill())
    assert asked == [{"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": -1}]
    assert Job(directory).ended() == stops
    Job(directory).kill()


def test_triggers_that_wait_for_an_auditor_that_hangs_keep_nobody_elses_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(completeness_trigger, "ask", lambda *_: hang.wait(20))

    async def others() -> None:
        asking = [asyncio.ensure_future(completeness_trigger._asked()) for _ in range(100)]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(asyncio.to_thread(int), 5)
        hang.set()
        await asyncio.gather(*asking)

    asyncio.run(others())


def test_a_job_that_was_killed_or_failed_is_started_again(tmp_path: Path) -> None:
    parent = tmp_path / "jobs"
    for code in ("import time; time.sleep(60)", "raise SystemExit(1)"):
        command = [sys.executable, "-c", code]
        job = Job.start(command, parent, "name")
        if "sleep" in code:
            job.kill()
        wait_until("it has ended", job.ended)
        job.stop_watching()
        assert Job.take_over(command, parent, "name") is None


class State:
    """Values that a watcher of assets keeps in Airflow's database."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.written = asyncio.Event()

    async def aget(self, key: str, default: Any) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value
        self.written.set()


def proved(trigger: ProvedHoursTrigger, state: State) -> list[Any]:
    """The events of a triggerer until it has noted them, when it is ended."""
    events: list[Any] = []
    trigger.asset_state_store = state  # type: ignore[assignment]

    async def collect() -> None:
        async for event in trigger.run():
            events.append(event.payload)

    async def one_round() -> None:
        state.written = asyncio.Event()
        triggerer = asyncio.create_task(collect())
        await asyncio.wait_for(state.written.wait(), 60)
        triggerer.cancel()

    asyncio.run(one_round())
    return events


def test_a_dag_is_started_once_for_each_hour_that_becomes_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    done: set[datetime] = set()

    def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        verdict = "complete" if start in done else "incomplete"
        return Completeness(topic, start, end, verdict, None, [])

    monkeypatch.setattr(waiting, "completeness", completeness)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    older, newer = now - timedelta(hours=20), now - timedelta(hours=3)
    state, asset = State(), proved_hours("PageView", poke_interval=0.01)
    (watcher,) = asset.watchers
    trigger = again(watcher.trigger)
    assert isinstance(trigger, ProvedHoursTrigger)
    assert proved(trigger, state) == []
    done.add(newer)
    (event,) = proved(trigger, state)
    assert (event["topic"], event["start"]) == ("PageView", newer.isoformat())
    assert event["end"] == (newer + timedelta(hours=1)).isoformat()
    done.add(older)  # an hour before one that is complete: somebody has repaired it
    assert [event["start"] for event in proved(again(trigger), state)] == [older.isoformat()]
    assert proved(again(trigger), state) == [], "a restarted triggerer does not start the DAG again"


def test_a_triggerer_that_dies_before_its_event_is_stored_sends_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Auditor(monkeypatch, "complete")
    trigger, state = ProvedHoursTrigger(conn_id="millrace_default", topic="T", hours=1), State()
    trigger.asset_state_store = state  # type: ignore[assignment]
    assert first_event(trigger)["topic"] == "T"
    assert state.values == {}
    trigger.poke_interval = 0.01
    assert len(proved(trigger, state)) == 1


class Auditor:
    """Answers one verdict after the other; the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *verdicts: str) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[tuple[str, str, datetime, datetime]] = []
        monkeypatch.setattr(waiting, "completeness", self)

    def __call__(self, url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        self.asked.append((url, topic, start, end))
        verdict = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
        window = Window(start, end, verdict, 0, 0, 0, {}, [], ["dc2 is silent"])
        return Completeness(topic, start, end, verdict, None, [window])


def sensor(**options: Any) -> CompletenessSensor:
    values = {"task_id": "wait", "topic": "PageView", "poke_interval": 0.01, "timeout": 60, **HOURS}
    return CompletenessSensor(**{**values, **options})


@pytest.mark.parametrize("deferrable", [False, True])
def test_an_hour_that_is_complete_already_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    auditor = Auditor(monkeypatch, "complete")
    assert "complete" in sensor(deferrable=deferrable).execute(context())
    hours = (datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 12, tzinfo=UTC))
    assert auditor.asked == [("http://a", "PageView", *hours)]


def test_the_sensor_asks_until_the_hour_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = Auditor(monkeypatch, "unknown", "incomplete", "complete")
    assert "complete" in sensor(deferrable=False).execute(context())
    assert len(auditor.asked) == 3


def test_the_deferred_sensor_asks_until_the_hour_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = Auditor(monkeypatch, "unknown", "incomplete", "unknown", "complete")
    operator = sensor(deferrable=True)
    trigger = deferred(operator)
    assert isinstance(trigger, CompletenessTrigger)
    assert "complete" in operator.execute_complete(context(), first_event(trigger))
    assert len(auditor.asked) == 4


def test_a_deferred_sensor_asks_with_the_address_and_the_token_that_its_connection_has_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auditor = Auditor(monkeypatch, "unknown", "unknown", "complete")
    trigger = deferred(sensor(deferrable=True))
    fields = json.loads(os.environ["AIRFLOW_CONN_MILLRACE_DEFAULT"])
    addresses = iter(("http://b", "http://c"))

    async def read(self: MillraceHook) -> Any:
        fields["extra"]["auditor"] = next(addresses)
        monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps(fields))
        return self.get_conn()

    monkeypatch.setattr(MillraceHook, "aget_conn", read)
    first_event(trigger)
    assert [asked[0] for asked in auditor.asked] == ["http://a", "http://b", "http://c"]


def test_a_deferred_sensor_keeps_to_its_execution_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    Auditor(monkeypatch, "unknown")
    with pytest.raises(TaskDeferred) as raised:
        sensor(deferrable=True, execution_timeout=timedelta(minutes=10)).execute(context())
    assert raised.value.timeout == timedelta(minutes=10)


def test_a_run_without_a_data_interval_is_a_mistake_in_one_line() -> None:
    for operator in (PublishOperator(task_id="a", topic="T"), CompletenessSensor(task_id="b", topic="T")):
        values: Any = {"params": {}}
        operator.render_template_fields(values)
        with pytest.raises(AirflowFailException, match="this run has no data interval: name the hours"):
            operator.execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
def test_time_that_is_up_fails_the_sensor_with_the_audits_reason(
    monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    Auditor(monkeypatch, "unknown")
    operator = sensor(deferrable=deferrable, timeout=0.2)

    def to_the_end() -> str:
        if deferrable:
            return operator.execute_complete(context(), first_event(deferred(operator)))
        return str(operator.execute(context()))

    with pytest.raises(AirflowSensorTimeout) as raised:
        to_the_end()
    words = str(raised.value)
    assert words.startswith("timed out after 0:00:00.2")
    assert "unknown: dc2 is silent; clear this task to wait again, or publish" in words
    assert words.endswith("millrace publish PageView --from 2015-05-17T10:00Z --to 2015-05-17T12:00Z")


HALF_HOURS: dict[str, Any] = {"start": "2015-05-17T10:30:00Z", "end": "2015-05-17T12:30:00Z"}


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: sensor(**HALF_HOURS, **options),
        lambda **options: PublishOperator(task_id="p", topic="T", **HALF_HOURS, **options),
        lambda **options: ReloadHoursOperator(task_id="r", topic="T", reason="why", **HALF_HOURS, **options),
        lambda **options: ReloadHoursOperator(task_id="r", topic="T", reason=" ", **HOURS, **options),
        lambda **options: MirrorTopicOperator(task_id="m", topic="T", origin="dc9", **options),
    ],
)
def test_a_users_mistake_fails_the_task_at_once_without_a_retry(
    make: Callable[..., BaseOperator], deferrable: bool
) -> None:
    with pytest.raises(AirflowFailException, match=r"not a whole hour|reason is empty|no origin 'dc9'"):
        make(deferrable=deferrable).execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_a_sensor_that_shall_not_fail_is_skipped_also_when_its_first_answer_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, option: str, deferrable: bool
) -> None:
    give_up = waiting.Decision(waiting.Step.GIVE_UP, "1 duplicate")
    monkeypatch.setattr(CompletenessSensor, "_ask", lambda *_: give_up)
    with pytest.raises(AirflowSkipException):
        sensor(deferrable=deferrable, **{option: True}).execute(context())
    with pytest.raises(AirflowFailException, match="1 duplicate"):
        sensor(deferrable=deferrable).execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_does_not_wait_for_an_auditor_whose_address_is_none(
    monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    extra = {"registry": "http://r", "auditor": "10.0.0.5:8082", "warehouse": "/w"}
    value = {"conn_type": "millrace", "host": "b:1", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps(value))
    with pytest.raises(AirflowFailException, match=r"auditor '10\.0\.0\.5:8082' is not a URL: write http://"):
        sensor(deferrable=deferrable, timeout=0.1).execute(context())


def test_the_deadline_is_a_time_so_a_restarted_triggerer_does_not_begin_to_wait_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auditor = Auditor(monkeypatch, "unknown")
    # Asked a first time before that, also by a machine that does much else.
    trigger = deferred(sensor(deferrable=True, accept_unknown_after=timedelta(seconds=2)))
    time.sleep(2)  # the triggerer is down; there is nothing to wait for but the time itself
    assert first_event(again(trigger))["step"] == "go on"
    assert len(auditor.asked) == 2


def test_a_rescheduled_sensor_counts_its_time_from_the_first_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Auditor(monkeypatch, "unknown")
    operator = sensor(mode="reschedule", accept_unknown_after=timedelta(minutes=1), deferrable=False)
    for minutes, ends in ((None, False), (0.5, False), (2, True)):
        first = None if minutes is None else datetime.now(UTC) - timedelta(minutes=minutes)
        task = SimpleNamespace(get_first_reschedule_date=lambda _, first=first: first)
        if ends:
            assert "unknown" in operator.execute(context(ti=task))
        else:
            with pytest.raises(AirflowRescheduleException):
                operator.execute(context(ti=task))


def test_a_password_in_a_url_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = python("print('1') or 'http://user:secret@registry:8081/x'")
    lines: list[str] = []
    monkeypatch.setattr(operator.log, "info", lambda text, *values: lines.append(text % values))
    operator.execute(context())
    assert "secret" not in "".join(lines)
    assert any("http://***@registry:8081/x" in line for line in lines)


def test_a_trigger_holds_no_address_only_the_connections_name(monkeypatch: pytest.MonkeyPatch) -> None:
    Auditor(monkeypatch, "unknown")
    assert "http://a" not in json.dumps(deferred(sensor(deferrable=True)).serialize())
