"""The audit on real processes: two datacenters, the mirror, readers, the auditor; whatever is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from millrace.cli import cli
from millrace.errors import MillraceError
from millrace.records import BatchHeader, Message, build_batch
from millrace_audit.answer import Completeness, Window
from millrace_audit.client import completeness
from millrace_audit.producer import AuditedProducer
from millrace_audit.reader.counting import BatchCounter
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import NOTHING, AuditCodec, Heartbeat, schema_file
from millrace_audit.reports.publish import publish_edition_counts, publish_records
from millrace_audit.reports.ranges import SequenceRanges
from millrace_registry.client import SchemaRegistryClient
from tests.access_log import AccessLog, access_log_names
from tests.brokers import TestCluster, free_port, read_topic
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, wait_until

Start = Callable[..., Process]
PAGE_VIEW = schema_file("PageView")
TOPICS = [
    *(f"{name}-log" for name in access_log_names()),
    "twice",
    "silent",
    "late",
    "auditor-kills",
    "reader-kills",
    "mixed",
]
START = 1_431_856_800_000
EVENT: dict[str, Any] = {
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "status": 200,
}


@dataclass
class World:
    """dc1, dc2 and the aggregate cluster, each with its reader; a registry; the auditor."""

    start: Start
    clusters: dict[str, TestCluster]
    registry: str
    folder: Path
    readers: dict[str, Process] = field(default_factory=dict)
    auditor_port: int = field(default_factory=free_port)
    auditor: Process | None = None
    loads: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.auditor_port}"

    def start_reader(self, name: str) -> None:
        offline = name == "offline"
        self.readers[name] = self.start(
            "audit-reader",
            "--cluster",
            name,
            "--tier",
            name,
            "--bootstrap",
            self.clusters[name].bootstrap,
            "--registry",
            self.registry,
            "--audit-topic",
            "audit-offline" if offline else "audit",
            "--interval-ms",
            "100",
        )

    def start_auditor(self, database: str = "auditor.db", port: int | None = None) -> Process:
        return self.start(
            "auditor",
            "--listen",
            f"127.0.0.1:{self.auditor_port if port is None else port}",
            "--database-url",
            f"sqlite:///{self.folder}/{database}",
            "--bootstrap",
            self.clusters["offline"].bootstrap,
            "--registry",
            self.registry,
            "--origins",
            "dc1,dc2",
            "--grace-s",
            "0",
        )

    def producer(self, cluster: str, **options: Any) -> AuditedProducer:
        return AuditedProducer(
            self.clusters[cluster].bootstrap,
            self.registry,
            cluster=cluster,
            server=f"{cluster}-web",
            service="shop",
            **options,
        )

    def load(self, topic: str) -> None:
        """Count all of the topic in the aggregate cluster as one load of the warehouse would."""
        self.loads += 1
        publish_edition_counts(
            self.clusters["offline"].bootstrap,
            self.registry,
            topic=topic,
            load=self.loads,
            editions=[self.counted("offline", topic)],
        )

    def counted(self, cluster: str, topic: str) -> SequenceCounts:
        """What is in a topic, read by nothing but the test's own reader of partitions."""
        counts, counter = SequenceCounts(), BatchCounter(lambda _: True)
        with self.clusters[cluster].client() as client:
            for contents in read_topic(client, topic).values():
                for value in contents.values:
                    batch = build_batch([Message(0, None, value)])
                    header = BatchHeader.parse(batch)
                    assert header is not None
                    counter.count(header, batch, counts)
        return counts

    def ask(
        self, topic: str, windows: int = 1, *, start: int = START, url: str | None = None
    ) -> Completeness:
        first = datetime.fromtimestamp(start / 1000, UTC)
        last = datetime.fromtimestamp((start + windows * WINDOW_MS) / 1000, UTC)
        return completeness(url or self.url, topic, first, last)

    def await_verdict(
        self, topic: str, verdict: str, windows: int = 1, *, timeout_s: float = 30
    ) -> Completeness:
        found: list[Completeness] = []

        def asked() -> bool:
            found.append(self.ask(topic, windows))
            return found[-1].verdict == verdict

        try:
            wait_until(f"{topic} is {verdict}", asked)
        except AssertionError as error:
            raise AssertionError(f"{error}: {found[-1]}") from None
        return found[-1]

    def await_tier(self, topic: str, tier: str, count: int, windows: int = 1) -> None:
        """Wait until a tier is counted as far as so many messages."""
        wait_until(
            f"{count} messages of {topic} counted at {tier}",
            lambda: sum(w.tiers.get(tier, 0) for w in self.ask(topic, windows).windows) >= count,
        )


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, run = tmp_path_factory.mktemp("audit"), uuid4().hex[:6]
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    log = "[log]\nflush_ms = 20\n"
    clusters = {
        name: TestCluster(start_for_module, f"{name}-{run}", folder, zookeeper, log)
        for name in ("dc1", "dc2")
    }
    settings = log
    for name, cluster in clusters.items():
        cluster.start_brokers(1)
        settings += (
            f"[mirror.{name}]\nbootstrap = {json.dumps(cluster.bootstrap)}\n"
            f"topics = {json.dumps([*TOPICS, 'audit'])}\n"
        )
        with cluster.client() as client:
            for topic in [*TOPICS, "audit"]:
                client.create_topic(topic, 1 if topic == "audit" else 2)
    clusters["offline"] = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, settings)
    clusters["offline"].start_brokers(1)
    world = World(start_for_module, clusters, f"http://{registry.ready()}", folder)
    for name in clusters:
        world.start_reader(name)
    world.auditor = world.start_auditor()
    for process in (*world.readers.values(), world.auditor):
        process.ready()
    schemas = run_millrace("schemas", "apply", "schemas", "--registry", world.registry)
    assert schemas.returncode == 0, schemas.stderr
    return world


