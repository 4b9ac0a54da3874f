"""Traces of an audited service: its messages in the log, its reports, and its callbacks' outcomes."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditCodec, Hello, Report
from millrace_registry.client import SchemaRegistryClient


@dataclass
class Told:
    """Reports of one instance about a topic, added up."""

    acknowledged: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    fingerprint: int = 0
    failed_fingerprint: int = 0
    is_fingerprinted: bool = True
    closed_through: int = NOTHING


@dataclass
class Evidence:
    """Contents of the log and the reports about a topic, by instance."""

    log: dict[int, dict[int, bytes]]
    """Sequence -> value."""
    told: dict[int, Told]
    foreign: int
    """Messages without the audit header."""
    others: Counter[tuple[str, bytes]]
    """Other record headers."""

    def numbers(self, instance: int, sequences: set[int]) -> set[int]:
        """Return the numbers that the service gave to those of the events that are in the log."""
        log = self.log.get(instance, {})
        return {json.loads(log[sequence])["n"] for sequence in sequences if sequence in log}


def read_evidence(bootstrap: str, topic: str, *, committed: bool = False) -> Evidence:
    """Read the log and the reports, and check what must hold in any case."""
    log: dict[int, dict[int, bytes]] = defaultdict(dict)
    foreign, others = 0, Counter[tuple[str, bytes]]()
    tag = zlib.crc32(topic.encode())
    for message in _messages(bootstrap, topic, committed=committed):
        headers = [value for name, value in _headers(message) if name == "millrace.audit"]
        others.update(header for header in _headers(message) if header[0] != "millrace.audit")
        if not headers:
            foreign += 1
            continue
        (header,) = headers
        version, its_tag, instance, sequence, time = struct.unpack(">BIqqq", header)
        assert (version, its_tag, time) == (1, tag, message.timestamp()[1])
        assert sequence not in log[instance], f"sequence {sequence} is in the log twice"
        log[instance][sequence] = message.value() or b""
    return Evidence(dict(log), _told(bootstrap, topic), foreign, others)


def _headers(message: Message) -> list[tuple[str, bytes]]:
    headers: Any = message.headers()  # the binding's types allow forms that only producers use
    return headers or []


def _told(bootstrap: str, topic: str) -> dict[int, Told]:
    told: dict[int, Told] = {}
    seals: dict[int, bytes] = {}
    numbers: Counter[int] = Counter()
    with SchemaRegistryClient("http://127.0.0.1:1") as registry:  # this framing needs no registry
        codec = AuditCodec(registry)
        for message in _messages(bootstrap, "audit"):
            record = codec.decode(message.value())
            assert isinstance(record, Hello | Report), message.value()
            assert record.cluster == ""
            if isinstance(record, Hello):
                seals.setdefault(record.instance, record.seal)
                assert seals[record.instance] == record.seal
                if record.topic == topic:
                    told.setdefault(record.instance, Told())
                continue
            if record.number < numbers[record.instance]:
                continue  # sent again
            assert record.number == numbers[record.instance]
            numbers[record.instance] += 1
            assert hashlib.sha256(record.key).digest() == seals[record.instance]
            seals[record.instance] = record.seal
            _add(record, topic, told)
    return told


def _add(report: Report, topic: str, told: dict[int, Told]) -> None:
    assert len(report.windows) <= 1_000
    assert sum(len(list(w.acknowledged)) + len(list(w.failed)) for w in report.windows) <= 20_000
    if report.instance not in told:
        return
    one = told[report.instance]
    one.closed_through = report.closed_through
    for window in report.windows:
        if window.topic != topic:
            continue
        for ranges, sequences in ((window.acknowledged, one.acknowledged), (window.failed, one.failed)):
            for first, last in ranges:
                new = set(range(first, last + 1))
                assert not new & (one.acknowledged | one.failed), "a sequence is reported twice"
                sequences |= new
        one.fingerprint += window.fingerprint
        one.failed_fingerprint += window.failed_fingerprint
        one.is_fingerprinted &= report.fingerprinted


def check_fingerprint(evidence: Evidence, instance: int) -> None:
    """Check the sum of the acknowledged values."""
    told, log = evidence.told[instance], evidence.log[instance]
    assert told.is_fingerprinted
    expected = sum(xxhash.xxh64_intdigest(log[sequence], sequence) for sequence in told.acknowledged)
    assert (told.fingerprint - expected) % 2**64 == 0


def read_outcomes(path: Path) -> tuple[set[int], set[int]]:
    """Return the numbers of the events that the service's callbacks saw acknowledged, and failed."""
    words = path.read_text().split()
    assert set(words) <= {"a", "f"}, Counter(words)
    return (
        {n for n, word in enumerate(words) if word == "a"},
        {n for n, word in enumerate(words) if word == "f"},
    )


def check_exact(evidence: Evidence, outcomes: Path) -> None:
    """Check that one instance reported each event as its callback saw it, and has ended."""
    ((instance, told),) = evidence.told.items()
    acknowledged, failed = read_outcomes(outcomes)
    assert evidence.numbers(instance, told.acknowledged) == acknowledged
    assert len(told.acknowledged) == len(acknowledged)
    assert len(told.failed) == len(failed)
    assert evidence.numbers(instance, told.failed) <= failed
    assert told.acknowledged | told.failed == set(range(len(acknowledged) + len(failed)))
    assert told.closed_through == FOR_EVER
    assert evidence.foreign == 0


def check_never_wrong(evidence: Evidence, outcomes: Path) -> None:
    """Check that no failed event is reported as acknowledged, and that no event is left out."""
    ((instance, told),) = evidence.told.items()
    acknowledged, failed = read_outcomes(outcomes)
    assert evidence.numbers(instance, told.acknowledged) <= acknowledged
    assert told.acknowledged <= set(evidence.log.get(instance, {}))
    assert told.acknowledged | told.failed == set(range(len(acknowledged) + len(failed)))
    assert told.closed_through == FOR_EVER


def check_killed(evidence: Evidence, events: int) -> None:
    """Check that a killed service with all its events in the log reported no other, and has not ended."""
    ((instance, told),) = evidence.told.items()
    assert set(evidence.log[instance]) == set(range(events))
    assert told.acknowledged <= set(evidence.log[instance])
    assert not told.failed
    assert told.closed_through != FOR_EVER


def _messages(bootstrap: str, topic: str, *, committed: bool = False) -> Iterator[Message]:
    isolation = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    try:
        left = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            message = consumer.poll(60)
            assert message is not None, f"{topic} cannot be read to its end"
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()
