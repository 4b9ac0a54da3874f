"""Apache Kafka and Spark's Kafka source for the tests that need them, and the last line of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.last_line import LastLine
from tests.peers import maven
from tests.peers.kafka import KafkaBroker

SPARK_KAFKA_POM = Path(maven.__file__).with_name("spark-kafka.pom.xml")


_last_line = LastLine("COMPAT")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure


@pytest.fixture(scope="session")
def needs_maven() -> None:
    """Skip what needs jars of other projects where Maven is missing; the last line names it."""
    if not maven.available():
        pytest.skip("Maven is not installed (Debian: apt-get install maven)")


@pytest.fixture(scope="session")
def kafka(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker of Apache Kafka that the whole run shares; take topic names of your own."""
    settings = {
        "log.cleaner.backoff.ms": "200",
        # A broker that was killed is let in again only when its last session is over.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
    }
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_jars(needs_maven: None) -> str:
    """Spark's own Kafka source, for the one Spark session of the run."""
    return ",".join(str(jar) for jar in sorted(maven.jars(SPARK_KAFKA_POM).iterdir()))
