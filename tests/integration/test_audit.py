"""The audit on real processes: two datacenters, the mirror, readers, the auditor; whatever is killed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
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
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from millrace.cli import cli
from millrace.client.cluster_client import LATEST
from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_audit.answer import Completeness, NewestLoad, Window, utc
from millrace_audit.client import changes, completeness
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, AuditCodec, LoadEnd, LoadNumber
from millrace_audit.reports.publish import AuditPublisher, edition_records
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.turns import Seat, read_turns
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.log.formats import MessageFormat
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.live import follow_load
from millrace_warehouse.storage import open_storage
from tests.access_log import AccessLog, access_log_names
from tests.brokers import TestCluster, free_port, read_topic
from tests.loaded import compact_as_others_do
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, run_python, wait_until
from tests.warehouses import load_here

Start = Callable[..., Process]
TOPICS = [
    *(f"{name}-log" for name in access_log_names()),
    "twice",
    "silent",
    "late",
    "auditor-kills",
    "reader-kills",
    "mixed",
    "restored",
    "claimed",
    "shrunk",
    "shown",
    "edited",
    "orders-json",
    *("json", "json-removed", "json-changed"),
    "fresh",
]
AUDIT_TOPICS = [AUDIT_TOPIC, COUNTS_TOPIC]


@dataclass
class World:
    """dc1, dc2 and the aggregate cluster, each with its reader; a registry; the auditor."""

    start: Start
    clusters: dict[str, TestCluster]
    registry: str
    zookeeper: str
    folder: Path
    readers: dict[str, Process] = field(default_factory=dict)
    auditor_port: int = field(default_factory=free_port)
    auditor: Process | None = None
    warehouse_reader: Process | None = None

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.auditor_port}"

    def start_reader(self, name: str) -> None:
        cluster = self.clusters[name]
        self.readers[name] = self.start(
            *("audit-reader", "--cluster", cluster.name if name == "offline" else name, "--tier", name),
            *("--bootstrap", cluster.bootstrap, "--registry", self.registry, "--zookeeper", self.zookeeper),
            *("--new-cluster", "--interval-ms", "100"),  # other tests have a dc1, too, and the same ZooKeeper
        )

    def auditor_words(self, database: str, port: int, *, registry: str = "", origins: str = "") -> list[str]:
        offline = self.clusters["offline"].bootstrap
        return [
            *(
                "auditor",
                "--listen",
                f"127.0.0.1:{port}",
                "--database-url",
                f"sqlite:///{self.folder}/{database}",
            ),
            *("--bootstrap", offline, "--registry", registry or self.registry, "--zookeeper", self.zookeeper),
            *("--origins", origins or ",".join(name for name in self.clusters if name != "offline")),
        ]

    def start_auditor(self, database: str = "auditor.db", port: int | None = None) -> Process:
        words = self.auditor_words(database, self.auditor_port if port is None else port)
        return self.start(*words, "--grace-s", "0")

    def producer(self, cluster: str, **options: Any) -> AuditedProducer:
        return AuditedProducer(
            self.clusters[cluster].bootstrap,
            self.registry,
            cluster=cluster,
            server=f"{cluster}-web",
            service="shop",
            **options,
        )

    def start_warehouse_reader(self) -> Process:
        offline = self.clusters["offline"].bootstrap
        self.warehouse_reader = self.start(
            *("audit-warehouse", "--warehouse", str(self.warehouse), "--bootstrap", offline),
            *("--registry", self.registry, "--zookeeper", self.zookeeper),
            *("--new-warehouse", "--interval-ms", "500"),
        )
        return self.warehouse_reader

    def load(self, topic: str) -> None:
        """Load what is new of the topic; the warehouse's reader finds it by itself."""
        load_here(self.clusters["offline"].bootstrap, self.registry, self.warehouse, topic)

    def ask(
        self, topic: str, windows: int = 1, *, start: int = START, url: str | None = None
    ) -> Completeness:
        first = datetime.fromtimestamp(start / 1000, UTC)
        last = datetime.fromtimestamp((start + windows * WINDOW_MS) / 1000, UTC)
        return completeness(url or self.url, topic, first, last)

    def await_verdict(self, topic: str, verdict: str, windows: int = 1) -> Completeness:
        found: list[Completeness] = []

        def asked() -> bool:
            found.append(self.ask(topic, windows))
            return found[-1].verdict == verdict

        try:
            wait_until(f"{topic} is {verdict}", asked)
        except AssertionError as error:
            rejected = httpx.get(f"{self.url}/v1/rejected-records").text
            raise AssertionError(f"{error}: {found[-1]}, rejected records {rejected}") from None
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
        name: TestCluster(start_for_module, f"{name}-{run}", folder, zookeeper, log, known_as=name)
        for name in ("dc1", "dc2")
    }
    settings = log
    for name, cluster in clusters.items():
        cluster.start_brokers(1)
        settings += (
            f"[mirror.{name}]\nbootstrap = {json.dumps(cluster.bootstrap)}\n"
            f"topics = {json.dumps([*TOPICS, *AUDIT_TOPICS])}\n"
        )
        with cluster.client() as client:
            for topic in [*TOPICS, *AUDIT_TOPICS]:
                client.create_topic(topic, 1 if topic in AUDIT_TOPICS else 2)
    clusters["offline"] = TestCluster(start_for_module, f"offline-{run}", folder, zookeeper, settings)
    clusters["offline"].start_brokers(1)
    world = World(start_for_module, clusters, f"http://{registry.ready()}", zookeeper, folder)
    for name in clusters:
        world.start_reader(name)
    world.auditor = world.start_auditor()
    for process in (*world.readers.values(), world.auditor, world.start_warehouse_reader()):
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
            *("publish-access-log", str(access_log.path), "--topic", topic, "--cluster", cluster, "--json"),
            *("--bootstrap", world.clusters[cluster].bootstrap, "--registry", world.registry),
            *("--part", f"{part}/2"),
        )
        assert published.returncode == 0, published.stderr
        assert json.loads(published.stdout)["acknowledged"] == lines // 2
    windows = 84 * 6 + 1
    span = ["--from", "2015-05-17T10:00", "--to", "2015-05-20T22:10Z", "--auditor", world.url]
    world.await_tier(topic, "offline", lines, windows)

    reasons: set[str] = set()

    def is_on_its_way() -> bool:
        reasons.clear()
        full = [window for window in world.ask(topic, windows).windows if window.acknowledged]
        reasons.update(reason for window in full for reason in window.reasons)
        return bool(full) and all("not loaded yet" in reason for reason in reasons)

    try:
        wait_until("everything is in the aggregate cluster", is_on_its_way)
    except AssertionError as error:
        raise AssertionError(f"{error}: {reasons}") from None
    before = world.ask(topic, windows)
    assert before.verdict == "pending", "the load has not run yet: that is no loss"
    assert [finding for window in before.windows for finding in window.findings] == []
    assert sum(window.acknowledged for window in before.windows) == lines
    shown = run_millrace("audit", topic, *span)
    assert shown.returncode == 1
    assert f"not loaded yet: `millrace load {topic}`" in shown.stdout
    bad = run_millrace("audit", "--bad", topic, "--auditor", world.url)
    assert (bad.returncode, "pending in the aggregate cluster since" in bad.stdout) == (1, True)
    assert f"    millrace load {topic}" in bad.stdout.splitlines(), "a line that can be copied"

    world.load(topic)
    wait_until("all of it is proven", lambda: world.ask(topic, windows).watermark is not None)
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
    assert "2015-05-17T10" in shown.stdout
    as_json = run_millrace("audit", topic, *span, "--json")
    assert as_json.returncode == 0
    assert json.loads(as_json.stdout)["verdict"] == "complete"


