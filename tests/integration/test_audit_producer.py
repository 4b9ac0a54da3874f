"""AuditedProducer on a real broker: what it says of its events is true, whatever is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import fastavro
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from millrace.errors import ConfigError, MillraceError
from millrace.wire.cluster_id import WrongCluster
from millrace.zookeeper.session import Session
from millrace_audit import producer as producer_module
from millrace_audit.outcomes import Outcomes
from millrace_audit.producer import AuditedProducer, Delivered, DeliveryFailed
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.event import EventHeader, EventSchema, read_header
from millrace_audit.reports.fingerprints import fingerprint, wrapped
from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditCodec, AuditRecord, Hello, Report
from millrace_audit.reports.publish import AuditPublisher
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.record_header import (
    HEADER_NAME,
    RecordHeader,
    audit_header,
    encode_header,
    topic_tag,
)
from millrace_audit.reports.seals import seal_of
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster, free_port, read_topic
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import Process, child, wait_until

Start = Callable[..., Process]
MINUTE_MS = 60_000


@dataclass
class World:
    """One cluster with an audit topic, and a registry."""

    cluster: TestCluster
    registry: str

    def topic(self, partitions: int = 2) -> str:
        """A new topic."""
        name = f"events-{uuid4().hex[:8]}"
        with self.cluster.client() as client:
            client.create_topic(name, partitions)
        return name

    def producer(self, **options: Any) -> AuditedProducer:
        return AuditedProducer(
            self.cluster.bootstrap, self.registry, cluster="dc1", server="web-1", service="shop", **options
        )

    def events(self, topic: str) -> list[EventHeader]:
        """The header of every message of the topic."""
        with self.cluster.client() as client:
            found = read_topic(client, topic)
        return [read_header(value or b"") for contents in found.values() for value in contents.values]

    def said(self, instance: int) -> list[AuditRecord]:
        """Everything an instance published on the audit topic, in order."""
        with self.cluster.client() as client, SchemaRegistryClient(self.registry) as registry:
            codec = AuditCodec(registry)
            records = [codec.decode(value) for value in read_topic(client, "audit")[0].values]
        return [r for r in records if isinstance(r, Hello | Report) and r.instance == instance]

    def reports(self, instance: int) -> list[Report]:
        return [record for record in self.said(instance) if isinstance(record, Report)]


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("producer")
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    cluster = TestCluster(
        start_for_module, f"p{uuid4().hex[:8]}", folder, zookeeper, "[log]\nflush_ms = 20\n", known_as="dc1"
    )
    cluster.start_brokers(1)
    with cluster.client() as client:
        client.create_topic("audit", 1)
    return World(cluster, f"http://{registry.ready()}")


def sequences(events: list[EventHeader], instance: int) -> list[int]:
    return sorted(event.sequence for event in events if event.instance == instance)


def told(reports: list[Report], topic: str) -> tuple[SequenceRanges, SequenceRanges]:
    """Everything the reports call acknowledged, and failed."""
    acknowledged, failed = SequenceRanges(), SequenceRanges()
    for window in (window for report in reports for window in report.windows if window.topic == topic):
        acknowledged, failed = acknowledged | window.acknowledged, failed | window.failed
    return acknowledged, failed


def test_every_event_has_its_header_and_the_kafka_timestamp_is_its_time(world: World) -> None:
    topic = world.topic()
    with world.producer() as producer:
        numbers = [
            producer.send(topic, PAGE_VIEW, {**EVENT, "url": f"/{n}"}, time_ms=START + n, key=f"{n % 7}")
            for n in range(500)
        ]
    assert numbers == list(range(500))
    with world.cluster.client() as client:
        records = [r for contents in read_topic(client, topic).values() for r in contents.records]
    schema = fastavro.parse_schema(dict(PAGE_VIEW))
    for record in records:
        assert record.value is not None
        header = read_header(record.value)
        assert (header.server, header.service, header.instance) == ("web-1", "shop", producer.instance)
        assert record.timestamp == header.time == START + header.sequence
        body: Any = fastavro.schemaless_reader(BytesIO(record.value[5:]), schema, None)
        assert body["url"] == f"/{header.sequence}"
    assert sorted(read_header(r.value or b"").sequence for r in records) == numbers
    assert producer.delivered() == [Delivered(topic, [(0, 499)], [])]


def test_events_of_one_key_go_to_one_partition_and_events_without_a_key_to_all(world: World) -> None:
    by_key, at_random = world.topic(4), world.topic(4)
    keys = [f"member {n}".encode() for n in range(20)]
    with world.producer() as producer:
        for n in range(200):
            producer.send(by_key, PAGE_VIEW, EVENT, time_ms=START + n, key=keys[n % 20])
    partitions_of: dict[bytes | None, set[int]] = {}
    with world.cluster.client() as client:
        for number, contents in read_topic(client, by_key).items():
            for record in contents.records:
                partitions_of.setdefault(record.key, set()).add(number)
    assert partitions_of.keys() == set(keys)
    assert all(len(partitions) == 1 for partitions in partitions_of.values()), "by key"
    assert len(set.union(*partitions_of.values())) > 1, "and by nothing else"

    def reached(producer: AuditedProducer) -> set[int]:
        producer.send(at_random, PAGE_VIEW, EVENT, time_ms=START)
        with world.cluster.client() as client:
            return {n for n, contents in read_topic(client, at_random).items() if contents.values}

    with world.producer() as producer:
        wait_until("each partition has some", lambda: reached(producer) == {0, 1, 2, 3})


def test_the_hello_is_there_before_the_first_event_and_the_last_report_closes_for_ever(world: World) -> None:
    topic = world.topic()
    producer = world.producer()
    producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    assert [type(record) for record in world.said(producer.instance)] == [Hello], "awaited by the first send"
    for n in range(1, 900):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n * 2000)
    producer.close()
    hello, *reports = world.said(producer.instance)
    assert isinstance(hello, Hello)
    assert (hello.cluster, hello.topic, hello.closed_through) == ("dc1", topic, NOTHING)
    assert [r.number for r in reports if isinstance(r, Report)] == list(range(len(reports)))
    assert world.reports(producer.instance)[-1].closed_through == FOR_EVER
    windows = [
        (w.window, w.acknowledged.pairs()) for r in world.reports(producer.instance) for w in r.windows
    ]
    assert windows == [
        (START, [[0, 299]]),
        (START + WINDOW_MS, [[300, 599]]),
        (START + 2 * WINDOW_MS, [[600, 899]]),
    ]


def test_each_topic_has_a_hello_and_numbers_of_its_own(world: World) -> None:
    first, second = world.topic(), world.topic()
    with world.producer() as producer:
        for n in range(10):
            assert producer.send(first, PAGE_VIEW, EVENT, time_ms=START) == n
            assert producer.send(second, PAGE_VIEW, EVENT, time_ms=START) == n
    assert [r.topic for r in world.said(producer.instance) if isinstance(r, Hello)] == [first, second]


def test_closing_again_sends_the_last_report_that_did_not_get_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    producer = world.producer()
    producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)

    def refuse(*_: object, **__: object) -> None:
        raise MillraceError("no broker takes it")

    with monkeypatch.context() as patched:
        patched.setattr(AuditPublisher, "publish", refuse)
        with pytest.raises(MillraceError, match="no broker takes it"):
            producer.close()
    with pytest.raises(MillraceError, match="is closed"):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    producer.close()
    reports = world.reports(producer.instance)
    assert told(reports, topic)[0].pairs() == [[0, 0]]
    assert reports[-1].closed_through == FOR_EVER
    producer.close()
    assert world.reports(producer.instance) == reports, "once it is there, closing does nothing"


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_producer_that_is_closed_announces_nothing(world: World, has_sent: bool) -> None:
    producer = world.producer()
    if has_sent:
        producer.send(world.topic(), PAGE_VIEW, EVENT, time_ms=START)
    producer.close()
    before = world.said(producer.instance)
    with pytest.raises(MillraceError, match="is closed"):
        producer.send(world.topic(), PAGE_VIEW, EVENT, time_ms=START)
    assert world.said(producer.instance) == before


def test_threads_with_different_schemas_each_write_their_own(world: World) -> None:
    topic = world.topic()
    wider = {**PAGE_VIEW, "fields": [*PAGE_VIEW["fields"], {"name": "extra", "type": "int", "default": 0}]}
    with world.producer() as producer:

        def send(schema: Any) -> None:
            for n in range(1000):
                producer.send(topic, schema, EVENT, time_ms=START + n, key=schema["fields"][-1]["name"])

        threads = [threading.Thread(target=send, args=(schema,)) for schema in (PAGE_VIEW, wider)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    with world.cluster.client() as client:
        records = [r for contents in read_topic(client, topic).values() for r in contents.records]
    assert len({(r.key, (r.value or b"")[:5]) for r in records}) == 2
    assert len(records) == 2000


def test_an_event_that_does_not_fit_leaves_no_hole(world: World) -> None:
    topic = world.topic()
    with world.producer() as producer:
        assert producer.send(topic, PAGE_VIEW, EVENT, time_ms=START) == 0
        for wrong in ({"status": "x"}, {"nonsense": 1}, {"url": None}):
            with pytest.raises(MillraceError, match="does not fit schema PageView"):
                producer.send(topic, PAGE_VIEW, {**EVENT, **wrong}, time_ms=START)
        with pytest.raises(MillraceError, match="time_ms"):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=0)
        with pytest.raises(MillraceError, match="not sent"):
            producer.send(topic, PAGE_VIEW, {**EVENT, "url": "/" * 2_000_000}, time_ms=START)
        assert producer.send(topic, PAGE_VIEW, EVENT, time_ms=START) == 1
    assert sequences(world.events(topic), producer.instance) == [0, 1]


@pytest.mark.parametrize(
    "time_ms", [0, 1_431_856_800, 946_684_799_999, 1 << 62, -5, 1.5e12, None, "now", float("inf")]
)
def test_a_time_that_has_no_hour_in_the_warehouse_is_refused_and_leaves_no_hole(
    world: World, time_ms: Any
) -> None:
    topic = world.topic()
    with world.producer() as producer:
        for _ in range(2):  # before the first event, and behind it
            with pytest.raises(MillraceError, match=r"time_ms .* is no time .*2000-01-01.*nothing was sent"):
                producer.send(topic, PAGE_VIEW, EVENT, time_ms=time_ms)
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
        day = 24 * 3600 * 1000
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=int(time.time() * 1000) + day - MINUTE_MS)
        with pytest.raises(MillraceError, match="a day ahead of the clock"):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=int(time.time() * 1000) + day + MINUTE_MS)
    assert sequences(world.events(topic), producer.instance) == [0, 1, 2]


def test_a_window_too_many_is_refused_until_others_are_closed_and_leaves_no_hole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "MOST_OPEN_WINDOWS", 3)
    topic = world.topic()
    with world.producer() as producer:
        for n in (0, 1, 2, 0, 1):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n * WINDOW_MS)
        with pytest.raises(
            MillraceError, match=r"nothing was sent.*holds 3 windows.*call closed_through\(\)"
        ):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + 3 * WINDOW_MS)
        producer.closed_through(START + WINDOW_MS)
        producer.flush()
        assert producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + 3 * WINDOW_MS) == 5
    assert sequences(world.events(topic), producer.instance) == [*range(6)]


def test_reports_carry_the_fingerprint_of_what_is_in_the_log_and_seal_the_next_one(world: World) -> None:
    topic = world.topic()
    with world.producer(report_interval_s=0.1) as producer:
        for n in range(2000):
            producer.send(topic, PAGE_VIEW, {**EVENT, "url": f"/{n}"}, time_ms=START + n * 1000)
            if n % 500 == 0:
                producer.flush()
    with world.cluster.client() as client:
        values = [
            value or b"" for contents in read_topic(client, topic).values() for value in contents.values
        ]
    there: dict[int, int] = {}
    for value in values:
        window = read_header(value).time // WINDOW_MS * WINDOW_MS
        there[window] = there.get(window, 0) + fingerprint(value)
    told: dict[int, int] = {}
    for said in (w for report in world.reports(producer.instance) for w in report.windows):
        told[said.window] = told.get(said.window, 0) + said.fingerprint
    assert {w: wrapped(total) for w, total in told.items()} == {w: wrapped(t) for w, t in there.items()}
    hello, *reports = world.said(producer.instance)
    seal = hello.seal  # type: ignore[union-attr]
    assert len(reports) > 4
    for report in reports:
        assert isinstance(report, Report)
        assert seal_of(report.key) == seal
        seal = report.seal
    assert len({report.key for report in reports if isinstance(report, Report)}) == len(reports)


def test_a_schema_that_schemas_check_refuses_is_neither_registered_nor_sent(world: World) -> None:
    topic = world.topic()
    header = {**PAGE_VIEW["fields"][0]["type"], "namespace": "elsewhere"}
    name = f"Other{uuid4().hex[:6]}"
    fields = [{**PAGE_VIEW["fields"][0], "type": header}, *PAGE_VIEW["fields"][1:]]
    wrong = {**PAGE_VIEW, "name": name, "fields": fields}
    with world.producer() as producer, SchemaRegistryClient(world.registry) as registry:
        with pytest.raises(MillraceError, match=r"is not the record millrace\.events\.AuditHeader"):
            producer.send(topic, wrong, EVENT, time_ms=START)
        assert registry.versions(name) == []
        registry.register(name, wrong)
        with pytest.raises(MillraceError, match=r"is not the record millrace\.events\.AuditHeader"):
            producer.send(topic, name, EVENT, time_ms=START)
    assert world.events(topic) == []


def test_a_producer_that_closes_no_time_says_once_what_follows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic()
    with world.producer(report_interval_s=0.05) as silent:
        silent.send(topic, PAGE_VIEW, EVENT, time_ms=START)
        wait_until("it is said", lambda: "call closed_through(), or give lateness_ms" in caplog.text)
        time.sleep(0.3)
    with world.producer(report_interval_s=0.05, lateness_ms=MINUTE_MS) as closing:
        closing.send(topic, PAGE_VIEW, EVENT, time_ms=int(time.time() * 1000))
        wait_until("it reports", lambda: world.reports(closing.instance))
    said = [record.getMessage() for record in caplog.records if "lateness_ms" in record.getMessage()]
    assert len(said) == 1
    assert f"instance {silent.instance}" in said[0]


def test_a_name_that_counts_could_not_hold_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="255 bytes"):
        AuditedProducer(
            world.cluster.bootstrap, world.registry, cluster="dc1", server="x" * 256, service="shop"
        )


def test_an_unknown_topic_ends_in_one_line_and_nothing_is_sent(world: World) -> None:
    producer = world.producer()
    with pytest.raises(MillraceError, match=r"has no topic nowhere.*millrace topics create nowhere"):
        producer.send("nowhere", PAGE_VIEW, EVENT, time_ms=START)
    producer.close()
    assert world.said(producer.instance) == []


def test_without_a_broker_the_first_event_ends_in_one_line(world: World) -> None:
    producer = AuditedProducer(
        f"127.0.0.1:{free_port()}",
        world.registry,
        cluster="dc1",
        server="web-1",
        service="shop",
        config={"delivery.timeout.ms": 1_000},
    )
    with pytest.raises(MillraceError, match="no broker answers") as caught:
        producer.send("PageView", PAGE_VIEW, EVENT, time_ms=START)
    assert "\n" not in str(caught.value)
    producer.close()


@pytest.mark.parametrize("key", ["acks", "request.required.acks", "enable.idempotence", "bootstrap.servers"])
def test_what_the_audit_rests_on_cannot_be_changed(world: World, key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be changed"):
        world.producer(config={key: 1})


def test_a_full_queue_slows_the_sender_down_and_loses_nothing(world: World) -> None:
    topic = world.topic()
    with world.producer(config={"queue.buffering.max.messages": 100}) as producer:
        for n in range(3000):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n)
    assert sequences(world.events(topic), producer.instance) == list(range(3000))


def test_threads_share_a_producer_without_a_hole_or_a_repeat(world: World) -> None:
    topic = world.topic()
    with world.producer(report_interval_s=0.1) as producer:

        def send() -> None:
            for n in range(1000):
                producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n * 1000)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    events = world.events(topic)
    assert sequences(events, producer.instance) == list(range(4000))
    reported = {
        (w.window, n)
        for r in world.reports(producer.instance)
        for w in r.windows
        for first, last in w.acknowledged
        for n in range(first, last + 1)
    }
    assert reported == {(event.time - event.time % WINDOW_MS, event.sequence) for event in events}


def test_reports_come_while_it_runs_and_tell_only_what_is_certain(world: World) -> None:
    topic = world.topic()
    with world.producer(report_interval_s=0.2) as producer:
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
        wait_until("the first report", lambda: world.reports(producer.instance))
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
        producer.closed_through(START + WINDOW_MS)
        wait_until(
            "the window is closed",
            lambda: world.reports(producer.instance)[-1].closed_through == START + WINDOW_MS,
        )
        acknowledged, failed = told(world.reports(producer.instance), topic)
        assert (acknowledged.pairs(), failed.pairs()) == ([[0, 1]], [])


class Clock:
    """The producer's wall clock, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = START + MINUTE_MS * 5
        monkeypatch.setattr("millrace_audit.producer.now_ms", lambda: self.now_ms)


