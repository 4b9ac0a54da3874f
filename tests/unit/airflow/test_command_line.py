"""The command lines that tasks run, and the values they are made of."""

from __future__ import annotations

import dataclasses
import re
import sys
from datetime import UTC, datetime
from importlib import import_module

import pytest

from millrace.errors import ConfigError
from millrace_airflow.command_line import (
    environment,
    expire_command,
    hourly_command,
    interval,
    late_hours_command,
    load_command,
    mirror_command,
    reload_command,
    run_id_of_task,
    unpublished_hours_command,
)
from millrace_airflow.settings import MillraceSettings

SETTINGS = MillraceSettings(
    bootstrap="b:1", registry="http://r", auditor="http://a", warehouse="/w", origins={"dc1": "o:1"}
)
MILLRACE = [sys.executable, "-m", "millrace.cli"]


def options(command: list[str], arguments: int) -> dict[str, str]:
    """The options of a command line with so many arguments before them, and `--json` at its end."""
    assert command[:3] == MILLRACE
    assert command[-1] == "--json"
    words = command[4 + arguments : -1]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_load_names_its_topics_and_the_run_its_plan_is_kept_under() -> None:
    command = load_command(SETTINGS, ["PageView", "SearchQuery"], "run-1")
    assert command[3:6] == ["load", "PageView", "SearchQuery"]
    assert options(command, 2) == {
        "--bootstrap": "b:1",
        "--warehouse": "/w",
        "--run-id": "run-1",
    }


def test_a_load_passes_on_the_bounds_and_limits_that_are_given() -> None:
    given = {"topics_matching": "Page.*", "max_bytes": "2GiB", "until": "2015-05-18T00:00Z"}
    found = options(load_command(SETTINGS, [], "run-1", max_rejected="0.5%", **given), 0)
    assert found["--topics-matching"] == "Page.*"
    assert found["--max-bytes"] == "2GiB"
    assert found["--until"] == "2015-05-18T00:00Z"
    assert found["--max-rejected"] == "0.5%"


def test_the_hours_to_publish_are_given_in_utc() -> None:
    hours = interval("2015-05-17T12:00:00+02:00", "2015-05-17T11:00")
    command = hourly_command(SETTINGS, "PageView", *hours, "run-1")
    assert command[3:5] == ["hourly", "PageView"]
    assert options(command, 1) == {
        "--from": "2015-05-17T10:00:00Z",
        "--to": "2015-05-17T11:00:00Z",
        "--warehouse": "/w",
        "--run-id": "run-1",
    }


def test_a_mirror_reads_its_origin_and_writes_to_the_aggregate_cluster() -> None:
    command = mirror_command(SETTINGS, "SearchQuery", "dc1")
    assert command[3:5] == ["mirror-batch", "SearchQuery"]
    wanted = {"--origin": "dc1", "--origin-bootstrap": "o:1", "--bootstrap": "b:1"}
    assert options(command, 1) == wanted
    bounded = mirror_command(SETTINGS, "SearchQuery", "dc1", max_bytes="2GiB")
    assert options(bounded, 1) == {**wanted, "--max-bytes": "2GiB"}


def test_a_spark_master_and_a_sink_are_passed_on_where_the_connection_names_them() -> None:
    settings = dataclasses.replace(SETTINGS, spark_master="yarn", sink="spark")
    assert options(load_command(settings, ["T"], "r"), 1)["--master"] == "yarn"
    assert options(load_command(settings, ["T"], "r"), 1)["--sink"] == "spark"
    assert options(mirror_command(settings, "T", "dc1"), 1)["--master"] == "yarn"


def test_late_hours_are_asked_for_besides_the_runs_own() -> None:
    hours = interval("2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z")
    command = hourly_command(SETTINGS, "PageView", *hours, "run-1", late=True)
    assert "--late" in command
    command.remove("--late")
    assert command == hourly_command(SETTINGS, "PageView", *hours, "run-1")
    assert "--from" not in late_hours_command(SETTINGS, "PageView", "run-1")


def test_hours_are_read_again_for_a_reason_under_the_tasks_run_id() -> None:
    hours = interval("2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z")
    command = reload_command(SETTINGS, "PageView", *hours, "schema 7 was missing", "run-1")
    assert command[3:5] == ["reload", "PageView"]
    assert options(command, 1) == {
        "--from": "2015-05-17T10:00:00Z",
        "--to": "2015-05-17T11:00:00Z",
        "--reason": "schema 7 was missing",
        "--bootstrap": "b:1",
        "--warehouse": "/w",
        "--run-id": "run-1",
    }


def test_expiry_names_a_topic_and_an_age() -> None:
    command = expire_command(SETTINGS, "PageView", "30d")
    assert command[3:5] == ["expire", "PageView"]
    assert options(command, 1) == {"--warehouse": "/w", "--older-than": "30d"}


