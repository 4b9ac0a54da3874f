"""Answers of a job that cannot even begin."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark import SparkContext
from rich.console import Console

from millrace.cli import cli
from millrace_spark.jobs import entry
from millrace_warehouse.commands import steps

SETTINGS = {"topics": ["A"], "warehouse": "/w", "bootstrap": "b:1", "registry": "http://r", "run_id": "x"}


def test_files_that_may_hold_passwords_are_gone_before_the_job_begins_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, properties = tmp_path / "settings.json", tmp_path / "spark.properties"
    settings.write_text(json.dumps(SETTINGS))
    properties.write_text("spark.hadoop.fs.s3a.secret.key=canary-77a1")
    there: list[Path] = []

    def result(*_: object) -> None:
        there.extend(tmp_path.iterdir())

    monkeypatch.setattr(sys, "argv", ["entry.py", "load", str(settings), str(properties)])
    monkeypatch.setattr("ctypes.CDLL", lambda _: type("C", (), {"prctl": lambda *_: 0})())
    monkeypatch.setattr(entry, "_result", result)
    with pytest.raises(SystemExit):
        entry.main()
    assert there == []


def test_a_context_that_spark_refuses_is_one_line_without_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    java = "An error occurred while calling X.\n: java.lang.IllegalStateException: no context\n\tat a.B.c"

    def refuse() -> None:
        raise RuntimeError(java)

    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(SETTINGS))
    monkeypatch.setattr(sys, "argv", ["entry.py", "load", str(settings)])
    monkeypatch.setattr("ctypes.CDLL", lambda _: type("C", (), {"prctl": lambda *_: 0})())
    monkeypatch.setattr(SparkContext, "getOrCreate", refuse)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert shown.err == ""
    assert json.loads(shown.out)["error"] == (
        "Spark does not start (java.lang.IllegalStateException: no context):"
        " check that the --master is up, and the --conf settings"
    )


def test_a_terminal_is_shown_how_many_steps_of_one_kind_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(steps, "Console", lambda stderr: console)
    with steps.steps("reload") as shown:
        shown("step: reload PageView: written")
        shown("step: reload PageView: 1 of 2: load 7 read again")
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "1 of 2: load 7 read again ━━━━━━━━━━" in words


def test_with_verbose_a_terminal_gets_every_step_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(steps, "Console", lambda stderr: console)
    monkeypatch.setenv("MILLRACE_VERBOSE", "")  # and so it is as it was when the test ends
    monkeypatch.delenv("MILLRACE_VERBOSE")
    for words, shown in (([], ""), (["--verbose"], "step: verify PageView\n")):
        CliRunner().invoke(cli, [*words, "topics", "--help"])
        with steps.steps("verify", lambda _: None) as show:
            show("step: verify PageView")
        assert capsys.readouterr().err == shown


@pytest.mark.parametrize("writes", ["a job", "a command"])
def test_lines_that_threads_write_at_the_same_time_stay_whole(
    writes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(thread: int) -> None:
        with steps.steps("load") as shown:
            line = shown if writes == "a command" else steps.to_stderr(f"load T{thread}")
            together.wait()
            for n in range(3000):
                line(f"s{n}")

    said = tmp_path / "stderr"
    together = threading.Barrier(4)
    with io.TextIOWrapper(said.open("wb", buffering=0), write_through=True) as unbuffered:
        monkeypatch.setattr(sys, "stderr", unbuffered)  # of the kind that Spark gives its driver
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
    if writes == "a command":
        expected = [f"s{n}" for n in range(3000)] * 4
    else:
        expected = [f"step: load T{thread}: s{n}" for thread in range(4) for n in range(3000)]
    assert sorted(said.read_text().split("\n")) == sorted([*expected, ""])
