"""Answers of a job that cannot even begin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from millrace_spark.jobs import entry

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
