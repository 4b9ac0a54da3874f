"""The commands' options and output; what needs Spark is tested with Spark."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millrace.client.cluster_client
import millrace_registry.client
import millrace_spark.jobs.submit
from millrace.config import from_mapping
from millrace.errors import ConfigError, MillraceError
from millrace_registry.client import RegisteredVersion, RegistryUnavailable
from millrace_spark.commands import early
from millrace_spark.commands.loading import load, mirror_batch, reload
from millrace_warehouse.commands.options import Invocation, run_job
from millrace_warehouse.commands.upkeep import hourly, promote, verify
from millrace_warehouse.commands.verbs import Load, Verify
from millrace_warehouse.commands.words import parse_bytes
from millrace_warehouse.load.load import load_topic
from tests.unit.warehouse.memory_log import SCHEMA, TOPIC, filled_log, load_run, with_field

LOAD = ["--warehouse", "w", "--bootstrap", "127.0.0.1:1", "--registry", "http://127.0.0.1:2"]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be submitted; the answer is taken from its key `answer`."""
    seen: dict[str, Any] = {}

    def submit(job: str, settings: dict[str, Any], **options: Any) -> Any:
        seen.update(job=job, settings=settings, **options)
        return seen["answer"]

    def all_of(
        warehouse: str, bootstrap: str, registry: str, named: Sequence[str], matching: str
    ) -> tuple[list[str], list[str]]:
        return list(named), ["Bare"] if matching else []

    monkeypatch.setattr(millrace_spark.jobs.submit, "submit", submit)
    monkeypatch.setattr(early, "topics_to_load", all_of)
    monkeypatch.setattr(early, "check_warehouse", lambda _: None)
    monkeypatch.setattr(early, "check_schemas", lambda *_: None)
    monkeypatch.setattr(early, "check_same_logs", lambda *_: None)
    monkeypatch.setattr(early, "check_table", lambda *_: None)
    return seen


def loaded(topic: str, **changes: Any) -> dict[str, Any]:
    """What the job says of a topic it has loaded."""
    values: dict[str, Any] = {
        "topic": topic,
        "load": 1,
        "rows": 5,
        "rejected": 0,
        "hours": {"h": 5},
        "gaps": [],
        "notes": [],
        "left_bytes": 0,
        "message": "published load=0000000001",
    }
    return {**values, **changes}


def test_load_submits_every_topic_once_with_an_absolute_warehouse(submitted: dict[str, Any]) -> None:
    empty = loaded("B", load=None, rows=0, hours={}, message="empty")
    note = "promote it"
    submitted["answer"] = [loaded("A", gaps=["A-0 lost"], notes=[note], left_bytes=12_345), empty]
    shown = CliRunner().invoke(load, ["A", "B", "A", *LOAD])
    assert shown.exit_code == 0, shown.output
    assert "published load=0000000001" in shown.stdout
    assert "12,345" in shown.stdout
    assert "gap: A-0 lost" in shown.stderr
    assert "note: promote it" in shown.stderr
    settings = submitted["settings"]
    assert settings["topics"] == ["A", "B"]
    assert settings["warehouse"] == str(Path("w").absolute())
    assert settings["run_id"].startswith("manual-")
    assert submitted["fast_start"]
    CliRunner().invoke(load, ["A", *LOAD, "--sink", "spark", "--run-id", "mine", "--master", "yarn"])
    assert (submitted["settings"]["run_id"], submitted["master"], submitted["fast_start"]) == (
        "mine",
        "yarn",
        False,
    )


def test_records_set_aside_end_in_one_line_and_exit_code_1_unless_accepted(submitted: dict[str, Any]) -> None:
    submitted["answer"] = [loaded("A", load=3, rejected=2)]
    refused = CliRunner().invoke(load, ["A", *LOAD, "--json"])
    assert isinstance(refused.exception, MillraceError)
    assert "2 in A/load=0000000003/_rejected" in str(refused.exception)
    assert "\n" not in str(refused.exception)
    assert json.loads(refused.stdout) == submitted["answer"]
    assert CliRunner().invoke(load, ["A", *LOAD, "--accept-rejected"]).exit_code == 0


