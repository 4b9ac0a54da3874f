"""Airflow's everyday troubles: killed processes, cleared tasks, parallel runs, a backfill, a bad topic.

Each test leaves its topics loaded and published; all of them together are proved at the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pyiceberg.exceptions import NoSuchTableError

from millrace_airflow.job import Job, JobFailed
from millrace_audit.answer import Verdict
from millrace_audit.client import completeness
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.airflow.conftest import MISSING, TEN, Place
from tests.airflow.deployment import TASK_S, verify
from tests.integration.test_console import CHROMIUM, SCREENSHOTS
from tests.peers import maven
from tests.support import wait_until
from tests.warehouses import loaded_rows

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOURS = 24
DAY = {"start": START.isoformat(), "end": (START + timedelta(hours=HOURS)).isoformat()}
EVENTS = 480
TASKS = ("load", "wait", "publish")
produced: dict[str, int] = {}


def fill(place: Place, topic: str, begin: datetime = START, hours: int = HOURS) -> None:
    """Events all over these hours, twenty in each."""
    step = hours * 3_600_000 // EVENTS
    first = int(begin.timestamp() * 1000)
    produced[topic] = produced.get(topic, 0) + place.produce(topic, [first + step * n for n in range(EVENTS)])


def running_job(place: Place, topic: str) -> Job | None:
    """The job that loads a topic, once it has said its first step."""
    for folder in place.airflow.jobs():
        with suppress(OSError, ValueError, JobFailed):
            words = json.loads((folder / "command.json").read_text())
            if words[3:5] == ["load", topic] and "step: " in (folder / "log").read_text():
                return Job(folder)
    return None


def succeeded(place: Place, run_id: str) -> None:
    """AssertionError unless the run succeeds with all its tasks."""
    assert place.airflow.await_run(run_id) == "success", place.airflow.states(run_id)
    assert place.airflow.states(run_id) == dict.fromkeys(TASKS, "success")


def loads(place: Place, topic: str) -> int:
    return len(list((place.world.warehouse / topic / "loads").glob("[0-9]*.json")))


def events(place: Place, topic: str) -> list[Any]:
    """Asset events of a topic's table, the oldest first: partition key and what is said."""
    sql = """select partition_key, asset_event.extra from asset_event join asset on asset.id = asset_id
             where uri = %s order by asset_event.id"""
    return place.airflow.query(sql, f"iceberg://millrace_default/millrace/{topic}")


def test_a_topic_that_fails_holds_up_none_of_ten_beside_it(place: Place) -> None:
    for topic in TEN:
        fill(place, topic, hours=2)
    two = {"start": DAY["start"], "end": (START + timedelta(hours=2)).isoformat()}
    place.airflow.trigger("warehouse_load", "eleven", **two)
    assert place.airflow.await_run("eleven", timeout_s=3 * TASK_S) == "failed"
    states = place.airflow.states("eleven")
    for number in range(len(TEN)):
        assert {states[f"table.{task}[{number}]"] for task in TASKS} == {"success"}
    assert MISSING not in TEN
    assert states[f"table.load[{len(TEN)}]"] == "failed"
    assert states[f"table.publish[{len(TEN)}]"] == "upstream_failed"


def test_a_scheduler_and_its_workers_killed_in_mid_load_do_not_start_the_load_again(place: Place) -> None:
    topic = "KilledViews"
    fill(place, topic)
    place.airflow.trigger(topic, "killed", **DAY)
    job = wait_until("the load runs", partial(running_job, place, topic), timeout_s=TASK_S)
    assert job is not None
    place.airflow.kill("scheduler")
    assert job.alive() or job.ended(), "the worker is dead, the job is not"
    place.airflow.start("scheduler")
    succeeded(place, "killed")
    [(tries,)] = place.airflow.query(
        "select try_number from task_instance where run_id = 'killed' and task_id = 'load'"
    )
    assert tries > 1, "another try has ended what the first began"
    assert loads(place, topic) == 1


def test_a_load_whose_driver_runs_on_a_cluster_goes_on_when_its_tasks_machine_is_lost(place: Place) -> None:
    topic = "ElsewhereViews"
    fill(place, topic)
    place.airflow.trigger(topic, "elsewhere", **DAY)
    job = wait_until("the driver is submitted", partial(running_job, place, topic), timeout_s=TASK_S)
    assert job is not None
    group, _ = (job.directory / "group").read_text().split()
    place.airflow.kill("scheduler")
    os.killpg(int(group), signal.SIGKILL)
    shutil.rmtree(job.directory)
    place.airflow.start("scheduler")
    succeeded(place, "elsewhere")
    [(tries,)] = place.airflow.query(
        "select try_number from task_instance where run_id = 'elsewhere' and task_id = 'load'"
    )
    assert tries > 1, "another try has waited for what the first began"
    assert [driver.split()[1] for driver in place.spark.drivers()] == ["FINISHED"]
    assert loads(place, topic) == 1


