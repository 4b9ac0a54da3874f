"""The commands' options and output; what needs Spark is tested with Spark."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millrace.client.cluster_client
import millrace_registry.client
import millrace_spark.jobs.submit
from millrace.config import from_mapping
from millrace.errors import ConfigError, MillraceError
from millrace_registry.client import RegistryUnavailable
from millrace_registry.subjects import LIKE_TOPICS
from millrace_spark.commands import early
from millrace_spark.commands.job import Invocation, run_job
from millrace_spark.commands.loading import load, mirror_batch, reload
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.requests import Load, Mirror

MIRROR = Mirror(topics=["A"], origin="dc1", origin_bootstrap="o:1", bootstrap="b:1")
LOAD = ["--warehouse", "w", "--bootstrap", "127.0.0.1:1", "--registry", "http://127.0.0.1:2"]

AGAIN = ["A", *LOAD, "--reason", "a bug"]
RELOADED: Any = {"loads": [], "notes": []}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Keep the job that would be submitted; the answer is taken from its key `answer`."""
    seen: dict[str, Any] = {}

    def submit(job: str, settings: dict[str, Any], **options: Any) -> Any:
        seen.update(job=job, settings=settings, **options)
        return seen["answer"]

    def all_of(
        warehouse: str,
        bootstrap: str,
        registry: str,
        subjects: Sequence[str],
        format_of: Callable[[str], str],
        named: Sequence[str],
        matching: str,
    ) -> tuple[list[str], list[str]]:
        return list(named), ["Bare"] if matching else []

    monkeypatch.setattr(millrace_spark.jobs.submit, "submit", submit)
    monkeypatch.setattr(millrace_spark.jobs.submit, "run_here", submit)
    monkeypatch.setattr(early, "topics_to_load", all_of)
    monkeypatch.setattr(early, "check_warehouse", lambda _: None)
    monkeypatch.setattr(early, "check_table", lambda *_: None)
    return seen


def loaded(topic: str, **changes: Any) -> dict[str, Any]:
    """Return the job's answer about a topic it has loaded."""
    result = LoadResult(
        topic=topic,
        run_id="r",
        load=1,
        rows=5,
        rejected_by_kind={},
        hours={"h": 5},
        gaps=[],
        message="made load 1",
        notes=[],
    )
    return {**asdict(result), **changes}


def test_load_submits_every_topic_once_with_an_absolute_warehouse(submitted: dict[str, Any]) -> None:
    empty = loaded("B", load=None, rows=0, hours={}, message="empty")
    note = "promote it"
    submitted["answer"] = [loaded("A", gaps=["A-0 lost"], notes=[note], left_bytes=12_345), empty]
    shown = CliRunner().invoke(load, ["A", "B", "A", *LOAD])
    assert shown.exit_code == 0, shown.output
    assert "made load 1" in shown.stdout
    assert "12,345" in shown.stdout
    assert "gap: A-0 lost" in shown.stderr
    assert "note: promote it" in shown.stderr
    settings = submitted["settings"]
    assert settings["topics"] == ["A", "B"]
    assert settings["warehouse"] == str(Path("w").absolute())
    assert settings["run_id"].startswith("manual-")
    CliRunner().invoke(load, ["A", *LOAD, "--run-id", "mine", "--master", "yarn"])
    assert (submitted["settings"]["run_id"], submitted["master"]) == ("mine", "yarn")


def test_records_set_aside_end_in_one_line_and_exit_code_1_unless_accepted(submitted: dict[str, Any]) -> None:
    submitted["answer"] = [loaded("A", load=3, rejected=2, rejected_by_kind={"broken_body": 2})]
    refused = CliRunner().invoke(load, ["A", *LOAD, "--json"])
    assert isinstance(refused.exception, MillraceError)
    assert "2 broken body in A/rows/0000000003-*/rejected-*.parquet, with reason" in str(refused.exception)
    assert "\n" not in str(refused.exception)
    assert json.loads(refused.stdout) == submitted["answer"]
    assert CliRunner().invoke(load, ["A", *LOAD, "--accept-rejected"]).exit_code == 0


def test_topics_that_failed_and_those_left_out_are_named_beside_the_loaded_ones(
    submitted: dict[str, Any],
) -> None:
    failures = [{"topic": "B", "error": "B has no schema"}, {"topic": "C", "error": "C is gone"}]
    submitted["answer"] = [loaded("A", rejected=1, rejected_by_kind={"unknown_schema": 1}), *failures]
    options = ["--topics-matching", ".*", "--registry", "http://u:secret@127.0.0.1:2", "--json"]
    shown = CliRunner().invoke(load, ["A", "B", "C", *LOAD, *options])
    assert isinstance(shown.exception, MillraceError)
    words = str(shown.exception)
    assert words.startswith("B has no schema; C is gone; loaded, but records could not be decoded: 1 unknown")
    assert "left out: Bare has no schema at http://***@127.0.0.1:2" in shown.stderr
    assert [each["topic"] for each in json.loads(shown.stdout)] == ["A", "B", "C", "Bare"]


