"""Promises of a producer's reports while they are sent in portions, without any broker."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace.topics_file import policies_of_environment
from millrace_audit import producer as module
from millrace_audit.producer import AuditedProducer, DeliveryFailed, NotSent
from millrace_audit.reports import outcome
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.fingerprints import fingerprint_of
from millrace_audit.reports.messages import FOR_EVER, Hello, Report, schema_file
from millrace_audit.reports.seals import seal_of

START = 1_431_856_800_000
EVENT = {"clientAddress": "c", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}


class Registry:
    """Knows every schema."""

    def __init__(self, url: str) -> None:
        self.url = url

    def register(self, subject: str, schema: Any, *, timeout_s: float) -> int:
        return 1

    def close(self) -> None: ...


class Reports:
    """Keeps what is published, decoded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.told: list[Any] = []
        self.hellos: list[Hello] = []

    def encode(self, record: Any, *, timeout_s: float | None = None) -> Any:
        return record

    def check_cluster(self, _: str, *, give_up_at: float) -> None: ...

    def check_topics(self, *_: str, give_up_at: float) -> None: ...

    def publish(self, records: list[Any], *, give_up_at: float = math.inf) -> None:
        self.told += [record for record in records if isinstance(record, Report)]
        self.hellos += [record for record in records if isinstance(record, Hello)]

    def close(self) -> None: ...


def test_a_portion_promises_no_time_that_the_portions_behind_it_still_tell_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    monkeypatch.setattr(module, "AuditPublisher", lambda *_, **__: reports)
    monkeypatch.setattr(module, "AuditCodec", lambda _: reports)
    monkeypatch.setattr(outcome, "RANGES_PER_REPORT", 2)
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x")

    def send(*windows: int) -> None:
        for window in windows:
            producer.send("t", schema_file("PageView"), EVENT, time_ms=START + window * WINDOW_MS)
        producer._producer.purge()  # each fails, which is an outcome like another
        while len(producer._producer):
            producer._producer.poll(1)
        with producer._lock:
            producer._resolve()

    send(0)
    producer.closed_through(START + 9 * WINDOW_MS)
    producer._report()
    send(*range(9))  # late, all of them
    producer._report()
    told_at = {w.window: index for index, report in enumerate(reports.told) for w in report.windows}
    assert len(reports.told) > 4
    for index, report in enumerate(reports.told[1:], start=1):
        later = [window for window, at in told_at.items() if at > index]
        assert report.closed_through <= min(later, default=FOR_EVER), index
    assert reports.told[-1].closed_through == START + 9 * WINDOW_MS
    producer._stop.set()


@pytest.mark.parametrize("promised", [START - 5 * WINDOW_MS, START + 5 * WINDOW_MS])
def test_a_hello_closes_what_the_application_has_closed_and_nothing_behind_its_first_event(
    monkeypatch: pytest.MonkeyPatch, promised: int
) -> None:
    """With it an application that sends older events holds their time open from the hello on."""
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    monkeypatch.setattr(module, "AuditPublisher", lambda *_, **__: reports)
    monkeypatch.setattr(module, "AuditCodec", lambda _: reports)
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x")
    producer.closed_through(promised)
    send(producer)
    assert [hello.closed_through for hello in reports.hellos] == [min(promised, START)]
    producer._stop.set()


class Interrupted:
    """A librdkafka producer in whose `produce` a signal arrives, before or after the message is queued."""

    def __init__(self, producer: Any, *, is_queued: bool) -> None:
        self._producer, self._is_queued = producer, is_queued

    def produce(self, *message: Any) -> None:
        if self._is_queued:
            self._producer.produce(*message)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)


@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("as_it_is", [False, True])
def test_a_signal_that_interrupts_send_uses_the_number_up_and_the_event_is_told_as_failed(
    monkeypatch: pytest.MonkeyPatch, is_queued: bool, as_it_is: bool
) -> None:
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    monkeypatch.setattr(module, "AuditPublisher", lambda *_, **__: reports)
    monkeypatch.setattr(module, "AuditCodec", lambda _: reports)
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x")

    def send_one() -> int:
        return producer.send_value("t", b"v", time_ms=START) if as_it_is else send(producer)

    whole = producer._producer
    assert send_one() == 0
    producer._producer = Interrupted(whole, is_queued=is_queued)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        send_one()
    producer._producer = whole
    assert send_one() == 2
    whole.purge()
    while len(whole):
        whole.poll(1)
    with pytest.raises(DeliveryFailed, match="3 events were not acknowledged"):
        producer.flush()
    (window,) = reports.told[0].windows
    assert (list(window.failed), list(window.acknowledged), window.fingerprint) == ([(0, 2)], [], 0)
    if as_it_is:
        digest = fingerprint_of("t", policies_of_environment())
        assert window.failed_fingerprint == sum(digest(b"v", sequence) for sequence in range(3)) % 2**64
    producer._stop.set()


