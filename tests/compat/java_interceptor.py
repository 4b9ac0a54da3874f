"""The jar that audits Java producers: built by Maven, run in a service of its own, checked event by event."""

from __future__ import annotations

import fcntl
import hashlib
import json
import struct
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from millrace.zookeeper.embedded import find_java
from millrace_audit.reports.messages import AuditCodec, Hello, Report
from millrace_registry.client import SchemaRegistryClient
from tests.peers import maven
from tests.support import REPOSITORY, start_for_the_test_run

SOURCES = Path(__file__).with_name("java")
FOR_EVER = 2**63 - 1
BUILD_S = 300


def build_jar() -> Path:
    """Build the jar, and return its path."""
    project = REPOSITORY / "plugins" / "java"
    maven.CACHE.mkdir(parents=True, exist_ok=True)
    with open(maven.CACHE / "millrace-audit.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["mvn", "-q", "-B", "-ntp", "-f", str(project), "package"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (jar,) = (project / "target").glob("millrace-audit-*.jar")
    return jar


def class_path(clients: str) -> str:
    """Return the class path of a service with the jar and a version of kafka-clients, such as 4.1."""
    pom = Path(maven.__file__).with_name(f"kafka-clients-{clients.replace('.', '-')}.pom.xml")
    return f"{build_jar()}:{maven.class_path(pom)}"


def start_service(
    clients: str, topic: str, events: int, case: str, outcomes: Path, **properties: object
) -> subprocess.Popen[str]:
    """Start InterceptedProducer; underscores of property names stand for dots."""
    settings = {
        "interceptor_classes": "io.millrace.audit.AuditInterceptor",
        "millrace_service": "checkout",
        "acks": "all",
        "enable_idempotence": "true",
        **properties,
    }
    words = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log]
    return start_for_the_test_run(
        [
            *java,
            "-cp",
            class_path(clients),
            str(SOURCES / "InterceptedProducer.java"),
            topic,
            str(events),
            case,
            str(outcomes),
            *words,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


@dataclass
class Told:
    """Reports of one instance about a topic, added up."""

    acknowledged: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    fingerprint: int = 0
    failed_fingerprint: int = 0
    is_fingerprinted: bool = True
    closed_through: int = -(2**63)


@dataclass
class Evidence:
    """Contents of the log and the reports about a topic, by instance."""

    log: dict[int, dict[int, bytes]]
    """Sequence -> value."""
    told: dict[int, Told]
    foreign: int

    def numbers(self, instance: int, sequences: set[int]) -> set[int]:
        """Return the numbers that the service gave to those of the events that are in the log."""
        log = self.log.get(instance, {})
        return {json.loads(log[sequence])["n"] for sequence in sequences if sequence in log}


def read_evidence(bootstrap: str, topic: str, *, committed: bool = False) -> Evidence:
    """Read the log and the reports, and check what must hold in any case."""
    log: dict[int, dict[int, bytes]] = defaultdict(dict)
    foreign = 0
    tag = zlib.crc32(topic.encode())
    for message in _messages(bootstrap, topic, committed=committed):
        headers = [value for name, value in _headers(message) if name == "millrace.audit"]
        if not headers:
            foreign += 1
            continue
        (header,) = headers
        version, its_tag, instance, sequence, time = struct.unpack(">BIqqq", header)
        assert (version, its_tag, time) == (1, tag, message.timestamp()[1])
        assert sequence not in log[instance], f"sequence {sequence} is in the log twice"
        log[instance][sequence] = message.value() or b""
    return Evidence(dict(log), _told(bootstrap, topic), foreign)


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
    expected = sum(xxhash.xxh64_intdigest(log[sequence]) for sequence in told.acknowledged)
    assert (told.fingerprint - expected) % 2**64 == 0


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


def read_outcomes(path: Path) -> tuple[set[int], set[int]]:
    """Return the numbers of the events that the service's callbacks saw acknowledged, and failed."""
    words = path.read_text().split()
    assert set(words) <= {"a", "f"}, Counter(words)
    return (
        {n for n, word in enumerate(words) if word == "a"},
        {n for n, word in enumerate(words) if word == "f"},
    )


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
