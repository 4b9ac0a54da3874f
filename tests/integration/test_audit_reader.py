"""The auditing reader on real brokers and ZooKeeper: every message is counted once, whatever is killed."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from millrace.cli import cli
from millrace.client.cluster_client import LATEST
from millrace.errors import MillraceError
from millrace.topics_file import FINGERPRINTS, VARIABLE
from millrace.zookeeper.session import Session
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.fingerprints import fingerprint, is_strong, wrapped
from millrace_audit.reports.messages import (
    NOTHING,
    AuditCodec,
    AuditRecord,
    Count,
    Heartbeat,
    Origin,
    Report,
    Truncated,
)
from millrace_audit.reports.turns import Seat, TurnBook, read_turns
from millrace_broker.storage.log_directory import read_owner
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster, free_port, read_topic
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import ROUNDS, WAIT_S, Process, wait_until

Start = Callable[..., Process]


@dataclass
class Counted:
    """Sums of a tier's counts for one topic, by the rules of docs/audit-protocol.md."""

    counts: SequenceCounts = field(default_factory=SequenceCounts)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    foreign: dict[int, tuple[int, int]] = field(default_factory=dict)
    refused: int = 0
    """Counts that did not go on where their partition was counted."""

    def sequences(self, instance: int) -> list[list[int]]:
        (tally,) = (t for key, t in self.counts.tallies.items() if key.instance == instance)
        assert not tally.repeated
        return tally.present.pairs()


@dataclass
class World:
    """A cluster that is produced to, and the aggregate one that mirrors it."""

    start: Start
    zookeeper: str
    registry: str
    dc1: TestCluster
    offline: TestCluster
    folder: Path

    def topic(self, partitions: int = 2) -> str:
        name = f"events-{uuid4().hex[:8]}"
        with self.dc1.client() as client:
            client.create_topic(name, partitions)
        return name

    def reader(self, tier: str, *options: str, cluster: TestCluster | None = None) -> Process:
        cluster = cluster or self.dc1
        name = cluster.name if tier == "offline" else tier
        return self.start(
            "audit-reader",
            *("--cluster", name, "--tier", tier, "--bootstrap", cluster.bootstrap, "--interval-ms", "50"),
            *("--registry", self.registry, "--zookeeper", self.zookeeper, *options),
        )

    def producer(self) -> AuditedProducer:
        return AuditedProducer(
            self.dc1.bootstrap, self.registry, cluster="dc1", server="web-1", service="shop"
        )

    def said(
        self, tier: str, topic: str, cluster: TestCluster | None = None
    ) -> list[tuple[int, AuditRecord]]:
        """Return the records that a tier's readers have signed, in order, each with its turn."""
        cluster = cluster or (self.offline if topic == "audit-offline" else self.dc1)
        with closing(Session.connect(self.zookeeper)) as session, cluster.client() as client:
            if topic not in client.topics():
                return []
            records = [r for contents in read_topic(client, topic).values() for r in contents.records]
            book, found = TurnBook(session, self.offline.name), []
            with SchemaRegistryClient(self.registry) as registry:
                codec = AuditCodec(registry)
                for record in records:
                    turn = book.signed(tier, record.key, record.value or b"", 1)
                    decoded = codec.decode(record.value)
                    if turn is not None and decoded is not None:
                        found.append((turn, decoded))
        return found

    def beats(self, tier: str) -> list[Heartbeat]:
        records = self.said(tier, "audit-counts")
        return [record for _, record in records if isinstance(record, Heartbeat)]

    def counted(self, tier: str, topic: str, counts_topic: str = "audit-counts") -> Counted:
        counted, newest = Counted(), -1
        for turn, record in self.said(tier, counts_topic):
            if turn < newest or not isinstance(record, Count) or record.topic != topic:
                newest = max(turn, newest)
                continue
            newest = turn
            key = (record.topic_id, record.partition)
            if counted.ends.setdefault(key, record.start) != record.start:
                counted.refused += 1
                continue
            counted.ends[key] = record.end
            counted.counts.merge(record.counts)
            for some in record.foreign:
                before = counted.foreign.get(some.window, (0, 0))
                total = wrapped(before[1] + some.fingerprint)
                counted.foreign[some.window] = (before[0] + some.messages, total)
        return counted

    def await_counted(
        self, tier: str, topic: str, messages: int, counts_topic: str = "audit-counts"
    ) -> Counted:
        found: list[Counted] = []

        def complete() -> bool:
            found.append(self.counted(tier, topic, counts_topic))
            return found[-1].counts.total + sum(n for n, _ in found[-1].foreign.values()) >= messages

        wait_until(f"{messages} messages of {topic} counted at {tier}", complete)
        return found[-1]


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, run = tmp_path_factory.mktemp("reader"), uuid4().hex[:6]
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    log = "[log]\nflush_ms = 20\n"
    dc1 = TestCluster(start_for_module, f"dc1-{run}", folder, zookeeper, log, known_as="dc1")
    dc1.start_brokers(1)
    mirror = f'{log}[mirror.dc1]\nbootstrap = "{dc1.bootstrap}"\ntopics = ["*"]\n'
    offline = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, mirror)
    offline.start_brokers(1)
    with dc1.client() as client:
        client.create_topic("audit", 1)
    return World(start_for_module, zookeeper, f"http://{registry.ready()}", dc1, offline, folder)


