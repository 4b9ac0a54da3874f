"""Options and output of `reload`, `expire` and `hourly --late`; what they do is tested with what does it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from millrace_warehouse.table.publish import publish_hours

import millrace_spark.jobs.submit
from millrace.errors import ConfigError, MillraceError
from millrace_spark.commands import early
from millrace_spark.commands.loading import reload
from millrace_warehouse.commands.upkeep import expire, hourly, verify
from millrace_warehouse.commands.words import parse_age
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.unit.warehouse.interleaved import HOURS, Scenario
from tests.unit.warehouse.memory_log import START, TOPIC

PLACES = ["--warehouse", "w", "--bootstrap", "127.0.0.1:1", "--registry", "http://127.0.0.1:2"]
AGAIN = ["A", *PLACES, "--reason", "a bug"]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be submitted; the answer is taken from its key `answer`."""
    seen: dict[str, Any] = {}

    def submit(job: str, settings: dict[str, Any], **options: Any) -> Any:
        seen.update(job=job, settings=settings, **options)
        return seen["answer"]

    monkeypatch.setattr(millrace_spark.jobs.submit, "submit", submit)
    monkeypatch.setattr(early, "check_table", lambda *_: None)
    return seen


def test_a_reload_names_hours_or_loads_and_says_what_became_of_each(submitted: dict[str, Any]) -> None:
    each = {
        "load": 7,
        "edition": 2,
        "published": True,
        "rows": 1_021,
        "rejected": 0,
        "rows_before": 1_020,
        "rejected_before": 1,
        "hours": {},
    }
    submitted["answer"] = [each, {**each, "load": 8, "published": False}]
    shown = CliRunner().invoke(reload, [*AGAIN, "--hour", "2015-05-17T10:59Z"])
    assert shown.exit_code == 0, shown.output
    assert "0000000007" in shown.stdout
    assert "1,021" in shown.stdout
    assert "this run had read it again already" in shown.stdout
    assert "millrace hourly A --late" in shown.stdout
    settings = submitted["settings"]
    assert (submitted["job"], settings["hours"], settings["loads"]) == ("reload", [HOURS[0]], ())
    assert (settings["reason"], settings["warehouse"]) == ("a bug", str(Path("w").absolute()))
    shown = CliRunner().invoke(reload, [*AGAIN, "--loads", "7-9", "--run-id", "mine", "--json"])
    assert json.loads(shown.stdout) == {"topic": "A", "loads": submitted["answer"]}
    assert (submitted["settings"]["loads"], submitted["settings"]["run_id"]) == ([7, 8, 9], "mine")


def test_a_reload_of_a_load_that_is_not_there_is_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "A" / "load=0000000007").mkdir(parents=True)
    places = [*AGAIN[3:], "--warehouse", str(tmp_path)]
    refused = CliRunner().invoke(reload, ["A", *places, "--loads", "7-8"])
    assert str(refused.exception) == f"A has no load=0000000008 in {tmp_path}: check --loads"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give either --hour"),
        (["--hour", HOURS[0], "--loads", "1"], "give either --loads, or hours"),
        (["--loads", "9-7"], "--loads '9-7' is not a load or a range of them, like 7 or 7-9"),
        (["--loads", "0"], "is not a load"),
        (["--loads", "-3"], "is not a load"),
        (["--reason", " ", "--loads", "1"], "--reason is empty"),
    ],
)
def test_a_reload_of_nothing_or_for_no_reason_is_refused(options: list[str], says: str) -> None:
    refused = CliRunner().invoke(reload, [*AGAIN, *options])
    assert isinstance(refused.exception, ConfigError)
    assert says in str(refused.exception)


def test_late_hours_need_no_hours_and_may_go_with_some(submitted: dict[str, Any]) -> None:
    submitted["answer"] = []
    assert CliRunner().invoke(hourly, ["A", "--late", "--warehouse", "w"]).exit_code == 0
    assert (submitted["settings"]["hours"], submitted["settings"]["late"]) == ((), True)
    CliRunner().invoke(hourly, ["A", "--late", "--hour", HOURS[0], "--warehouse", "w"])
    assert submitted["settings"]["hours"] == [HOURS[0]]
    refused = CliRunner().invoke(hourly, ["A", "--late", "--from", HOURS[0], "--warehouse", "w"])
    assert isinstance(refused.exception, ConfigError)


def test_a_folder_is_expired_here_and_hadoop_storage_by_a_job(
    submitted: dict[str, Any], tmp_path: Path
) -> None:
    scene = Scenario(tmp_path, random.Random(1))
    scene.log.append_events(0, [START, START + 1])
    fs = LocalFilesystem(str(tmp_path))
    scene._load(fs)
    ages = ["--older-than", "0s", "--reader-grace", "0s"]
    kept = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(tmp_path), *ages])
    assert "kept: PageView/load=0000000001: 2 rows of 2015-05-17T10 are in no hour" in kept.stderr
    publish_hours(scene.hourly_run(fs), TOPIC, HOURS)
    tried = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(tmp_path), *ages, "--dry-run"])
    assert "would delete" in tried.stdout
    done = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(tmp_path), *ages, "--json"])
    assert json.loads(done.stdout)["loads"] == 1
    assert submitted == {}
    submitted["answer"] = json.loads(done.stdout)
    CliRunner().invoke(expire, [TOPIC, "--warehouse", "hdfs://nn/w", "--older-than", "30d"])
    assert submitted["settings"] == {
        "topic": TOPIC,
        "warehouse": "hdfs://nn/w",
        "older_than_s": 2_592_000.0,
        "reader_grace_s": 21_600.0,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400), ("0s", 0)]
)
def test_an_age_has_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text, "--older-than") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1.5d"])
def test_what_is_no_age_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--older-than .* is not an age like 30d"):
        parse_age(text, "--older-than")


@pytest.mark.parametrize("name", ["owner.json", "00000000000000000000.log"])
def test_a_brokers_folder_is_not_told_to_move_its_logs_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "PageView-0-abc").mkdir()
    refused = CliRunner().invoke(verify, [str(tmp_path)])
    assert isinstance(refused.exception, MillraceError)
    assert "is a broker's log directory, not a warehouse: check it with `millrace log verify`" in str(
        refused.exception
    )