def test_a_message_that_is_there_twice_is_named_at_the_first_tier(world: World) -> None:
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
    assert [(f.kind, f.tier, f.instance, f.server, f.count) for f in found.windows[0].findings] == [
        ("duplicate", "dc1", producer.instance, "dc1-web", 1)
    ], "it was sent twice: the tiers behind only carry that on"


class Trickster:
    """A client library that sends something else for one value, without an error."""

    def __init__(self, producer: Any, value: bytes, instead: bytes | None) -> None:
        self._producer, self._value, self._instead = producer, value, instead

    def __len__(self) -> int:
        return len(self._producer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, topic: str, value: bytes, *others: Any) -> None:
        sent = self._instead if value == self._value else value
        if sent is not None:
            self._producer.produce(topic, sent, *others)


def send_orders(world: World, topic: str, *, instead: bytes | None) -> AuditedProducer:
    """Send fifty orders as JSON, number 7 with another value or, with None, not at all."""
    values = [json.dumps({"order": n}).encode() for n in range(50)]
    with world.producer("dc1") as producer:
        producer._producer = Trickster(producer._producer, values[7], instead)  # type: ignore[assignment]
        for n, value in enumerate(values):
            producer.send_value(topic, value, time_ms=START + n, headers=[("trace", b"%d" % n)])
    return producer