def hour_of(window: Window) -> str:
    return window.start.strftime("%Y-%m-%dT%H")


def test_an_access_log_published_in_two_datacenters_is_complete_once_it_is_loaded(
    world: World, access_log: AccessLog
) -> None:
    topic, hours_of_the_log = f"{access_log.name}-log", access_log.hours()
    lines = hours_of_the_log.total()
    for part, cluster in enumerate(("dc1", "dc2"), start=1):
        published = run_millrace(
            "publish-access-log",
            str(access_log.path),
            "--topic",
            topic,
            "--cluster",
            cluster,
            "--json",
            "--bootstrap",
            world.clusters[cluster].bootstrap,
            "--registry",
            world.registry,
            "--part",
            f"{part}/2",
        )
        assert published.returncode == 0, published.stderr
        assert json.loads(published.stdout)["acknowledged"] == lines // 2
    windows = 84 * 6 + 1
    span = ["--from", "2015-05-17T10:00", "--to", "2015-05-20T22:10Z", "--auditor", world.url]
    world.await_tier(topic, "offline", lines, windows)

    before = world.await_verdict(topic, "incomplete", windows)
    findings = [finding for window in before.windows for finding in window.findings]
    assert {(f.kind, f.tier) for f in findings} == {("missing", "warehouse")}, "the load has not run yet"
    assert sum(finding.count for finding in findings) == lines
    shown = run_millrace("audit", topic, *span)
    assert shown.returncode == 1
    assert "missing at tier warehouse" in shown.stdout

    world.load(topic)
    after = world.await_verdict(topic, "complete", windows)
    hours: Counter[str] = Counter()
    for window in after.windows:
        tiers = {"dc1": 0, "dc2": 0, **window.tiers}
        assert tiers["dc1"] + tiers["dc2"] == window.acknowledged
        assert window.acknowledged in (0, tiers["offline"])
        assert window.acknowledged in (0, tiers["warehouse"])
        hours[hour_of(window)] += window.acknowledged
    assert +hours == hours_of_the_log
    assert after.watermark is not None
    assert after.watermark.year >= 2025, "every window is complete as far as the clusters were heard of"

    shown = run_millrace("audit", topic, *span)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2015-05-17 10" in shown.stdout
    as_json = run_millrace("audit", topic, *span, "--json")
    assert as_json.returncode == 0
    assert json.loads(as_json.stdout)["verdict"] == "complete"


