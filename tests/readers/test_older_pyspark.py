"""Millrace with every older minor version of PySpark: loads, batches of the data source, tables, streams."""

from __future__ import annotations

import os
import tomllib

import pyspark
import pytest

from tests.readers.engines import OLDER_PYSPARKS, older_pyspark
from tests.support import REPOSITORY, run_python

STREAM = """
import pyspark
from millrace.errors import MillraceError
from millrace_spark.source.data_source import MillraceDataSource
from millrace_spark.source.options import SourceOptions, Subscription
from millrace_spark.source.rows import RowReader

source = MillraceDataSource.__new__(MillraceDataSource)  # asks no broker
source.source_options = SourceOptions(bootstrap="127.0.0.1:1", subscription=Subscription(("PageView",)))
source.rows = RowReader(source.source_options, None)
try:
    source.streamReader(source.schema())
except MillraceError as error:
    print(error)
"""
BATCHES = (
    "tests/integration/test_data_source.py",
    "tests/integration/test_tables.py",
    "tests/integration/test_load.py::test_every_line_of_an_access_log_becomes_one_row_in_a_file_of_its_hour",
)
STREAMS = [
    f"tests/integration/test_streaming.py::{test}"
    for test in (
        "test_available_now_goes_on_from_its_checkpoint_and_finds_new_topics",
        "test_a_micro_batch_that_failed_is_read_again_with_the_same_rows",
        "test_a_running_query_reads_what_arrives_and_tells_how_far_it_is",
    )
]
WITHOUT_STREAMS = tuple(version for version in OLDER_PYSPARKS if version < "4.2")


def run(version: str, *words: str) -> str:
    """Run this Python with that PySpark in place of its own; return its output."""
    path = os.pathsep.join([older_pyspark(version), "broker", "plugins"])
    done = run_python(*words, timeout_s=900, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_every_minor_version_that_may_be_installed_is_tried() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert "pyspark>=4.0,<4.4" in project["optional-dependencies"]["spark"]
    tried = {version.rpartition(".")[0] for version in (*OLDER_PYSPARKS, pyspark.__version__)}
    assert tried == {"4.0", "4.1", "4.2", "4.3"}


@pytest.mark.parametrize("version", OLDER_PYSPARKS)
def test_what_is_tested_with_the_newest_pyspark_holds_with_an_older_one(version: str) -> None:
    assert run(version, "-c", "import pyspark; print(pyspark.__version__)") == f"{version}\n"
    # PySpark before 4.2 leaves sockets of its own to the garbage collector.
    warnings = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    tests = BATCHES if version in WITHOUT_STREAMS else [*BATCHES, *STREAMS]
    done = run(version, "-m", "pytest", "-q", "-p", "no:cacheprovider", *warnings, *tests)
    assert " passed" in done
    assert "skipped" not in done


@pytest.mark.parametrize("version", WITHOUT_STREAMS)
def test_a_stream_is_refused_with_the_version_that_has_it(version: str) -> None:
    minor = version.rpartition(".")[0]
    said = run(version, "-c", STREAM)
    assert f"spark.readStream.format('millrace') needs PySpark 4.2 or newer, not {minor}." in said
