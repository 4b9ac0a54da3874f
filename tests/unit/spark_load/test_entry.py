"""What a job answers when it cannot even begin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace_spark.jobs import entry
from millrace_spark.jobs.load import LoadSettings


def test_a_session_that_spark_refuses_is_one_line_without_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    java = "An error occurred while calling X.\n: java.lang.IllegalStateException: no context\n\tat a.B.c"

    def refuse(_: object) -> None:
        raise RuntimeError(java)

    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps(
            {"topics": ["A"], "warehouse": "/w", "bootstrap": "b:1", "registry": "http://r", "run_id": "x"}
        )
    )
    monkeypatch.setattr(sys, "argv", ["job", str(settings)])
    monkeypatch.setattr("ctypes.CDLL", lambda _: type("C", (), {"prctl": lambda *_: 0})())
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(SystemExit) as ended:
        entry.main(LoadSettings, lambda *_: None)
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert shown.err == ""
    assert json.loads(shown.out)["error"] == (
        "Spark does not start (java.lang.IllegalStateException: no context):"
        " check that the --master is up, and the --conf settings"
    )
