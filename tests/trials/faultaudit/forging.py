"""Forgeries of somebody with no right but to produce: a plain producer's messages in others' names.

Knows how events and audit records are laid out. Has no secret of a reader and no key of an instance.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer

from millrace.records.messages import Record
from millrace_audit.reports.event import EventSchema, ValueSchema, has_header, read_header
from millrace_audit.reports.fingerprints import fingerprint
from millrace_audit.reports.messages import AuditCodec, AuditRecord, Hello, Report, now_ms
from millrace_audit.reports.record_header import HEADER_NAME, audit_header, encode_header, topic_tag
from millrace_audit.reports.seals import seal_of
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import read_partition
from tests.support import WAIT_S
from tests.trials.faultaudit.batches import url
from tests.trials.faultaudit.place import Place
from tests.trials.faultaudit.stage import EVENT, START
from tests.xxh64 import forged

SERVER = "-web"
"""Behind the cluster's name, as `place` calls its producers."""


def message(value: bytes, time_ms: int, key: bytes | None = None) -> Record:
    """Return a message that is yet to be written, without headers."""
    return Record(0, time_ms, key, value)


def write(place: Place, cluster: str, topic: str, messages: Iterable[Record]) -> None:
    """Messages into partition 0, all acknowledged; their offsets do not count."""
    producer = Producer({"bootstrap.servers": place.clusters[cluster].bootstrap, "linger.ms": 50})
    for each in messages:
        headers: list[tuple[str, str | bytes | None]] = [*each.headers]
        time_ms = max(each.timestamp, 0)
        producer.produce(topic, each.value, each.key, partition=0, timestamp=time_ms, headers=headers)
    assert producer.flush(WAIT_S) == 0, f"{cluster} takes nothing on {topic}"


def messages(place: Place, cluster: str, topic: str, partition: int = 0) -> Sequence[Record]:
    """Return the messages of a partition, byte for byte."""
    with place.clusters[cluster].client() as client:
        return read_partition(client, topic, partition).records


def event(place: Place, topic: str, instance: int, sequence: int, time_ms: int, cluster: str) -> Record:
    """An event in the name of an instance."""
    schema, event = _schema(place, topic), {**EVENT, "url": url(sequence)}
    if isinstance(schema, ValueSchema):
        header = encode_header(topic_tag(topic), instance, sequence, time_ms)
        return replace(message(schema.encode(event), START), headers=((HEADER_NAME, header),))
    names = {"server": f"{cluster}{SERVER}", "service": "shop", "instance": instance}
    return message(schema.encode({"time": time_ms, **names, "sequence": sequence}, event), START)


def same_xxh64(place: Place, topic: str, lost: Record) -> Record:
    """Return another event with the number and the XXH64 of a lost event."""
    schema, value = _schema(place, topic), lost.value or b""
    in_record = audit_header(lost.headers, topic_tag(topic))
    seed = 0 if in_record is None else in_record.sequence

    def value_of(text: str) -> bytes:
        event = {**EVENT, "url": f"/forged/{text}"}
        if isinstance(schema, ValueSchema):
            return schema.encode(event)
        return schema.encode(read_header(value)._asdict(), event)

    return replace(lost, value=forged(value_of, fingerprint(value, seed), seed))


def _schema(place: Place, topic: str) -> EventSchema | ValueSchema:
    """Return the encoder of the topic's events."""
    with SchemaRegistryClient(place.registry) as registry:
        newest = registry.latest(topic)
    kind = EventSchema if has_header(newest.schema) else ValueSchema
    return kind(newest.schema, newest.schema_id)


def say(place: Place, cluster: str, topic: str, record: AuditRecord, key: bytes | None = None) -> None:
    """An audit record on that audit topic, with a key of somebody's own."""
    with SchemaRegistryClient(place.registry) as registry:
        value = AuditCodec(registry).encode(record)
    write(place, cluster, topic, [message(value, now_ms(), key)])


def names(cluster: str, instance: int) -> dict[str, Any]:
    """Return the names by which an instance calls itself."""
    return {"cluster": cluster, "server": f"{cluster}{SERVER}", "service": "shop", "instance": instance}


def hello(cluster: str, instance: int, topic: str) -> Hello:
    """A hello of an instance, sealed with another key than its own."""
    seal = seal_of(secrets.token_bytes(16))
    return Hello(time=now_ms(), topic=topic, seal=seal, **names(cluster, instance))


def report(cluster: str, instance: int, number: int, closed_through: int) -> Report:
    """A report of an instance without news, under another key than its own."""
    key, seal = secrets.token_bytes(16), seal_of(secrets.token_bytes(16))
    said: dict[str, Any] = {"number": number, "closed_through": closed_through, **names(cluster, instance)}
    return Report(time=now_ms(), windows=[], key=key, seal=seal, **said)
