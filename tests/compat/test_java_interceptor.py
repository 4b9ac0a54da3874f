"""A Java service that knows nothing of the audit: its reports are its callbacks, and agree with the log."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_audit.reports.messages import FOR_EVER, NOTHING
from tests.brokers import read_topic
from tests.compat.brokers import Home, RunningBroker, address, create, start_broker
from tests.compat.evidence import (
    check_exact,
    check_fingerprint,
    check_killed,
    check_never_wrong,
    read_evidence,
    read_outcomes,
)
from tests.compat.java_interceptor import INTERCEPTOR, finish, start_service
from tests.peers.kafka import KafkaBroker
from tests.support import WAIT_S, Process, wait_until

EVENTS = 20_000
MASKING = "InterceptedProducer$Masking"
"""Another interceptor, which changes values and drops headers."""
pytestmark = pytest.mark.usefixtures("needs_maven")


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


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_a_killed_broker_makes_no_report_wrong(home: Home, clients: str, tmp_path: Path) -> None:
    topic, outcomes = create(home, f"killed-broker-{clients}"), tmp_path / "outcomes"
    limits = {"delivery_timeout_ms": 5000, "request_timeout_ms": 3000, "linger_ms": 0}
    service = start_service(
        clients, topic, EVENTS, "pause", outcomes, bootstrap_servers=address(home), **limits
    )
    assert service.stdin is not None
    assert service.stdout is not None
    while service.stdout.readline() != "a quarter is sent\n":
        assert service.poll() is None
    if isinstance(home, KafkaBroker):
        home.kill()
        time.sleep(8)  # longer than the service waits for an event
        home.start()
    else:
        home.process.kill()
        time.sleep(8)
        home.restart()
    print(file=service.stdin, flush=True)  # it sends its second half to a broker that is back
    finish(service)
    evidence = read_evidence(address(home), topic)
    if clients == "4.1":
        check_exact(evidence, outcomes)
    else:
        check_never_wrong(evidence, outcomes)
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


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_with_the_endless_timeouts_of_kafka_connect_events_that_wait_are_not_reported_as_acknowledged(
    millrace: RunningBroker, clients: str, tmp_path: Path
) -> None:
    topic, outcomes = create(millrace, f"endless-{clients}"), tmp_path / "outcomes"
    endless = {"max_block_ms": 2**63 - 1, "delivery_timeout_ms": 2**31 - 1, "linger_ms": 600_000}
    place = {"bootstrap_servers": millrace.bootstrap}
    service = start_service(clients, topic, 1000, "wait, close(0)", outcomes, **place, **endless)

    def has_reported() -> bool:
        told = read_evidence(millrace.bootstrap, topic).told.values()
        return any(one.closed_through != NOTHING for one in told)

    try:
        wait_until("a report", has_reported)
    except BaseException:
        service.kill()
        raise
    print(file=service.stdin, flush=True)
    finish(service)
    check_never_wrong(read_evidence(millrace.bootstrap, topic), outcomes)
    assert read_outcomes(outcomes)[1], "close(0) gave up nothing"


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


@pytest.mark.parametrize("clients", ["4.1", "3.9"])
def test_an_event_for_a_name_that_no_topic_can_have_spoils_no_report(
    millrace: RunningBroker, clients: str, tmp_path: Path
) -> None:
    topic, outcomes = create(millrace, f"beside-no-topic-{clients}"), tmp_path / "outcomes"
    place = {"bootstrap_servers": millrace.bootstrap}
    finish(start_service(clients, topic, 100, "no topic", outcomes, **place))
    check_exact(read_evidence(millrace.bootstrap, topic), outcomes)


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
    check_killed(read_evidence(address(home), topic), EVENTS)


def test_two_producers_of_one_process_are_two_instances_and_share_a_thread(
    home: Home, tmp_path: Path
) -> None:
    topic, outcomes = create(home, "two-producers"), tmp_path / "outcomes"
    service = start_service("4.1", topic, EVENTS // 2, "two", outcomes, bootstrap_servers=address(home))
    assert "reporting threads: 1\n" in finish(service)
    evidence = read_evidence(address(home), topic)
    assert len(evidence.told) == 2
    numbers = set()
    for instance, told in evidence.told.items():
        assert told.acknowledged == set(range(EVENTS // 2))
        assert told.closed_through == FOR_EVER
        numbers |= evidence.numbers(instance, told.acknowledged)
    assert numbers == read_outcomes(outcomes)[0] == set(range(EVENTS))


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_an_event_that_fails_at_send_and_in_its_aborted_transaction_counts_once(
    apache: KafkaBroker, clients: str, tmp_path: Path
) -> None:
    topic, outcomes = create(apache, f"broken-transactions-{clients}"), tmp_path / "outcomes"
    place = {"bootstrap_servers": apache.address, "transactional_id": f"broken-{clients}"}
    output = finish(start_service(clients, topic, 60, "broken transactions", outcomes, **place))
    assert "Error executing interceptor" not in output
    evidence = read_evidence(apache.address, topic)
    if clients == "4.1":
        check_exact(evidence, outcomes)
    else:
        check_never_wrong(evidence, outcomes)
    assert read_outcomes(outcomes)[0] >= set(range(2, 60, 3)), "the events of committed transactions"


def test_a_producer_that_is_closed_twice_stops_no_reports_of_another_one(
    millrace: RunningBroker, tmp_path: Path
) -> None:
    topic, outcomes = create(millrace, "close-twice"), tmp_path / "outcomes"
    service = start_service("4.1", topic, 100, "close twice", outcomes, bootstrap_servers=millrace.bootstrap)

    def both_have_reported() -> bool:
        told = read_evidence(millrace.bootstrap, topic).told.values()
        return [len(one.acknowledged) for one in told] == [100, 100]

    try:
        wait_until("reports of the open producer", both_have_reported)
    except BaseException:
        service.kill()
        raise
    print(file=service.stdin, flush=True)
    finish(service)
    told = read_evidence(millrace.bootstrap, topic).told
    assert {one.closed_through for one in told.values()} == {FOR_EVER}


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_a_producer_that_a_callback_closes_reports_all_events_and_ends(
    millrace: RunningBroker, clients: str, tmp_path: Path
) -> None:
    topic, outcomes = create(millrace, f"close-in-callback-{clients}"), tmp_path / "outcomes"
    # One batch at a time: the others have no outcome when the first callback closes the producer.
    slow = {
        "linger_ms": 3000,
        "batch_size": 1_000_000,
        "max_request_size": 700_000,
        "max_in_flight_requests_per_connection": 1,
        "bootstrap_servers": millrace.bootstrap,
    }
    finish(start_service(clients, topic, EVENTS, "close in callback", outcomes, **slow))
    evidence = read_evidence(millrace.bootstrap, topic)
    if clients == "4.1":
        check_exact(evidence, outcomes)
    else:
        check_never_wrong(evidence, outcomes)
    assert read_outcomes(outcomes)[1], "the callback closed the producer too late"


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


def test_another_interceptor_is_audited_if_it_is_named_before(
    millrace: RunningBroker, tmp_path: Path
) -> None:
    topic, outcomes = create(millrace, "masked-before"), tmp_path / "outcomes"
    place = {"bootstrap_servers": millrace.bootstrap, "interceptor_classes": f"{MASKING}, {INTERCEPTOR}"}
    assert "WARN" not in finish(start_service("4.1", topic, 100, "plain", outcomes, **place))
    check_exact(read_evidence(millrace.bootstrap, topic), outcomes)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            {"interceptor_classes": f"{INTERCEPTOR},{MASKING}"},
            "name AuditInterceptor last in interceptor.classes",
        ),
        ({"enable_idempotence": "false"}, "set acks=all and enable.idempotence=true"),
        ({"enable_idempotence": None, "acks": "1"}, "set acks=all and enable.idempotence=true"),
    ],
)
def test_a_property_that_spoils_the_audit_is_logged_once(
    millrace: RunningBroker, settings: dict[str, object], warning: str, tmp_path: Path
) -> None:
    topic = create(millrace, f"spoiled-{zlib.crc32(str(settings).encode())}")
    place = {"bootstrap_servers": millrace.bootstrap, **settings}
    with start_service("4.1", topic, 100, "plain", tmp_path / "outcomes", **place) as service:
        output, _ = service.communicate(timeout=WAIT_S)
    assert output.count(warning) == 1
    # Without its header an event has no outcome.
    assert ("the last report of instance" in output) == ("interceptor_classes" in settings)


def test_the_audit_header_of_a_forwarded_message_is_replaced(millrace: RunningBroker, tmp_path: Path) -> None:
    topic, outcomes = create(millrace, "forwarded"), tmp_path / "outcomes"
    finish(start_service("4.1", topic, 100, "forwarded", outcomes, bootstrap_servers=millrace.bootstrap))
    evidence = read_evidence(millrace.bootstrap, topic)
    check_exact(evidence, outcomes)
    assert evidence.others == {("trace", b"\7"): 100}


@pytest.mark.parametrize(
    ("pattern", "is_audited"), [("chosen.*", True), ("chosen", False), ("hosen.+", False)]
)
def test_only_topics_whose_whole_name_matches_are_audited(
    millrace: RunningBroker, pattern: str, is_audited: bool, tmp_path: Path
) -> None:
    topic = create(millrace, f"chosen-{zlib.crc32(pattern.encode())}")
    place = {"bootstrap_servers": millrace.bootstrap, "millrace_topics": pattern}
    finish(start_service("4.1", topic, 100, "plain", tmp_path / "outcomes", **place))
    evidence = read_evidence(millrace.bootstrap, topic)
    if is_audited:
        check_exact(evidence, tmp_path / "outcomes")
    else:
        assert (evidence.foreign, evidence.told) == (100, {})


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


def test_events_are_audited_from_the_moment_when_the_topic_audit_is_there(
    zookeeper: str, start: Callable[..., Process], needs_maven: None, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "late-audit", auto_create_topics=False)
    topic, place = create(broker, "late-audited"), {"bootstrap_servers": broker.bootstrap}
    with start_service("4.1", topic, 50 * EVENTS, "slow", tmp_path / "unused", **place) as service:

        def is_sent() -> bool:
            with broker.client() as client:
                return any(contents.records for contents in read_topic(client, topic).values())

        def has_reported() -> bool:
            told = read_evidence(broker.bootstrap, topic).told
            return any(one.acknowledged for one in told.values())

        try:
            wait_until("an event without a header", is_sent)
            broker.create_topic("audit")
            wait_until("a report", has_reported)
        finally:
            service.kill()
    evidence = read_evidence(broker.bootstrap, topic)
    ((instance, told),) = evidence.told.items()
    assert evidence.foreign
    assert told.acknowledged <= set(evidence.log[instance])