@pytest.fixture
def tier() -> str:
    """A tier of this test's own: whose turn it is is kept by tier."""
    return f"dc-{uuid4().hex[:8]}"


@pytest.fixture
def ended(world: World) -> Iterator[list[Process]]:
    """Readers that are killed when the test ends."""
    readers: list[Process] = []
    yield readers
    for reader in readers:
        reader.kill()


def send(producer: AuditedProducer, topic: str, count: int) -> None:
    for n in range(count):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n)


@pytest.mark.parametrize("kind", FINGERPRINTS)
def test_what_is_reported_is_what_is_counted_fingerprints_too(
    world: World, tier: str, ended: list[Process], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic()
    (tmp_path / "topics.toml").write_text(f'[{topic}]\nfingerprint = "{kind}"\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "topics.toml"))
    ended.append(world.reader(tier))
    with world.producer() as producer:
        send(producer, topic, 700)
    counted = world.await_counted(tier, topic, 700)
    assert counted.sequences(producer.instance) == [[0, 699]]
    with world.dc1.client() as client, SchemaRegistryClient(world.registry) as registry:
        codec = AuditCodec(registry)
        reports = [codec.decode(value) for value in read_topic(client, "audit")[0].values]
    told = [
        w for r in reports if isinstance(r, Report) and r.instance == producer.instance for w in r.windows
    ]
    (tally,) = counted.counts.tallies.values()
    assert tally.fingerprint == wrapped(sum(window.fingerprint for window in told)) != 0
    assert is_strong(tally.fingerprint) == (kind == "strong")


def test_what_is_reported_before_a_heartbeats_mark_is_counted_before_it(
    world: World, tier: str, ended: list[Process]
) -> None:
    topic = world.topic()
    ended.append(world.reader(tier))
    for _ in range(5):
        with world.producer() as producer:
            send(producer, topic, 50)
    world.await_counted(tier, topic, 250)
    with world.dc1.client() as client, SchemaRegistryClient(world.registry) as registry:
        codec = AuditCodec(registry)
        # Where each report ends: behind it everything that it names must be counted.
        reports = [(r.offset, codec.decode(r.value)) for r in read_topic(client, "audit")[0].records]

    def past_all() -> bool:
        return (world.beats(tier)[-1].reported_through or 0) > reports[-1][0]

    wait_until("a heartbeat past every report", past_all)
    there, checked = SequenceCounts(), 0
    for _, record in world.said(tier, "audit-counts"):
        if isinstance(record, Count) and record.topic == topic:
            there.merge(record.counts)
        if isinstance(record, Heartbeat) and record.reported_through is not None:
            for offset, report in reports:
                if offset < record.reported_through and isinstance(report, Report):
                    for window in (w for w in report.windows if w.topic == topic):
                        counted = there.tallies["web-1", "shop", report.instance, window.window]  # type: ignore[index]
                        assert not (window.acknowledged - counted.present), offset
                        checked += 1
    assert checked >= 5


def test_messages_without_a_header_are_counted_by_window_with_their_fingerprint(
    world: World, tier: str, ended: list[Process]
) -> None:
    topic = world.topic(1)
    ended.append(world.reader(tier))
    plain = Producer({"bootstrap.servers": world.dc1.bootstrap})
    values = [b"plain", b"\0\0\0\xff\xff12345", None, b"another"]
    for n, value in enumerate(values):
        plain.produce(topic, value, timestamp=START + n * WINDOW_MS // 2)
    assert plain.flush(WAIT_S) == 0
    counted = world.await_counted(tier, topic, 4)
    digests = [fingerprint(value or b"") for value in values]
    assert counted.foreign == {
        START: (2, wrapped(digests[0] + digests[1])),
        START + WINDOW_MS: (2, wrapped(digests[2] + digests[3])),
    }


def test_the_aggregates_reader_says_of_what_a_partition_is_a_copy_and_how_far(
    world: World, ended: list[Process]
) -> None:
    topic = world.topic()
    ended += [world.reader("dc1-of-this-test"), world.reader("offline", cluster=world.offline)]
    with world.producer() as producer:
        send(producer, topic, 300)
    world.await_counted("offline", topic, 300, "audit-offline")
    at_home = world.await_counted("dc1-of-this-test", topic, 300)

    def copied() -> dict[tuple[str, int], Origin]:
        found: dict[tuple[str, int], Origin] = {}
        for _, record in world.said("offline", "audit-offline"):
            if isinstance(record, Count) and record.topic == topic:
                assert record.origin is not None
                found[record.origin.topic_id, record.origin.partition] = record.origin
        return found

    def is_copied_as_far_as_counted_at_home() -> bool:
        ends = {key: origin.end or 0 for key, origin in copied().items()}
        # All messages may be in one partition: without a key they go where the client's batch goes.
        return all(ends.get(key, 0) >= end for key, end in at_home.ends.items())

    wait_until("it is copied as far as it is counted at home", is_copied_as_far_as_counted_at_home)
    assert {origin.cluster for origin in copied().values()} == {"dc1"}
    for _, record in world.said("offline", "audit-offline"):
        assert not isinstance(record, Heartbeat) or record.reported_through is None


@pytest.mark.slow
def test_the_first_heartbeat_with_a_time_names_every_partition_and_later_ones_what_began_or_went(
    world: World, tier: str, ended: list[Process]
) -> None:
    old, new = world.topic(), ""
    ended.append(world.reader(tier))
    ended[0].ready()
    wait_until("a heartbeat with a time", lambda: any(b.time != NOTHING for b in world.beats(tier)))
    first, second = world.beats(tier)[:2]
    assert (first.time, list(first.positions)) == (NOTHING, [])
    assert {(p.topic, p.partition) for p in second.positions} >= {(old, 0), (old, 1)}
    new = world.topic(1)

    def named() -> list[tuple[str, int | None]]:
        return [(p.topic, p.offset) for b in world.beats(tier)[2:] for p in b.positions]

    wait_until("it has begun", lambda: (new, 0) in named())
    with world.dc1.client() as client:
        client.delete_topic(new)
    wait_until("it is gone", lambda: (new, None) in named())
    assert old not in {topic for topic, _ in named()}


@pytest.mark.slow
@pytest.mark.soak
def test_readers_killed_at_any_moment_count_every_message_once(
    world: World, tier: str, ended: list[Process]
) -> None:
    chance, topic = random.Random(9), world.topic()
    with world.producer() as producer:
        for _ in range(ROUNDS):
            ended.append(world.reader(tier))
            send(producer, topic, 1500)
            ended[-1].ready()
            time.sleep(chance.random())
            ended[-1].kill()
        send(producer, topic, 100)
    ended.append(world.reader(tier))
    counted = world.await_counted(tier, topic, 1500 * ROUNDS + 100)
    assert counted.sequences(producer.instance) == [[0, 1500 * ROUNDS + 99]]


def test_a_second_reader_shares_the_tier_and_counts_it_alone_when_the_first_one_has_ended(
    world: World, tier: str, ended: list[Process]
) -> None:
    topic = world.topic(16)
    ended.append(world.reader(tier))
    ended[0].ready()
    ended.append(world.reader(tier))
    ended[1].ready()
    wait_until("they share it", lambda: all("is shared by 2 readers" in each.output for each in ended))
    with world.producer() as producer:
        send(producer, topic, 200)
        world.await_counted(tier, topic, 200)
        assert ended[0].stop() == 0
        send(producer, topic, 200)
    counted = world.await_counted(tier, topic, 400)
    assert (counted.sequences(producer.instance), counted.refused) == ([[0, 399]], 0)


def test_a_reader_with_other_topics_stands_by_until_the_tier_is_free(
    world: World, tier: str, ended: list[Process]
) -> None:
    """Counts must not depend on which reader has which share."""
    topic, other = world.topic(4), world.topic(4)
    ended.append(world.reader(tier))
    ended[0].ready()
    ended.append(world.reader(tier, "--topics", topic))
    wait_until("it stands by", lambda: "this one stands by" in ended[1].output)
    with world.producer() as producer:
        send(producer, topic, 100)
        send(producer, other, 100)
        world.await_counted(tier, topic, 100)
        world.await_counted(tier, other, 100)
        assert len({turn for turn, _ in world.said(tier, "audit-counts")}) == 1
        assert ended[0].stop() == 0
        ended[1].ready()
        send(producer, topic, 100)
    assert world.await_counted(tier, topic, 200).sequences(producer.instance) == [[0, 199]]


@pytest.mark.slow
def test_a_reader_that_cannot_count_its_share_leaves_the_tier_to_the_others(
    world: World, tier: str, ended: list[Process]
) -> None:
    topic = world.topic(4)
    ended.append(world.reader(tier))
    ended[0].ready()
    ended.append(world.reader(tier, "--registry", f"http://127.0.0.1:{free_port()}"))
    wait_until("it has had a share", lambda: "is shared by 2 readers" in ended[0].output)
    with world.producer() as producer:
        send(producer, topic, 300)
    assert world.await_counted(tier, topic, 300).sequences(producer.instance) == [[0, 299]]
    with world.dc1.client() as client:
        reported = client.list_offsets("audit", LATEST, [0])[0]
    wait_until("a heartbeat", lambda: (world.beats(tier)[-1].reported_through or 0) >= reported)
    assert "trying again" in ended[1].output


@pytest.mark.slow
def test_a_reader_that_stood_still_beyond_its_session_counts_nothing_twice_and_joins_again(
    world: World, tier: str, ended: list[Process]
) -> None:
    topic = world.topic()
    ended.append(world.reader(tier))
    ended[0].ready()
    with world.producer() as producer:
        send(producer, topic, 200)
        world.await_counted(tier, topic, 200)
        ended[0].signal(signal.SIGSTOP)
        ended.append(world.reader(tier))
        ended[1].ready()  # the stopped one's session has ended
        send(producer, topic, 200)
        world.await_counted(tier, topic, 400)
        ended[0].signal(signal.SIGCONT)
        wait_until("they share it", lambda: all("is shared by 2 readers" in each.output for each in ended))
        assert "the session with ZooKeeper has ended" in ended[0].output
        send(producer, topic, 200)
    counted = world.await_counted(tier, topic, 600)
    assert counted.sequences(producer.instance) == [[0, 599]]


@dataclass
class Damage:
    """A cluster of its own whose one broker is stopped to damage what it has on disk."""

    world: World
    cluster: TestCluster

    def segments(self, topic: str) -> list[Path]:
        folder = self.cluster.directory(1)
        return sorted(folder.glob(f"{topic}-0-*/*.log"))


@pytest.fixture
def damage(world: World, start: Start) -> Damage:
    cluster = TestCluster(
        start, f"dmg-{uuid4().hex[:6]}", world.folder, world.zookeeper, "[log]\nflush_ms = 20\n"
    )
    cluster.start_brokers(1)
    with cluster.client() as client:
        for topic in ("bad", "good"):
            client.create_topic(topic, 1)
    return Damage(world, cluster)


def test_a_reader_with_anothers_bootstrap_is_refused_before_it_says_a_word(
    world: World, tier: str, ended: list[Process], damage: Damage
) -> None:
    ended.append(world.reader(tier))
    ended[0].ready()
    wrong = world.reader(tier, cluster=damage.cluster)
    assert wrong.wait() == 1
    assert f"tier {tier} is another cluster" in wrong.output
    assert "--new-cluster" in wrong.output
    with closing(Session.connect(world.zookeeper)) as session:
        assert len(read_turns(session, Seat(tier, tier))) == 1
    ended[0].stop()
    ended.append(world.reader(tier, "--new-cluster", cluster=damage.cluster))
    ended[1].ready()


@pytest.mark.slow
def test_wrong_options_end_in_one_line(world: World) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for options, said in (
        (["--bootstrap", nobody, "--zookeeper", world.zookeeper], nobody),
        (["--bootstrap", world.dc1.bootstrap, "--zookeeper", nobody], "no ZooKeeper answers"),
        (
            ["--bootstrap", nobody, "--zookeeper", nobody, "--metrics-listen", world.dc1.bootstrap],
            "--metrics-listen",
        ),
    ):
        result = CliRunner().invoke(
            cli, ["audit-reader", "--cluster", "x", "--registry", world.registry, *options]
        )
        assert isinstance(result.exception, MillraceError), (options, result.output)
        assert said in str(result.exception)
        assert "\n" not in str(result.exception)


@pytest.mark.slow
def test_one_damaged_partition_is_named_and_all_others_are_counted_on(
    damage: Damage, tier: str, ended: list[Process]
) -> None:
    world, cluster = damage.world, damage.cluster
    plain = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})

    def produce(topic: str, count: int) -> None:
        for _ in range(count):
            plain.produce(topic, b"x" * 200)
            assert plain.flush(WAIT_S) == 0

    produce("bad", 20)
    produce("good", 20)
    assert cluster.brokers[1].process.stop() == 0
    (segment,) = damage.segments("bad")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 + 150] ^= 1  # in a value, below the checkpoint: damage, not a torn end
    segment.write_bytes(data)
    cluster.restart(1)
    metrics = f"127.0.0.1:{free_port()}"
    ended.append(world.reader(tier, "--metrics-listen", metrics, cluster=cluster))
    ended[0].ready()

    def said() -> list[tuple[int, AuditRecord]]:
        return world.said(tier, "audit-counts", cluster)

    def unreadable() -> dict[str, str]:
        beats = [record for _, record in said() if isinstance(record, Heartbeat)]
        return {u.topic: u.cause for u in beats[-1].unreadable}

    def messages(topic: str) -> int:
        counts = [r for _, r in said() if isinstance(r, Count) and r.topic == topic]
        return sum(some.messages for count in counts for some in count.foreign)

    wait_until("the damage is named", lambda: unreadable().keys() == {"bad"})
    assert "millrace log repair" in unreadable()["bad"]
    whole_before = messages("bad")
    assert 0 < whole_before < 20, "what lies before the damage is counted"
    produce("good", 20)
    wait_until("the good one is counted on", lambda: messages("good") == 40)
    wait_until("it is said", lambda: f"{tier}: bad-0 is not counted from offset" in ended[0].output)
    assert messages("bad") == whole_before, "a record with a wrong CRC is never counted"
    wait_until("several tries", lambda: 'partition="0"' in httpx.get(f"http://{metrics}/metrics").text)
    text = httpx.get(f"http://{metrics}/metrics").text
    assert f'millrace_audit_reader_unreadable{{partition="0",tier="{tier}",topic="bad"}} 1.0' in text
    assert 'topic="good"} 1.0' not in text
    said_lines = [
        line.split("bad-0 is not counted")[1] for line in ended[0].output.splitlines() if "bad-0" in line
    ]
    assert len(set(said_lines)) == len(said_lines) <= 2, "each cause is said once, tried again quietly"
    assert len({turn for turn, _ in said()}) == 1, "it keeps its turn"

    cluster.brokers[1].process.stop()
    repaired = world.start("log", "repair", str(cluster.directory(1)))
    repaired.wait()
    cluster.restart(1)
    produce("bad", 1)
    wait_until("the bad one is counted again", lambda: not unreadable())
    wait_until("with what came after", lambda: messages("bad") > whole_before)
    wait_until("it is said", lambda: "bad-0 is counted again" in ended[0].output)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_that_is_gone_is_said_where_it_is_gone(
    damage: Damage, tier: str, ended: list[Process], which: int
) -> None:
    world, cluster = damage.world, damage.cluster
    before = world.reader(tier, cluster=cluster)
    before.ready()

    def said() -> list[tuple[int, AuditRecord]]:
        return world.said(tier, "audit-counts", cluster)

    def beats(turn: int) -> list[Heartbeat]:
        return [r for t, r in said() if t == turn and isinstance(r, Heartbeat) and r.time != NOTHING]

    wait_until("a heartbeat", lambda: beats(0))
    assert before.stop() == 0
    with cluster.client() as client:
        client.create_topic("cut", 1, {"segment.bytes": "2000"})
    plain = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for n in range(40):
        plain.produce("cut", b"%d" % n * 100)
        assert plain.flush(WAIT_S) == 0
    assert cluster.brokers[1].process.stop() == 0
    segments = damage.segments("cut")
    assert len(segments) > 3
    segments[which].unlink()
    cluster.restart(1)
    ended.append(world.reader(tier, cluster=cluster))
    wait_until("another", lambda: beats(1))
    counts = [record for _, record in said() if isinstance(record, Count) and record.topic == "cut"]
    missing = [pair for count in counts for pair in count.expired]
    named = [u for u in beats(1)[0].unreadable if u.topic == "cut"]
    if which == 0:
        assert missing, "what is gone from the beginning is said to be lost"
    else:
        assert named[0].cause == "its broker answers STORAGE_ERROR: see the broker's log"
        assert "restore the file that held them" in cluster.brokers[1].process.output


