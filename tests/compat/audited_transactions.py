"""A transactional producer of audited events, without fingerprints.

It writes its hello and its report without schema ids and without its cluster's name.
"""

from __future__ import annotations

import secrets
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Message, Producer

from millrace_audit.reports.counts import window_start
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.messages import AUDIT_TOPIC, FOR_EVER, NOTHING, now_ms, schema_file
from millrace_audit.reports.ranges import to_deltas
from millrace_audit.reports.seals import seal_of
from millrace_registry.client import SchemaRegistryClient
from tests.page_view import PAGE_VIEW
from tests.warehouses import EMPTY_EVENT

EVENTS = 10
"""Events in a transaction."""


def send_transactions(bootstrap: str, registry: str, topic: str, count: int, time_ms: int) -> None:
    """Send transactions of events, and abort every third one after all its events are acknowledged."""
    with SchemaRegistryClient(registry) as client:
        schema = EventSchema(PAGE_VIEW, client.register("PageView", PAGE_VIEW))
    key, instance = secrets.token_bytes(16), secrets.randbits(63)
    who: dict[str, Any] = {"server": "web1", "service": "shop", "instance": instance}
    news: dict[str, Any] = {**who, "cluster": "", "time": now_ms(), "seal": seal_of(key)}
    _write(bootstrap, 1, "AuditHello", {**news, "topic": topic, "closedThrough": NOTHING})

    acknowledged: list[tuple[int, int]] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"audited-{instance}", "log_level": 2}
    )
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for sequence in range(number * EVENTS, (number + 1) * EVENTS):
            value = schema.encode({"time": time_ms, **who, "sequence": sequence}, EMPTY_EVENT)

            def delivered(error: object, _: Message, sequence: int = sequence) -> None:
                assert error is None, error
                acknowledged.append((sequence, sequence))

            producer.produce(topic, value, timestamp=time_ms, on_delivery=delivered)
        assert producer.flush(30) == 0
        if number % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    window = {
        "topic": topic,
        "window": window_start(time_ms),
        "acknowledged": to_deltas(sorted(acknowledged)),
        "failed": [],
        "fingerprint": 0,
        "failedFingerprint": 0,
    }
    report = {"number": 0, "key": key, "closedThrough": FOR_EVER, "windows": [window], "fingerprinted": False}
    _write(bootstrap, 2, "AuditReport", {**news, **report})


def _write(bootstrap: str, kind: int, name: str, record: dict[str, Any]) -> None:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema_file(name))), record)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 2})
    producer.produce(AUDIT_TOPIC, bytes((1, kind)) + out.getvalue(), partition=0)
    assert producer.flush(30) == 0
