"""What a producer's reports promise while they are told in portions, without any broker."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import ConfigError
from millrace_audit import producer as module
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, Report, schema_file

START = 1_431_856_800_000
EVENT = {"clientAddress": "c", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}


class Registry:
    """Knows every schema."""

    def __init__(self, url: str) -> None:
        self.url = url

    def register(self, subject: str, schema: Any) -> int:
        return 1

    def close(self) -> None: ...


class Reports:
    """Keeps what is published, decoded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.told: list[Any] = []

    def encode(self, record: Any) -> Any:
        return record

    def check_topics(self, *_: str) -> None: ...

    def publish(self, records: list[Any]) -> None:
        self.told += [record for record in records if isinstance(record, Report)]

    def close(self) -> None: ...


def test_a_portion_promises_no_time_that_the_portions_behind_it_still_tell_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = Reports()
    monkeypatch.setattr(module, "SchemaRegistryClient", Registry)
    monkeypatch.setattr(module, "AuditPublisher", lambda *_, **__: reports)
    monkeypatch.setattr(module, "AuditCodec", lambda _: reports)
    monkeypatch.setattr(module, "RANGES_PER_REPORT", 2)
    producer = AuditedProducer("127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x")

    def send(*windows: int) -> None:
        for window in windows:
            producer.send("t", schema_file("PageView"), EVENT, time_ms=START + window * WINDOW_MS)
        producer._producer.purge()  # each fails, which is an outcome like another
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


@pytest.mark.parametrize("key", ["delivery.timeout.ms", "message.timeout.ms"])
@pytest.mark.parametrize("value", [0, "0", -1, "soon", 1.5])
def test_a_delivery_that_never_times_out_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms"):
        AuditedProducer(
            "127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x", config={key: value}
        )


def test_a_time_limit_may_be_written_as_a_string_as_librdkafka_takes_it() -> None:
    producer = AuditedProducer(
        "127.0.0.1:1", "http://r", cluster="dc1", server="s", service="x",
        config={"message.timeout.ms": "2000"},
    )  # fmt: skip
    assert producer._timeout_s == 2
    producer.close()