@pytest.mark.slow
def test_a_broker_that_is_away_takes_only_its_own_partitions_with_it(
    world: World, start: Start, tier: str, ended: list[Process]
) -> None:
    cluster = TestCluster(
        start, f"two-{uuid4().hex[:6]}", world.folder, world.zookeeper, "[log]\nflush_ms = 20\n"
    )
    cluster.start_brokers(1, 2)
    with cluster.client() as client:
        for topic in ("audit", "audit-counts"):  # the reader needs both
            client.create_topic(topic, 1, replicas=2)
        client.create_topic("events", 2)
        leaders = dict(client.topic("events").partitions)
    keeper, away = 1, 2
    assert set(leaders.values()) == {1, 2}
    ended.append(world.reader(tier, cluster=cluster))
    ended[0].ready()
    cluster.brokers[away].kill()

    def named() -> set[int]:
        records = world.said(tier, "audit-counts", survivor)
        beats = [record for _, record in records if isinstance(record, Heartbeat)]
        return {u.partition for u in beats[-1].unreadable if u.topic == "events"}

    survivor = TestCluster(start, cluster.name, world.folder, world.zookeeper)
    survivor.brokers = {keeper: cluster.brokers[keeper]}
    wait_until(
        "its partition is named", lambda: named() == {p for p, leader in leaders.items() if leader == away}
    )
    cluster.restart(away)
    wait_until("it is read again", lambda: not named())