def test_bounds_and_limits_reach_the_job(submitted: dict[str, Any]) -> None:
    submitted["answer"] = []
    options = ["--max-bytes", "2GiB", "--until", "2015-05-17T10:00:00Z", "--max-rejected", "1%"]
    assert CliRunner().invoke(load, ["A", *LOAD, *options]).exit_code == 0
    settings = submitted["settings"]
    assert (settings["max_bytes"], settings["until_ms"]) == (2 << 30, 1_431_856_800_000)
    assert settings["max_rejected"] == "1%"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-bytes", "0"], "--max-bytes '0' is not a size like 500MB"),
        (["--max-bytes", "5 apples"], "is not a size like"),
        (["--until", "soon"], "--until 'soon' is not a time like"),
        (["--max-rejected", "many"], "--max-rejected 'many' is neither"),
        (["--max-rejected", "101%"], "is neither"),
        (["--topics-matching", "("], "--topics-matching '(' is not a regular expression: "),
    ],
)
def test_bounds_that_are_none_are_one_clear_line(
    submitted: dict[str, Any], options: list[str], words: str
) -> None:
    shown = CliRunner().invoke(load, ["A", *LOAD, *options])
    assert isinstance(shown.exception, MillraceError)
    assert words in str(shown.exception)


def test_a_warehouse_that_cannot_be_written_is_one_clear_line_before_anything_starts() -> None:
    shown = CliRunner().invoke(load, ["A", *LOAD, "--warehouse", "/proc/x"])
    assert isinstance(shown.exception, MillraceError)
    assert str(shown.exception).startswith("warehouse /proc/x cannot be created")


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_one_clear_line_before_anything_starts(tmp_path: Path) -> None:
    begun = time.monotonic()
    shown = CliRunner().invoke(load, ["A", *LOAD, "--warehouse", str(tmp_path)])
    assert isinstance(shown.exception, MillraceError)
    assert "cannot reach a broker at 127.0.0.1:1" in str(shown.exception)
    assert time.monotonic() - begun < 60


def no_format(topic: str) -> str:
    return ""


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

        def list_offsets(self, topic: str, when: int) -> dict[int, int]:
            return {}

        cluster_id = "millrace-b"

    class Registry:
        url = "http://***@r"
        find_schema = None

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
            early.topics_to_load(
                "/nowhere", "b:1", "http://u:secret@r", LIKE_TOPICS, no_format, named, matching
            )
    else:
        assert (
            early.topics_to_load(
                "/nowhere", "b:1", "http://u:secret@r", LIKE_TOPICS, no_format, named, matching
            )
            == expected
        )


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
            early.topics_to_load(warehouse, "b:1", "http://r", LIKE_TOPICS, no_format, ["PageView"], "")


