"""A Java service that knows nothing of the audit: its reports are its callbacks, and agree with the log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.brokers import Home, address, create, start_broker
from tests.compat.java_interceptor import (
    FOR_EVER,
    Evidence,
    check_exact,
    check_fingerprint,
    read_evidence,
    read_outcomes,
    start_service,
)
from tests.peers.kafka import KafkaBroker
from tests.support import WAIT_S, Process, wait_until

EVENTS = 20_000
pytestmark = pytest.mark.usefixtures("needs_maven")


def finish(service: subprocess.Popen[str]) -> None:
    """Wait for the service's end; its reporting thread must have ended before."""
    with service:
        try:
            output, _ = service.communicate(timeout=6 * WAIT_S)
        finally:
            service.kill()
    assert service.returncode == 0, output
    assert "reporting threads left: 0" in output


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_every_event_is_reported_with_the_content_of_its_value(
    home: Home, clients: str, tmp_path: Path
) -> None:
    topic, outcomes = create(home, f"plain-{clients}"), tmp_path / "outcomes"
    wrapped = {
        "value_serializer": "io.millrace.audit.AuditedSerializer",
        "millrace_value_serializer": "org.apache.kafka.common.serialization.StringSerializer",
    }
    finish(
        start_service(clients, topic, EVENTS, "plain", outcomes, bootstrap_servers=address(home), **wrapped)
    )
    evidence = read_evidence(address(home), topic)
    check_exact(evidence, outcomes)
    (instance,) = evidence.told
    assert len(evidence.told[instance].acknowledged) == EVENTS
    check_fingerprint(evidence, instance)


def test_a_killed_broker_does_not_change_what_is_reported(home: Home, tmp_path: Path) -> None:
    topic, outcomes = create(home, "killed-broker"), tmp_path / "outcomes"
    limits = {"delivery_timeout_ms": 5000, "request_timeout_ms": 3000, "linger_ms": 0}
    service = start_service("4.1", topic, EVENTS, "slow", outcomes, bootstrap_servers=address(home), **limits)
    assert service.stdout is not None
    assert service.stdout.readline() == "a quarter is sent\n"
    if isinstance(home, KafkaBroker):
        home.kill()
        time.sleep(8)  # longer than the service waits for an event
        home.start()
    else:
        home.process.kill()
        time.sleep(8)
        home.restart()
    finish(service)
    check_exact(read_evidence(address(home), topic), outcomes)
    acknowledged, failed = read_outcomes(outcomes)
    assert acknowledged
    assert failed, "the broker was away for too short a time"


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_events_that_close_gives_up_are_reported_as_failed(home: Home, clients: str, tmp_path: Path) -> None:
    topic, outcomes = create(home, f"close-0-{clients}"), tmp_path / "outcomes"
    slow = {"linger_ms": 5000, "batch_size": 500_000}
    finish(
        start_service(clients, topic, EVENTS, "close(0)", outcomes, bootstrap_servers=address(home), **slow)
    )
    evidence = read_evidence(address(home), topic)
    if clients == "4.1":
        check_exact(evidence, outcomes)
    else:
        check_never_wrong(evidence, outcomes)


def check_never_wrong(evidence: Evidence, outcomes: Path) -> None:
    """Check that no failed event is reported as acknowledged, and that no event is left out."""
    ((instance, told),) = evidence.told.items()
    acknowledged, failed = read_outcomes(outcomes)
    assert evidence.numbers(instance, told.acknowledged) <= acknowledged
    assert told.acknowledged <= set(evidence.log.get(instance, {}))
    assert told.acknowledged | told.failed == set(range(len(acknowledged) + len(failed)))
    assert told.closed_through == FOR_EVER


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_events_that_are_too_large_fail_and_leave_no_hole(home: Home, clients: str, tmp_path: Path) -> None:
    topic, outcomes = create(home, f"large-{clients}"), tmp_path / "outcomes"
    finish(start_service(clients, topic, 1000, "large", outcomes, bootstrap_servers=address(home)))
    evidence = read_evidence(address(home), topic)
    assert len(read_outcomes(outcomes)[1]) == 10
    if clients == "4.1":
        check_exact(evidence, outcomes)
    else:
        check_never_wrong(evidence, outcomes)


def test_events_of_an_unknown_topic_are_reported_as_failed(apache: KafkaBroker, tmp_path: Path) -> None:
    topic, outcomes = "unknown-topic", tmp_path / "outcomes"
    waits = {"max_block_ms": 1000}
    finish(start_service("4.1", topic, 3, "plain", outcomes, bootstrap_servers=apache.address, **waits))
    create(apache, topic)  # now there is a log to read
    check_exact(read_evidence(apache.address, topic), outcomes)
    assert read_outcomes(outcomes) == (set(), {0, 1, 2})


def test_a_killed_producer_has_reported_only_events_of_the_log(home: Home, tmp_path: Path) -> None:
    topic = create(home, "killed-producer")
    service = start_service(
        "4.1", topic, EVENTS, "wait", tmp_path / "unused", bootstrap_servers=address(home)
    )
    with service:
        assert service.stdout is not None
        while service.stdout.readline() != "flushed\n":
            assert service.poll() is None

        def has_reported() -> bool:
            return any(told.acknowledged for told in read_evidence(address(home), topic).told.values())

        wait_until("a report", has_reported)
        service.kill()
    evidence = read_evidence(address(home), topic)
    ((instance, told),) = evidence.told.items()
    assert set(evidence.log[instance]) == set(range(EVENTS))
    assert told.acknowledged <= set(evidence.log[instance])
    assert not told.failed
    assert told.closed_through != FOR_EVER


def test_two_producers_of_one_process_are_two_instances(home: Home, tmp_path: Path) -> None:
    topic, outcomes = create(home, "two-producers"), tmp_path / "outcomes"
    finish(start_service("4.1", topic, EVENTS // 2, "two", outcomes, bootstrap_servers=address(home)))
    evidence = read_evidence(address(home), topic)
    assert len(evidence.told) == 2
    numbers = set()
    for instance, told in evidence.told.items():
        assert told.acknowledged == set(range(EVENTS // 2))
        assert told.closed_through == FOR_EVER
        numbers |= evidence.numbers(instance, told.acknowledged)
    assert numbers == read_outcomes(outcomes)[0] == set(range(EVENTS))


def test_events_of_aborted_transactions_are_acknowledged_or_failed(
    apache: KafkaBroker, tmp_path: Path
) -> None:
    topic, outcomes = create(apache, "transactions"), tmp_path / "outcomes"
    finish(
        start_service(
            "4.1",
            topic,
            6000,
            "transactions",
            outcomes,
            bootstrap_servers=apache.address,
            transactional_id="checkout",
        )
    )
    check_exact(read_evidence(apache.address, topic), outcomes)
    committed = read_evidence(apache.address, topic, committed=True)
    assert sum(map(len, committed.log.values())) == 4000


def test_without_the_topic_audit_the_events_are_sent_unaudited(
    zookeeper: str, start: Callable[..., Process], tmp_path: Path
) -> None:
    settings = {"auto_create_topics": False}
    broker = start_broker(start, zookeeper, tmp_path, "without-audit", **settings)
    topic, outcomes = create(broker, "unaudited"), tmp_path / "outcomes"
    finish(start_service("4.1", topic, 100, "plain", outcomes, bootstrap_servers=broker.bootstrap))
    assert read_outcomes(outcomes) == (set(range(100)), set())
    broker.create_topic("audit")
    evidence = read_evidence(broker.bootstrap, topic)
    assert (evidence.foreign, evidence.told) == (100, {})