def produce(cluster: TestCluster, topic: str, partition: int, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(50):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def log_end(cluster: TestCluster, topic: str, partition: int) -> int:
    with cluster.client() as client:
        return client.list_offsets(topic, LATEST, [partition])[partition]


def generation(cluster: TestCluster, cluster_id: str) -> int:
    owner = read_owner(cluster.directory(1), cluster_id, 1)
    assert owner is not None
    return owner.generation


@pytest.mark.slow
@pytest.mark.parametrize("beyond", [True, False])
def test_a_reader_that_starts_behind_a_restored_log_reports_where_it_was_cut(
    world: World, tier: str, ended: list[Process], start: Start, tmp_path: Path, beyond: bool
) -> None:
    """The log grows before the next reader starts, `beyond` the counted offset or not: its epoch differs."""
    name = f"restored-{tmp_path.name}"
    home = TestCluster(start, name, tmp_path, world.zookeeper, "[log]\nflush_ms = 20\n").start_brokers(1, 2)
    here = replace(world, dc1=home)
    with home.client() as client:
        client.create_topic("audit-counts", 1, replicas=2)
        topic = here.topic()
        ours = client.topic("audit-counts").partitions[0]
        (lost,) = (number for number, leader in client.topic(topic).partitions.items() if leader == 1)
        assert ours in (1, 2)
        cluster_id = client.cluster_id
    produce(home, topic, lost, b"kept")
    first = here.reader(tier)
    ended.append(first)
    here.await_counted(tier, topic, 50)
    copy, kept = Path(shutil.copytree(home.directory(1), tmp_path / "copy")), log_end(home, topic, lost)
    before = generation(home, cluster_id)

    def has_written_on() -> bool:
        produce(home, topic, lost, b"gone")
        return generation(home, cluster_id) > before + 2

    wait_until("the broker has written on", has_written_on)
    here.await_counted(tier, topic, 100)
    first.kill()
    counted = here.counted(tier, topic)
    home.brokers[1].kill()
    shutil.rmtree(home.directory(1))
    copy.rename(home.directory(1))
    home.restart(1)
    options = ["--replica", "1", "--reason", "no newer copy", "--bootstrap", home.bootstrap]
    done = CliRunner().invoke(cli, ["topics", "elect", "--unclean", f"{topic}-{lost}", *options])
    assert done.exit_code == 0, done.output
    through = max(end for (_, number), end in counted.ends.items() if number == lost)
    while (end := log_end(home, topic, lost)) <= (through if beyond else kept):
        produce(home, topic, lost, b"new in its place")
    assert (end > through) == beyond
    ended.append(here.reader(tier))

    def cuts() -> list[Truncated]:
        logs = [log for beat in here.beats(tier) for log in beat.truncated]
        return [log for log in logs if (log.topic, log.partition) == (topic, lost)]

    wait_until("the cut is reported", cuts)
    (cut,) = cuts()
    assert kept <= cut.end < min(end, through) <= cut.counted