def test_a_master_that_is_not_there_is_named_before_a_jvm_starts(submitted: dict[str, Any]) -> None:
    done = CliRunner().invoke(load, ["A", *LOAD, "--master", "spark://127.0.0.1:1"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("no Spark master answers at spark://127.0.0.1:1: ")
    assert "job" not in submitted


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (load, ["A", "--warehouse", "w", "--bootstrap", "nowhere", "--registry", "http://x"]),
        (load, ["A", "--warehouse", "ftp://w", "--bootstrap", "h:1", "--registry", "http://x"]),
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


def test_a_table_that_is_not_there_is_one_clear_line_before_anything_starts(tmp_path: Path) -> None:
    where = ["--warehouse", str(tmp_path), "--hour", "2015-05-17T10", "--reason", "x"]
    shown = CliRunner().invoke(reload, ["Typo", *LOAD[2:], *where])
    assert isinstance(shown.exception, MillraceError)
    assert str(shown.exception).startswith(f"no load of Typo in {tmp_path}: check both names")


def test_a_reload_names_hours_or_loads_and_says_what_became_of_each(submitted: dict[str, Any]) -> None:
    each = {
        "load": 7,
        "edition": 2,
        "published": True,
        "rows": 1_021,
        "tombstones": 34,
        "rejected": 0,
        "rows_before": 1_020,
        "tombstones_before": 0,
        "rejected_before": 35,
        "hours": {},
    }
    note = "A: branch live is behind"
    submitted["answer"] = {"loads": [each, {**each, "load": 8, "published": False}], "notes": [note]}
    shown = CliRunner().invoke(reload, [*AGAIN, "--hour", "2015-05-17T10Z"])
    assert shown.exit_code == 0, shown.output
    assert "0000000007" in shown.stdout
    assert shown.stdout.split("\n")[1].split()[2:8] == ["1,021", "1,020", "34", "0", "0", "35"]
    assert "this run had read it again already" in shown.stdout
    assert "millrace publish A" in shown.stdout
    assert f"note: {note}" in shown.stderr
    settings = submitted["settings"]
    assert (submitted["job"], settings["hours"], settings["loads"]) == ("reload", ["2015-05-17T10"], ())
    assert (settings["reason"], settings["warehouse"]) == ("a bug", str(Path("w").absolute()))
    shown = CliRunner().invoke(reload, [*AGAIN, "--loads", "7-9", "--run-id", "mine", "--json"])
    assert json.loads(shown.stdout) == {"topic": "A", **submitted["answer"]}
    assert (submitted["settings"]["loads"], submitted["settings"]["run_id"]) == ([7, 8, 9], "mine")


def test_a_job_gets_the_settings_of_expressions_that_match_its_topics(
    submitted: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "topics.toml"
    file.write_text("[topics_matching.'A.*']\ntombstones_as_rows = true\n[B]\n")
    for command, words in ((load, ["A", *LOAD]), (reload, [*AGAIN, "--hour", "2015-05-17T10Z"])):
        submitted["answer"] = RELOADED if command is reload else []
        CliRunner().invoke(command, [*words, "--topics-file", str(file)], catch_exceptions=False)
        policies = json.loads(json.dumps(submitted.pop("settings")))["policies"]
        assert {topic: policy["tombstones_as_rows"] for topic, policy in policies.items()} == {"A": True}


def test_a_layout_goes_to_the_job_and_a_wrong_one_is_refused_before_spark_starts(
    submitted: dict[str, Any], tmp_path: Path
) -> None:
    file, layout = tmp_path / "topics.toml", 'partition = ["bucket(16, memberId)"]\nsort = ["url DESC"]\n'
    commands = (load, ["A", *LOAD]), (reload, [*AGAIN, "--hour", "2015-05-17T10Z"])
    for command, words in commands:
        submitted["answer"] = RELOADED if command is reload else []
        file.write_text(f"[A]\n{layout}")
        CliRunner().invoke(command, [*words, "--topics-file", str(file)], catch_exceptions=False)
        policy = json.loads(json.dumps(submitted.pop("settings")))["policies"]["A"]
        assert (policy["partition"], policy["sort"]) == (["bucket(16, memberId)"], ["url DESC"])
        file.write_text('[A]\nsort = ["url UP"]\n')
        result = CliRunner().invoke(command, [*words, "--topics-file", str(file)])
        assert "sort 'url UP' is not understood: write COLUMN [ASC|DESC] [NULLS FIRST|LAST]" in str(
            result.exception
        )
        assert "settings" not in submitted


def test_a_reload_of_a_load_that_is_not_there_is_refused_before_spark_starts(tmp_path: Path) -> None:
    loads = tmp_path / "A" / "loads"
    loads.mkdir(parents=True)
    (loads / "0000000007.json").touch()
    places = [*AGAIN[3:], "--warehouse", str(tmp_path)]
    refused = CliRunner().invoke(reload, ["A", *places, "--loads", "7-8"])
    assert str(refused.exception) == f"A has no load 8 in {tmp_path}: check --loads"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give either --hour"),
        (["--hour", "2015-05-17T10", "--loads", "1"], "give either --loads, or hours"),
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


@pytest.mark.parametrize("command", [load, reload, mirror_batch])
def test_every_command_s_help_has_an_example(command: Any) -> None:
    assert "Example: millrace" in CliRunner().invoke(command, ["--help"]).stdout


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ([], None),
        (["--engine", "spark"], None),
        (["--engine", "local"], 2),
        (["--engine", "local", "--master", "local"], 1),
        (["--engine", "local", "--master", "local[5]"], 5),
        (["--engine", "local", "--master", "local[*]"], os.cpu_count()),
    ],
)
def test_a_load_runs_on_spark_unless_it_is_told_to_run_in_processes(
    submitted: dict[str, Any], options: list[str], processes: int | None
) -> None:
    submitted["answer"] = []
    assert CliRunner().invoke(load, ["A", *LOAD, *options]).exit_code == 0
    assert submitted.get("processes") == processes
    assert ("master" in submitted) == (processes is None)


@pytest.mark.parametrize("master", ["local[2, 3]", "local-cluster[2, 1, 1024]", "yarn"])
def test_processes_are_of_this_machine(submitted: dict[str, Any], master: str) -> None:
    refused = CliRunner().invoke(load, ["A", *LOAD, "--engine", "local", "--master", master])
    assert "--engine local runs on this machine: give --master local[N]" in str(refused.exception)


def test_a_load_without_spark_needs_no_pyspark(
    submitted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted["answer"] = []
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    assert CliRunner().invoke(load, ["A", *LOAD, "--engine", "local"]).exit_code == 0
    refused = CliRunner().invoke(load, ["A", *LOAD])
    assert "pyspark is not installed" in str(refused.exception)


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
    assert str(refused.exception).startswith(f"--master {master!r} is not a Spark master: write local[2]")


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
        (["noise"], millrace_spark.jobs.submit.ExplainedFailure("no such topic"), []),
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
        run_job("mirror", MIRROR, Invocation(master="local"))
    assert capsys.readouterr().err.splitlines() == shown