def closed(said: list[AuditRecord]) -> list[int]:
    """Return the position that each hello and report closes."""
    return [record.closed_through for record in said if isinstance(record, Hello | Report)]


def test_with_a_lateness_the_clock_closes_windows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with world.producer(report_interval_s=0.05, lateness_ms=MINUTE_MS) as producer:
        producer.send(world.topic(), PAGE_VIEW, EVENT, time_ms=clock.now_ms)
        assert set(closed(world.said(producer.instance))) == {START}
        clock.now_ms = START + WINDOW_MS + MINUTE_MS
        wait_until(
            "the window is closed", lambda: closed(world.said(producer.instance))[-1] == START + WINDOW_MS
        )


def test_what_is_closed_stays_closed_while_events_are_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    topic = world.topic()
    # Each event stays in the queue for a second, and reports are made meanwhile.
    with world.producer(
        report_interval_s=3600, lateness_ms=MINUTE_MS, config={"linger.ms": 1000}
    ) as producer:
        for _ in range(20):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=clock.now_ms - MINUTE_MS)
            clock.now_ms += 2 * MINUTE_MS
            producer.closed_through(clock.now_ms - 2 * MINUTE_MS)
            producer._report()
    told = closed(world.said(producer.instance))
    assert told == sorted(told)


def test_the_clock_closes_no_window_of_an_event_that_waits_in_send(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    topic = world.topic()
    with world.producer(
        report_interval_s=3600,
        lateness_ms=MINUTE_MS,
        config={"queue.buffering.max.messages": 1, "linger.ms": 100},
    ) as producer:
        check_topics, wait_for_room = AuditPublisher.check_topics, producer._wait_for_room

        def check_long(*arguments: Any, **options: Any) -> None:
            check_topics(*arguments, **options)
            clock.now_ms += WINDOW_MS

        waits = 0

        def wait_long(*arguments: Any) -> None:
            nonlocal waits
            waits += 1
            clock.now_ms += WINDOW_MS
            producer._report()
            wait_for_room(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(AuditPublisher, "check_topics", check_long)
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=clock.now_ms)
        pass
        monkeypatch.setattr(producer, "_wait_for_room", wait_long)
        while waits < 2:
            producer.flush()
            # The one that fills the queue is of a later window and keeps none open.
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=clock.now_ms + 100 * WINDOW_MS)
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=clock.now_ms)
    reports = world.reports(producer.instance)
    for before, report in pairwise(reports):
        assert all(window.window >= before.closed_through for window in report.windows)


