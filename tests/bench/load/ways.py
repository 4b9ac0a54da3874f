"""The ways to get a topic into files or a table by hour that are compared: their commands and settings."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace.zookeeper.embedded import find_java
from millrace_spark.jobs.submit import FAST_START
from millrace_warehouse.history.layout import CATALOG
from millrace_warehouse.publish.catalog import NAMESPACE
from tests.bench.broker.system import Missing, missing_without_jars
from tests.bench.load.spark_jobs import Task
from tests.peers import maven
from tests.readers.engines import POM
from tests.readers.engines import PYTHON as READERS
from tests.support import REPOSITORY

SPARK_JARS = tuple(
    Path(maven.__file__).with_name(f"{name}.pom.xml") for name in ("spark-kafka", "spark-avro")
)
ICEBERG_JARS = (Path(maven.__file__).with_name("spark-iceberg.pom.xml"),)
SQLITE_JARS = (POM,)
"""Iceberg's runtime again, and the driver of its catalog in a SQLite file."""
JOBS = Path(__file__).with_name("spark_jobs.py")
_CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""As `millrace load` sets Spark, for everyone; the time zone is for those who need one."""
_OURS = {"spark.driver.extraJavaOptions": FAST_START}
_SPARK = {"spark.driver.memory": "4g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way; `job` is its function in `spark_jobs`, `confs` what it gives Spark besides."""

    name: str
    title: str
    job: str
    confs: Mapping[str, str] = field(default_factory=lambda: _SPARK)
    jars: Sequence[Path] = ()
    """Poms of the jars it needs."""
    python: Path = Path(sys.executable)
    """With the Spark it runs in."""
    on_kafka: bool = False
    """Reads from Apache Kafka in place of Millrace, and once."""
    warm: bool = True
    """Also measured in a warm session."""


WAYS = (
    Way(name="millrace", title="Millrace: load", job="millrace", confs=_OURS),
    Way(name="millrace-table", title="Millrace: load, publish", job="millrace-table", confs=_OURS),
    Way(name="millrace-local", title="Millrace: load --engine local", job="millrace-local", warm=False),
    Way(
        name="spark-kafka",
        title="Spark's Kafka source, from_avro: Parquet",
        job="spark-kafka",
        jars=SPARK_JARS,
    ),
    Way(
        name="spark-iceberg",
        title="Spark's Kafka source, from_avro: Iceberg",
        job="spark-iceberg",
        jars=ICEBERG_JARS,
        python=READERS,
    ),
    Way(
        name="spark-kafka-on-kafka",
        title="Spark's Kafka source, from_avro: Parquet, from Apache Kafka",
        job="spark-kafka",
        jars=SPARK_JARS,
        on_kafka=True,
        warm=False,
    ),
)


def confs(way: Way) -> dict[str, str]:
    """Everything the way gives Spark; Missing when its Spark or jars it needs cannot be had."""
    if not way.python.exists():
        raise Missing(f"{way.python} is not there: run `make test-readers` once")
    with missing_without_jars():
        jars = {jar.name: str(jar) for pom in way.jars for jar in sorted(maven.jars(pom).iterdir())}
    return {**_CONFS, **way.confs, **({"spark.jars": ",".join(jars.values())} if jars else {})}


def streaming(warehouse: Path) -> Way:
    """Return the way that appends a topic to a table all the time, with a catalog in a SQLite file."""
    return Way(
        name="spark-stream",
        title="Spark's streaming append to Iceberg",
        job="spark-stream",
        confs={**_SPARK, **sqlite_catalog(warehouse)},
        jars=(*ICEBERG_JARS, *SQLITE_JARS),
        python=READERS,
    )


def sqlite_catalog(warehouse: Path) -> dict[str, str]:
    """Return Spark's settings of catalog `millrace` in a local warehouse's SQLite file."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{warehouse / CATALOG}",
        ".warehouse": f"file://{warehouse}",
    }
    return {f"spark.sql.catalog.{NAMESPACE}{key}": value for key, value in settings.items()}


def once(way: Way, task: Task, folder: Path) -> list[str]:
    """The command that a user runs for one load."""
    if way.job.startswith("millrace"):
        return _millrace(task, publish=way.job == "millrace-table", local=way.job == "millrace-local")
    path = folder / f"{way.name}.json"
    path.write_text(json.dumps(asdict(task)))
    options = [word for key, value in confs(way).items() for word in ("--conf", f"{key}={value}")]
    submit = str(_spark_home(way) / "bin" / "spark-submit")
    return [submit, "--master", "local[2]", *options, str(JOBS), str(path)]


def _millrace(task: Task, *, publish: bool, local: bool) -> list[str]:
    """`millrace load`, and `millrace publish` after it."""
    millrace, warehouse = [sys.executable, "-m", "millrace.cli"], ["--warehouse", task.out]
    servers = ["--bootstrap", task.bootstrap, "--registry", task.registry]
    engine = ["--engine", "local"] if local else []
    load = [*millrace, "load", task.topic, *warehouse, *servers, *engine, "--json"]
    if not publish:
        return load
    hours = [word for hour in task.hours for word in ("--hour", hour)]
    lines = (load, [*millrace, "publish", task.topic, *warehouse, *hours, "--unasked", "--json"])
    return ["/bin/sh", "-c", " && ".join(map(shlex.join, lines))]


def session(way: Way, folder: Path) -> list[str]:
    """The command of a session that takes tasks line by line."""
    path = folder / f"{way.name}-session.json"
    path.write_text(json.dumps(confs(way)))
    return [str(way.python), "-m", "tests.bench.load.spark_jobs", "--session", str(path)]


def environment(way: Way) -> dict[str, str]:
    """Return every command's environment: its Python for Spark's workers, this checkout to import from."""
    found = dict(os.environ)
    found |= {"PYSPARK_PYTHON": str(way.python), "PYSPARK_DRIVER_PYTHON": str(way.python)}
    found["SPARK_HOME"] = str(_spark_home(way))
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), found.get("PYTHONPATH", "")]))
    found["PATH"] = f"{Path(find_java()).parent}{os.pathsep}{found.get('PATH', '')}"
    return found


def _spark_home(way: Way) -> Path:
    """The folder of the PySpark that the way runs in."""
    (found,) = way.python.parent.parent.glob("lib/python*/site-packages/pyspark")
    return found