def test_a_message_that_is_there_twice_is_named_at_every_tier_it_reaches(world: World) -> None:
    with world.producer("dc1") as producer:
        for n in range(50):
            producer.send("twice", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("twice", "offline", 50)
    with world.clusters["dc1"].client() as client:
        values = [v for contents in read_topic(client, "twice").values() for v in contents.values]
    again = Producer({"bootstrap.servers": world.clusters["dc1"].bootstrap})
    again.produce("twice", values[7])
    assert again.flush(WAIT_S) == 0
    world.await_tier("twice", "offline", 51)
    world.load("twice")
    found = world.await_verdict("twice", "incomplete")
    wait_until(
        "the duplicate is counted everywhere",
        lambda: [f.kind for f in world.ask("twice").windows[0].findings] == ["duplicate"] * 3,
    )
    found = world.ask("twice")
    assert [(f.kind, f.tier, f.instance, f.server, f.count) for f in found.windows[0].findings] == [
        ("duplicate", tier, producer.instance, "dc1-web", 1) for tier in ("dc1", "offline", "warehouse")
    ]


def test_messages_without_a_header_are_counted_beside_and_disturb_nothing(world: World) -> None:
    with world.producer("dc2") as producer:
        for n in range(20):
            producer.send("mixed", PAGE_VIEW, EVENT, time_ms=START + n)
    foreign = Producer({"bootstrap.servers": world.clusters["dc2"].bootstrap})
    for value in (b"plain", b"\0\0\0\xff\xff12345", None):
        foreign.produce("mixed", value, key=b"k")
    assert foreign.flush(WAIT_S) == 0

    def counted_beside() -> bool:
        question = {"from": "2015-05-17T10:00Z", "to": "2015-05-17T10:10Z"}
        answer = httpx.get(f"{world.url}/v1/topics/mixed/completeness", params=question).json()
        return bool(answer["foreign"] == {"dc2": 3, "offline": 3})

    wait_until("the foreign messages are counted", counted_beside)
    world.load("mixed")
    world.await_verdict("mixed", "complete")


SILENT = """
import sys, time
from millrace_audit.reports.messages import schema_file
from millrace.cli import cli
from millrace.errors import MillraceError
from millrace_audit.producer import AuditedProducer
event = {"clientAddress": "c", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}
producer = AuditedProducer(sys.argv[1], sys.argv[2], cluster="dc1", server="doomed", service="shop")
for n in range(300):
    producer.send("silent", schema_file("PageView"), event, time_ms=1_431_856_800_000 + n)
producer._producer.flush()
print(producer.instance, flush=True)
time.sleep(60)
"""


def test_a_killed_producer_keeps_its_window_unknown_until_an_operator_accepts_it(world: World) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", SILENT, world.clusters["dc1"].bootstrap, world.registry],
        stdout=subprocess.PIPE,
        text=True,
    )
    with script, world.producer("dc2") as producer:
        for n in range(100):
            producer.send("silent", PAGE_VIEW, EVENT, time_ms=START + n)
        assert script.stdout is not None
        instance = int(script.stdout.readline())
        script.kill()
    world.await_tier("silent", "offline", 400)
    world.load("silent")
    world.await_tier("silent", "warehouse", 400)
    found = world.await_verdict("silent", "unknown")
    assert any(f"instance {instance} (shop on doomed in dc1)" in r for r in found.windows[0].reasons)
    assert found.watermark is None

    span = ["--from", "2015-05-17T10:00Z", "--to", "2015-05-17T10:10Z", "--auditor", world.url]
    assert run_millrace("audit", "silent", *span).returncode == 1
    accepted = run_millrace(
        "audit", "silent", *span, "--accept", str(instance), "--reason", "host burnt down"
    )
    assert "accepted: host burnt down" in accepted.stdout
    world.await_verdict("silent", "complete")  # as soon as the aggregate cluster is counted past the reports
    assert run_millrace("audit", "silent", *span).returncode == 0
    (window,) = world.ask("silent").windows
    assert (window.verdict, window.acknowledged, window.tiers["warehouse"]) == ("complete", 100, 400)
    assert window.reasons[0].endswith("accepted: host burnt down")


def test_a_late_event_reopens_a_complete_window_at_the_next_revision(world: World) -> None:
    with world.producer("dc1", report_interval_s=0.2) as producer:
        for n in range(30):
            producer.send("late", PAGE_VIEW, EVENT, time_ms=START + n)
        producer.closed_through(START + WINDOW_MS)
        world.await_tier("late", "offline", 30)
        world.load("late")
        found = world.await_verdict("late", "complete")
        assert found.windows[0].revision == 0
        producer.send("late", PAGE_VIEW, EVENT, time_ms=START + 5)
        reopened = world.await_verdict("late", "incomplete")
        assert reopened.windows[0].revision >= 1
        assert reopened.watermark is None
    world.await_tier("late", "offline", 31)
    late = SequenceCounts()
    late.add("dc1-web", "shop", producer.instance, START, 30)
    world.loads += 1
    publish_edition_counts(
        world.clusters["offline"].bootstrap, world.registry, topic="late", load=world.loads, editions=[late]
    )
    final = world.await_verdict("late", "complete")
    assert final.windows[0].acknowledged == 31


def content(found: Completeness) -> list[Any]:
    """Everything an answer says but its revisions, which depend on when the auditor looked."""
    return [
        (w.start, w.verdict, w.acknowledged, w.failed, dict(w.tiers), list(w.findings), list(w.reasons))
        for w in found.windows
    ]