@pytest.mark.skipif(not maven.available(), reason="YARN comes from Maven Central: install Maven")
def test_a_deferred_load_whose_driver_runs_on_yarn_is_waited_for_when_its_command_is_killed(
    place: Place,
) -> None:
    topic, yarn = "OnYarnViews", place.yarn
    assert yarn is not None
    fill(place, topic)
    place.airflow.trigger(topic, "on-yarn", **DAY)
    place.airflow.await_state("on-yarn", "load", "deferred")
    job = wait_until("the driver is submitted", partial(running_job, place, topic), timeout_s=TASK_S)
    assert job is not None
    os.killpg(int((job.directory / "group").read_text().split()[0]), signal.SIGKILL)
    succeeded(place, "on-yarn")
    assert [app["finalStatus"] for app in yarn.applications()] == ["SUCCEEDED"]
    assert loads(place, topic) == 1


def test_everything_that_watches_a_deferred_load_is_killed_and_the_load_is_not_started_again(
    place: Place,
) -> None:
    topic = "DeferredViews"
    fill(place, topic)
    place.airflow.trigger(topic, "deferred", **DAY)
    place.airflow.await_state("deferred", "load", "deferred")
    job = wait_until("the load runs", partial(running_job, place, topic), timeout_s=TASK_S)
    for name in ("scheduler", "triggerer", "api-server"):
        place.airflow.kill(name)
    for name in ("api-server", "triggerer", "scheduler"):
        place.airflow.start(name)
    succeeded(place, "deferred")
    assert loads(place, topic) == 1
    assert job is not None
    # Airflow may need another try, when its own server is not up again in time: that takes the same job.
    said = "".join(log.read_text() for log in place.airflow.logs(topic, "deferred", "load"))
    assert set(re.findall(r"millrace-jobs/([\w.-]+)/log", said)) == {job.directory.name}
    assert not job.directory.exists(), "its result was taken, once"


def test_a_task_cleared_after_success_loads_nothing_again_and_publishes_nothing_twice(place: Place) -> None:
    topic = "ClearedViews"
    fill(place, topic)
    place.airflow.trigger(topic, "cleared", **DAY)
    succeeded(place, "cleared")
    wait_until("the events are stored", lambda: events(place, topic), timeout_s=TASK_S)
    again = {"dag_run_id": "cleared", "dry_run": False, "only_failed": False, "task_ids": [*TASKS]}
    place.airflow.ask("POST", f"dags/{topic}/clearTaskInstances", **again)
    succeeded(place, "cleared")
    assert loads(place, topic) == 1
    assert {said["publication"] for _, said in events(place, topic)} == {1}, "nothing was published again"


def test_a_published_table_starts_those_that_read_it_and_each_hour_those_that_read_it_by_hour(
    place: Place,
) -> None:
    hours = [f"{START + timedelta(hours=hour):%Y-%m-%dT%H:%M:%S}" for hour in range(HOURS)]
    # The task was cleared, and has then told of its publication again.
    assert {key for key, _ in events(place, "ClearedViews")} == {None, *hours}

    def runs(dag_id: str) -> list[Any]:
        return place.airflow.query("select partition_key from dag_run where dag_id = %s", dag_id)

    wait_until(
        "a run for each hour", lambda: {key for (key,) in runs("by_hour")} == {*hours}, timeout_s=TASK_S
    )
    assert {key for (key,) in runs("by_table")} == {None}


def test_two_runs_at_once_load_every_event_once(place: Place) -> None:
    topic = "TwiceViews"
    fill(place, topic)
    for run_id in ("first", "second"):
        place.airflow.trigger(topic, run_id, **DAY)
    for run_id in ("first", "second"):
        succeeded(place, run_id)


def test_a_day_is_filled_in_hour_by_hour(place: Place) -> None:
    topic = "FilledViews"
    fill(place, topic)
    last = START + timedelta(hours=HOURS - 1)
    span = {"from_date": START.isoformat(), "to_date": last.isoformat(), "max_active_runs": 4}
    place.airflow.ask("POST", "backfills", dag_id=topic, reprocess_behavior="none", **span)
    sql = "select count(*) from dag_run where dag_id = %s and run_type = 'backfill' and state = 'success'"
    wait_until(
        "every hour has its run", lambda: place.airflow.query(sql, topic) == [(HOURS,)], timeout_s=4 * TASK_S
    )
    publications = {said["publication"] for key, said in events(place, topic) if key is None}
    assert publications == {*range(1, HOURS + 1)}, "each hour is published by its own run"