@pytest.mark.parametrize(
    "name", ["load", "hourly", "hourly late", "hourly unpublished", "reload", "expire", "mirror-batch"]
)
def test_every_option_is_one_the_command_knows(name: str) -> None:
    settings = dataclasses.replace(SETTINGS, spark_master="yarn", sink="spark")
    hours = interval("2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z")
    commands = {
        "load": load_command(
            settings, ["T"], "r", topics_matching="P.*", max_bytes="1GB", until="2015-05-18", max_rejected="9"
        ),
        "hourly": hourly_command(settings, "T", *hours, "r", late=True),
        "hourly late": late_hours_command(settings, "T", "r"),
        "hourly unpublished": unpublished_hours_command(settings, "T", "1d", "r"),
        "reload": reload_command(settings, "T", *hours, "why", "r"),
        "expire": expire_command(settings, "T", "30d"),
        "mirror-batch": mirror_command(settings, "T", "dc1", max_bytes="1GB"),
    }
    module = name.partition(" ")[0].replace("-", "_")
    command = vars(import_module(f"millrace_spark.commands.{module}"))[module]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in commands[name] if word.startswith("--")} <= known


def test_an_unknown_origin_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no origin 'dc9' \(known: dc1\)"):
        mirror_command(SETTINGS, "SearchQuery", "dc9")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2015-05-17T10:00:00Z", "2015-05-17T10:00:00Z"),
        ("2015-05-17T11:00:00Z", "2015-05-17T10:00:00Z"),
    ],
)
def test_an_interval_without_an_hour_in_it_is_refused(start: str, end: str) -> None:
    with pytest.raises(ConfigError, match="is not before end 2015-05-17T10:00:00Z"):
        interval(start, end)


@pytest.mark.parametrize(
    ("start", "end", "name"),
    [
        ("2015-05-17T10:30:00Z", "2015-05-17T11:30:00Z", "start 2015-05-17T10:30:00Z"),
        ("2015-05-17T10:00:00Z", "2015-05-17T11:00:00.000001Z", "end 2015-05-17T11:00:00Z"),
        ("2015-05-17T10:00:00+05:30", "2015-05-17T12:00:00+05:30", "start 2015-05-17T04:30:00Z"),
    ],
)
def test_an_interval_that_is_not_made_of_whole_hours_is_refused(start: str, end: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(name)} is not a whole hour"):
        interval(start, end)


def test_the_first_hours_of_the_calendar_keep_their_zeros() -> None:
    command = hourly_command(SETTINGS, "T", *interval("0001-01-01T00", "0001-01-01T01"), "r")
    assert options(command, 1)["--from"] == "0001-01-01T00:00:00Z"


def test_what_is_no_time_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="end 'tomorrow' is not a time like"):
        interval("2015-05-17T10:00:00Z", "tomorrow")


def test_pendulums_text_of_a_data_interval_is_understood() -> None:
    start, end = interval("2015-05-17 10:00:00+00:00", "2015-05-17 11:00:00+00:00")
    assert (start, end) == (datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 11, tzinfo=UTC))


def test_the_run_id_of_a_task_is_the_same_for_every_try_and_fit_for_a_file_name() -> None:
    task = ("warehouse_load", "manual__2015-05-17T10:00:00+00:00", "load")
    assert run_id_of_task(*task) == run_id_of_task(*task)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}", run_id_of_task(*task))
    assert "warehouse_load-load-manual__2015-05-17T10" in run_id_of_task(*task)


def test_no_two_tasks_share_a_run_id() -> None:
    ids = {
        run_id_of_task("d", "r", "t"),
        run_id_of_task("d", "r", "t", 0),
        run_id_of_task("d", "r", "t", 1),
        run_id_of_task("d", "r:t", ""),
        run_id_of_task("d", "r-t", ""),
        run_id_of_task("d" * 300, "r", "t"),
        run_id_of_task("d" * 300, "r2", "t"),
    }
    assert len(ids) == 7


def test_urls_that_may_hold_passwords_are_in_no_command_line() -> None:
    settings = dataclasses.replace(SETTINGS, registry="http://u:s3cret@r", auditor="http://u:s3cret@a")
    hours = interval("2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z")
    for command in (
        load_command(settings, ["T"], "r"),
        hourly_command(settings, "T", *hours, "r"),
        late_hours_command(settings, "T", "r"),
        reload_command(settings, "T", *hours, "why", "r"),
    ):
        assert "s3cret" not in " ".join(command)
    assert environment(settings) == {
        "MILLRACE_REGISTRY": settings.registry, "MILLRACE_AUDITOR": settings.auditor,
    }  # fmt: skip
    assert "s3cret" not in repr(settings)