def test_the_hello_of_another_topic_closes_nothing_that_is_not_reported(world: World) -> None:
    first, second = world.topic(), world.topic()
    with world.producer(report_interval_s=3600, lateness_ms=0) as producer:
        for topic in (first, second):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=time.time_ns() // 1_000_000)
        before_any_event, later = closed(world.said(producer.instance))
    assert before_any_event > NOTHING
    assert later == NOTHING


def test_a_subjects_latest_schema_can_be_named_instead_of_given(world: World) -> None:
    topic = world.topic()
    with world.producer() as producer:
        with pytest.raises(MillraceError, match="millrace schemas apply"):
            producer.send(topic, "NoSuchSubject", EVENT, time_ms=START)
        with SchemaRegistryClient(world.registry) as registry:
            registry.register("PageView", PAGE_VIEW)
        assert producer.send(topic, "PageView", EVENT, time_ms=START) == 0
    assert len(world.events(topic)) == 1


def test_a_consumer_reads_what_it_sent(world: World) -> None:
    topic = world.topic(1)
    with world.producer() as producer:
        for _ in range(20):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START, partition=0)
    consumer = Consumer(
        {"bootstrap.servers": world.cluster.bootstrap, "group.id": "x", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(20, timeout=20)
    consumer.close()
    assert [read_header(message.value() or b"").sequence for message in messages] == list(range(20))


def test_a_producer_with_the_name_of_another_cluster_sends_nothing(world: World) -> None:
    topic = world.topic()
    producer = AuditedProducer(
        world.cluster.bootstrap, world.registry, cluster="dc9", server="web-1", service="shop"
    )
    with pytest.raises(WrongCluster) as refused:
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    address = world.cluster.bootstrap
    assert str(refused.value) == (
        f"dc9: the broker at {address} belongs to the cluster dc1. Set cluster to dc1."
    )
    producer.close()
    assert world.events(topic) == []
    assert world.said(producer.instance) == []


def test_a_cluster_that_was_founded_without_its_name_in_its_id_takes_any_name(
    zookeeper: str, world: World, start: Start, tmp_path: Path
) -> None:
    cluster = TestCluster(start, f"old-{uuid4().hex[:8]}", tmp_path, zookeeper)
    with closing(Session.connect(zookeeper)) as session:
        cluster_id = f"millrace-{uuid4().hex}".encode()
        session.call(session.client.create_async, f"/{cluster.name}/id", cluster_id, makepath=True)
    older = World(cluster.start_brokers(1), world.registry)
    with cluster.client() as client:
        client.create_topic("audit", 1)
    topic = older.topic()
    with older.producer() as producer:
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    assert sequences(older.events(topic), producer.instance) == [0]


# The audit header among the record's headers


def record_headers(world: World, topic: str) -> list[tuple[RecordHeader | None, bytes | None]]:
    """The audit header in the record headers of every message of the topic, and the message's value."""
    with world.cluster.client() as client:
        records = [r for contents in read_topic(client, topic).values() for r in contents.records]
    return [(audit_header(record.headers, topic_tag(topic)), record.value) for record in records]


def test_a_value_goes_out_as_it_is_and_its_audit_header_is_a_record_header(world: World) -> None:
    topic = world.topic(1)
    values = [b'{"order": 1}', None, b"", b"\0\0\0\0\1no event of ours"]
    read_before = (HEADER_NAME, encode_header(topic_tag("elsewhere"), 1, 2, 3))
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", "a"),
        read_before,
        ("empty", None),
        (HEADER_NAME, b"x"),
    ]
    with world.producer() as producer:
        for n, value in enumerate(values):
            sequence = producer.send_value(topic, value, time_ms=START + n, key=b"k", headers=headers)
            assert sequence == n
    with world.cluster.client() as client:
        records = read_topic(client, topic)[0].records
    assert [record.value for record in records] == values
    assert [record.timestamp for record in records] == [START + n for n in range(4)]
    assert {record.key for record in records} == {b"k"}
    for n, record in enumerate(records):
        own = (HEADER_NAME, encode_header(topic_tag(topic), producer.instance, n, START + n))
        assert list(record.headers) == [own, ("trace", b"a"), ("empty", None)]
    (report,) = world.reports(producer.instance)
    (window,) = report.windows
    assert window.acknowledged.pairs() == [[0, 3]]
    assert window.fingerprint == wrapped(sum(fingerprint(value or b"", n) for n, value in enumerate(values)))


def test_the_schema_decides_where_the_header_is_and_a_topic_may_have_both(world: World) -> None:
    topic = world.topic()
    plain = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}
    with world.producer() as producer:
        for n in range(0, 30, 3):
            assert producer.send(topic, PAGE_VIEW, EVENT, time_ms=START) == n
            assert producer.send(topic, plain, {**EVENT, "url": f"/{n}"}, time_ms=START + n) == n + 1
            assert producer.send_value(topic, b"{}", time_ms=START) == n + 2
        with pytest.raises(MillraceError, match=r"does not fit schema PageView: .*status"):
            producer.send(topic, plain, {**EVENT, "status": 1 << 40}, time_ms=START)
    found = record_headers(world, topic)
    in_value = [read_header(value or b"") for header, value in found if header is None]
    in_record = [(header, value) for header, value in found if header is not None]
    assert sequences(in_value, producer.instance) == [*range(0, 30, 3)]
    assert sorted(header.sequence for header, _ in in_record) == [n for n in range(30) if n % 3]
    schema = fastavro.parse_schema(dict(plain))
    for header, value in in_record:
        if header.sequence % 3 == 1:
            body: Any = fastavro.schemaless_reader(BytesIO((value or b"")[5:]), schema, None)
            assert body["url"] == f"/{header.sequence - 1}"
            assert header.time == START + header.sequence - 1
    assert told(world.reports(producer.instance), topic)[0].pairs() == [[0, 29]]


