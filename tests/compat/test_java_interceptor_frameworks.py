"""The Java interceptor in Spring Boot, Kafka Connect and Debezium, by the properties of docs/java.md."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from millrace.zookeeper.embedded import find_java
from millrace_audit.reports.messages import FOR_EVER
from tests import postgres
from tests.brokers import read_topic
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.evidence import check_never_wrong, read_evidence, read_outcomes
from tests.compat.java_interceptor import INTERCEPTOR, SOURCES, jar
from tests.peers import maven
from tests.peers.connect import Connect, write_properties
from tests.support import Process, wait_until

SPRING = Path(maven.__file__).with_name("spring-kafka.pom.xml")
DEBEZIUM = SPRING.with_name("debezium-postgres.pom.xml")
EVENTS = 5000
START_S = 120.0


@pytest.fixture(scope="module")
def broker(
    needs_maven: None,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("frameworks")
    broker = start_broker(start_for_module, zookeeper, folder, "frameworks")
    broker.create_topic("audit", flush_ms=5)
    return broker


def test_a_spring_boot_service_is_audited_by_its_properties(broker: RunningBroker, tmp_path: Path) -> None:
    topic, outcomes = broker.create_topic("spring", 3), tmp_path / "outcomes"
    path = f"{tmp_path}:{jar()}:{maven.class_path(SPRING)}"
    source, compiler = SOURCES / "shop" / "SpringService.java", Path(find_java()).with_name("javac")
    subprocess.run([str(compiler), "-cp", path, "-d", str(tmp_path), str(source)], check=True)
    settings = {
        "spring.kafka.bootstrap-servers": broker.bootstrap,
        "spring.kafka.producer.properties[interceptor.classes]": INTERCEPTOR,
        "spring.kafka.producer.properties[millrace.service]": "checkout",
    }
    write_properties(tmp_path / "application.properties", settings)
    words = [find_java(), "-Xmx256m", "-cp", path, "shop.SpringService", topic, str(EVENTS), str(outcomes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=START_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_outcomes(outcomes) == (set(range(EVENTS)), set())
    evidence = read_evidence(broker.bootstrap, topic)
    check_never_wrong(evidence, outcomes)
    (told,) = evidence.told.values()
    assert (len(told.acknowledged), evidence.foreign) == (EVENTS, 0)


@pytest.mark.parametrize("prefix", ["producer.", "producer.override."])
def test_a_source_of_kafka_connect_is_audited_by_the_worker_or_by_itself(
    broker: RunningBroker, prefix: str, tmp_path: Path
) -> None:
    topic = broker.create_topic(f"connect-{len(prefix)}", 1, flush_ms=5)
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{n}\n" for n in range(EVENTS)))
    audited = {
        f"{prefix}interceptor.classes": INTERCEPTOR,
        f"{prefix}millrace.service": "files",
        f"{prefix}enable.idempotence": "true",
    }
    connector = {"connector.class": "FileStreamSource", "file": str(source), "topic": topic}
    worker: dict[str, str] = {}
    (worker if prefix == "producer." else connector).update(audited)
    with Connect(tmp_path / "worker", broker.bootstrap, {"source": connector}, worker, [jar()]) as connect:
        wait_until("every line is sent", lambda: sent(broker, topic) == EVENTS, timeout_s=START_S)
        connect.stop()
    assert "AuditInterceptor" not in connect.log.read_text(), "a warning of the interceptor"
    check_all_audited(broker, topic, EVENTS)


def test_debezium_in_kafka_connect_is_audited_by_the_worker(broker: RunningBroker, tmp_path: Path) -> None:
    """Rows of a snapshot, then rows that are inserted while the connector runs."""
    if not postgres.installed():
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    topic = broker.create_topic("shop.public.orders", 1, flush_ms=5)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "debezium").symlink_to(maven.jars(DEBEZIUM))
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    worker = {
        "producer.interceptor.classes": INTERCEPTOR,
        "producer.millrace.service": "shop-database",
        "producer.enable.idempotence": "true",
        "plugin.path": str(tmp_path / "plugins"),
        "key.converter": json_converter,
        "value.converter": json_converter,
    }
    with postgres.server() as database:
        insert = f"INSERT INTO orders SELECT generate_series(1, {EVENTS})"
        execute(database, "ALTER SYSTEM SET wal_level = logical")
        database.stop()
        database.start()
        execute(database, "CREATE TABLE orders (id bigint)")
        execute(database, insert)
        connectors = {"orders": debezium(database)}
        with Connect(tmp_path / "worker", broker.bootstrap, connectors, worker, [jar()]) as connect:
            wait_until("the snapshot is sent", lambda: sent(broker, topic) == EVENTS, timeout_s=START_S)
            execute(database, insert)
            wait_until("every row is sent", lambda: sent(broker, topic) == 2 * EVENTS, timeout_s=START_S)
            connect.stop()
    check_all_audited(broker, topic, 2 * EVENTS)


def execute(database: postgres.Server, statement: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(statement)


def debezium(database: postgres.Server) -> dict[str, str]:
    """Properties of a connector for the tables of a database."""
    place = urlsplit(database.url)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": place.hostname or "",
        "database.port": str(place.port),
        "database.user": place.username or "",
        "database.password": "not asked for",
        "database.dbname": "postgres",
        "topic.prefix": "shop",
    }


def sent(broker: RunningBroker, topic: str) -> int:
    """Count the messages of a topic."""
    with broker.client() as client:
        return sum(len(contents.records) for contents in read_topic(client, topic).values())


def check_all_audited(broker: RunningBroker, topic: str, events: int) -> None:
    """Check that one instance has sent and reported every event, and has ended."""
    evidence = read_evidence(broker.bootstrap, topic)
    ((instance, told),) = evidence.told.items()
    assert told.acknowledged == set(evidence.log[instance]) == set(range(events))
    assert (told.failed, told.closed_through, evidence.foreign) == (set(), FOR_EVER, 0)
