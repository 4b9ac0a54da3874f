"""Requests and reports of the agent, in their order, with brokers in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.topics_file import VARIABLE
from millrace_agent import carrier
from millrace_agent.carrier import Carrier
from millrace_agent.claim import Claim
from millrace_agent.spool import Event, Spool
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.event import read_header
from millrace_audit.reports.fingerprints import fingerprint, is_strong, wrapped
from millrace_audit.reports.messages import FOR_EVER, AuditCodec, AuditRecord, Hello, Report
from millrace_audit.reports.record_header import RecordHeader, audit_header, topic_tag
from tests.unit.audit.test_messages import Ids


class Brokers:
    """Acknowledge everything; `heard` has reports and the times of events in the order of their coming."""

    def __init__(self) -> None:
        self.registry = Ids()
        self.codec = AuditCodec(self.registry)
        self.said: list[AuditRecord | None] = []
        self.heard: list[Report | int] = []
        self.sent: list[tuple[bytes | None, RecordHeader | None]] = []
        self._delivered: list[Callable[[], None]] = []
        self.error: KafkaError | None = None

    def publish(self, messages: Sequence[bytes], *, give_up_at: float) -> int:
        records = [self.codec.decode(message) for message in messages]
        self.said += records
        self.heard += [record for record in records if isinstance(record, Report)]
        return 0

    def check_cluster(self, *_: Any, **__: Any) -> None:
        """The cluster has the agent's name for it."""

    def purge(self) -> None:
        """Nothing waits."""

    close = purge

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *_: Any,
        timestamp: int,
        headers: list[tuple[str, bytes]] | None,
        on_delivery: Callable[..., None],
    ) -> None:
        self.heard.append(timestamp)
        self.sent.append((value, audit_header(headers or (), topic_tag(topic))))
        self._delivered.append(lambda: on_delivery(self.error, None))

    def poll(self, timeout_s: float) -> None:
        while self._delivered:
            self._delivered.pop()()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(carrier, "AuditPublisher", lambda *_: brokers)
    monkeypatch.setattr(carrier, "connected", lambda *_: brokers)
    monkeypatch.setattr(Claim, "check", lambda _: None)
    monkeypatch.setattr(Claim, "is_proven", True)
    monkeypatch.setattr(carrier, "_POLL_S", 0.0)
    return brokers


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, 1 << 30)
    yield spool
    spool.close()


def carrier_of(
    spool: Spool, brokers: Brokers, caught_up: Callable[[], float], behind: Collection[str] = ()
) -> Carrier:
    return Carrier(
        spool,
        "",
        brokers.registry,
        cluster="dc1",
        server="web-1",
        service="shop",
        lateness_ms=0,
        report_interval_s=10,
        caught_up=caught_up,
        behind=lambda: behind,
    )


def test_a_promise_is_taken_back_before_an_older_event_is_sent(brokers: Brokers, spool: Spool) -> None:
    now = 1_700_000_123_456
    carrying = carrier_of(spool, brokers, lambda: now / 1000)
    late = window_start(now) - 2 * WINDOW_MS
    for time_ms in (now, late):
        spool.take([Event("t", 1, time_ms, None, b"")]).result()
        carrying._carry()
        carrying._carry()
        carrying._report()
    assert [one.closed_through if isinstance(one, Report) else one for one in brokers.heard] == [
        now,
        window_start(now),
        late,
        late,
        window_start(now),
    ]


def test_events_wait_while_the_agent_holds_as_many_windows_open_as_the_audit_takes(
    brokers: Brokers, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "CHUNK_EVENTS", 1)
    monkeypatch.setattr(carrier, "MOST_OPEN_WINDOWS", 2)
    now, seconds = 1_700_000_123_456, [0.0]
    carrying = carrier_of(spool, brokers, lambda: seconds[0])
    times = [now - n * WINDOW_MS for n in (3, 2, 1)]
    spool.take([Event("t", 1, time_ms, None, b"") for time_ms in times[:2]]).result()

    def carry() -> list[int]:
        for _ in range(6):
            carrying._carry()
        carrying._report()
        return [one for one in brokers.heard if not isinstance(one, Report)]

    assert carry() == times[:2]
    assert carrying.troubles == [], "no event waits"
    spool.take([Event("t", 1, times[2], None, b"")]).result()
    assert carry() == times[:2]
    (trouble,) = carrying.troubles
    assert trouble.startswith(
        "topic t: its events wait, because the agent holds 2 windows of ten minutes open"
    )
    assert carry() == times[:2], "a followed file is still read: nothing is closed"
    seconds[0] = now / 1000
    carrying._report()
    assert carry() == times
    assert carrying.troubles == []


def test_a_message_without_a_key_for_a_compacted_topic_is_reported_as_failed_with_what_to_do(
    brokers: Brokers, spool: Spool
) -> None:
    now = 1_700_000_123_456
    carrying = carrier_of(spool, brokers, lambda: now / 1000)
    brokers.error = KafkaError(KafkaError.INVALID_RECORD)
    spool.take([Event.of_value("t", now, None, b"{}")]).result()
    carrying._carry()
    carrying._carry()
    carrying._report()
    (window,) = [w for one in brokers.heard if isinstance(one, Report) for w in one.windows]
    assert (window.acknowledged.pairs(), window.failed.pairs()) == ([], [[0, 0]])
    (trouble,) = carrying.troubles
    assert trouble.endswith("a compacted topic takes only messages with a key: send a key")


