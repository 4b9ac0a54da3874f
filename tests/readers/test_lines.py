"""The lines that `millrace tables` prints, run by a shell as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millrace_warehouse.context import Context
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.publish.live import Live
from millrace_warehouse.publish.readers import describe_table
from tests.loaded import pin
from tests.published import TOPIC, Warehouse
from tests.readers.engines import OLDER_PYSPARKS, POM, environment, iceberg_jars, older_pyspark
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID, START, MemoryLog, load_run

H10, H11, H12 = (f"2015-05-17T{hour}" for hour in (10, 11, 12))
READERS = ("DuckDB", "pandas", "polars", "PySpark 4.0 to 4.3", "Spark 4.1 with Iceberg")
MARKED = "Spark 4.1 with Iceberg and a column `proven`"
INNER = [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "url", "type": "string"},
        {
            "name": "inner",
            "type": {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int"}]},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 4}},
    ],
}
PART = [{"name": "a", "type": "int"}, {"name": "inner", "type": ["null", {"type": "array", "items": "int"}]}]
PARTS = {
    "name": "parts",
    "type": ["null", {"type": "array", "items": {"type": "record", "name": "Part", "fields": PART}}],
}


def published(scene: Warehouse) -> None:
    """Publish seven rows. Two rows wait, and branch `live` shows all nine."""
    pin(scene.storage, TOPIC, EVENT)
    scene.load({H10: 3, H11: 2, H12: 2})
    scene.publish(H10, H11)
    scene.load({H10: 1, UNFILED: 1})
    scene.publish(UNFILED)
    follow(scene)


def follow(scene: Warehouse) -> None:
    Live(Context(storage=scene.storage, catalog=scene.catalog), scene.stored).follow(on=True)


def lines_of(scene: Warehouse, rows: int) -> Mapping[str, str]:
    """Return the lines that show the seven published rows, or all nine rows."""
    described = describe_table(scene.storage, scene.catalog, TOPIC)
    if rows == 7:
        return described.readers
    assert described.live is not None
    return described.live.readers


def shell(line: str, home: Path, **more: str) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env=environment(home) | more,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_line_is_tried_here(scene: Warehouse) -> None:
    published(scene)
    assert sorted(lines_of(scene, 7)) == sorted(READERS)
    assert sorted(lines_of(scene, 9)) == sorted([*READERS, MARKED])


@pytest.mark.parametrize("rows", [7, 9])
@pytest.mark.parametrize("reader", ["DuckDB", "pandas", "polars"])
def test_a_reader_of_files_shows_the_published_rows_or_those_of_the_branch(
    scene: Warehouse, home: Path, reader: str, rows: int
) -> None:
    published(scene)
    shown = shell(lines_of(scene, rows)[reader], home)
    assert len(set(re.findall(r"/\d+\b", shown))) == rows, shown


@pytest.mark.parametrize(
    ("reader", "column"), [("polars", "to_list()"), ("pandas", "to_json(orient='values')")]
)
def test_a_null_list_of_records_is_null_to_polars_and_empty_to_pandas(
    scene: Warehouse, home: Path, reader: str, column: str
) -> None:
    log = MemoryLog(1)
    log.schemas = {SCHEMA_ID: {**SCHEMA, "fields": [*SCHEMA["fields"], PARTS]}}
    for parts in (None, [], [{"a": 1, "inner": None}, {"a": 2, "inner": []}]):
        log.append_events(0, [START], parts=parts)
    assert load_topic(load_run(log, scene.storage), TOPIC).rejected == 0
    scene.publish(H10)
    python, c, code = shlex.split(lines_of(scene, 7)[reader])
    code = code.removesuffix(")") + f"['parts'].{column})"
    expected = [None if reader == "polars" else [], [], [{"a": 1, "inner": None}, {"a": 2, "inner": []}]]
    assert literal_eval(shell(shlex.join([python, c, code]), home).replace("null", "None")) == expected


@pytest.mark.parametrize("rows", [7, 9])
def test_spark_with_icebergs_runtime_shows_the_published_rows_or_those_of_the_branch(
    scene: Warehouse, home: Path, rows: int
) -> None:
    published(scene)
    shown = spark_sql(lines_of(scene, rows)["Spark 4.1 with Iceberg"], home)
    assert len(set(re.findall(r"^/\d+\b", shown, re.MULTILINE))) == rows, shown


def test_spark_with_icebergs_runtime_marks_the_rows_of_the_branch_that_are_proven(
    scene: Warehouse, home: Path
) -> None:
    published(scene)
    shown = spark_sql(lines_of(scene, 9)[MARKED], home)
    marks = re.findall(r"^(/\d+)\b.*(true|false)$", shown, re.MULTILINE)
    proven = {url for url, mark in marks if mark == "true"}
    assert len(marks) == 9, shown
    assert proven == {"/0", "/1", "/2", "/3", "/4", "/7", "/8"}


def spark_sql(line: str, home: Path) -> str:
    """Run a printed line of Spark with the jars that Maven has fetched."""
    words = shlex.split(line)
    at = words.index("--packages")
    assert set(words[at + 1].split(",")) == packages_of_the_pom()
    words[at : at + 2] = ["--jars", iceberg_jars(), "--conf", "spark.ui.enabled=false"]
    words[at:at] = ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    return shell(shlex.join(words), home)


def packages_of_the_pom() -> set[str]:
    """Return the packages that Maven fetched instead of Spark."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    dependencies = ElementTree.parse(POM).iter(f"{space}dependency")
    names = ("groupId", "artifactId", "version")
    return {":".join(each.findtext(f"{space}{name}", "") for name in names) for each in dependencies}


@pytest.mark.parametrize(("version", "rows"), [("", 9), *((version, 7) for version in ("", *OLDER_PYSPARKS))])
def test_pyspark_without_icebergs_runtime_shows_the_published_rows_or_those_of_the_branch(
    scene: Warehouse, home: Path, tmp_path: Path, version: str, rows: int
) -> None:
    published(scene)
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    conf = tmp_path / "conf"
    conf.mkdir()
    local = "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\nspark.ui.enabled false\n"
    (conf / "spark-defaults.conf").write_text(local)
    python["SPARK_CONF_DIR"] = str(conf)
    if version:
        python["PYTHONPATH"] = older_pyspark(version)
    shown = shell(lines_of(scene, rows)["PySpark 4.0 to 4.3"], home, **python)
    assert len(re.findall(r"^\| +/\d+\|", shown, re.MULTILINE)) == rows, shown


def test_the_description_of_a_table_is_what_the_table_holds(scene: Warehouse) -> None:
    published(scene)
    scene.load({H12: 1})
    described = describe_table(scene.storage, scene.catalog, TOPIC)
    assert (described.table, described.catalog, described.publication) == ("millrace.PageView", "millrace", 2)
    assert (described.rows, described.published, described.complete) == (
        7,
        f"{H10} to {H12}",
        f"{H10} to {H12}",
    )
    assert (described.through_load, described.loads_behind) == (2, 1)
    assert (described.waiting_hours, described.waiting_rows) == (1, 2)
    metadata = json.loads(Path(described.metadata_location.removeprefix("file://")).read_text())
    assert metadata["current-snapshot-id"] == described.snapshot_id