def test_topics_that_failed_and_those_left_out_are_named_beside_the_loaded_ones(
    submitted: dict[str, Any],
) -> None:
    failures = [{"topic": "B", "error": "B has no schema"}, {"topic": "C", "error": "C is gone"}]
    submitted["answer"] = [loaded("A", rejected=1), *failures]
    options = ["--topics-matching", ".*", "--registry", "http://u:secret@127.0.0.1:2", "--json"]
    shown = CliRunner().invoke(load, ["A", "B", "C", *LOAD, *options])
    assert isinstance(shown.exception, MillraceError)
    words = str(shown.exception)
    assert words.startswith("B has no schema; C is gone; loaded, but records could not be decoded: 1 in A/")
    assert "left out: Bare has no schema at http://***@127.0.0.1:2" in shown.stderr
    assert [each["topic"] for each in json.loads(shown.stdout)] == ["A", "B", "C", "Bare"]


def test_bounds_and_limits_reach_the_job(submitted: dict[str, Any]) -> None:
    submitted["answer"] = []
    options = ["--max-bytes", "2GiB", "--until", "2015-05-17T10:00:00Z", "--max-rejected", "1%"]
    assert CliRunner().invoke(load, ["A", *LOAD, *options]).exit_code == 0
    settings = submitted["settings"]
    assert (settings["max_bytes"], settings["until_ms"]) == (2 << 30, 1_431_856_800_000)
    assert settings["max_rejected"] == "1%"
    assert submitted["conf"]["spark.scheduler.mode"] == "FAIR"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-bytes", "0"], "--max-bytes '0' is no size like 500MB"),
        (["--max-bytes", "5 apples"], "is no size like"),
        (["--until", "soon"], "--until 'soon' is not a time like"),
        (["--max-rejected", "many"], "--max-rejected 'many' is neither"),
        (["--max-rejected", "101%"], "is neither"),
        (["--topics-matching", "("], "--topics-matching '(' is no regular expression: "),
    ],
)
def test_bounds_that_are_none_are_one_clear_line(
    submitted: dict[str, Any], options: list[str], words: str
) -> None:
    shown = CliRunner().invoke(load, ["A", *LOAD, *options])
    assert isinstance(shown.exception, MillraceError)
    assert words in str(shown.exception)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500MB", 500_000_000), ("2 GiB", 2 << 30), ("3kib", 3072), ("1T", None)]
)
def test_sizes_are_decimal_unless_they_say_otherwise(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(MillraceError):
            parse_bytes(text, "--max-bytes")
    else:
        assert parse_bytes(text, "--max-bytes") == size


def test_a_warehouse_that_cannot_be_written_is_one_clear_line_before_anything_starts() -> None:
    shown = CliRunner().invoke(load, ["A", *LOAD, "--warehouse", "/proc/x"])
    assert isinstance(shown.exception, MillraceError)
    assert str(shown.exception).startswith("warehouse /proc/x cannot be made")


@pytest.mark.parametrize("command", [hourly, reload])
def test_a_table_that_is_not_there_is_one_clear_line_before_anything_starts(
    command: Any, tmp_path: Path
) -> None:
    options = [*LOAD[2:], "--reason", "x"] if command is reload else []
    where = ["--warehouse", str(tmp_path), "--hour", "2015-05-17T10"]
    shown = CliRunner().invoke(command, ["Typo", *where, *options])
    assert isinstance(shown.exception, MillraceError)
    assert str(shown.exception).startswith(f"no load of Typo in {tmp_path}: check both names")


def test_a_broker_that_is_not_there_is_one_clear_line_before_anything_starts(tmp_path: Path) -> None:
    begun = time.monotonic()
    shown = CliRunner().invoke(load, ["A", *LOAD, "--warehouse", str(tmp_path)])
    assert isinstance(shown.exception, MillraceError)
    assert "cannot reach a broker at 127.0.0.1:1" in str(shown.exception)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("named", "matching", "expected"),
    [
        (["PageView"], "", (["PageView"], [])),
        (["PageView", "Gone"], "", (["PageView", "Gone"], [])),
        ([], "Page.*", (["PageClick", "PageView"], ["PageRaw"])),
        (["Search"], "PageVie.", (["Search", "PageView"], [])),
        ([], ".*", (["PageClick", "PageView", "Search"], ["PageRaw"])),
        (["Gone"], "", "topic 'Gone' does not exist on b:1"),
        (["PageRaw"], "", "no schema is registered for 'PageRaw' at http://***@r"),
        ([], "Nothing", "no topic on b:1 matches 'Nothing'"),
        ([], "Pag", "no topic on b:1 matches 'Pag'"),
        ([], "PageRaw", "has a schema at http://***@r (PageRaw)"),
    ],
)
def test_the_topics_of_a_pattern_are_those_whose_whole_name_matches_and_that_have_a_schema(
    monkeypatch: pytest.MonkeyPatch, named: list[str], matching: str, expected: Any
) -> None:
    class Cluster:
        def topics(self) -> dict[str, Any]:
            return dict.fromkeys(["PageView", "PageClick", "PageRaw", "Search", "__consumer_offsets"])

    class Registry:
        def versions(self, subject: str) -> list[int]:
            return [] if subject == "PageRaw" else [1]

    def cluster(bootstrap: str, timeout_s: float) -> Any:
        return nullcontext(Cluster())

    def registry(url: str) -> Any:
        return nullcontext(Registry())

    monkeypatch.setattr(millrace.client.cluster_client, "ClusterClient", cluster)
    monkeypatch.setattr(millrace_registry.client, "SchemaRegistryClient", registry)
    if isinstance(expected, str):
        with pytest.raises(MillraceError, match=re.escape(expected)):
            early.topics_to_load("/nowhere", "b:1", "http://u:secret@r", named, matching)
    else:
        assert early.topics_to_load("/nowhere", "b:1", "http://u:secret@r", named, matching) == expected


