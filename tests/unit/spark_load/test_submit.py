"""Finding spark-submit, and what becomes of what a job prints. The job here is a shell script."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import millrace_spark.submit
from millrace.errors import MillraceError
from millrace_spark.hourly import hours_between
from millrace_spark.submit import submit


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the spark-submit of the installed PySpark."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(millrace_spark.submit, "_spark_home", lambda: tmp_path)
    return script


def run(lines: list[str]) -> Any:
    return submit("load", {"topics": ["A"]}, master="local[2]", on_line=lines.append, fast_start=True)


def test_the_result_is_the_json_line_and_other_output_does_not_matter(spark_submit: Path) -> None:
    spark_submit.write_text(
        '#!/bin/sh\necho noise\necho \'{"result": [1]}\'\necho "step: a" >&2\necho more\n'
    )
    lines: list[str] = []
    assert run(lines) == [1]
    assert lines == ["step: a"]


def test_a_job_s_own_error_is_the_command_s_error(spark_submit: Path) -> None:
    spark_submit.write_text('#!/bin/sh\necho \'{"error": "no topic A: create it"}\'\nexit 1\n')
    with pytest.raises(MillraceError, match=r"^no topic A: create it$"):
        run([])


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
def test_a_job_that_dies_is_told_with_its_last_words(spark_submit: Path, ending: str) -> None:
    spark_submit.write_text(f"#!/bin/sh\necho 'out of memory' >&2\n{ending}\n")
    with pytest.raises(MillraceError, match=r"`load` ended with exit code -?\d+: out of memory"):
        run([])


def test_a_result_of_a_job_that_failed_afterwards_does_not_count(spark_submit: Path) -> None:
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": [1]}'\nexit 1\n")
    with pytest.raises(MillraceError, match="exit code 1"):
        run([])


def test_workers_and_driver_are_this_python_and_the_settings_one_file(spark_submit: Path) -> None:
    spark_submit.write_text(
        f"#!/bin/sh\nexec {sys.executable} - \"$@\" <<'END'\n"
        "import json, os, sys\n"
        "names = ('PYSPARK_PYTHON', 'PYSPARK_DRIVER_PYTHON', 'SPARK_HOME')\n"
        "read = json.load(open(sys.argv[-1]))\n"
        "print(json.dumps({'result': [sys.argv[1:], read, [os.environ[name] for name in names]]}))\nEND\n"
    )
    arguments, settings, environment = run([])
    assert environment == [sys.executable, sys.executable, str(spark_submit.parents[1])]
    assert arguments[:2] == ["--master", "local[2]"]
    assert arguments[-2].endswith("millrace_spark/jobs/load.py")
    assert settings == {"topics": ["A"]}
    assert not Path(arguments[-1]).exists()


def test_settings_may_name_every_hour_of_a_year(spark_submit: Path) -> None:
    spark_submit.write_text("#!/bin/sh\necho '{\"result\": 1}'\n")
    hours = hours_between(datetime(2015, 1, 1, tzinfo=UTC), datetime(2016, 1, 1, tzinfo=UTC))
    assert submit("hourly", {"hours": hours}, master="local[2]", on_line=print, fast_start=True) == 1


def test_no_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MillraceError, match="no Java in JAVA_HOME"):
        run([])


def test_an_old_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MillraceError, match="17"):
        run([])
