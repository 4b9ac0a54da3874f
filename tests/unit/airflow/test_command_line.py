"""The command lines that tasks run, and the values they are made of."""

from __future__ import annotations

import dataclasses
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from click import Context

from millrace.cli import cli
from millrace.errors import ConfigError
from millrace_airflow.command_line import (
    COMMANDS,
    command_line,
    environment,
    hour_options,
    interval,
    run_id_of_task,
)
from millrace_airflow.operators.job import MillraceJobOperator
from millrace_airflow.operators.load import LoadTopicOperator, MirrorTopicOperator, ReloadHoursOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.operators.upkeep import CompactOperator, ExpireOperator
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


HOURS: dict[str, Any] = {"start": "2015-05-17T10:00:00Z", "end": "2015-05-17T11:00:00Z"}
OPERATORS: dict[str, MillraceJobOperator] = {
    "load": LoadTopicOperator(
        task_id="load",
        topics=["A", "B"],
        topics_matching="P.*",
        max_bytes="1GB",
        until="2015-05-18",
        max_rejected="9",
    ),
    "load live": LoadTopicOperator(task_id="live", topics="T", accept_rejected=True, live=True),
    "mirror-batch": MirrorTopicOperator(
        task_id="mirror", topic="T", origin="dc1", max_bytes="1GB", origin_client="/o.toml"
    ),
    "publish": PublishOperator(task_id="publish", topic="T", **HOURS),
    "publish proven": PublishOperator(
        task_id="proven", topic="T", start=None, end=None, proven=True, unproven_after="1d"
    ),
    "compact": CompactOperator(task_id="compact", topic="T"),
    "reload": ReloadHoursOperator(task_id="reload", topic="T", reason="schema 7 was missing", **HOURS),
    "expire": ExpireOperator(task_id="expire", topic="T"),
}


def command(operator: MillraceJobOperator, settings: MillraceSettings = SETTINGS) -> list[str]:
    return operator.command(settings, "run-1")


def test_a_load_names_its_topics_and_the_run_its_plan_is_kept_under() -> None:
    for topics, named in (("PageView", ["PageView"]), (["A", "B"], ["A", "B"])):
        words = command(LoadTopicOperator(task_id="l", topics=topics))
        assert words[3 : 4 + len(named)] == ["load", *named]
        assert options(words, len(named)) == {"--bootstrap": "b:1", "--warehouse": "/w", "--run-id": "run-1"}


def test_a_load_passes_on_the_bounds_and_limits_that_are_given() -> None:
    found = options(command(OPERATORS["load"]), 2)
    assert found["--topics-matching"] == "P.*"
    assert found["--max-bytes"] == "1GB"
    assert found["--until"] == "2015-05-18"
    assert found["--max-rejected"] == "9"


def test_a_load_passes_on_its_flags() -> None:
    assert {"--accept-rejected", "--live"} <= {*command(OPERATORS["load live"])}


def test_the_hours_to_publish_are_given_in_utc() -> None:
    given: dict[str, Any] = {"start": "2015-05-17T12:00:00+02:00", "end": "2015-05-17T11:00"}
    words = command(PublishOperator(task_id="p", topic="PageView", **given))
    assert words[3:5] == ["publish", "PageView"]
    assert options(words, 1) == {
        "--from": "2015-05-17T10:00:00Z",
        "--to": "2015-05-17T11:00:00Z",
        "--warehouse": "/w",
        "--run-id": "run-1",
    }


def test_a_mirror_reads_its_origin_and_writes_to_the_aggregate_cluster() -> None:
    words = command(MirrorTopicOperator(task_id="m", topic="SearchQuery", origin="dc1"))
    assert words[3:5] == ["mirror-batch", "SearchQuery"]
    wanted = {"--origin": "dc1", "--origin-bootstrap": "o:1", "--bootstrap": "b:1"}
    assert options(words, 1) == wanted
    assert options(command(OPERATORS["mirror-batch"]), 1) == {
        **wanted,
        "--max-bytes": "1GB",
        "--origin-client": "/o.toml",
    }


def test_a_spark_master_is_passed_on_to_what_runs_on_spark_and_a_catalog_to_what_has_a_table() -> None:
    settings = dataclasses.replace(SETTINGS, spark_master="yarn", catalog="lake")
    for name, operator in OPERATORS.items():
        words = command(operator, settings)
        given = {name: words[words.index(name) + 1] for name in ("--master", "--catalog") if name in words}
        on_spark = (
            {"--master": "yarn"} if name.partition(" ")[0] in ("load", "reload", "mirror-batch") else {}
        )
        with_table = {"--catalog": "lake"} if name != "mirror-batch" else {}
        assert given == on_spark | with_table


def test_hours_are_read_again_for_a_reason_under_the_tasks_run_id() -> None:
    words = command(OPERATORS["reload"])
    assert words[3:5] == ["reload", "T"]
    assert options(words, 1) == {
        "--from": "2015-05-17T10:00:00Z",
        "--to": "2015-05-17T11:00:00Z",
        "--reason": "schema 7 was missing",
        "--bootstrap": "b:1",
        "--warehouse": "/w",
        "--run-id": "run-1",
    }


def test_expiry_names_a_topic_and_an_age() -> None:
    words = command(OPERATORS["expire"])
    assert words[3:5] == ["expire", "T"]
    assert options(words, 1) == {"--warehouse": "/w", "--older-than": "30d"}


@pytest.mark.parametrize(("value", "word"), [(50, "50"), (0, "0"), ("0.5%", "0.5%")])
def test_a_number_is_passed_on_like_its_text(value: object, word: str) -> None:
    command = command_line(SETTINGS, "load", ["PageView"], "run", max_rejected=value)
    assert options(command, 1)["--max-rejected"] == word


def test_what_is_empty_or_off_is_left_to_the_command() -> None:
    words = command_line(SETTINGS, "publish", ["T"], run_id="r", proven=False, unproven_after="")
    assert options(words, 1) == {"--warehouse": "/w", "--run-id": "r"}


def options_of_command(name: str) -> set[str]:
    command = cli.get_command(Context(cli), name)
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_option_is_one_the_command_knows(name: str) -> None:
    settings = dataclasses.replace(SETTINGS, spark_master="yarn", catalog="lake")
    spelt = options_of_command(name.partition(" ")[0])
    assert {word for word in command(OPERATORS[name], settings) if word.startswith("--")} <= spelt


def test_no_command_is_left_without_the_values_of_connection_and_task_that_it_knows() -> None:
    for name, values in COMMANDS.items():
        spelt = options_of_command(name)
        assert {"--bootstrap", "--warehouse", "--catalog", "--run-id", "--master"} & spelt == {
            f"--{value.replace('_', '-')}" for value in values
        }


def test_an_unknown_origin_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no origin 'dc9' \(known: dc1\)"):
        command(MirrorTopicOperator(task_id="m", topic="SearchQuery", origin="dc9"))


@pytest.mark.parametrize(
    ("start", "end"),
    [("2015-05-17T10:00:00Z", "2015-05-17T10:00:00Z"), ("2015-05-17T11:00:00Z", "2015-05-17T10:00:00Z")],
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
    assert hour_options("0001-01-01T00", "0001-01-01T01")["from"] == "0001-01-01T00:00:00Z"


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
    for operator in OPERATORS.values():
        assert "s3cret" not in " ".join(command(operator, settings))
    assert environment(settings) == {
        "MILLRACE_REGISTRY": settings.registry,
        "MILLRACE_AUDITOR": settings.auditor,
    }
    assert "s3cret" not in repr(settings)
