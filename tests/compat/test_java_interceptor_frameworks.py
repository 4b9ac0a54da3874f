"""The Java interceptor in Spring Boot and Kafka Connect, set by properties as docs/java.md says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.zookeeper.embedded import find_java
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.java_interceptor import (
    FOR_EVER,
    SOURCES,
    build_jar,
    check_never_wrong,
    read_evidence,
    read_outcomes,
)
from tests.peers import maven
from tests.peers.connect import Connect, write_properties
from tests.support import Process, wait_until

SPRING = Path(maven.__file__).with_name("spring-kafka.pom.xml")
INTERCEPTOR = "io.millrace.audit.AuditInterceptor"
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
    path = f"{tmp_path}:{build_jar()}:{maven.class_path(SPRING)}"
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
    audited = {f"{prefix}interceptor.classes": INTERCEPTOR, f"{prefix}millrace.service": "files"}
    connector = {"connector.class": "FileStreamSource", "file": str(source), "topic": topic}
    worker: dict[str, str] = {}
    (worker if prefix == "producer." else connector).update(audited)
    with Connect(
        tmp_path / "worker", broker.bootstrap, {"source": connector}, worker, [build_jar()]
    ) as connect:

        def are_sent() -> bool:
            evidence = read_evidence(broker.bootstrap, topic)
            return evidence.foreign + sum(map(len, evidence.log.values())) == EVENTS

        wait_until("every line is sent", are_sent, timeout_s=START_S)
        connect.stop()
    evidence = read_evidence(broker.bootstrap, topic)
    ((instance, told),) = evidence.told.items()
    assert told.acknowledged == set(evidence.log[instance]) == set(range(EVENTS))
    assert (told.failed, told.closed_through, evidence.foreign) == (set(), FOR_EVER, 0)