def traffic(world: World, topic: str, disturb: Callable[[], None]) -> dict[int, SequenceRanges]:
    """Send events over four windows in both datacenters, `disturb` in between; what was acknowledged."""
    producers = [world.producer(cluster, report_interval_s=0.1) for cluster in ("dc1", "dc2")]
    for _ in range(ROUNDS):
        for producer in producers:
            for n in range(1500):
                producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n * WINDOW_MS * 4 // 1500)
        disturb()
    acknowledged = {}
    for producer in producers:
        producer.close()
        (delivered,) = producer.delivered()
        assert not delivered.failed
        acknowledged[producer.instance] = SequenceRanges(delivered.acknowledged)
    return acknowledged


def assert_whole(world: World, topic: str, acknowledged: dict[int, SequenceRanges]) -> None:
    """Complete in all four windows, with exactly what the producers were told."""
    total = sum(len(ranges) for ranges in acknowledged.values())
    world.await_tier(topic, "offline", total, 4)
    world.load(topic)
    found = world.await_verdict(topic, "complete", 4)
    assert sum(window.acknowledged for window in found.windows) == total
    for tier in ("offline", "warehouse"):
        assert sum(window.tiers[tier] for window in found.windows) == total
    assert sum(window.tiers["dc1"] + window.tiers["dc2"] for window in found.windows) == total


@pytest.mark.soak
def test_an_auditor_killed_again_and_again_gives_the_verdicts_of_one_that_never_was(world: World) -> None:
    chance = random.Random(8)

    def kill() -> None:
        time.sleep(chance.random() * 0.4)  # a random moment of its work
        assert world.auditor is not None
        world.auditor.kill()
        world.auditor = world.start_auditor()
        world.auditor.ready()

    acknowledged = traffic(world, "auditor-kills", kill)
    assert_whole(world, "auditor-kills", acknowledged)
    undisturbed = world.start_auditor("undisturbed.db", 0)
    url = f"http://{undisturbed.ready()}"
    try:
        for topic, windows in (("auditor-kills", 4), ("PageView", 24), ("twice", 1), ("late", 1)):
            wait_until(
                f"both auditors say the same of {topic}",
                lambda topic=topic, windows=windows: (
                    content(world.ask(topic, windows))  # type: ignore[misc]
                    == content(world.ask(topic, windows, url=url))
                ),
            )
    finally:
        undisturbed.kill()


@pytest.mark.soak
def test_readers_killed_again_and_again_count_every_message_once(world: World) -> None:
    chance = random.Random(9)

    def kill() -> None:
        time.sleep(chance.random() * 0.4)  # a random moment of their work
        for name in ("dc1", "offline"):
            world.readers[name].kill()
            world.start_reader(name)
        for name in ("dc1", "offline"):
            world.readers[name].ready()

    acknowledged = traffic(world, "reader-kills", kill)
    assert_whole(world, "reader-kills", acknowledged)


def test_a_reader_whose_turn_was_taken_by_a_late_request_takes_it_back(world: World) -> None:
    def counted_through() -> str:
        return str(httpx.get(f"{world.url}/v1/health").json()["counted_through"]["dc1"])

    late = Heartbeat(time=NOTHING, cluster="dc1", tier="dc1", reader=5, positions=[])
    publish_records(world.clusters["dc1"].bootstrap, world.registry, "audit", [late])
    now = datetime.now(UTC).isoformat()
    wait_until("dc1 is counted again", lambda: counted_through() > now)
    assert "another audit reader counts tier dc1 on audit" in world.readers["dc1"].output


def test_a_deleted_topic_leaves_the_heartbeats(world: World) -> None:
    with world.clusters["dc2"].client() as client, SchemaRegistryClient(world.registry) as registry:
        codec = AuditCodec(registry)

        def named() -> set[str]:
            """Topics in the newest heartbeat of dc2."""
            records = [codec.decode(value) for value in read_topic(client, "audit")[0].values]
            beats = [record for record in records if isinstance(record, Heartbeat)]
            return {position.topic for position in beats[-1].positions}

        client.create_topic("gone", 1)
        producer = Producer({"bootstrap.servers": world.clusters["dc2"].bootstrap})
        producer.produce("gone", b"x")
        assert producer.flush(WAIT_S) == 0
        wait_until("the topic is counted", lambda: "gone" in named())
        client.delete_topic("gone")
        wait_until("it is counted no longer", lambda: "gone" not in named())


DOOMED = """
import sys
from millrace_audit.auditor.auditor import Auditor
from millrace.cli import cli

def fail(self):
    raise RuntimeError("a mistake in the program")

Auditor.apply_all = fail
cli.main(sys.argv[1:], standalone_mode=False)
"""