def test_a_registry_that_does_not_answer_is_named_before_a_jvm_starts_for_a_topic_with_a_table_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Cluster:
        def topics(self) -> dict[str, Any]:
            return {"PageView": None}

    class Registry:
        def versions(self, subject: str) -> list[int]:
            raise RegistryUnavailable("the registry does not answer")

    def cluster(bootstrap: str, timeout_s: float) -> Any:
        return nullcontext(Cluster())

    monkeypatch.setattr(millrace.client.cluster_client, "ClusterClient", cluster)
    monkeypatch.setattr(millrace_registry.client, "SchemaRegistryClient", lambda _: nullcontext(Registry()))
    (tmp_path / "PageView").mkdir()
    for warehouse in (str(tmp_path), "hdfs://namenode/warehouse"):
        with pytest.raises(RegistryUnavailable):
            early.topics_to_load(warehouse, "b:1", "http://r", ["PageView"], "")


def test_a_name_that_no_column_may_have_is_refused_before_a_jvm_starts_unless_another_topic_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Registry:
        def latest(self, subject: str) -> RegisteredVersion:
            schema = {"Good": SCHEMA, "Bad": with_field("date", "string", "")}[subject]
            return RegisteredVersion(7, 1, schema)

    monkeypatch.setattr(millrace_registry.client, "SchemaRegistryClient", lambda _: nullcontext(Registry()))
    warehouse = str(tmp_path)
    with pytest.raises(MillraceError, match=r"^Bad cannot be loaded with schema 7: its field date has"):
        early.check_schemas(warehouse, "http://r", ["Bad"])
    early.check_schemas(warehouse, "http://r", ["Bad", "Good"])
    (tmp_path / "Bad").mkdir()  # a table that has its schema
    early.check_schemas(warehouse, "http://r", ["Bad"])