def test_a_value_that_is_refused_leaves_no_hole(world: World) -> None:
    topic = world.topic()
    with world.producer() as producer:
        with pytest.raises(MillraceError, match="time_ms"):
            producer.send_value(topic, b"{}", time_ms=0)
        assert producer.send_value(topic, b"{}", time_ms=START) == 0
        with pytest.raises(MillraceError, match="not sent"):
            producer.send_value(topic, b"x" * 2_000_000, time_ms=START)
        assert producer.send_value(topic, b"{}", time_ms=START) == 1
    assert sorted(header.sequence for header, _ in record_headers(world, topic) if header) == [0, 1]


@pytest.fixture
def breakable(world: World, zookeeper: str, start: Start, tmp_path: Path) -> World:
    """A cluster of its own, whose broker may be killed."""
    log = "[log]\nflush_ms = 20\n"
    cluster = TestCluster(start, f"b{uuid4().hex[:8]}", tmp_path, zookeeper, log, known_as="dc1")
    cluster.start_brokers(1)
    with cluster.client() as client:
        client.create_topic("audit", 1)
    return World(cluster, world.registry)


BACK_SOON = {"delivery.timeout.ms": 10_000, "reconnect.backoff.max.ms": 200}
"""Settings of a producer that finds its restarted broker long before it gives up a message."""


