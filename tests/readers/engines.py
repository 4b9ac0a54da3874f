"""The readers' environment, and engines in it that are asked from here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace_warehouse.publish.readers import describe_table
from tests.peers.maven import jars
from tests.published import TOPIC, Warehouse
from tests.support import REPOSITORY, start_for_the_test_run

POM = Path(__file__).with_name("iceberg.pom.xml")
PYTHON = REPOSITORY / ".cache" / "readers" / "bin" / "python"
"""Made by `make test-readers`, as are those below."""
OLDER_PYSPARKS = ("4.0.5", "4.1.4", "4.2.1")
"""The newest of every older minor version."""
ON_THIS_MACHINE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


class EngineError(AssertionError):
    """Refusal of an engine, in its own words."""


class Engine:
    """One engine in a process of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._log = home / f"{arguments[0]}.log"
        with open(self._log, "a") as log:
            self._process = start_for_the_test_run(
                [str(PYTHON), str(Path(__file__).with_name("answering.py")), *arguments],
                env=environment(home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __call__(self, query: str) -> list[list[Any]]:
        """The rows of the answer; EngineError when it is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(query) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(60)
            raise AssertionError(f"the engine has ended with {code}:\n{self._log.read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def close(self) -> None:
        """End the process, and wait for it."""
        self._process.communicate(timeout=60)


def environment(home: Path) -> dict[str, str]:
    """Return a reader's environment: its own Python first, a home of its own, nothing of this checkout."""
    paths = [str(PYTHON.parent), str(home / "bin"), os.environ["PATH"]]
    changed = {"HOME": str(home), "PATH": os.pathsep.join(paths), "PYSPARK_PYTHON": str(PYTHON), "TZ": "UTC"}
    return {**os.environ, **changed}


def older_pyspark(version: str) -> str:
    """A PYTHONPATH on which this Python finds that PySpark instead of its own."""
    folder = REPOSITORY / ".cache" / f"pyspark-{version}"
    if not (folder / ".installed").exists():
        pytest.skip(f"PySpark {version} is not installed: run `make test-readers`")
    return str(folder)


def iceberg_jars() -> str:
    """Return the jars that `--packages` would fetch, as `--jars` takes them."""
    return ",".join(sorted(str(path) for path in jars(POM).iterdir()))


def printed_settings(warehouse: Warehouse) -> dict[str, str]:
    """The settings in the printed line for Spark with Iceberg's runtime."""
    line = describe_table(warehouse.storage, warehouse.catalog, TOPIC).readers["Spark 4.1 with Iceberg"]
    settings = (word.removeprefix("--conf=") for word in shlex.split(line) if word.startswith("--conf="))
    return dict(setting.split("=", 1) for setting in settings)


def spark_engine(home: Path, warehouse: Warehouse, **more: str) -> Engine:
    """Start Spark as the printed line sets it up, with more settings of its catalog."""
    catalog = {f"spark.sql.catalog.millrace.{name.replace('_', '-')}": value for name, value in more.items()}
    settings = ON_THIS_MACHINE | printed_settings(warehouse) | {"spark.jars": iceberg_jars()} | catalog
    return Engine(home, "spark", json.dumps(settings))