@pytest.mark.parametrize("lateness_ms", [None, 0])
def test_a_producer_whose_event_waits_reports_once_after_its_hello_and_is_not_taken_for_idle(
    monkeypatch: pytest.MonkeyPatch, lateness_ms: int | None
) -> None:
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    monkeypatch.setattr(module, "AuditPublisher", lambda *_, **__: reports)
    monkeypatch.setattr(module, "AuditCodec", lambda _: reports)
    options: dict[str, Any] = {"config": HOUR, "lateness_ms": lateness_ms}
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="c", server="s", service="x", **options)
    producer.flush()
    assert reports.told == [], "nothing is reported before the hello"
    send(producer)
    for _ in range(3):
        producer._report()
    (report,) = reports.told
    assert (report.number, report.windows) == (0, [])
    assert report.closed_through == reports.hellos[0].closed_through <= START
    producer._stop.set()


def send(producer: AuditedProducer, **options: Any) -> int:
    return producer.send("t", schema_file("PageView"), EVENT, time_ms=START, **options)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


HOUR = {"delivery.timeout.ms": 3_600_000, "queue.buffering.max.messages": 1}
"""Settings with which a send that is not bounded by its caller waits longer than any test."""


def test_the_first_event_waits_for_a_silent_registry_only_as_long_as_its_caller_wants(silent: str) -> None:
    producer = AuditedProducer("127.0.0.1:1", silent, cluster="c", server="s", service="x", config=HOUR)
    producer._registry._timeout_s = 3_600
    with pytest.raises(NotSent, match="topic t: nothing was sent, because schema registry"):
        send(producer, timeout_s=0.2)
    assert producer.delivered() == []
    producer._stop.set()


def test_an_event_waits_for_brokers_that_are_away_only_as_long_as_its_caller_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="c", server="s", service="x", config=HOUR)
    with pytest.raises(NotSent, match="nothing was sent, because no broker answers"):
        send(producer, timeout_s=0.2)
    with producer._report_lock, pytest.raises(NotSent, match="nothing was sent, because a report waits for"):
        send(producer, timeout_s=0.2)
    monkeypatch.setattr(producer._reports, "publisher", reports)
    assert send(producer, timeout_s=60) == 0
    with pytest.raises(NotSent, match="nothing was sent, because the queue is full and cluster c at"):
        send(producer, timeout_s=0.2)
    assert producer._outcomes.topics["t"].next_sequence == 1, "a refused event takes no number"
    producer._stop.set()


@pytest.mark.parametrize("key", ["delivery.timeout.ms", "message.timeout.ms"])
@pytest.mark.parametrize("value", [0, "0", -1, "soon", 1.5])
def test_a_delivery_that_never_times_out_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms"):
        AuditedProducer(
            "127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x", config={key: value}
        )


def test_a_time_limit_may_be_written_as_a_string_as_librdkafka_takes_it() -> None:
    producer = AuditedProducer(
        "127.0.0.1:1",
        "http://r",
        cluster="dc1",
        server="s",
        service="x",
        config={"message.timeout.ms": "2000"},
    )
    assert producer._timeout_s == 2
    producer.close()


def test_a_hello_waits_for_the_reports_before_it_and_repeats_the_seal_of_the_next_one() -> None:
    class Publisher:
        fails = False

        def __init__(self) -> None:
            self.told: list[Any] = []

        def publish(self, records: list[Any], *, give_up_at: float = math.inf) -> None:
            if self.fails:
                raise MillraceError("away")
            self.told += records

    publisher, codec = Publisher(), Reports()
    names = {"cluster": "dc1", "server": "s", "service": "x", "instance": 1}
    reports = module._Reports(publisher, codec, names)  # type: ignore[arg-type]
    reports.hello("One", None, math.inf)
    publisher.fails = True
    with pytest.raises(MillraceError):
        reports.report({}, START)
    publisher.fails = False
    reports.hello("Two", None, math.inf)
    reports.report({}, FOR_EVER)
    first, lost, second, last = publisher.told
    assert (first.topic, lost.number, second.topic, last.number) == ("One", 0, "Two", 1)
    assert [seal_of(lost.key), seal_of(last.key), second.seal] == [first.seal, lost.seal, lost.seal]
