"""Millrace with PySpark 4.1 instead of the newest: loads, batches of the data source, tables; no streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.engines import PYTHON, older_pyspark
from tests.support import REPOSITORY

STREAM = """
import pyspark
from millrace.errors import MillraceError
from millrace_spark.source.data_source import MillraceDataSource
from millrace_spark.source.options import SourceOptions, Subscription
from millrace_spark.source.rows import RowReader

assert pyspark.__version__.startswith("4.1."), pyspark.__version__
source = MillraceDataSource.__new__(MillraceDataSource)  # asks no broker
source.source_options = SourceOptions(bootstrap="127.0.0.1:1", subscription=Subscription(("PageView",)))
source.rows = RowReader(source.source_options, None)
try:
    source.streamReader(source.schema())
except MillraceError as error:
    print(error)
"""
LOAD = (
    "tests/integration/test_load.py::test_every_line_of_an_access_log_becomes_one_row_in_a_file_of_its_hour"
)


@pytest.fixture
def older(tmp_path: Path) -> dict[str, str]:
    """An environment in which this Python has the older PySpark."""
    if not PYTHON.exists():
        pytest.skip("the readers are not installed: run `make test-readers`")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([older_pyspark(tmp_path), "broker", "plugins"])}


def run(older: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=REPOSITORY,
        env=older,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    "tests", ["tests/integration/test_data_source.py", "tests/integration/test_tables.py", LOAD]
)
def test_what_is_tested_with_the_newest_pyspark_holds_with_an_older_one(
    older: dict[str, str], tests: str
) -> None:
    # PySpark 4.1 leaves sockets of its own to the garbage collector.
    warnings = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    done = run(older, "-m", "pytest", "-q", "-p", "no:cacheprovider", *warnings, tests)
    assert " passed" in done


def test_a_stream_is_refused_with_the_version_that_has_it(older: dict[str, str]) -> None:
    said = run(older, "-c", STREAM)
    assert "spark.readStream.format('millrace') needs PySpark 4.2 or newer, not 4.1." in said