@pytest.mark.slow
def test_a_broker_killed_during_traffic_leaves_acknowledged_and_failed_told_apart(breakable: World) -> None:
    topic = breakable.topic()
    producer = breakable.producer(config=BACK_SOON, report_interval_s=0.3)
    sent = 0
    killed_at = 2_000

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + sent)
            sent += 1

    send(killed_at)
    breakable.cluster.brokers[1].kill()
    send(500)
    with pytest.raises(MillraceError):
        producer.flush()  # nothing is taken any more, no report either
    breakable.cluster.restart(1)
    send(500)
    with pytest.raises(DeliveryFailed, match=f"sequences {topic}"):
        producer.flush()
    send(500)
    producer.close()

    (delivered,) = producer.delivered()
    reports = breakable.reports(producer.instance)
    acknowledged, failed = told(reports, topic)
    assert list(acknowledged - failed) == list(delivered.acknowledged)
    assert list(failed) == list(delivered.failed)
    assert (acknowledged | failed).pairs() == [[0, sent - 1]], "each has its outcome"
    assert len(failed) >= 500
    there = sequences(breakable.events(topic), producer.instance)
    assert len(there) == len(set(there)), "none is there twice"
    assert set(there) >= {n for first, last in acknowledged - failed for n in range(first, last + 1)}
    numbers = SequenceRanges()
    for report in reports:
        numbers.add(report.number, report.number)
    assert numbers.pairs() == [[0, reports[-1].number]], "no report is lost, some may have come twice"
    assert reports[-1].closed_through == FOR_EVER


