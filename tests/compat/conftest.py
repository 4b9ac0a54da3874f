"""Apache Kafka and Spark's Kafka source for the tests that need them, and the last line of the run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.brokers import Home, RunningBroker, start_broker
from tests.last_line import LastLine
from tests.peers import maven
from tests.peers.kafka import KafkaBroker
from tests.support import Process

# A broker that was killed is let in again only when its last session is over.
SHORT_SESSIONS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
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
    settings = {"log.cleaner.backoff.ms": "200", **SHORT_SESSIONS}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_jars(needs_maven: None) -> str:
    """Spark's own Kafka source, for the one Spark session of the run."""
    return ",".join(str(jar) for jar in sorted(maven.jars(SPARK_KAFKA_POM).iterdir()))


@pytest.fixture(scope="module")
def millrace(
    zookeeper: str, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    """A broker with the topic `audit` that the tests of a module share, and may kill."""
    cluster = f"audited-{secrets.token_hex(3)}"
    broker = start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("audited"), cluster)
    broker.create_topic("audit")
    return broker


@pytest.fixture(scope="module")
def apache(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker of Apache Kafka, likewise."""
    with KafkaBroker(tmp_path_factory.mktemp("audited-kafka"), settings=SHORT_SESSIONS) as broker:
        with broker.client() as client:
            client.create_topic("audit", 1, {})
        yield broker


@pytest.fixture(params=["millrace", "apache"])
def home(request: pytest.FixtureRequest) -> Home:
    """Each of the two brokers."""
    broker: Home = request.getfixturevalue(request.param)
    return broker
