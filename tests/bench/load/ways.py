"""The ways to get a topic into Parquet by hour that are compared: their commands and settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace.coordination.embedded import find_java
from millrace_spark.jobs.submit import FAST_START
from tests.bench.broker.system import Missing
from tests.bench.load.spark_jobs import Task
from tests.peers import maven
from tests.support import REPOSITORY

SPARK_JARS = tuple(
    Path(maven.__file__).with_name(f"{name}.pom.xml") for name in ("spark-kafka", "spark-avro")
)
ICEBERG_JARS = (Path(maven.__file__).with_name("spark-iceberg.pom.xml"),)
READERS = REPOSITORY / ".cache" / "readers" / "bin" / "python"
"""With the Spark that Iceberg's runtime exists for; `make test-readers` makes it."""
JOBS = Path(__file__).with_name("spark_jobs.py")
_CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""What `millrace load` gives Spark, for everyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way; `job` is its function in `spark_jobs`, `confs` what it gives Spark besides."""

    name: str
    title: str
    job: str
    confs: Mapping[str, str] = field(default_factory=dict)
    jars: Sequence[Path] = ()
    """Poms of the jars it needs."""
    python: Path = Path(sys.executable)
    """With the Spark it runs in."""
    on_kafka: bool = False
    """Reads from Apache Kafka in place of Millrace."""
    warm_runs: int = 3
    """Loads in the warm session, the first of which warms it up; 1 where nothing needs warming."""


WAYS = (
    Way(
        name="millrace", title="Millrace", job="millrace", confs={"spark.driver.extraJavaOptions": FAST_START}
    ),
    Way(
        name="spark-kafka",
        title="Spark's Kafka source, from_avro",
        job="spark-kafka",
        jars=SPARK_JARS,
        confs={"spark.driver.memory": "4g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"},
    ),
    Way(
        name="spark-kafka-on-kafka",
        title="the same, from Apache Kafka",
        job="spark-kafka",
        jars=SPARK_JARS,
        on_kafka=True,
        confs={"spark.driver.memory": "4g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"},
    ),
    Way(
        name="spark-iceberg",
        title="Spark's Kafka source, from_avro, Iceberg",
        job="spark-iceberg",
        jars=ICEBERG_JARS,
        python=READERS,
        confs={"spark.driver.memory": "4g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"},
    ),
    Way(
        name="fastavro",
        title="fastavro row by row",
        job="fastavro",
        warm_runs=1,
        confs={"spark.driver.extraJavaOptions": FAST_START},
    ),
)


def confs(way: Way) -> dict[str, str]:
    """Everything the way gives Spark; Missing when jars it needs cannot be had."""
    given = {**_CONFS, **way.confs}
    if not way.python.exists():
        raise Missing(f"{way.python} is not there: run `make test-readers` once")
    if way.jars:
        try:
            jars = [jar for pom in way.jars for jar in sorted(maven.jars(pom).iterdir())]
        except maven.NoMaven as error:
            raise Missing(str(error)) from error
        except AssertionError as error:
            raise Missing(str(error).strip().splitlines()[-1]) from error
        given["spark.jars"] = ",".join(map(str, jars))
    return given


def once(way: Way, task: Task, folder: Path) -> list[str]:
    """The command that a user runs for one load."""
    if way.job == "millrace":
        return [
            sys.executable,
            "-m",
            "millrace.cli",
            "load",
            task.topic,
            "--warehouse",
            task.out,
            "--bootstrap",
            task.bootstrap,
            "--registry",
            task.registry,
            "--json",
        ]
    path = folder / f"{way.name}.json"
    path.write_text(json.dumps(asdict(task)))
    options = [word for key, value in confs(way).items() for word in ("--conf", f"{key}={value}")]
    return [
        str(spark_home(way) / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        *options,
        str(JOBS),
        str(path),
    ]


def session(way: Way, folder: Path) -> list[str]:
    """The command of a session that takes tasks line by line."""
    path = folder / f"{way.name}-session.json"
    path.write_text(json.dumps(confs(way)))
    return [str(way.python), "-m", "tests.bench.load.spark_jobs", "--session", str(path)]


def environment(way: Way) -> dict[str, str]:
    """What every command runs with: its Python for Spark's workers, this checkout to import from."""
    found = dict(os.environ)
    found |= {"PYSPARK_PYTHON": str(way.python), "PYSPARK_DRIVER_PYTHON": str(way.python)}
    found["SPARK_HOME"] = str(spark_home(way))
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), found.get("PYTHONPATH", "")]))
    found["PATH"] = f"{Path(find_java()).parent}{os.pathsep}{found.get('PATH', '')}"
    return found


def spark_home(way: Way) -> Path:
    """The folder of the PySpark that the way runs in."""
    (found,) = way.python.parent.parent.glob("lib/python*/site-packages/pyspark")
    return found