@pytest.mark.slow
def test_json_with_record_headers_is_proven_from_the_producer_to_the_table(world: World) -> None:
    send_orders(world, "json", instead=b'{"order": 7}')
    world.await_tier("json", "offline", 50)

    def is_only_not_loaded() -> bool:
        reasons = world.ask("json").windows[0].reasons
        return bool(reasons) and all("not loaded yet" in reason for reason in reasons)

    wait_until("both clusters are proven", is_only_not_loaded)
    window = world.ask("json").windows[0]
    assert (window.acknowledged, window.findings) == (50, [])
    assert window.tiers == {"dc1": 50, "offline": 50, "warehouse": 0}
    assert not window.foreign

    schema = {"type": "record", "name": "Numbered", "fields": [{"name": "order", "type": "long"}]}
    with SchemaRegistryClient(world.registry) as registry:
        registry.register("json", schema)
    place = world.clusters["offline"].bootstrap, world.registry, world.warehouse
    result = load_here(*place, "json", subject="json", messages=MessageFormat("json"))
    assert (result.rows, result.rejected) == (50, 0)
    world.await_verdict("json", "complete")
    assert published(world, "json")["hours"]
    world.await_tier("json", "table", 50)
    window = world.ask("json").windows[0]
    assert (window.verdict, window.foreign) == ("complete", {})
    assert window.tiers == {"dc1": 50, "offline": 50, "warehouse": 50, "table": 50}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "instead", "kind", "sequences"),
    [("json-removed", None, "missing", [[7, 7]]), ("json-changed", b"{}", "altered", [[0, 49]])],
)
def test_json_with_record_headers_that_is_removed_or_changed_is_named(
    world: World, topic: str, instead: bytes | None, kind: str, sequences: list[list[int]]
) -> None:
    producer = send_orders(world, topic, instead=instead)
    (found,) = world.await_verdict(topic, "incomplete").windows[0].findings
    assert (found.kind, found.tier, found.sequences) == (kind, "dc1", sequences)
    assert (found.instance, found.server, found.service) == (producer.instance, "dc1-web", "shop")


