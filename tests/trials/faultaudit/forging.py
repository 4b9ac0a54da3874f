"""Forgeries of somebody with no right but to produce: a plain producer's messages in others' names.

Knows how events and audit records are laid out. Has no secret of a reader and no key of an instance.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from millrace_audit.reports.event import EventSchema, read_header
from millrace_audit.reports.fingerprints import fingerprint
from millrace_audit.reports.messages import AuditCodec, AuditRecord, Hello, Report, now_ms
from millrace_audit.reports.seals import seal_of
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import read_partition
from tests.support import WAIT_S
from tests.trials.faultaudit.batches import url
from tests.trials.faultaudit.place import PAGE_VIEW, Place
from tests.trials.faultaudit.stage import EVENT
from tests.xxh64 import forged

SERVER = "-web"
"""Behind the cluster's name, as `place` calls its producers."""


def write(
    place: Place, cluster: str, topic: str, messages: Iterable[tuple[bytes | None, bytes, int]]
) -> None:
    """Messages (key, value, time) into partition 0, all acknowledged."""
    producer = Producer({"bootstrap.servers": place.clusters[cluster].bootstrap, "linger.ms": 50})
    for key, value, time_ms in messages:
        producer.produce(topic, value, key, partition=0, timestamp=max(time_ms, 0))
    assert producer.flush(WAIT_S) == 0, f"{cluster} takes nothing on {topic}"


def values(place: Place, cluster: str, topic: str, partition: int = 0) -> list[bytes]:
    """Return the messages of a partition, byte for byte."""
    with place.clusters[cluster].client() as client:
        return [value or b"" for value in read_partition(client, topic, partition).values]


def event(place: Place, instance: int, sequence: int, time_ms: int, cluster: str) -> bytes:
    """An event in the name of an instance."""
    with SchemaRegistryClient(place.registry) as registry:
        schema = EventSchema(PAGE_VIEW, registry.register("PageView", PAGE_VIEW))
    names = {"server": f"{cluster}{SERVER}", "service": "shop", "instance": instance}
    header = {"time": time_ms, **names, "sequence": sequence}
    return schema.encode(header, {**EVENT, "url": url(sequence)})


def same_xxh64(place: Place, lost: bytes) -> bytes:
    """Return another event with the number and the XXH64 of a lost event."""
    header = read_header(lost)
    with SchemaRegistryClient(place.registry) as registry:
        schema = EventSchema(PAGE_VIEW, registry.register("PageView", PAGE_VIEW))
    message_of = lambda text: schema.encode(header._asdict(), {**EVENT, "url": f"/forged/{text}"})  # noqa: E731
    return forged(message_of, fingerprint(lost))


def say(place: Place, cluster: str, topic: str, record: AuditRecord, key: bytes | None = None) -> None:
    """An audit record on that audit topic, with a key of somebody's own."""
    with SchemaRegistryClient(place.registry) as registry:
        value = AuditCodec(registry).encode(record)
    write(place, cluster, topic, [(key, value, now_ms())])


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
