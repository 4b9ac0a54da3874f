"""The DAG of the warehouse load: what Airflow makes of its file, without running it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.sdk.execution_time import macros
from airflow.serialization.encoders import coerce_to_core_timetable

from tests.support import REPOSITORY

DAGS = REPOSITORY / "dags"


@pytest.fixture(scope="module")
def dag() -> DAG:
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    return bag.dags["warehouse_load"]


def downstream(dag: DAG, task_id: str) -> set[str]:
    return {task.task_id for task in dag.get_task(task_id).get_flat_relatives(upstream=False)}


def test_nothing_is_published_before_it_is_loaded_and_proved_complete(dag: DAG) -> None:
    mirrored = ["mirror_SearchQuery", "SearchQuery.load", "SearchQuery.wait", "SearchQuery.publish"]
    for tasks in (mirrored, ["table.load", "table.wait", "table.publish"]):
        for before, after in pairwise(["register_schemas", *tasks]):
            assert after in downstream(dag, before)


def test_no_task_of_a_topic_waits_for_a_task_of_another(dag: DAG) -> None:
    """Tasks of a mapped group wait for those of their own index."""
    for group, others in (("table", {"SearchQuery", "mirror_SearchQuery"}), ("SearchQuery", {"table"})):
        for name in ("load", "wait", "publish"):
            before = {
                task.task_id for task in dag.get_task(f"{group}.{name}").get_flat_relatives(upstream=True)
            }
            assert not {task_id.partition(".")[0] for task_id in before} & others


def test_each_topic_waits_and_is_published_by_itself_under_its_own_name(dag: DAG) -> None:
    for dag_id, topics, tasks in (
        ("warehouse_load", ["PageView"], ["load", "wait", "publish"]),
        ("warehouse_upkeep", ["PageView", "SearchQuery"], ["publish", "compact", "expire"]),
    ):
        for name in tasks:
            task = DagBag(str(DAGS)).dags[dag_id].get_task(f"table.{name}")
            group: Any = task.get_closest_mapped_task_group()
            assert [one["topic"] for one in group._expand_input.value] == topics
            assert task.map_index_template == f"{{{{ task.{'topics' if name == 'load' else 'topic'} }}}}"


def test_the_tasks_of_a_topic_belong_to_the_owner_that_the_file_of_topics_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "topics.toml"
    file.write_text(
        "[PageView]\n[Click]\nowner = 'team-web'\n[SearchQuery]\nmirror = true\nowner = 'team-search'\n"
    )
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(file))
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    owners = {task.task_id: task.owner for task in bag.dags["warehouse_load"].tasks}
    for group, owner in (("table", "airflow"), ("Click", "team-web"), ("SearchQuery", "team-search")):
        assert {owners[f"{group}.{name}"] for name in ("load", "wait", "publish")} == {owner}
    assert owners["mirror_SearchQuery"] == owners["origins_SearchQuery"] == "team-search"
    owners = {task.task_id: task.owner for task in bag.dags["warehouse_upkeep"].tasks}
    for group, owner in (("table", "airflow"), ("Click", "team-web"), ("SearchQuery", "team-search")):
        assert {owners[f"{group}.{name}"] for name in ("publish", "compact", "expire")} == {owner}
    topic = bag.dags["warehouse_reload"].params.get_param("topic")
    assert topic.schema["values_display"] == {
        "Click": "Click (owner: team-web)",
        "SearchQuery": "SearchQuery (owner: team-search)",
    }
    assert topic.resolve("Click") == "Click"


@pytest.mark.parametrize(
    ("topic", "group"),
    [("shop.orders.v1", "shop_orders_v1"), ("orders-json", "orders-json"), ("7_days", "7_days")],
)
def test_a_topic_of_any_legal_name_has_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, group: str
) -> None:
    file = tmp_path / "topics.toml"
    file.write_text(f'["{topic}"]\nmirror = true\nowner = "team"\n')
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(file))
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    task: Any = bag.dags["warehouse_load"].get_task(f"{group}.publish")
    assert task.topic == topic


def test_a_datacenter_that_cannot_be_reached_does_not_hold_up_the_others_data(dag: DAG) -> None:
    assert dag.get_task("SearchQuery.load").trigger_rule == "all_done"
    assert dag.get_task("SearchQuery.publish").trigger_rule == "all_success"


@pytest.mark.parametrize("dag_id", ["warehouse_load", "warehouse_upkeep"])
def test_a_run_fails_if_any_of_its_tasks_has_failed(dag_id: str) -> None:
    found = DagBag(str(DAGS)).dags[dag_id]
    last = found.get_task("any_failure")
    assert [task.task_id for task in found.tasks if not task.downstream_task_ids] == ["any_failure"]
    assert last.trigger_rule == "one_failed"
    assert last.upstream_task_ids == {task.task_id for task in found.tasks} - {"any_failure"}


def test_a_file_that_names_no_topic_is_an_import_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "topics.toml"
    file.write_text("[topics_matching.'shop[.].*']\nmax_bytes = '2GiB'\n")
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(file))
    bag = DagBag(str(DAGS))
    assert len(bag.import_errors) == 2
    for error in bag.import_errors.values():
        assert f"{file} names no topic for the DAGs: give each topic a table, such as [PageView]" in error


def test_a_run_is_about_one_whole_hour(dag: DAG) -> None:
    timetable: Any = coerce_to_core_timetable(dag.timetable)
    found = timetable.infer_manual_data_interval(run_after=at("2026-03-01T10:07:00+00:00"))
    assert (found.start, found.end) == (at("2026-03-01T09:00:00+00:00"), at("2026-03-01T10:00:00+00:00"))


def at(text: str) -> Any:
    import pendulum

    return pendulum.parse(text)


@pytest.mark.parametrize(
    ("params", "hours"),
    [
        ({"start": None, "end": None}, ("2026-03-01T09:00:00+00:00", "2026-03-01T10:00:00+00:00")),
        (
            {"start": "2015-05-17T10:00:00Z", "end": "2015-05-20T22:00:00Z"},
            ("2015-05-17T10:00:00Z", "2015-05-20T22:00:00Z"),
        ),
    ],
)
def test_start_and_end_take_the_place_of_the_data_interval(
    dag: DAG, params: dict[str, str], hours: tuple[str, str]
) -> None:
    from millrace_airflow.command_line import interval

    for task_id in ("table.wait", "table.publish"):
        task: Any = dag.get_task(task_id).prepare_for_execution()
        context = {
            "params": params,
            "data_interval_start": at("2026-03-01T09:00:00+00:00"),
            "data_interval_end": at("2026-03-01T10:00:00+00:00"),
        }
        start, end = (task.render_template(text, context) for text in (task.start, task.end))
        expected = tuple(datetime.fromisoformat(hour).astimezone(UTC) for hour in hours)
        assert interval(start, end) == expected


def test_a_run_that_the_command_line_triggers_without_hours_is_about_the_hour_before(dag: DAG) -> None:
    """Airflow gives such a run no data interval."""
    context = {
        "params": {"start": None, "end": None},
        "dag_run": SimpleNamespace(run_after=at("2026-03-01T10:07:12.345+00:00")),
    }
    for task_id in ("table.wait", "table.publish"):
        task: Any = dag.get_task(task_id).prepare_for_execution()
        hours = [task.render_template(text, context | {"macros": macros}) for text in (task.start, task.end)]
        assert hours == ["2026-03-01 09:00:00+00:00", "2026-03-01 10:00:00+00:00"]
    settled: Any = dag.get_task("wait_for_last_events").prepare_for_execution()
    rendered = settled.render_template(settled.target_time, context | {"macros": macros})
    assert rendered == "2026-03-01 10:05:00+00:00"


def test_waiting_holds_no_worker_and_later_runs_go_on_loading_meanwhile(dag: DAG) -> None:
    wait: Any = dag.get_task("table.wait")
    assert wait.deferrable
    assert dag.max_active_runs > 1
    load: Any = dag.get_task("table.load")
    assert load.max_active_tis_per_dag == 4
    assert load.execution_timeout == timedelta(hours=12)
    assert not dag.catchup


def test_upkeep_publishes_what_was_forgotten_then_compacts_and_expires_whatever_came_of_it() -> None:
    upkeep = DagBag(str(DAGS)).dags["warehouse_upkeep"]
    publish: Any = upkeep.get_task("table.publish")
    assert (publish.start, publish.end, publish.proven, publish.unproven_after) == (None, None, True, "1d")
    assert downstream(upkeep, "table.publish") == {"table.compact", "table.expire", "any_failure"}
    for name in ("compact", "expire"):
        assert upkeep.get_task(f"table.{name}").trigger_rule == "all_done"


FILE = """
[PageView]
["Search.Query"]
mirror = true
[Click]
max_bytes = "2GiB"
max_rejected = "1%"
accept_rejected = true
live = true
conn_id = "millrace_eu"
"""


def test_a_file_of_topics_makes_the_tasks_of_each_with_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topics.toml").write_text(FILE)
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(tmp_path / "topics.toml"))
    dags = DagBag(str(DAGS)).dags
    load, upkeep = dags["warehouse_load"], dags["warehouse_upkeep"]
    bounds = {"max_bytes": "", "max_rejected": "", "accept_rejected": False, "live": None}
    plain = {"conn_id": "millrace_default", **bounds}
    given = {"max_bytes": "2GiB", "max_rejected": "1%", "accept_rejected": True, "live": True}
    click = {"topic": "Click", "conn_id": "millrace_eu", **given}
    group: Any = load.get_task("table.load").get_closest_mapped_task_group()
    assert group._expand_input.value == [{"topic": "PageView", **plain}, click]
    mirrored: Any = load.get_task("Search_Query.load")
    assert mirrored.topics == "Search.Query"
    group = upkeep.get_task("table.publish").get_closest_mapped_task_group()
    assert [one["topic"] for one in group._expand_input.value] == ["PageView", "Search.Query", "Click"]
    again: Any = dags["warehouse_reload"].get_task("reload").prepare_for_execution()
    again.render_template_fields({"params": {"topic": "Click", "start": "", "end": "", "reason": ""}})
    assert (again.topic, again.conn_id) == ("Click", "millrace_eu")


def test_hours_are_read_again_by_hand_and_published_for_that_topic_alone() -> None:
    by_hand = DagBag(str(DAGS)).dags["warehouse_reload"]
    assert not by_hand.timetable.can_be_scheduled
    assert downstream(by_hand, "reload") == {"publish"}
    publish: Any = by_hand.get_task("publish").prepare_for_execution()
    publish.render_template_fields({"params": {"topic": "SearchQuery"}})
    assert (publish.topic, publish.start, publish.end) == ("SearchQuery", None, None)


GIVEN = {"start": "2015-05-17T10:00:00Z", "end": "2015-05-17T12:00:00Z", "reason": "schema 7 was missing"}


@pytest.mark.parametrize("missing", ["start", "end", "reason"])
def test_the_form_to_read_hours_again_requires_its_fields(missing: str) -> None:
    params = DagBag(str(DAGS)).dags["warehouse_reload"].params
    for name, value in GIVEN.items():
        if name != missing:
            params.get_param(name).resolve(value)
    with pytest.raises(ParamValidationError):
        params.get_param(missing).resolve()
    with pytest.raises(ParamValidationError):
        params.get_param(missing).resolve("")


@pytest.mark.parametrize("dag_id", ["warehouse_load", "warehouse_reload"])
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("2015-05-17T10:00:00Z", True),
        ("2015-05-17T10:00:00.000Z", True),
        ("2015-05-17 10:00:00+00:00", True),
        ("2015-05-17T10:00Z", True),
        ("2015-05-17T10", True),
        ("yesterday", False),
        ("2015-05-17", False),
        ("2015-05-17T10:30:00Z", False),
        ("2015-05-17T10:00:01Z", False),
    ],
)
def test_what_is_no_whole_hour_is_refused_by_the_form(dag_id: str, text: str, fits: bool) -> None:
    from millrace_airflow.command_line import interval

    param = DagBag(str(DAGS)).dags[dag_id].params.get_param("start")
    if fits:
        assert param.resolve(text) == text
        assert interval(text, "2015-05-18T00:00Z")[0] == datetime(2015, 5, 17, 10, tzinfo=UTC)
        return
    with pytest.raises(ParamValidationError):
        param.resolve(text)


IMPORT_DAG = """
import importlib.util, json, sys, time, warnings
import airflow.sdk
before = set(sys.modules)
began = time.perf_counter()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    spec = importlib.util.spec_from_file_location("dag_file", sys.argv[1])
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(json.dumps({
    "heavy": sorted({name.partition(".")[0] for name in set(sys.modules) - before} & set(sys.argv[2:])),
    "warnings": [str(warning.message) for warning in caught],
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warehouse_load", "warehouse_upkeep"])
def test_parsing_a_dag_imports_nothing_heavy_and_warns_of_nothing(name: str) -> None:
    heavy = [
        "pyspark",
        "pyarrow",
        "numpy",
        "pandas",
        "pyiceberg",
        "confluent_kafka",
        "kazoo",
        "kio",
        "millrace_spark",
        "millrace_warehouse",
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_DAG, str(DAGS / f"{name}.py"), *heavy],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"heavy": [], "warnings": []}