def test_a_master_that_is_not_there_is_named_before_a_jvm_starts(submitted: dict[str, Any]) -> None:
    done = CliRunner().invoke(hourly, ["A", "--late", "--warehouse", "w", "--master", "spark://127.0.0.1:1"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("no Spark master answers at spark://127.0.0.1:1: ")
    assert "job" not in submitted


def test_json_output_is_the_job_s_own_answer(submitted: dict[str, Any]) -> None:
    submitted["answer"] = [{"hour": "2015-05-17T10"}]
    shown = CliRunner().invoke(hourly, ["A", "--hour", "2015-05-17T10:59:00Z", "--warehouse", "w", "--json"])
    assert json.loads(shown.stdout) == {"topic": "A", "hours": submitted["answer"]}
    assert submitted["settings"]["hours"] == ["2015-05-17T10"]


def test_hours_are_named_one_by_one_or_as_an_interval(submitted: dict[str, Any]) -> None:
    submitted["answer"] = [
        {
            "hour": "2015-05-17T10",
            "revision": 1,
            "rows": 1,
            "verdict": "complete",
            "published": True,
            "message": "published rev=1",
        },
        {
            "hour": "2015-05-17T11",
            "revision": None,
            "rows": 0,
            "verdict": "",
            "published": False,
            "message": "none",
        },
    ]
    options = ["--from", "2015-05-17T10:00:00+02:00", "--to", "2015-05-17T10:00:00Z", "--warehouse", "w"]
    shown = CliRunner().invoke(hourly, ["A", *options, "--auditor", "http://127.0.0.1:3"])
    assert shown.exit_code == 0, shown.output
    assert "published rev=1" in shown.stdout
    assert submitted["settings"]["hours"] == ["2015-05-17T08", "2015-05-17T09"]
    assert submitted["settings"]["auditor"] == "http://127.0.0.1:3"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "which hours? give --hour"),
        (["--hour", "2015-05-17"], "names a day: write an hour like 2015-05-17T10"),
        (["--hour", "2015-05-17T10", "--from", "2015-05-17T10"], "give either --hour"),
        (["--from", "2015-05-17T10"], "give either --hour"),
        (["--hour", "noon"], "is not a time like"),
        (["--from", "2015-05-17T11", "--to", "2015-05-17T10"], "is not before"),
    ],
)
def test_hours_that_make_no_sense_are_one_clear_line(options: list[str], words: str) -> None:
    shown = CliRunner().invoke(hourly, ["A", "--warehouse", "w", *options])
    assert isinstance(shown.exception, MillraceError)
    assert words in str(shown.exception)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (load, ["A", "--warehouse", "w", "--bootstrap", "nowhere", "--registry", "http://x"]),
        (load, ["A", "--warehouse", "s3a://w", "--bootstrap", "h:1", "--registry", "http://x"]),
        (mirror_batch, ["A", "--origin", "dc1", "--origin-bootstrap", "h", "--bootstrap", "h:1"]),
    ],
)
def test_an_address_that_is_none_is_one_clear_line(command: Any, options: list[str]) -> None:
    shown = CliRunner().invoke(command, options)
    assert isinstance(shown.exception, MillraceError)
    assert "\n" not in str(shown.exception)


def test_mirror_batch_shows_what_it_copied(submitted: dict[str, Any]) -> None:
    submitted["answer"] = [
        {
            "topic": "SearchQuery",
            "partition": 3,
            "target_partition": 7,
            "start": 0,
            "end": 1234,
            "batches": 5,
            "records": 50,
            "dropped": 1,
            "bytes": 5000,
            "lag": 77,
        }
    ]
    options = ["--origin", "dc1", "--origin-bootstrap", "h:1", "--bootstrap", "h:2"]
    shown = CliRunner().invoke(mirror_batch, ["SearchQuery", "PageView", *options, "--max-bytes", "1MB"])
    assert shown.exit_code == 0, shown.output
    assert submitted["settings"]["topics"] == ["SearchQuery", "PageView"]
    assert submitted["settings"]["max_bytes"] == 1_000_000
    assert "dc1/SearchQuery-3" in shown.stdout
    assert "1,234" in shown.stdout
    shown = CliRunner().invoke(mirror_batch, ["SearchQuery", *options, "--json"])
    assert json.loads(shown.stdout) == {
        "topics": ["SearchQuery"],
        "origin": "dc1",
        "batches": 5,
        "records": 50,
        "dropped": 1,
        "bytes": 5000,
        "lag": 77,
        "partitions": submitted["answer"],
    }


