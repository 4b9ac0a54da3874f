"""`millrace audit-check` on a real broker: a producer that is right, and producers with one mistake each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from millrace.errors import MillraceError
from millrace.records import Record
from millrace_audit.check.audit_records import AuditRecords
from millrace_audit.check.callbacks import CallbackOutcomes, read_outcomes
from millrace_audit.check.checking import check_topic
from millrace_audit.check.findings import Summary, Violation, Violations
from millrace_audit.check.log import Stored
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.fingerprints import fingerprint, wrapped
from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditCodec, Hello, Report, ReportedWindow
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_audit.reports.seals import seal_of
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import Process, run_millrace

Start = Callable[..., Process]
EVENTS = 5
KEYS = [bytes([n]) * 16 for n in range(9)]
WINDOW = window_start(START)


@dataclass
class World:
    """One cluster with an audit topic, and a registry."""

    cluster: TestCluster
    registry: str

    @cached_property
    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True})

    def topic(self) -> str:
        name = f"events-{uuid4().hex[:8]}"
        with self.cluster.client() as client:
            client.create_topic(name, 2)
        return name

    def check(
        self, topic: str, outcomes: CallbackOutcomes | None = None
    ) -> tuple[list[Summary], list[Violation]]:
        with self.cluster.client() as client, SchemaRegistryClient(self.registry) as registry:
            return check_topic(client, registry, topic, outcomes or CallbackOutcomes())


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("check")
    database = f"sqlite:///{folder}/registry.db"
    registry = start_for_module("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    settings = "[log]\nflush_ms = 20\n"
    cluster = TestCluster(start_for_module, f"c{uuid4().hex[:8]}", folder, zookeeper, settings)
    cluster.start_brokers(1)
    with cluster.client() as client:
        client.create_topic("audit", 2)
    return World(cluster, f"http://{registry.ready()}")


@dataclass
class Crafted:
    """A producer whose every record the test writes. `sound` keeps all rules but those that it is given."""

    world: World
    topic: str
    instance: int = field(default_factory=lambda: uuid4().int >> 65)
    number: int = 0

    def write(self, record: Hello | Report, *, partition: int = 0, tail: bytes = b"") -> None:
        with SchemaRegistryClient(self.world.registry) as registry:
            body = AuditCodec(registry).encode(record)[5:]
        kind = 1 if isinstance(record, Hello) else 2
        self.world.producer.produce("audit", bytes([1, kind]) + body + tail, partition=partition)
        assert self.world.producer.flush(30) == 0

    @property
    def names(self) -> dict[str, Any]:
        named = {"cluster": "", "server": "web-1", "service": "shop", "instance": self.instance}
        return {"time": START, **named}

    def hello(self, **changes: Any) -> None:
        said = {**self.names, "topic": self.topic, "seal": seal_of(KEYS[self.number]), **changes}
        self.write(Hello(**said))

    def send(self, *sequences: int, header: bytes | None = None, **changes: Any) -> None:
        headers = changes.pop("headers", None)
        for n in sequences:
            own = header or encode_header(topic_tag(self.topic), self.instance, n, START + n)
            settings = {"timestamp": START + n, "headers": headers or [(HEADER_NAME, own)], **changes}
            self.world.producer.produce(self.topic, value(n), **settings)
        assert self.world.producer.flush(30) == 0

    def report(self, acknowledged: Sequence[int] = (), failed: Sequence[int] = (), **changes: Any) -> None:
        window = ReportedWindow(
            self.topic,
            changes.pop("window", WINDOW),
            SequenceRanges((n, n) for n in acknowledged),
            SequenceRanges((n, n) for n in failed),
            changes.pop("fingerprint", total(acknowledged)),
            changes.pop("failed_fingerprint", total(failed)),
        )
        said = {
            **self.names,
            "number": self.number,
            "key": KEYS[self.number],
            "seal": seal_of(KEYS[self.number + 1]),
            "closed_through": NOTHING,
            "windows": [window] if acknowledged or failed else [],
            **changes,
        }
        self.write(Report(**said))
        self.number += 1

    def end(self) -> None:
        self.report(closed_through=FOR_EVER)

    def sound(self, **changes: Any) -> None:
        self.hello()
        self.send(*range(EVENTS), **changes)
        self.report(range(EVENTS))
        self.end()


def value(sequence: int) -> bytes:
    return f"event {sequence}".encode()


def total(sequences: Sequence[int]) -> int:
    return wrapped(sum(fingerprint(value(n), n) for n in sequences))


@pytest.fixture
def crafted(world: World) -> Crafted:
    return Crafted(world, world.topic())


def texts(world: World, topic: str) -> list[str]:
    return [violation.text for violation in world.check(topic)[1]]


def test_a_sound_producer_breaks_no_rule(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(0, 1, 2, 4)
    crafted.report([0, 1])
    crafted.report([2], [3, 4])  # the fingerprint of 3, which is not in the log, is not compared
    withdrawn = {"closed_through": WINDOW + 600_000 - 1}
    crafted.report(closed_through=WINDOW + 600_000)
    crafted.report([], [2], fingerprint=-total([2]), **withdrawn)  # it failed after it was acknowledged
    crafted.end()
    ((summary,), violations) = crafted.world.check(crafted.topic)
    assert violations == []
    assert (summary.acknowledged, summary.failed, summary.in_log) == (2, 3, 4)
    assert (summary.fingerprints, summary.closed_through, summary.reports) == ("right", "for ever", 5)


def test_a_repeated_report_counts_once(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(*range(EVENTS))
    for _ in range(2):
        crafted.number = 0
        crafted.report(range(EVENTS))
    crafted.end()
    assert texts(crafted.world, crafted.topic) == []


def test_a_producer_without_fingerprints_is_right(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(*range(EVENTS))
    crafted.report(range(EVENTS), fingerprint=0, fingerprinted=False)
    crafted.end()
    ((summary,), violations) = crafted.world.check(crafted.topic)
    assert (summary.fingerprints, violations) == ("absent", [])


def with_header(change: Callable[[Crafted, bytes], bytes | None]) -> Callable[[Crafted], None]:
    """A producer whose first header is changed."""

    def play(crafted: Crafted) -> None:
        crafted.hello()
        header = encode_header(topic_tag(crafted.topic), crafted.instance, 0, START)
        crafted.send(0, headers=[(HEADER_NAME, change(crafted, header))])
        crafted.send(1)
        crafted.report([1], [0])
        crafted.end()

    return play


def tag_of_another_topic(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(0, header=encode_header(topic_tag("audit"), crafted.instance, 0, START))
    crafted.report([], [0])
    crafted.end()


def two_headers(crafted: Crafted) -> None:
    header = encode_header(topic_tag(crafted.topic), crafted.instance, 0, START)
    crafted.hello()
    crafted.send(0, headers=[(HEADER_NAME, header), (HEADER_NAME, b"older")])
    crafted.report([0])
    crafted.end()


def events_then_report(*sequences: int, **report: Any) -> Callable[[Crafted], None]:
    """A producer that sends these events and reports the events 0 to 4."""

    def play(crafted: Crafted) -> None:
        crafted.hello()
        crafted.send(*sequences)
        crafted.report(report.pop("acknowledged", range(EVENTS)), **report)
        crafted.end()

    return play


def no_hello(crafted: Crafted) -> None:
    crafted.send(*range(EVENTS))
    crafted.report(range(EVENTS))
    crafted.end()


def hello_of_another_topic(crafted: Crafted) -> None:
    crafted.hello(topic="another")
    no_hello(crafted)


def no_last_report(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(*range(EVENTS))
    crafted.report(range(EVENTS))


def report_after_the_end(crafted: Crafted) -> None:
    crafted.sound()
    crafted.end()


def missing_report(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(*range(EVENTS))
    crafted.number = 1
    crafted.report(range(EVENTS))
    crafted.end()


def number_used_again(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(*range(EVENTS))
    crafted.report(range(EVENTS))
    crafted.number = 0
    crafted.report(range(EVENTS), time=START + 1)
    crafted.end()


def wrong_key(crafted: Crafted) -> None:
    crafted.hello()
    crafted.report(key=KEYS[5])
    crafted.end()


def second_hello_before_the_report(crafted: Crafted) -> None:
    crafted.hello()
    crafted.hello(topic="another", seal=bytes(32))
    crafted.number = 0
    crafted.report(key=KEYS[0])
    crafted.end()


def other_names(crafted: Crafted) -> None:
    crafted.hello()
    crafted.report(server="web-2")
    crafted.end()


def reported_twice(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(0, 1)
    crafted.report([0, 1])
    crafted.report([1], fingerprint=0)
    crafted.end()


def closed_too_early(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(0, 1)
    crafted.report([0], closed_through=WINDOW + 600_000)
    crafted.report([1], closed_through=WINDOW + 600_000)
    crafted.end()


def event_before_the_promise_of_the_hello(crafted: Crafted) -> None:
    crafted.hello(closed_through=START + 1)
    crafted.send(0)
    crafted.report([0], closed_through=NOTHING)
    crafted.end()


def time_in_seconds(crafted: Crafted) -> None:
    crafted.hello(time=START // 1000)
    crafted.end()


def record_in_another_partition(crafted: Crafted) -> None:
    said = {**crafted.names, "topic": crafted.topic, "seal": seal_of(KEYS[0])}
    crafted.write(Hello(**said), partition=1)
    crafted.end()


def bytes_after_a_record(crafted: Crafted) -> None:
    crafted.hello()
    said = {**crafted.names, "number": 0, "key": KEYS[0], "seal": seal_of(KEYS[1])}
    crafted.write(Report(**said, closed_through=FOR_EVER, windows=[]), tail=b"\0")


def schema_id_of_no_audit_record(crafted: Crafted) -> None:
    crafted.hello()
    crafted.world.producer.produce("audit", b"\x02anything", partition=0)
    crafted.end()


def report_of(*windows: ReportedWindow, **changes: Any) -> Callable[[Crafted], None]:
    """A producer that reports these windows, of a topic that it has announced, too."""

    def play(crafted: Crafted) -> None:
        crafted.hello()
        crafted.hello(topic="another")
        crafted.report(windows=windows, **changes)
        crafted.end()

    return play


def another(window: int, *acknowledged: tuple[int, int]) -> ReportedWindow:
    return ReportedWindow("another", window, SequenceRanges(acknowledged), SequenceRanges())


def both_outcomes_at_once(crafted: Crafted) -> None:
    crafted.hello()
    crafted.send(0)
    crafted.report([0], [0], fingerprint=0)
    crafted.end()


def two_clusters(crafted: Crafted) -> None:
    crafted.hello(cluster="dc1")
    crafted.report(cluster="dc2")
    crafted.end()


def negative_sequence(crafted: Crafted) -> None:
    crafted.hello()
    crafted.report([], [-1])
    crafted.end()


def header_in_the_value(server: str, cut: int | None = None) -> Callable[[Crafted], None]:
    """A producer whose one event has its header in its value."""

    def play(crafted: Crafted) -> None:
        crafted.hello()
        header = {"time": START, "server": server, "service": "shop", "instance": crafted.instance}
        with SchemaRegistryClient(crafted.world.registry) as registry:
            schema_id = registry.register("PageView", PAGE_VIEW)
        event = EventSchema(PAGE_VIEW, schema_id).encode({**header, "sequence": 0}, EVENT)[:cut]
        crafted.world.producer.produce(crafted.topic, event, timestamp=START)
        assert crafted.world.producer.flush(30) == 0
        crafted.report([], [0], failed_fingerprint=wrapped(fingerprint(event)))
        crafted.end()

    return play


def changed(at: int, new: bytes) -> Callable[[Crafted, bytes], bytes]:
    return lambda _, header: header[:at] + new + header[at + len(new) :]


BROKEN: dict[str, tuple[Any, ...]] = {
    "header too short": (with_header(lambda _, header: header[:28]), "it has 28 bytes instead of 29"),
    "header without value": (with_header(lambda *_: None), "it has no value instead of 29 bytes"),
    "version": (with_header(changed(0, b"\2")), "its version is 2 instead of 1"),
    "unknown tag": (with_header(changed(1, b"\0\0\0\0")), "its tag is not the CRC-32"),
    "little-endian tag": (
        with_header(lambda c, h: h[:1] + topic_tag(c.topic).to_bytes(4, "little") + h[5:]),
        "its tag is little-endian",
    ),
    "negative instance": (with_header(changed(5, b"\xff")), "its instance is negative"),
    "negative sequence": (with_header(changed(13, b"\xff")), "its sequence is negative"),
    "no time": (with_header(changed(21, b"\x80" + bytes(7))), "its time is before"),
    "time in seconds in the header": (
        with_header(changed(21, (START // 1000).to_bytes(8, "big"))),
        "the event's time is before 2000, or over a day ahead",
        "sequences in the log, but in no report: 0.",
    ),
    "tag of another topic": (tag_of_another_topic, "its tag is that of topic audit"),
    "two headers": (two_headers, "several headers are named millrace.audit"),
    "another header": (
        lambda c: c.sound(headers=[("audit", b"")]),
        "the message has no audit header",
        "not in the log: 0-4.",
    ),
    "timestamp": (lambda c: c.sound(timestamp=START - 1), "the record's timestamp is not the header's time"),
    "hole": (
        events_then_report(0, 1, 3, 4, acknowledged=[0, 1, 3, 4]),
        "sequences neither in the log nor in a report: 2.",
    ),
    "number twice": (events_then_report(0, 1, 1, 2, 3, 4), "sequences in the log more than once: 1."),
    "not in the log": (
        events_then_report(0, 1, 2, 3),
        "sequences reported as acknowledged, but not in the log: 4.",
    ),
    "never reported": (events_then_report(*range(EVENTS + 1)), "sequences in the log, but in no report: 5."),
    "wrong fingerprint": (
        events_then_report(*range(EVENTS), fingerprint=1),
        "fingerprint of window 2015-05-17T10:00:00Z is not the sum",
    ),
    "fingerprint without fingerprints": (
        events_then_report(*range(EVENTS), fingerprinted=False),
        "fingerprinted is false, and a fingerprint is not 0",
    ),
    "another window": (
        events_then_report(*range(EVENTS), window=WINDOW + 600_000),
        "sequences reported in another window than that of their headers: 0-4.",
    ),
    "no window": (
        events_then_report(*range(EVENTS), window=WINDOW + 1),
        "is no window: write time - time mod 600000",
        "sequences reported in another window",
    ),
    "no hello": (
        no_hello,
        "its events have no hello: before the first event",
        "no hello of the instance comes before the report",
    ),
    "hello of another topic": (
        hello_of_another_topic,
        "its events have no hello of this topic",
        "no hello of the topic comes before a report with its events",
    ),
    "no last report": (no_last_report, "it has no last report"),
    "report after the end": (report_after_the_end, "it follows the last report"),
    "missing report": (missing_report, "report 0 is missing"),
    "report number again": (number_used_again, "the report's number was used before"),
    "wrong key": (wrong_key, "the SHA-256 of the report's key is not the seal"),
    "wrong seal": (
        second_hello_before_the_report,
        "the hello's seal is not the seal of the last",
        "the SHA-256 of the report's key is not the seal",
    ),
    "names": (other_names, "server or service differs from the first hello"),
    "reported twice": (reported_twice, "sequences 1: a sequence is reported twice"),
    "both outcomes": (both_outcomes_at_once, "sequences 0: a sequence is reported twice"),
    "negative number": (negative_sequence, "a sequence is negative"),
    "windows": (
        report_of(*(another(WINDOW + n * 600_000) for n in range(1001))),
        "the report has more than 1,000 windows",
    ),
    "ranges": (
        report_of(another(WINDOW, *((2 * n, 2 * n) for n in range(20_001)))),
        "the report has more than 20,000 ranges",
    ),
    "clusters": (two_clusters, "the cluster differs from an earlier record"),
    "long name": (lambda c: c.hello(service="s" * 256), "a name has more than 255 bytes", "no last report"),
    "names in the value": (header_in_the_value("web-2"), "server or service differs from the first hello"),
    "cut value": (header_in_the_value("web-1", 12), "the header in its value is cut off"),
    "closed too early": (
        closed_too_early,
        "the report has a window that an earlier closedThrough has closed",
    ),
    "hello's promise": (
        event_before_the_promise_of_the_hello,
        "the event is older than closedThrough of the hello",
    ),
    "time in seconds": (time_in_seconds, "is before 2000 or after 9999"),
    "partition": (
        record_in_another_partition,
        "the hello or report is not in partition 0",
        "no hello and no event of a producer was found",
    ),
    "trailing bytes": (
        bytes_after_a_record,
        "bytes follow the end of its AuditReport",
        "it has no last report",
    ),
    "first byte": (schema_id_of_no_audit_record, "it begins neither with the byte 1"),
}


WITHOUT_HELLO = "no hello", "hello of another topic", "partition"


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_of_a_producer_is_named(crafted: Crafted, mistake: str) -> None:
    play, *sentences = BROKEN[mistake]
    play(crafted)
    found = texts(crafted.world, crafted.topic)
    if mistake in WITHOUT_HELLO:  # then earlier records that cannot be read may be the producer's
        found = [text for text in found if "no hello or report can be read" not in text]
    assert len(found) == len(sentences), found
    assert all(any(part in text for text in found) for part in sentences), found


def test_a_mistake_is_named_once_with_its_first_place(crafted: Crafted) -> None:
    crafted.sound(timestamp=START - 1, partition=1)
    (text,) = texts(crafted.world, crafted.topic)
    assert text.startswith(f"{crafted.topic}-1 offset 0 and 4 more: ")


def test_a_record_of_an_aborted_transaction_is_named(world: World) -> None:
    hello = Hello(time=START, cluster="", server="", service="", instance=1, topic="events", seal=bytes(32))
    with SchemaRegistryClient(world.registry) as registry:
        codec = AuditCodec(registry)
        records = AuditRecords("events", codec, Violations())
        stored = Stored(0, Record(0, START, None, codec.encode(hello)), False, False)
        records.take(stored)
        assert not records.instances
        (violation,) = records.unreadable.of({None})
        assert "the record belongs to an aborted transaction" in violation.text
        records.take(stored._replace(is_committed=True))
        assert list(records.instances) == [1]


def test_other_producers_of_the_audit_topic_do_not_matter(world: World, crafted: Crafted) -> None:
    other = Crafted(world, world.topic())
    no_hello(other)
    world.producer.produce("audit", b"of an earlier trial", partition=0)
    crafted.sound()
    assert texts(world, crafted.topic) == []


def test_a_topic_without_a_producer_is_not_right(world: World) -> None:
    assert "no hello and no event of a producer was found" in "".join(texts(world, world.topic()))


def test_an_unknown_topic_is_named(world: World) -> None:
    with pytest.raises(MillraceError, match="no-such-topic"):
        world.check("no-such-topic")


OUTCOMES = {
    "a failure reported as acknowledged": (
        [("acknowledged", n) for n in range(EVENTS - 1)] + [("failed", 4)],
        [
            "reported as acknowledged, but without this outcome in the file: 4",
            "failed in the file, but not reported so: 4",
        ],
        [
            "reported as acknowledged, but without this outcome in the file: 1",
            "failed in the file: 1, but reported as failed: 0",
        ],
    ),
    "an event too many": (
        [("acknowledged", n) for n in range(EVENTS + 1)],
        ["sequences acknowledged in the file, but not reported so: 5"],
        ["events acknowledged in the file, but not in the log or not reported so: 1"],
    ),
    "right": ([("acknowledged", n) for n in range(EVENTS)], [], []),
}


@pytest.mark.parametrize("case", OUTCOMES)
@pytest.mark.parametrize("by_hash", [False, True])
def test_reports_are_held_against_the_callbacks(
    crafted: Crafted, tmp_path: Path, case: str, by_hash: bool
) -> None:
    given, by_sequence, of_hashes = OUTCOMES[case]
    file = tmp_path / "outcomes.jsonl"
    with file.open("w") as lines:
        for outcome, n in given:
            known = {"sha256": sha256(value(n)).hexdigest()} if by_hash else {"sequence": n}
            lines.write(json.dumps({**known, "outcome": outcome}) + "\n")
    crafted.sound()
    expected = of_hashes if by_hash else by_sequence
    found = [violation.text for violation in crafted.world.check(crafted.topic, read_outcomes(file))[1]]
    assert len(found) == len(expected), found
    assert all(part in text for part, text in zip(expected, found, strict=True)), found


def test_outcomes_of_several_instances_need_their_numbers(world: World, crafted: Crafted) -> None:
    crafted.sound()
    Crafted(world, crafted.topic).sound()
    outcomes = CallbackOutcomes()
    outcomes.add('{"sequence": 0, "outcome": "failed"}')
    with pytest.raises(MillraceError, match="an outcome names no instance"):
        world.check(crafted.topic, outcomes)


@pytest.mark.parametrize("line", ["acknowledged", "{}", '{"sequence": "1", "outcome": "failed"}', "[1]"])
def test_a_line_that_is_no_outcome_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text('{"sequence": 0, "outcome": "failed"}\n' + line + "\n")
    with pytest.raises(MillraceError, match="line 2 is no outcome"):
        read_outcomes(file)


def test_the_command_accepts_an_audited_producer_with_both_headers(world: World) -> None:
    topic = world.topic()
    names: dict[str, Any] = {"cluster": world.cluster.name, "server": "web-1", "service": "shop"}
    with AuditedProducer(world.cluster.bootstrap, world.registry, **names) as producer:
        for n in range(100):
            producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n)
            producer.send_value(topic, None if n % 5 else b"{}", time_ms=START + 600_000 + n)
    options = (topic, "--bootstrap", world.cluster.bootstrap, "--registry", world.registry)
    done = run_millrace("audit-check", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{topic}: the producer follows the protocol" in done.stdout
    said = json.loads(run_millrace("audit-check", *options, "--json").stdout)
    (instance,) = said["instances"]
    assert (instance["acknowledged"], instance["in_log"], instance["windows"]) == (200, 200, 2)
    assert said["violations"] == []


def test_the_command_refuses_a_wrong_producer(world: World, crafted: Crafted) -> None:
    no_last_report(crafted)
    done = run_millrace(
        "audit-check", crafted.topic, "--bootstrap", world.cluster.bootstrap, "--registry", world.registry
    )
    assert done.returncode == 1
    assert f"instance {crafted.instance}: it has no last report" in done.stdout