def test_an_auditor_that_cannot_read_on_ends_and_does_not_go_on_answering(world: World) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            DOOMED,
            "auditor",
            "--listen",
            "127.0.0.1:0",
            "--database-url",
            f"sqlite:///{world.folder}/doomed.db",
            "--origins",
            "dc1,dc2",
            "--bootstrap",
            world.clusters["offline"].bootstrap,
            "--registry",
            world.registry,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "a mistake in the program" in ended.stderr


def test_the_auditors_health_says_whether_it_reads(world: World) -> None:
    answer = httpx.get(f"{world.url}/v1/health")
    assert (answer.status_code, answer.json()["trouble"]) == (200, None)
    assert answer.json()["counted_through"].keys() == {"dc1", "dc2", "offline"}
    port = free_port()
    blind = world.start(
        "auditor",
        "--listen",
        "127.0.0.1:0",
        "--database-url",
        f"sqlite:///{world.folder}/blind.db",
        "--bootstrap",
        world.clusters["offline"].bootstrap,
        "--registry",
        f"http://127.0.0.1:{port}",
        "--origins",
        "dc1",
    )
    answer = httpx.get(f"http://{blind.ready()}/v1/health")
    assert answer.status_code == 503
    assert answer.json()["trouble"]
    blind.kill()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens, and nothing will while the test runs."""
    import socket

    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_bad_input_ends_in_one_line_and_exit_code_one(world: World, nobody: str, tmp_path: Path) -> None:
    span = ["--from", "2015-05-17T10:00Z", "--to", "2015-05-17T11:00Z"]
    rest = ["--registry", world.registry, "--bootstrap"]
    bad_log = tmp_path / "bad.log"
    bad_log.write_text("nonsense\n")
    offline = world.clusters["offline"].bootstrap
    for arguments, said in (
        (
            ["audit", "PageView", "--from", "2015-05-18", "--to", "2015-05-17", "--auditor", world.url],
            "--from 2015-05-18 is not before --to 2015-05-17",
        ),
        (["audit", "PageView", "--from", "yesterday", "--to", "today"], "--from 'yesterday' is not a time"),
        (["audit", "PageView", "--auditor", world.url], "--from and --to are both needed"),
        (["audit", "PageView", *span, "--auditor", f"http://{nobody}"], "no auditor answers"),
        (["audit", "PageView", *span, "--auditor", world.registry], "the auditor refuses"),
        (["audit", "PageView", *span, "--accept", "5"], "give both"),
        (["audit", "PageView", "--accept", "5", "--reason", " ", "--auditor", world.url], "needs a reason"),
        (
            ["audit", "PageView", "--from", "1900-01-01", "--to", "2100-01-01", "--auditor", world.url],
            "ask for less",
        ),
        (
            [
                "auditor",
                *rest,
                offline,
                "--origins",
                "dc1",
                "--listen",
                world.url[7:],
                "--database-url",
                f"sqlite:///{tmp_path}/x.db",
            ],
            "cannot listen",
        ),
        (
            [
                "auditor",
                *rest,
                nobody,
                "--origins",
                "dc1",
                "--listen",
                "127.0.0.1:0",
                "--database-url",
                f"sqlite:///{tmp_path}/x.db",
            ],
            nobody,
        ),
        (["auditor", *rest, offline, "--origins", " , ", "--database-url", "sqlite://"], "--origins names"),
        (["audit-reader", *rest, nobody, "--cluster", "dc1"], nobody),
        (
            ["publish-access-log", str(bad_log), *rest, world.clusters["dc1"].bootstrap, "--cluster", "dc1"],
            "1 lines cannot be read, nothing was published",
        ),
        (["publish-access-log", str(tmp_path / "none"), *rest, nobody, "--cluster", "dc1"], "cannot read"),
    ):
        # In this process: to start one for each takes longer than all the rest.
        result = CliRunner().invoke(cli, arguments)
        assert isinstance(result.exception, MillraceError), (arguments, result.output)
        assert said in str(result.exception), arguments
        assert "\n" not in str(result.exception), arguments
    ended = run_millrace("audit", "PageView", "--from", "2015-05-18", "--to", "2015-05-17")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("millrace: --from 2015-05-18 is not before --to 2015-05-17")
    assert ended.stderr.count("\n") == 1


def test_sigterm_ends_readers_and_auditor_cleanly(world: World) -> None:
    assert world.auditor is not None
    assert world.auditor.stop() == 0
    for reader in world.readers.values():
        assert reader.stop() == 0