def test_verify_ends_with_a_table_or_with_the_problem(tmp_path: Path) -> None:
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    good = CliRunner().invoke(verify, [str(tmp_path)])
    assert good.exit_code == 0, good.output
    assert "180" in good.stdout
    assert json.loads(CliRunner().invoke(verify, [str(tmp_path), "--json"]).stdout)["ok"] is True
    shutil.rmtree(tmp_path / TOPIC / "load=0000000001")
    bad = CliRunner().invoke(verify, [str(tmp_path), "--json"])
    assert isinstance(bad.exception, MillraceError)
    assert "load=0000000001 is missing" in str(bad.exception)
    answer = json.loads(bad.stdout)
    assert answer["ok"] is False
    assert "load=0000000001 is missing" in answer["tables"][0]["problems"][0]


@pytest.mark.parametrize("command", [load, promote, hourly, verify, mirror_batch])
def test_every_command_s_help_has_an_example(command: Any) -> None:
    assert "Example: millrace" in CliRunner().invoke(command, ["--help"]).stdout


def test_settings_and_environments_of_spark_reach_the_submission(submitted: dict[str, Any]) -> None:
    submitted["answer"] = []
    spark = ["--master", "k8s://https://far:6443", "--conf", "spark.a=b=c", "--archives", "e.tar.gz#e"]
    shown = CliRunner().invoke(load, ["A", *LOAD, *spark])
    assert shown.exit_code == 0, shown.output
    assert submitted["conf"] == {"spark.scheduler.mode": "FAIR", "spark.a": "b=c"}
    assert list(submitted["archives"]) == ["e.tar.gz#e"]
    refused = CliRunner().invoke(load, ["A", *LOAD, "--conf", "executor.cores=1"])
    assert str(refused.exception) == "--conf 'executor.cores=1' is not of the form spark.KEY=VALUE"


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "spark://far", "k8s://", ""])
def test_a_master_that_is_none_is_one_clear_line_before_anything_starts(master: str) -> None:
    refused = CliRunner().invoke(load, ["A", *LOAD, "--master", master])
    assert str(refused.exception).startswith(f"--master {master!r} is none: write local[2]")


def test_a_load_without_options_submits_settings_that_the_job_accepts(submitted: dict[str, Any]) -> None:
    submitted["answer"] = []
    shown = CliRunner().invoke(load, ["A", *LOAD])
    assert shown.exit_code == 0, shown.output
    settings = json.loads(json.dumps(submitted["settings"]))
    assert from_mapping(Load, settings, "the job's settings").max_bytes is None


@pytest.mark.parametrize(
    ("lines", "error", "shown"),
    [
        (["noise", "step: 1", "later"], None, ["step: 1", "later"]),
        (["noise", "step: 1", "later"], MillraceError("no such topic"), ["step: 1", "later"]),
        (["noise"], MillraceError("no JVM"), ["noise"]),
        (["noise"], millrace_spark.jobs.submit.JobRefused("no such topic"), []),
    ],
)
def test_what_spark_says_while_it_starts_is_shown_only_where_the_job_did_not_begin(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    error: MillraceError | None,
    shown: list[str],
) -> None:
    def submit(job: str, settings: dict[str, Any], *, on_line: Any, **_: Any) -> None:
        for line in lines:
            on_line(line)
        if error is not None:
            raise error

    monkeypatch.setattr(millrace_spark.jobs.submit, "submit", submit)
    with nullcontext() if error is None else pytest.raises(MillraceError):
        run_job("verify", Verify(warehouse="hdfs://n/w"), Invocation(master="local"))
    assert capsys.readouterr().err.splitlines() == shown