@pytest.mark.slow
def test_failed_values_are_reported_by_the_number_and_fingerprint_that_they_were_sent_with(
    breakable: World,
) -> None:
    topic = breakable.topic()
    values = [f'{{"order": {n}}}'.encode() for n in range(3)]
    producer = breakable.producer(config=BACK_SOON)
    producer.send_value(topic, values[0], time_ms=START)
    producer.flush()
    breakable.cluster.brokers[1].kill()
    producer.send_value(topic, values[1], time_ms=START)
    producer.send_value(topic, None, time_ms=START + WINDOW_MS)
    with pytest.raises(MillraceError):
        producer.flush()
    breakable.cluster.restart(1)
    producer.send_value(topic, values[2], time_ms=START)
    with pytest.raises(DeliveryFailed, match=f"sequences {topic} 1-2"):
        producer.close()
    windows = [window for report in breakable.reports(producer.instance) for window in report.windows]
    failed = {w.window: (w.failed.pairs(), w.failed_fingerprint) for w in windows if w.failed}
    assert failed == {
        START: ([[1, 1]], wrapped(fingerprint(values[1], 1))),
        START + WINDOW_MS: ([[2, 2]], wrapped(fingerprint(b"", 2))),
    }
    acknowledged = sum(window.fingerprint for window in windows)
    assert wrapped(acknowledged) == wrapped(fingerprint(values[0], 0) + fingerprint(values[2], 3))


