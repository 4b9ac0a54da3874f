"""Apache Kafka and Spark's Kafka source for the tests that need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import maven
from tests.peers.kafka import KafkaBroker

SPARK_KAFKA_POM = Path(maven.__file__).with_name("spark-kafka.pom.xml")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker of Apache Kafka that the whole run shares; take topic names of your own."""
    compact_at_once = {"log.cleaner.backoff.ms": "200"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=compact_at_once) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_jars() -> str:
    """Spark's own Kafka source, for the one Spark session of the run."""
    return ",".join(str(jar) for jar in sorted(maven.jars(SPARK_KAFKA_POM).iterdir()))
