"""The lines that `millrace tables` prints, run by a shell as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.publish.readers import describe_table
from tests.loaded import pin
from tests.published import TOPIC, Warehouse
from tests.readers.engines import OLDER_PYSPARKS, POM, environment, iceberg_jars, older_pyspark

H10, H11, H12 = (f"2015-05-17T{hour}" for hour in (10, 11, 12))
READERS = ("DuckDB", "pandas", "polars", "PySpark 4.0 to 4.3", "Spark 4.1 with Iceberg")
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


def published(scene: Warehouse) -> None:
    """Seven rows are published, and two wait."""
    pin(scene.storage, TOPIC, EVENT)
    scene.load({H10: 3, H11: 2, H12: 2})
    scene.publish(H10, H11)
    scene.load({H10: 1, UNFILED: 1})
    scene.publish(UNFILED)


def lines_of(scene: Warehouse) -> Mapping[str, str]:
    return describe_table(scene.storage, scene.catalog, TOPIC).readers


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
    assert sorted(lines_of(scene)) == sorted(READERS)


@pytest.mark.parametrize("reader", ["DuckDB", "pandas", "polars"])
def test_a_reader_of_files_shows_the_published_rows(scene: Warehouse, home: Path, reader: str) -> None:
    published(scene)
    shown = shell(lines_of(scene)[reader], home)
    assert len(set(re.findall(r"/\d+\b", shown))) == 7, shown


def test_spark_with_icebergs_runtime_shows_the_published_rows(scene: Warehouse, home: Path) -> None:
    published(scene)
    words = shlex.split(lines_of(scene)["Spark 4.1 with Iceberg"])
    at = words.index("--packages")
    assert set(words[at + 1].split(",")) == packages_of_the_pom()
    words[at : at + 2] = ["--jars", iceberg_jars(), "--conf", "spark.ui.enabled=false"]
    words[at:at] = ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    shown = shell(shlex.join(words), home)
    assert len(set(re.findall(r"^/\d+\b", shown, re.MULTILINE))) == 7, shown


def packages_of_the_pom() -> set[str]:
    """Return the packages that Maven fetched instead of Spark."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    dependencies = ElementTree.parse(POM).iter(f"{space}dependency")
    names = ("groupId", "artifactId", "version")
    return {":".join(each.findtext(f"{space}{name}", "") for name in names) for each in dependencies}


@pytest.mark.parametrize("version", ["", *OLDER_PYSPARKS])
def test_pyspark_without_icebergs_runtime_shows_the_published_rows(
    scene: Warehouse, home: Path, tmp_path: Path, version: str
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
    shown = shell(lines_of(scene)["PySpark 4.0 to 4.3"], home, **python)
    assert len(re.findall(r"^\| +/\d+\|", shown, re.MULTILINE)) == 7, shown


def test_what_is_told_of_a_table_is_what_it_holds(scene: Warehouse) -> None:
    published(scene)
    scene.load({H12: 1})
    told = describe_table(scene.storage, scene.catalog, TOPIC)
    assert (told.table, told.catalog, told.publication) == ("millrace.PageView", "millrace", 2)
    assert (told.rows, told.published, told.complete) == (7, f"{H10} to {H11}", f"{H10} to {H12}")
    assert (told.through_load, told.loads_behind) == (2, 1)
    assert (told.waiting_hours, told.waiting_rows) == (1, 2)
    metadata = json.loads(Path(told.metadata_location.removeprefix("file://")).read_text())
    assert metadata["current-snapshot-id"] == told.snapshot_id