def test_an_agent_goes_on_with_a_new_client_after_a_fatal_error(
    brokers: Brokers, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_123_456
    clients = 0
    poll = brokers.poll

    def connected(*_: Any) -> Brokers:
        nonlocal clients
        clients += 1
        brokers.error = None
        return brokers

    monkeypatch.setattr(carrier, "connected", connected)
    monkeypatch.setattr(carrier, "RETRY_S", (0.0, 0.0))

    def poll_after_the_error(timeout_s: float) -> None:
        monkeypatch.setattr(brokers, "poll", poll)
        brokers.error = KafkaError(KafkaError._PURGE_QUEUE)
        raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True))

    carrying = carrier_of(spool, brokers, lambda: now / 1000)
    spool.take([Event.of_value("t", now, None, b"{}")]).result()
    carrying._carry()
    monkeypatch.setattr(brokers, "poll", poll_after_the_error)
    for _ in range(4):
        carrying._carry()
    carrying._report()
    (window,) = [w for one in brokers.heard if isinstance(one, Report) for w in one.windows]
    assert (window.acknowledged.pairs(), window.failed.pairs()) == ([[1, 1]], [[0, 0]])
    assert (clients, spool.events, carrying.troubles) == (2, 0, [])


def test_an_agent_reports_strong_fingerprints_of_a_topic_that_asks_for_them(
    brokers: Brokers, spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topics.toml").write_text('[t]\nfingerprint = "strong"\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "topics.toml"))
    now = 1_700_000_123_456
    carrying = carrier_of(spool, brokers, lambda: now / 1000)
    spool.take([Event(topic, 1, now, None, b"") for topic in ("t", "u")]).result()
    for _ in range(4):
        carrying._carry()
    carrying._report()
    windows = [window for one in brokers.heard if isinstance(one, Report) for window in one.windows]
    kinds = {window.topic: is_strong(window.fingerprint) for window in windows}
    assert kinds == {"t": True, "u": False}


def test_events_of_every_form_share_the_numbers_of_their_topic_also_after_a_kill(
    brokers: Brokers, tmp_path: Path
) -> None:
    now = 1_700_000_123_456
    values = [b'{"order": 1}', b"", None]
    taken = [Event("t", 1, now, None, b"fields")]
    taken += [Event.of_value("t", now, b"k", value) for value in values]
    spool = Spool(tmp_path, 1 << 30)
    spool.take(taken).result()

    def carried() -> Carrier:
        brokers.sent.clear()
        carrying = carrier_of(spool, brokers, lambda: now / 1000)
        carrying._carry()
        (in_value, none), *others = brokers.sent
        header = read_header(in_value or b"")
        assert (none, header.instance, header.sequence) == (None, carrying.instance, 0)
        assert others == [
            (value, RecordHeader(now, carrying.instance, number))
            for number, value in enumerate(values, start=1)
        ]
        return carrying

    killed = carried()
    sent = [value or b"" for value, _ in brokers.sent]
    brokers._delivered.clear()  # no broker answers before the kill
    spool.close()
    spool = Spool(tmp_path, 1 << 30)
    following = carried()
    assert following.instance != killed.instance
    following._carry()
    following._report()
    reports = [one for one in brokers.heard if isinstance(one, Report)]
    (ended,) = [one for one in reports if one.instance == killed.instance]
    (window,) = ended.windows
    assert (window.acknowledged.pairs(), window.failed.pairs()) == ([], [[0, 3]])
    in_records = (fingerprint(value, number) for number, value in enumerate(sent[1:], start=1))
    assert window.failed_fingerprint == wrapped(fingerprint(sent[0]) + sum(in_records))
    assert ended.closed_through == FOR_EVER
    (window,) = [w for one in reports if one.instance == following.instance for w in one.windows]
    assert (window.acknowledged.pairs(), window.failed.pairs()) == ([[0, 3]], [])
    assert spool.events == 0
    spool.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_no_window_of_a_topic_closes_while_lines_of_its_file_wait_for_the_next_agent(
    brokers: Brokers, tmp_path: Path, end: str
) -> None:
    now = 1_700_000_123_456
    spool = Spool(tmp_path, 1 << 30)
    first = carrier_of(spool, brokers, lambda: 0.0, behind={"t", "new"})
    spool.take([Event("t", 1, now, None, b"")]).result()
    for _ in range(2):
        first._carry()
    first._report()
    if end == "stop":
        stop = threading.Event()
        stop.set()
        first.run(stop, drain_s=1.0)
    assert not any(isinstance(one, Report) and one.closed_through == FOR_EVER for one in brokers.said)
    brokers.said.clear()
    spool.close()
    spool = Spool(tmp_path, 1 << 30)
    following = carrier_of(spool, brokers, lambda: 0.0, behind={"t", "new"})
    following._report()
    spool.close()
    hello, *_, ended, opened = brokers.said
    assert isinstance(hello, Hello)
    assert (hello.instance, hello.topic) == (following.instance, "t"), "before the killed instance ends"
    assert isinstance(ended, Report)
    assert (ended.instance, ended.closed_through) == (first.instance, FOR_EVER)
    assert isinstance(opened, Report)
    assert (opened.instance, hello.closed_through) == (following.instance, opened.closed_through)
    assert opened.closed_through < now


def test_an_agent_that_has_read_its_files_ends_its_instance(brokers: Brokers, spool: Spool) -> None:
    carrying = carrier_of(spool, brokers, lambda: 0.0)
    spool.take([Event("t", 1, 1_700_000_123_456, None, b"")]).result()
    stop = threading.Event()
    stop.set()
    carrying._check()
    carrying.run(stop, drain_s=5.0)
    assert isinstance(brokers.said[-1], Report)
    assert brokers.said[-1].closed_through == FOR_EVER