# Forks, and an error after which librdkafka sends nothing any more


def refusal(call: Callable[[], object]) -> str:
    """Error that the call raises in a forked child, as its text."""
    read_end, write_end = os.pipe()

    def work() -> None:
        try:
            call()
        except MillraceError as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode())

    assert child(work) == 0
    os.close(write_end)
    with open(read_end, "rb") as told:
        return told.read().decode()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_in_a_forked_child_nothing_is_taken_for_sent_and_the_parent_goes_on(world: World) -> None:
    topic = world.topic()
    with world.producer(report_interval_s=0.1) as producer:
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
        for call in (
            lambda: producer.send(topic, PAGE_VIEW, EVENT, time_ms=START),
            producer.flush,
            lambda: producer.closed_through(START),
        ):
            assert "works only there: make one in each process, after the fork" in refusal(call)
        assert child(producer.close) == 0
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    assert sorted(header.sequence for header in world.events(topic)) == [0, 1]
    assert world.reports(producer.instance)[-1].closed_through == FOR_EVER


class Interrupted(Exception):
    """Exception of a signal handler, such as that of a time limit."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Send this process a signal whose handler raises Interrupted, at the first call alone."""

    def handler(*_: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "place",
    [
        (SequenceRanges, "__sub__"),  # while outcomes become certain
        (Outcomes, "close"),  # when they are taken
        (producer_module, "portion"),  # before their report is queued
        (AuditPublisher, "publish"),
    ],
    ids=lambda place: place[1],
)
@pytest.mark.parametrize("end", [AuditedProducer.flush, AuditedProducer.close])
def test_what_a_signal_handler_interrupts_is_reported_all_the_same(
    world: World,
    interrupt: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
    end: Callable[[AuditedProducer], None],
) -> None:
    topic = world.topic()
    producer = world.producer(report_interval_s=3600)
    for _ in range(3):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    original = getattr(*place)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        interrupt()
        return original(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(*place, interrupted)
        with pytest.raises(Interrupted):
            end(producer)
    producer.close()
    reports = world.reports(producer.instance)
    assert told(reports, topic)[0].pairs() == [[0, 2]]
    total = sum(window.fingerprint for report in reports for window in report.windows)
    with world.cluster.client() as client:
        contents = read_topic(client, topic).values()
    values = [value or b"" for each in contents for value in each.values]
    assert wrapped(total) == wrapped(sum(map(fingerprint, values)))
    assert reports[-1].closed_through == FOR_EVER


def test_a_signal_handler_that_calls_the_producer_in_the_middle_of_send_is_refused_and_hangs_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    producer = world.producer(report_interval_s=3600)
    producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    calls: list[Callable[[], object]] = [
        producer.close,
        producer.flush,
        lambda: producer.closed_through(START),
        lambda: producer.send(topic, PAGE_VIEW, EVENT, time_ms=START),
    ]
    encode = EventSchema.encode

    def interrupted(*arguments: Any) -> bytes:
        os.kill(os.getpid(), signal.SIGUSR1)
        return encode(*arguments)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        for call in calls:
            signal.signal(signal.SIGUSR1, lambda *_, call=call: call())
            with monkeypatch.context() as patched:
                patched.setattr(EventSchema, "encode", interrupted)
                with pytest.raises(MillraceError, match="let the handler raise an exception or set"):
                    producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert producer.send(topic, PAGE_VIEW, EVENT, time_ms=START) == 1
    producer.close()
    assert told(world.reports(producer.instance), topic)[0].pairs() == [[0, 1]]


def test_a_signal_handler_may_close_the_producer_while_the_first_event_waits_for_its_hello(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    producer = world.producer(report_interval_s=3600)
    publish = AuditPublisher.publish

    def interrupted(*arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(AuditPublisher, "publish", publish)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.5)
        return publish(*arguments, **options)

    monkeypatch.setattr(AuditPublisher, "publish", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: producer.close())
    try:
        with pytest.raises(MillraceError, match="this producer is closed"):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert world.reports(producer.instance)[-1].closed_through == FOR_EVER
    assert world.events(topic) == []


def make_fatal(producer: Producer, reason: bytes) -> None:
    """Have librdkafka meet a fatal error, by its own function for tests."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*")
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    raise_fatal = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    raise_fatal.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    assert raise_fatal(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, reason) == 0


def test_after_a_fatal_error_what_was_sent_is_reported_and_every_send_says_why(world: World) -> None:
    topic = world.topic()
    producer = world.producer(report_interval_s=0.1)
    for _ in range(5):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    producer.flush()
    make_fatal(producer._producer, b"a test")
    wait_until("it is noticed", lambda: producer._fatal)
    with pytest.raises(MillraceError, match=r"can send nothing any more: .*a test.*start a new one"):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    assert producer._thread.is_alive()
    producer.close()
    assert producer.delivered()[0].acknowledged == [(0, 4)]
    assert world.reports(producer.instance)[-1].closed_through == FOR_EVER


def test_what_a_fatal_error_leaves_in_the_queue_is_reported_as_failed(world: World) -> None:
    topic = world.topic()
    producer = world.producer(
        report_interval_s=0.1, config={"linger.ms": 60_000, "delivery.timeout.ms": 90_000}
    )
    producer.send(topic, PAGE_VIEW, EVENT, time_ms=START)
    make_fatal(producer._producer, b"a test")
    with pytest.raises(DeliveryFailed):
        producer.close()
    assert producer.delivered()[0].failed == [(0, 0)]
    failed = [window.failed for report in world.reports(producer.instance) for window in report.windows]
    assert any(failed)
