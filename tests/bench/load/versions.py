"""Versions of everything that takes part, as far as it is there."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

from millrace.errors import MillraceError
from millrace.zookeeper.embedded import find_java
from tests.bench.load.ways import ICEBERG_JARS, SPARK_JARS
from tests.peers import connect, kafka, maven

PACKAGES = ("pyspark", "pyarrow", "numpy", "fastavro", "confluent-kafka")
JARS = (
    "kafka_2.13",
    "connect-mirror",
    "spark-sql-kafka-0-10_2.13",
    "spark-avro_2.13",
    "iceberg-spark-runtime-4.1_2.13",
    "kafka-clients",
)


def versions() -> list[str]:
    """`name version` of Python packages, of the jars that were fetched, and of Java."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    for pom in (kafka.POM, connect.POM, *SPARK_JARS, *ICEBERG_JARS):
        try:
            stems = {jar.stem for jar in maven.jars(pom).iterdir()}
        except (maven.NoMaven, AssertionError):
            continue
        for stem in sorted(stems):
            name, _, version = stem.rpartition("-")
            if name in JARS and f"{name} {version}" not in found:
                found.append(f"{name} {version}")
    return [*found, _java()]


def _java() -> str:
    try:
        done = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False)
    except MillraceError:
        return "no Java"
    return Path(done.stderr.splitlines()[0]).name.replace('"', "")