@pytest.mark.slow
def test_nobody_but_the_warehouses_reader_says_what_is_loaded(world: World) -> None:
    with world.producer("dc1") as producer:
        for n in range(10):
            producer.send("claimed", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("claimed", "offline", 10)
    offline = world.clusters["offline"]
    with offline.client() as client:
        topic_id = client.topic("claimed").topic_id.hex
        ends = [LoadEnd(topic_id, *end) for end in client.list_offsets("claimed", LATEST).items()]
    counts = SequenceCounts()
    counts.add("dc1-web", "shop", producer.instance, START, 0, 9)
    (claim,) = edition_records("claimed", LoadNumber(1), SequenceCounts(), counts, ends)
    session = Session.connect(world.zookeeper)
    with (
        closing(session),
        SchemaRegistryClient(world.registry) as registry,
        AuditPublisher(offline.bootstrap, "audit-offline") as publisher,
    ):
        turns = read_turns(session, Seat(offline.name, "offline"))
        value = AuditCodec(registry).encode(claim)
        reader_of_the_cluster = turns[max(turns)].key(value)
        for key in (b"", reader_of_the_cluster, reader_of_the_cluster[:8] + bytes(32)):
            publisher.publish([value], keys=[key])

    def are_listed() -> bool:
        listed = httpx.get(f"{world.url}/v1/rejected-records").json()
        counted = [row["count"] for row in listed if row["kind"] == "LoadCount"]
        return bool(sum(counted) >= 3)

    wait_until("the claims are rejected", are_listed)
    assert world.await_verdict("claimed", "pending").windows[0].tiers["warehouse"] == 0
    world.load("claimed")
    assert world.await_verdict("claimed", "complete").windows[0].tiers["warehouse"] == 10


@pytest.mark.slow
def test_branch_live_of_a_table_is_seen_by_the_warehouses_reader_and_told_by_the_auditor(
    world: World,
) -> None:
    with world.producer("dc1") as producer:
        for n in range(10):
            producer.send("fresh", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("fresh", "offline", 10)
    world.load("fresh")
    world.await_verdict("fresh", "complete")
    assert world.ask("fresh").live_through is None
    topic = Topic(open_storage(str(world.warehouse)), "fresh")
    assert follow_load(topic, "", on=True) == []
    followed = datetime.now(UTC)

    def is_seen() -> bool:
        through = world.ask("fresh").live_through
        return through is not None and through > followed

    wait_until("the branch lacks no row", is_seen)
    assert world.ask("fresh").verdict == "complete"
    assert follow_load(topic, "", on=False) == []
    wait_until("the branch is off", lambda: world.ask("fresh").live_through is None)


@pytest.mark.slow
def test_rows_that_a_file_has_lost_are_missing_whatever_its_load_has_counted(world: World) -> None:
    with world.producer("dc1") as producer:
        for n in range(40):
            producer.send("shrunk", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("shrunk", "offline", 40)
    assert world.warehouse_reader is not None
    world.warehouse_reader.kill()
    world.load("shrunk")
    lost = set[int]()
    for path in (world.warehouse / "shrunk" / "rows").rglob("2015*.parquet"):
        table = pq.ParquetFile(path).read()
        lost.add(table.column("header")[0].as_py()["sequence"])
        pq.write_table(table.slice(1), path)
    world.start_warehouse_reader().ready()
    found = world.await_verdict("shrunk", "incomplete")
    (finding,) = found.windows[0].findings
    assert (finding.kind, finding.tier) == ("missing", "warehouse")
    assert {n for first, last in finding.sequences for n in range(first, last + 1)} == lost


@pytest.mark.slow
def test_a_row_that_somebody_takes_out_of_the_table_turns_the_verdict_until_the_table_is_mended(
    world: World,
) -> None:
    with world.producer("dc1") as producer:
        for n in range(30):
            producer.send("shown", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("shown", "offline", 30)
    world.load("shown")
    world.await_verdict("shown", "complete")
    words = ["publish", "shown", "--warehouse", str(world.warehouse), "--auditor", world.url]
    done = run_millrace(*words, "--proven")
    assert done.returncode == 0, done.stdout + done.stderr
    world.await_tier("shown", "table", 30)
    (shown,) = world.ask("shown").windows
    assert shown.verdict == "complete"

    storage = open_storage(str(world.warehouse))
    with connect(storage) as catalog:
        table = catalog.load_table(table_identifier("shown"))
        lost = table.scan(limit=1).to_arrow()["header"][0].as_py()["sequence"]
        compact_as_others_do(
            storage,
            table,
            "shown",
            "2015-05-17T10",
            lambda rows: rows.filter(pc.not_equal(pc.struct_field(rows["header"], "sequence"), lost)),
        )
    (window,) = world.await_verdict("shown", "incomplete").windows
    (finding,) = window.findings
    assert (finding.kind, finding.tier, finding.sequences) == ("missing", "table", [[lost, lost]])
    assert (window.tiers["warehouse"], window.tiers["table"]) == (30, 29)
    assert window.revision == shown.revision, "the window's events are the same"

    rebuilt = run_millrace(*words, "--rebuild")
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    assert world.await_verdict("shown", "complete").windows[0].tiers["table"] == 30
    span = ["--from", "2015-05-17T10:00Z", "--to", "2015-05-17T10:10Z", "--auditor", world.url]
    history = run_millrace("audit", "shown", *span, "--history")
    assert [line.partition(": ")[2] for line in history.stdout.splitlines()] == [
        f"complete became incomplete at revision {shown.revision}",
        f"incomplete became complete at revision {shown.revision}",
    ]


@pytest.mark.slow
def test_what_verify_finds_in_the_warehouse_turns_the_verdict_until_it_is_clean_again(world: World) -> None:
    with world.producer("dc2") as producer:
        for n in range(10):
            producer.send("edited", PAGE_VIEW, EVENT, time_ms=START + n)
    world.await_tier("edited", "offline", 10)
    world.load("edited")
    world.await_verdict("edited", "complete")
    path = next((world.warehouse / "edited" / "rows").rglob("2015*.parquet"))
    right = path.read_bytes()
    words = ["verify", "--warehouse", str(world.warehouse), "edited", "--no-catalog"]
    path.write_bytes(right[:-1] + b"?")
    assert run_millrace(*words).returncode == 1
    (window,) = world.await_verdict("edited", "incomplete").windows
    (reason,) = window.reasons
    assert reason.startswith("`millrace verify` found: edited/rows/")
    assert path.name in reason
    path.write_bytes(right)
    assert run_millrace(*words).returncode == 0
    world.await_verdict("edited", "complete")
    span = ["--from", "2015-05-17T10:00Z", "--to", "2015-05-17T10:10Z", "--auditor", world.url]
    history = run_millrace("audit", "edited", *span, "--history").stdout
    assert history.count("millrace verify: found: edited/rows/") == 1
    assert history.count("millrace verify: found right again: edited/rows/") == 1


def published(world: World, topic: str) -> dict[str, Any]:
    """Answer of `millrace publish --proven` for one topic."""
    words = ("--proven", "--warehouse", str(world.warehouse), "--auditor", world.url, "--json")
    done = run_millrace("publish", topic, *words)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    return dict(answer)


@pytest.mark.slow
def test_messages_that_a_load_rejected_are_carried_once_an_operator_gives_them_up(world: World) -> None:
    with world.producer("dc2") as producer:
        for n in range(20):
            producer.send("mixed", PAGE_VIEW, EVENT, time_ms=START + n)
    foreign = Producer({"bootstrap.servers": world.clusters["dc2"].bootstrap})
    for value in (b"plain", b"\0\0\0\xff\xff12345", None):
        foreign.produce("mixed", value, key=b"k", timestamp=START + 5)
    assert foreign.flush(WAIT_S) == 0

    def counted_beside() -> bool:
        question = {"from": "2015-05-17T10:00Z", "to": "2015-05-17T10:10Z"}
        answer = httpx.get(f"{world.url}/v1/topics/mixed/completeness", params=question).json()
        return bool(answer["foreign"] == {"dc2": 3, "offline": 3})

    def reasons_of(topic: str) -> set[str]:
        return {reason.partition(" (")[0] for reason in world.ask(topic, 1).windows[0].reasons}

    wait_until("the foreign messages are counted", counted_beside)
    world.load("mixed")
    expected = {"load 1 rejected 2 messages", "some events were reported by no producer"}
    wait_until("nothing else is awaited", lambda: reasons_of("mixed") == expected)
    found = world.await_verdict("mixed", "incomplete")
    (window,) = found.windows
    assert (window.acknowledged, window.carried, window.findings, window.rejected) == (20, 3, [], 2)
    assert found.hours is not None
    ((load,),) = (hour.loads for hour in found.hours)
    assert (load.load, load.edition, load.rows, load.rejected) == (1, 1, 20, 2)
    assert found.newest_load is not None
    assert (found.newest_load.sha256, found.applied_at is not None) == (load.sha256, True)
    (waits,) = published(world, "mixed")["waiting"]
    assert (waits["rows"], waits["rejected"], waits["verdict"]["verdict"]) == (20, 2, "incomplete")
    accept = ("--accept-rejected", "1", "--reason", "probes", "--auditor", world.url)
    done = run_millrace("audit", "mixed", *accept)
    assert "accepted: 2 messages that load 1 of mixed rejected (probes)" in done.stdout
    found = world.await_verdict("mixed", "carried")
    assert found.windows[0].foreign == {"dc2": 3, "offline": 3, "warehouse": 1}, (
        "the tombstone is not missing"
    )
    assert changes(world.url, "mixed", None).hours == [utc(START)]
    numbers = httpx.get(f"{world.url}/metrics").text
    assert 'millrace_audit_windows{topic="mixed",verdict="carried"} 1.0' in numbers
    assert 'millrace_audit_delay_seconds_bucket{le="+Inf",tier="offline",topic="mixed"} 1.0' in numbers


@pytest.mark.slow
def test_an_hour_of_json_objects_is_not_proven_while_one_of_them_is_rejected(world: World) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}],
    }
    with SchemaRegistryClient(world.registry) as registry:
        registry.register("orders-json", schema)
    producer = Producer({"bootstrap.servers": world.clusters["dc2"].bootstrap})
    for value in (b'{"id":1}', b'{"id":2}', b'{"id":"three"}'):
        producer.produce("orders-json", value, timestamp=START + 5)
    assert producer.flush(WAIT_S) == 0
    counted = {"dc2": 3, "offline": 3}

    def window() -> Any:
        return world.ask("orders-json", 1).windows[0]

    wait_until("the objects are counted in both clusters", lambda: window().foreign == counted)
    result = load_here(
        *(world.clusters["offline"].bootstrap, world.registry, world.warehouse, "orders-json"),
        subject="orders-json",
        messages=MessageFormat("json"),
    )
    assert (result.rows, result.rejected) == (2, 1)
    assert result.notes == ["orders-json: rejected: 1 times 'id: Expected int, got string'"]
    wait_until("the rows are counted", lambda: window().foreign == {**counted, "warehouse": 2})
    world.await_verdict("orders-json", "incomplete")
    assert [reason.partition(" (")[0] for reason in window().reasons if "rejected" in reason] == [
        "load 1 rejected 1 messages"
    ]
    (waits,) = published(world, "orders-json")["waiting"]
    assert (waits["rows"], waits["rejected"], waits["verdict"]["verdict"]) == (2, 1, "incomplete")
    accept = ("--accept-rejected", "1", "--reason", "a test order", "--auditor", world.url)
    assert run_millrace("audit", "orders-json", *accept).returncode == 0
    world.await_verdict("orders-json", "carried")


@pytest.mark.slow
def test_a_warehouse_from_an_older_copy_is_noticed_and_its_lost_loads_can_be_replaced(world: World) -> None:
    topic, copy = world.warehouse / "restored", world.folder / "restored-copy"
    with world.producer("dc1") as producer:
        for n in range(20):
            producer.send("restored", PAGE_VIEW, EVENT, time_ms=START + n)
            if n == 9:
                producer.flush()
                world.await_tier("restored", "offline", 10)
                world.load("restored")
                world.await_tier("restored", "warehouse", 10)
                shutil.copytree(topic, copy)
    world.await_tier("restored", "offline", 20)
    world.load("restored")
    world.await_verdict("restored", "complete")
    shutil.rmtree(topic)
    shutil.copytree(copy, topic)
    (waits,) = published(world, "restored")["waiting"]  # before the auditor may have noticed
    assert waits["verdict"]["verdict"] == "incomplete"
    verified = run_millrace("verify", "--warehouse", str(world.warehouse), "restored", "--auditor", world.url)
    assert verified.returncode == 1
    assert "0000000002.json was counted by the auditor and is gone" in verified.stderr
    found = world.await_verdict("restored", "incomplete")
    gone = "load 2 was counted with 10 rows and is gone: the warehouse's newest load is 1"
    assert any(reason.startswith(gone) for reason in found.windows[0].reasons)
    world.load("restored")
    made = read_load(Topic(open_storage(str(world.warehouse)), "restored"), 2).sha256
    assert world.ask("restored").verdict == "incomplete"
    replace = ("--replace-loads", "--reason", "the disk is lost", "--auditor", world.url)
    assert "replaced: load 2 of restored" in run_millrace("audit", "restored", *replace).stdout
    found = world.await_verdict("restored", "complete")
    assert found.newest_load == NewestLoad(2, made)
    (change,) = published(world, "restored")["changes"]
    assert (change["verdict"]["verdict"], change["added"]) == ("complete", 20)


SILENT = """
import sys, time
from millrace_audit.reports.messages import schema_file
from millrace.cli import cli
from millrace.client.cluster_client import LATEST
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


@pytest.mark.slow
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
    found = world.await_verdict("silent", "pending")
    assert any(f"instance {instance} (shop on doomed in dc1)" in r for r in found.windows[0].reasons)
    assert any("reported nothing here, and 300 events are counted" in r for r in found.windows[0].reasons)
    assert found.watermark is None
    assert found.held_by is not None

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
    assert "300 events are counted that it never reported; they are judged like failed" in window.reasons[1]
    history = run_millrace("audit", "silent", *span, "--history")
    assert f"accepted instance {instance}: host burnt down" in history.stdout


@pytest.mark.slow
def test_a_late_event_reopens_a_complete_window_at_the_next_revision(world: World) -> None:
    with world.producer("dc1", report_interval_s=0.2) as producer:
        for n in range(30):
            producer.send("late", PAGE_VIEW, EVENT, time_ms=START + n)
        producer.closed_through(START + WINDOW_MS)
        world.await_tier("late", "offline", 30)
        world.load("late")
        # It is 1 if the auditor heard of the producer before its events: the window was final without them.
        before = world.await_verdict("late", "complete").windows[0].revision
        producer.send("late", PAGE_VIEW, EVENT, time_ms=START + 5)
        reopened = world.await_verdict("late", "pending")
        assert reopened.windows[0].revision > before
        assert reopened.watermark is None
    world.await_tier("late", "offline", 31)
    world.load("late")
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    ended = run_python("-c", DOOMED, *world.auditor_words("doomed.db", 0), timeout_s=60)
    assert ended.returncode != 0
    assert "a mistake in the program" in ended.stderr


def test_the_auditors_health_says_whether_it_reads(world: World) -> None:
    tiers = {"dc1", "dc2", "offline", "warehouse"}

    def hears_of_all_tiers() -> bool:
        answer = httpx.get(f"{world.url}/v1/health")
        return answer.status_code == 200 and answer.json()["counted_through"].keys() == tiers

    wait_until("the auditor hears of all tiers", hears_of_all_tiers)
    answer = httpx.get(f"{world.url}/v1/health").json()
    assert (answer["trouble"], answer["behind_s"].keys()) == (None, tiers)
    assert "/v1/bad" in httpx.get(world.url).json()["paths"]
    nowhere = f"http://127.0.0.1:{free_port()}"
    blind = world.start(*world.auditor_words("blind.db", 0, registry=nowhere, origins="dc1"))
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


@pytest.mark.slow
def test_bad_input_ends_in_one_line_and_exit_code_two(world: World, nobody: str, tmp_path: Path) -> None:
    span = ["--from", "2015-05-17T10:00Z", "--to", "2015-05-17T11:00Z"]
    rest = ["--registry", world.registry, "--bootstrap"]
    turns, database = ["--zookeeper", world.zookeeper], ["--database-url", f"sqlite:///{tmp_path}/x.db"]
    bad_log = tmp_path / "bad.log"
    bad_log.write_text("nonsense\n")
    offline = world.clusters["offline"].bootstrap
    threads = set(threading.enumerate())
    for arguments, said in (
        (
            ["audit", "PageView", "--from", "2015-05-18", "--to", "2015-05-17", "--auditor", world.url],
            "--from 2015-05-18 is not before --to 2015-05-17",
        ),
        (["audit", "PageView", "--from", "yesterday", "--to", "today"], "--from 'yesterday' is not a time"),
        (["audit", "PageView", *span, "--auditor", f"http://{nobody}"], "no auditor answers"),
        (
            ["audit", "PageView", *span, "--auditor", world.registry],
            "is unknown there: give the address of an auditor",
        ),
        (["audit", "PageView", *span, "--accept", "5"], "give both"),
        (["audit", "--auditor", world.url], "which topic?"),
        (["audit", "--accept-service", "x", "--accept", "5", "--reason", "r"], "give one"),
        (["audit", "--server", "x", "--auditor", world.url], "belong to --accept-service"),
        (["audit", "PageView", "--accept", "5", "--reason", " ", "--auditor", world.url], "needs a reason"),
        (
            ["audit", "PageView", "--from", "1900-01-01", "--to", "2100-01-01", "--auditor", world.url],
            "ask for less",
        ),
        (
            ["auditor", *turns, *rest, offline, "--origins", "dc1", "--listen", world.url[7:], *database],
            "cannot listen",
        ),
        (
            ["auditor", *turns, *rest, nobody, "--origins", "dc1", "--listen", "127.0.0.1:0", *database],
            nobody,
        ),
        (["auditor", *turns, *rest, offline, "--origins", ","], "--origins names"),
        (["audit-reader", *turns, *rest, nobody, "--cluster", "dc1"], nobody),
        (
            [
                *("publish-access-log", str(bad_log), *rest, world.clusters["dc1"].bootstrap),
                *("--cluster", "dc1", "--refused", str(tmp_path / "refused")),
            ],
            "is in a known format: give the server's own with --format",
        ),
        (["publish-access-log", str(tmp_path / "none"), *rest, nobody, "--cluster", "dc1"], "cannot read"),
    ):
        # In this process: to start one for each takes longer than all the rest.
        result = CliRunner().invoke(cli, arguments)
        assert isinstance(result.exception, MillraceError), (arguments, result.output)
        assert said in str(result.exception), arguments
        assert "\n" not in str(result.exception), arguments
        left = set(threading.enumerate()) - threads
        assert {thread.name for thread in left} <= {"signals"}, arguments
    ended = run_millrace("audit", "PageView", "--from", "2015-05-18", "--to", "2015-05-17")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("millrace: --from 2015-05-18 is not before --to 2015-05-17")
    assert ended.stderr.count("\n") == 1


def test_sigterm_ends_readers_and_auditor_cleanly(world: World) -> None:
    assert world.auditor is not None
    assert world.auditor.stop() == 0
    for reader in world.readers.values():
        assert reader.stop() == 0