def test_an_hour_that_the_audit_proves_starts_a_dag(place: Place) -> None:
    topic = "ProvedViews"
    ended = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    fill(place, topic, ended - timedelta(hours=2), hours=2)
    sql = "select count(*) from dag_run where dag_id = 'by_proof' and state = 'success'"
    place.airflow.trigger("by_proof", "by_hand")  # nothing is proved before it is loaded
    assert place.airflow.await_run("by_hand") == "success"
    wait_until("the proof starts the DAG", lambda: place.airflow.query(sql)[0][0] > 1, timeout_s=TASK_S)
    wait_until("it has published", lambda: rows(place, topic) == EVENTS, timeout_s=TASK_S)


def rows(place: Place, topic: str) -> int:
    """Rows of a published table."""
    with closing(connect(open_storage(str(place.world.warehouse)))) as catalog:
        try:
            return catalog.load_table(table_identifier(topic)).scan().count()
        except NoSuchTableError:
            return 0


@pytest.fixture
def nothing_runs(place: Place) -> None:
    sql = "select count(*) from dag_run where state in ('running', 'queued') and dag_id <> 'by_proof'"
    wait_until("every run has ended", lambda: place.airflow.query(sql) == [(0,)], timeout_s=TASK_S)
    wait_until("no job runs", lambda: not place.airflow.jobs(), timeout_s=TASK_S)


@pytest.mark.usefixtures("nothing_runs")
def test_at_the_end_every_event_is_in_the_warehouse_once_and_the_audit_says_so(place: Place) -> None:
    assert produced, "run a test that produces before this one"
    for topic in produced:
        found = loaded_rows(place.world.warehouse, topic)
        assert len({(row.instance, row.sequence) for row in found}) == len(found) == produced[topic]
        assert rows(place, topic) == produced[topic]
        hours = sorted({row.time.replace(minute=0, second=0, microsecond=0) for row in found})
        answer = completeness(place.world.url, topic, hours[0], hours[-1] + timedelta(hours=1))
        assert answer.verdict == Verdict.COMPLETE, answer
    verify(place.world.warehouse, place.world.clusters["offline"].bootstrap)


def test_a_task_leads_to_the_audit_and_to_what_it_wrote_and_only_behind_airflows_login(place: Place) -> None:
    airflow = place.airflow
    task = "dags/ClearedViews/dagRuns/cleared/taskInstances"
    links = airflow.ask("GET", f"{task}/load/links")["extra_links"]
    assert links["Manifest"].endswith("path=ClearedViews%2Floads%2F0000000001.json")
    links |= airflow.ask("GET", f"{task}/wait/links")["extra_links"]
    assert "topic?topic=ClearedViews&until=2015-05-1" in links["Audit"]
    logged_in = {"Authorization": f"Bearer {airflow.token}"}
    for name, says in (("Audit", "<h1>ClearedViews"), ("Manifest", '"rows"')):
        assert httpx.get(airflow.url + links[name], timeout=60).status_code == 401
        seen = httpx.get(airflow.url + links[name], headers=logged_in, timeout=60)
        assert (seen.status_code, says in seen.text) == (200, True), seen.text


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: apt-get install chromium-headless-shell")
def test_an_operator_sees_the_console_and_a_tasks_links_in_airflows_own_pages(place: Place) -> None:
    from playwright.sync_api import sync_playwright

    airflow = place.airflow
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1100, "height": 700})
        context.set_default_timeout(120_000)
        context.add_cookies([{"name": "_token", "value": airflow.token, "url": airflow.url}])
        page = context.new_page()
        page.goto(f"{airflow.url}/plugin/millrace-audit")
        console = page.frame_locator("iframe")
        console.locator("#map").wait_for()
        shot(page, "airflow-audit")
        console.locator("text=30 d").click()
        console.locator(".map.s30").wait_for()
        page.goto(f"{airflow.url}/dags/ClearedViews/runs/cleared/tasks/load/details")
        page.locator("text=Manifest").wait_for()
        shot(page, "airflow-task")
        page.goto(f"{airflow.url}/dags/warehouse_load/runs/eleven")
        page.locator("text=eleven").first.wait_for()
        page.wait_for_load_state("networkidle")
        assert not page.locator("text=was not found").count(), "the run of a test before this one"
        shot(page, "airflow-run")
        browser.close()


def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")
