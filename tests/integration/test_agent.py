"""`millrace agent` on real brokers, registry and auditor: what it takes arrives, whatever is killed."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import httpx
import pytest

from millrace_agent.intake import MAX_BATCH, MAX_EVENT_BYTES
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.event import PREFIX_BYTES, read_header
from millrace_audit.reports.messages import FOR_EVER, Hello, Report, schema_file
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.record_header import audit_header, topic_tag
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.log.formats import AVRO_MESSAGES, MessageFormat
from tests.audit_world import audit_of_one_origin
from tests.brokers import TestCluster, free_port, read_topic
from tests.integration.test_audit import World as AuditWorld
from tests.integration.test_audit_producer import World as ProducerWorld
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import ROUNDS, WAIT_S, Process, run_millrace, wait_until
from tests.warehouses import load_here

Start = Callable[..., Process]
PARSED: Any = fastavro.parse_schema(dict(schema_file("PageView")))


PLAIN = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}
PLAIN_PARSED: Any = fastavro.parse_schema(dict(PLAIN))


def event(url: str, **more: Any) -> dict[str, Any]:
    return {"time": START, "event": {**EVENT, "url": url}, **more}


def message(url: str) -> dict[str, Any]:
    return {"time": START, "value": {"url": url}}


ITEMS: dict[str, Callable[[str], dict[str, Any]]] = {"events": event, "messages": message}
"""Route -> an item that it takes."""


@dataclass
class Agent:
    """An agent that can be killed and started again at its address."""

    start: Start
    options: list[str]
    port: int = field(default_factory=free_port)
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *options: str) -> Process:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--report-interval-ms", "100"]
        self.process = self.start("agent", *self.options, *listen, *options)
        self.process.ready()
        return self.process

    def post(self, topic: str, body: Any, route: str = "events", **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/topics/{topic}/{route}", json=body, timeout=WAIT_S, **options)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"millrace_agent_{name} "))

    def await_sent(self) -> None:
        wait_until("everything is sent", lambda: self.metric("spool_events") == 0)


@dataclass
class World(ProducerWorld):
    """One cluster with an audit topic and a registry; agents in front of them."""

    start: Start
    folder: Path

    def agent(self, topic: str, **more: str) -> Agent:
        options = {
            "cluster": "dc1",
            "bootstrap": self.cluster.bootstrap,
            "registry": self.registry,
            "service": "shop",
            "server": "web-1",
            "spool": str(self.folder / uuid4().hex[:8]),
            "subject": f"{topic}=PageView",
            **more,
        }
        return Agent(self.start, [word for name, value in options.items() for word in (f"--{name}", value)])

    def urls(self, topic: str) -> list[str]:
        """Return the url field of every event in the topic, sorted."""
        with self.cluster.client() as client:
            values = [v or b"" for contents in read_topic(client, topic).values() for v in contents.values]
        return sorted(url_of(value) for value in values)

    def instances(self, topic: str) -> set[int]:
        return {header.instance for header in self.events(topic)}


def url_of(value: bytes) -> str:
    """Return the field `url` of an event with its header, or of a message in JSON."""
    return str((json.loads(value) if value.startswith(b"{") else body(value))["url"])


def body(message: bytes) -> Any:
    return fastavro.schemaless_reader(BytesIO(message[PREFIX_BYTES:]), PARSED, None)


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("agent")
    registry = start_for_module(
        "registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{folder}/registry.db"
    )
    cluster = TestCluster(
        start_for_module, f"a{uuid4().hex[:8]}", folder, zookeeper, "[log]\nflush_ms = 20\n", known_as="dc1"
    )
    cluster.start_brokers(1)
    with cluster.client() as client:
        client.create_topic("audit", 1)
    url = f"http://{registry.ready()}"
    with SchemaRegistryClient(url) as schemas:
        schemas.register("PageView", schema_file("PageView"))
    return World(cluster, url, start_for_module, folder)


def told(reports: list[Report]) -> tuple[SequenceRanges, SequenceRanges]:
    acknowledged, failed = SequenceRanges(), SequenceRanges()
    for window in (window for report in reports for window in report.windows):
        acknowledged, failed = acknowledged | window.acknowledged, failed | window.failed
    return acknowledged, failed


def test_events_in_json_one_and_many_arrive_numbered_and_are_reported(world: World) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    process = agent.run()
    assert agent.post(topic, event("/0", key="k")).json() == {"accepted": 1}
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAA"}
    assert agent.post(topic, event("/java"), headers=upgrade).json() == {"accepted": 1}
    many = [event(f"/{n}", time=START + n * 1000) for n in range(1, 1500)]
    assert agent.post(topic, many).json() == {"accepted": 1499}
    agent.await_sent()
    assert world.urls(topic) == sorted(["/java", *(f"/{n}" for n in range(1500))])
    (instance,) = world.instances(topic)
    assert sorted(header.sequence for header in world.events(topic)) == list(range(1501))
    assert {(header.server, header.service) for header in world.events(topic)} == {("web-1", "shop")}
    with world.cluster.client() as client:
        records = [r for contents in read_topic(client, topic).values() for r in contents.records]
    assert [r.key for r in records if body(r.value or b"")["url"] == "/0"] == [b"k"]
    assert all(record.timestamp == read_header(record.value or b"").time for record in records)
    assert httpx.get(f"{agent.url}/healthz").json() == {"healthy": True, "problems": []}
    assert agent.metric("taken_events_total") == agent.metric("acknowledged_events_total") == 1501
    assert process.stop() == 0
    hello, *reports = world.said(instance)
    assert isinstance(hello, Hello)
    assert told(world.reports(instance))[0].pairs() == [[0, 1500]]
    assert world.reports(instance)[-1].closed_through == FOR_EVER
    assert world.reports(instance) == reports


def test_events_in_avro_are_the_ones_that_arrive(world: World) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    agent.run()
    answer = httpx.get(f"{agent.url}/v1/topics/{topic}/schema").json()
    schema: Any = fastavro.parse_schema(answer["schema"])
    defaults = {"memberId": 5, "referrer": None, "userAgent": None, "bytes": None}
    batch = [
        {**event(f"/{n}", key=b"\xff"), "event": {**EVENT, **defaults, "url": f"/{n}"}} for n in range(9)
    ]
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, batch)
    url = f"{agent.url}/v1/topics/{topic}/events"
    kind = {"Content-Type": "application/avro"}
    known = {"schema_id": answer["schema_id"]}
    assert httpx.post(url, content=out.getvalue(), headers=kind, params=known).json() == {"accepted": 9}
    agent.await_sent()
    assert world.urls(topic) == [f"/{n}" for n in range(9)]
    for content, params, status, said in (
        (out.getvalue(), {}, 400, "needs ?schema_id=ID"),
        (out.getvalue(), {"schema_id": 99_999}, 404, "99999"),
        (out.getvalue(), {"schema_id": "x"}, 400, "schema_id"),
        (out.getvalue()[:-3], known, 400, "is no Avro array of events of schema"),
        (out.getvalue() + b"xx", known, 400, "2 bytes follow"),
        (b"\x00", known, 400, "without events"),
        (b"\xff" * 50, known, 400, "is no Avro array"),
        (b"", known, 400, "is no Avro array"),
    ):
        answer = httpx.post(url, content=content, headers=kind, params=params)
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    assert len(world.events(topic)) == 9


def test_what_is_no_good_is_refused_with_field_and_reason_and_nothing_of_its_request_is_taken(
    world: World,
) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    agent.run()
    good = event("/good")
    for wrong, said in (
        ({**good, "time": "now"}, 'time: "now" is no time in ms since the epoch between 2000-01-01'),
        ({"event": EVENT}, "time: null is no time"),
        ({**good, "time": 1 << 70}, "time: 118"),
        ({**good, "time": True}, "time: true is no time"),
        ({**good, "key": 5}, "key: give a text or null"),
        ({**good, "event": []}, "event: give an object"),
        ({**good, "extra": 1}, "extra: no such field"),
        ({**good, "\ud800": 1}, "\\ud800: no such field"),
        ({**good, "event": {**EVENT, "header": {}}}, "leave header out"),
        ({**good, "event": {**EVENT, "status": "ok"}}, "status"),
        ({**good, "event": {**EVENT, "status": 1 << 40}}, "status"),
        ({**good, "event": {**EVENT, "nonsense": 1}}, "nonsense"),
        ({**good, "event": {k: v for k, v in EVENT.items() if k != "url"}}, "url"),
        ({**good, "event": {**EVENT, "url": "\ud800"}}, "does not fit schema PageView"),
        ({**good, "event": {**EVENT, "url": "x" * (MAX_EVENT_BYTES + 1)}}, f"at most {MAX_EVENT_BYTES}"),
        (7, "it is no object"),
    ):
        content = json.dumps([good, good, wrong])
        kind = {"Content-Type": "application/json"}
        url = f"{agent.url}/v1/topics/{topic}/events"
        answer = httpx.post(url, content=content, headers=kind)
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"].startswith("event 2: ")
        assert said in answer.json()["error"], answer.text
    for sent, media_type, status, said in (
        (b"{", "application/json", 400, "it is no JSON"),
        (b"[" * 100_000, "application/json", 400, "nested too deeply"),
        (b'[{"time": NaN}]', "application/json", 400, "NaN is no JSON"),
        (b'[{"time": 1e400}]', "application/json", 400, "1e400 is too large"),
        (b"[]", "application/json", 400, "without events"),
        (json.dumps([good] * (MAX_BATCH + 1)).encode(), "application/json", 400, f"at most {MAX_BATCH}"),
        (b" " * (5 << 20), "application/json", 413, "body is larger than 4194304 bytes"),
        (json.dumps(good).encode(), "text/plain", 415, "send application/json or application/avro"),
    ):
        answer = httpx.post(url, content=sent, headers={"Content-Type": media_type})
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    for name in ("none-like-it", "no topic"):
        assert agent.post(name, good).status_code in (400, 404)
    without = world.topic()
    answer = agent.post(without, good)
    assert (answer.status_code, f"--subject {without}=SUBJECT" in answer.text) == (404, True)
    assert agent.metric("spool_events") == agent.metric("taken_events_total") == 0
    assert world.events(topic) == []


def test_messages_and_events_without_a_header_arrive_with_record_headers_also_after_a_kill(
    world: World,
) -> None:
    topic, kind = world.topic(1), {"Content-Type": "application/json"}
    with SchemaRegistryClient(world.registry) as schemas:
        schemas.register(topic, PLAIN)
    agent = world.agent(topic, subject=f"{topic}={topic}")
    agent.run()
    url = f"{agent.url}/v1/topics/{topic}/messages"
    text = '{"total": 1.10, "url":\n"/0"}'
    content = f'{{"time": {START}, "key": "k", "value": {text}}}'
    assert httpx.post(url, content=content, headers=kind).json() == {"accepted": 1}
    agent.await_sent()
    world.cluster.brokers[1].kill()
    others = [
        {"time": START + 1, "key": "k", "value": None},
        {"time": START + 2, "key": "k", "value_base64": ""},
        {"time": START + 3, "value_base64": "/wA="},
    ]
    assert agent.post(topic, others, "messages").json() == {"accepted": 3}
    assert agent.post(topic, event("/4", time=START + 4)).json() == {"accepted": 1}
    for media_type, sent, status, said in (
        ("application/x-ndjson", b"{}", 415, "send application/json as Content-Type"),
        ("application/json", b'{"order": 1}', 400, "order: no such field, the fields are time, key, value"),
        ("application/json", b'[{"time": %d, "value": "{}"}]' % START, 400, "value: give a JSON object"),
    ):
        answer = httpx.post(url, content=sent, headers={"Content-Type": media_type})
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    assert agent.post("audit", others, "messages").status_code == 400
    assert agent.process is not None
    agent.process.kill()
    world.cluster.restart(1)
    process = agent.run()
    agent.await_sent()
    with world.cluster.client() as client:
        records = read_topic(client, topic)[0].records
    *as_they_are, last = records
    assert [record.value for record in as_they_are] == [text.encode(), None, b"", b"\xff\0"]
    assert [record.key for record in records] == [b"k", b"k", b"k", None, None]
    sent_event: Any = fastavro.schemaless_reader(BytesIO((last.value or b"")[5:]), PLAIN_PARSED, None)
    assert sent_event["url"] == "/4"
    headers = [audit_header(record.headers, topic_tag(topic)) for record in records]
    found = [(header.sequence, header.time - START) for header in headers if header is not None]
    assert found == [(0, 0), *((n - 1, n) for n in range(1, 5))], "the second process numbers from 0 on"
    assert process.stop() == 0
    instances = list(dict.fromkeys(header.instance for header in headers if header is not None))
    assert len(instances) == 2
    first, second = (told(world.reports(instance)) for instance in instances)
    assert [ranges.pairs() for ranges in second] == [[[0, 3]], []]
    assert first[0].pairs() == [[0, 0]], "acknowledged before the kill"
    assert not first[1] & first[0]
    assert all(world.reports(instance)[-1].closed_through == FOR_EVER for instance in instances)


def test_a_full_spool_says_so_and_takes_events_again_once_the_brokers_are_back(world: World) -> None:
    topic = world.topic()
    agent = world.agent(topic, **{"spool-bytes": str(16 << 20)})
    agent.run()
    assert agent.post(topic, event("/0")).status_code == 200
    agent.await_sent()
    world.cluster.brokers[1].kill()
    taken, large = 1, "x" * 100_000

    def batch() -> list[dict[str, Any]]:
        return [event(f"/{taken + n}") for n in range(100)] + [
            {"time": START, "event": {**EVENT, "url": "/large", "referrer": large}} for _ in range(10)
        ]

    while (answer := agent.post(topic, batch())).status_code == 200:
        taken += 100
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert "the brokers are unreachable or too slow; nothing was taken" in answer.json()["error"]
    assert "full: at 100 % events are answered with 503" in httpx.get(f"{agent.url}/healthz").text
    world.cluster.restart(1)
    agent.await_sent()
    assert agent.post(topic, event(f"/{taken}")).status_code == 200
    agent.await_sent()
    each_once = [*(f"/{n}" for n in range(taken + 1)), *["/large"] * ((taken - 1) // 10)]
    assert world.urls(topic) == sorted(each_once), "nobody was killed"
    wait_until("it is well again", lambda: httpx.get(f"{agent.url}/healthz").status_code == 200)


def test_events_that_the_brokers_refuse_are_kept_and_sent_once_they_take_them(world: World) -> None:
    topic = f"small-{uuid4().hex[:6]}"
    with world.cluster.client() as client:
        client.create_topic(topic, 1, {"max.message.bytes": "2000"})
    agent = world.agent(topic)
    agent.run()
    large = event("/large") | {"event": {**EVENT, "url": "/large", "referrer": "x" * 5000}}
    assert agent.post(topic, [event("/1"), large, event("/2")]).status_code == 200
    wait_until(
        "it is refused",
        lambda: (
            "events, which are kept: Broker: Message size too large" in httpx.get(f"{agent.url}/healthz").text
        ),
    )
    assert agent.post(topic, event("/3")).status_code == 200
    wait_until("the others are there", lambda: set(world.urls(topic)) == {"/1", "/2", "/3"})
    wait_until("only the large one is left", lambda: agent.metric("spool_events") == 1)
    raised = ["topics", "alter", topic, "--config", "max.message.bytes=100000"]
    assert run_millrace(*raised, "--bootstrap", world.cluster.bootstrap).returncode == 0
    agent.await_sent()
    assert set(world.urls(topic)) == {"/1", "/2", "/3", "/large"}
    wait_until("it is well again", lambda: httpx.get(f"{agent.url}/healthz").status_code == 200)
    (instance,) = world.instances(topic)
    assert agent.process is not None
    assert agent.process.stop() == 0
    acknowledged, failed = told(world.reports(instance))
    assert len(acknowledged) >= 2
    assert failed, "each try in vain has a number, and is told"


WITH_THREE_WINDOWS = """
import millrace.cli
from millrace_agent import carrier
carrier.CHUNK_EVENTS, carrier.MOST_OPEN_WINDOWS = 1, 3
millrace.cli.main()
"""


def test_an_agent_that_holds_too_many_windows_open_sends_on_once_windows_close(world: World) -> None:
    topic, followed = world.topic(), f"late-{uuid4().hex[:6]}"
    file = world.folder / f"{followed}.log"
    file.write_text(json.dumps(event("/followed", time=START + 5 * WINDOW_MS)) + "\n")
    agent = world.agent(topic, follow=f"{followed}={file}")
    agent.start = partial(agent.start, program=(sys.executable, "-c", WITH_THREE_WINDOWS))
    agent.run("--subject", f"{followed}=PageView")
    events = [event(f"/{n}", time=START + n * WINDOW_MS) for n in range(5)]
    assert agent.post(topic, events).status_code == 200
    waits = (
        f"topic {topic}: its events wait, because the agent holds 3 windows of ten minutes open, and the"
        " audit takes no more: they close when all followed files are read; restart the agent if they stay"
        " open"
    )
    wait_until("events wait", lambda: waits in httpx.get(f"{agent.url}/healthz").text)
    assert world.urls(topic) == ["/0", "/1", "/2"], "no window closes while the followed file has no topic"
    assert agent.metric("spool_events") == 2
    with world.cluster.client() as client:
        client.create_topic(followed, 1)
    wait_until("the line of the file is sent", lambda: world.urls(followed) == ["/followed"])
    agent.await_sent()
    assert world.urls(topic) == [f"/{n}" for n in range(5)]
    wait_until("it is well again", lambda: httpx.get(f"{agent.url}/healthz").status_code == 200)
    (instance,) = world.instances(topic)
    assert agent.process is not None
    assert agent.process.stop() == 0
    acknowledged, failed = told(world.reports(instance))
    assert (len(acknowledged), len(failed)) == (5, 0), "each topic has numbers of its own"


@pytest.mark.slow
def test_an_agent_that_starts_while_brokers_and_registry_are_away_takes_events_of_known_topics(
    world: World,
) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    agent.run()
    assert agent.post(topic, event("/0")).status_code == 200
    agent.await_sent()
    assert agent.process is not None
    agent.process.kill()
    world.cluster.brokers[1].kill()
    nobody = f"http://127.0.0.1:{free_port()}"
    agent.run("--registry", nobody)
    assert agent.post(topic, event("/1")).status_code == 200
    answer = agent.post("another-topic", event("/1"))
    assert (answer.status_code, "no broker answers" in answer.text) == (503, True)
    agent.process.kill()
    world.cluster.restart(1)
    agent.run()
    agent.await_sent()
    assert world.urls(topic) == ["/0", "/1"]

    def ended() -> list[bool]:
        last = [world.reports(instance)[-1:] for instance in world.instances(topic)]
        return sorted(any(report.closed_through == FOR_EVER for report in one) for one in last)

    wait_until("the first one is ended by the third, which goes on", lambda: ended() == [False, True])


def test_an_agent_with_the_name_of_another_cluster_ends_at_the_first_answer_and_keeps_its_events(
    world: World, start: Start, zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, f"late-{uuid4().hex[:8]}", tmp_path, zookeeper, known_as="dc1")
    late = World(cluster.start_brokers(1), world.registry, start, tmp_path)
    with cluster.client() as client:
        client.create_topic("audit", 1)
    topic = late.topic()
    right = late.agent(topic)
    right.run()
    right.post(topic, event("/0")).raise_for_status()
    right.await_sent()
    cluster.brokers[1].kill()
    right.post(topic, event("/kept")).raise_for_status()
    assert right.process is not None
    right.process.kill()
    process = Agent(start, [*right.options, "--cluster", "dc9"]).run()
    assert process.running  # no broker answers yet
    cluster.restart(1)
    assert process.wait() == 1
    said = f"dc9: the broker at {cluster.bootstrap} belongs to the cluster dc1. Set cluster to dc1."
    assert said in process.output
    assert "Traceback" not in process.output
    assert late.urls(topic) == ["/0"]
    right.run()
    right.await_sent()
    assert late.urls(topic) == ["/0", "/kept"]


def test_a_spool_is_for_one_agent(world: World) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    agent.run()
    second = run_millrace("agent", *agent.options, "--listen", "127.0.0.1:0")
    assert second.returncode == 1
    assert "another agent uses" in second.stderr
    assert second.stderr.count("\n") == 1


def spool_of(agent: Agent) -> Path:
    return Path(agent.options[agent.options.index("--spool") + 1])


def copied(spool: Path) -> Path:
    return Path(shutil.copytree(spool, spool.with_name(uuid4().hex[:8])))


def with_waiting_events(world: World, agent: Agent, topic: str, count: int) -> None:
    """Stop the agent while events wait in its spool that no broker has."""
    agent.run()
    assert agent.post(topic, event("/known")).status_code == 200
    agent.await_sent()
    world.cluster.brokers[1].kill()
    assert agent.post(topic, [event(f"/{n}") for n in range(count)]).status_code == 200
    assert agent.process is not None
    assert agent.process.stop() == 0
    world.cluster.restart(1)


def refused(agent: Agent) -> str:
    """Return the sentence of an agent that ends because another agent has continued with its spool."""
    assert agent.process is not None
    assert agent.process.wait(timeout_s=WAIT_S) == 1
    output = agent.process.output
    assert "an older copy: another agent (shop on web-1) has continued with it at 20" in output
    assert "Traceback" not in output
    return output


@pytest.mark.slow
def test_of_two_agents_that_go_on_with_copies_of_a_spool_the_second_is_refused(world: World) -> None:
    topic = world.topic()
    first = world.agent(topic)
    with_waiting_events(world, first, topic, 10)
    second = world.agent(topic, spool=str(copied(spool_of(first))))
    first.run()
    first.await_sent()
    second.run()
    assert "start this one with an empty --spool" in refused(second)
    assert world.urls(topic) == sorted(["/known", *(f"/{n}" for n in range(10))])
    adopted = run_millrace("agent", *second.options, "--adopt-copy")
    assert adopted.stdout == "10 events wait: start the agent without --adopt-copy to send them\n"
    second.run()
    second.await_sent()
    assert len(world.urls(topic)) == 1 + 10 + 10, "as its operator has said"


@pytest.mark.slow
def test_of_two_agents_that_go_on_with_copies_of_a_spool_at_once_one_is_refused(world: World) -> None:
    topic = world.topic()
    first = world.agent(topic)
    with_waiting_events(world, first, topic, 10)
    second = world.agent(topic, spool=str(copied(spool_of(first))))
    threads = [threading.Thread(target=each.run) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def running() -> list[Agent]:
        return [one for one in (first, second) if one.process is not None and one.process.running]

    wait_until("one has ended", lambda: len(running()) == 1)
    (won,) = running()
    refused(second if won is first else first)
    won.await_sent()
    assert world.urls(topic) == sorted(["/known", *(f"/{n}" for n in range(10))])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_older_copy_of_a_spool_that_is_put_back_is_refused(world: World, end: str) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    spool = spool_of(agent)
    agent.run()
    assert agent.post(topic, event("/0")).status_code == 200
    agent.await_sent()
    assert agent.process is not None
    getattr(agent.process, end)()
    copy = copied(spool)
    agent.run()
    assert agent.post(topic, event("/1")).status_code == 200
    agent.await_sent()
    getattr(agent.process, end)()
    shutil.rmtree(spool)
    copy.rename(spool)
    agent.run()
    refused(agent)
    assert world.urls(topic) == ["/0", "/1"]


def test_a_copy_of_a_running_agents_spool_is_refused_once_that_agent_has_reported_again(world: World) -> None:
    topic = world.topic()
    first = world.agent(topic)
    first.run()
    assert first.post(topic, event("/0")).status_code == 200
    first.await_sent()
    second = world.agent(topic, spool=str(copied(spool_of(first))))
    (instance,) = world.instances(topic)
    assert first.post(topic, event("/1")).status_code == 200
    wait_until("it has reported both", lambda: told(world.reports(instance))[0].pairs() == [[0, 1]])
    second.run()
    refused(second)
    assert world.urls(topic) == ["/0", "/1"]


def test_a_copy_of_a_spool_that_had_sent_nothing_yet_is_refused(world: World) -> None:
    topic = world.topic()
    first = world.agent(topic)
    assert first.run().stop() == 0
    second = world.agent(topic, spool=str(copied(spool_of(first))))
    first.run()
    assert first.post(topic, event("/0")).status_code == 200
    first.await_sent()
    second.run()
    refused(second)


@pytest.mark.slow
def test_a_spool_that_is_moved_to_another_machine_goes_on_without_a_word(world: World) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    with_waiting_events(world, agent, topic, 10)
    moved = world.agent(topic, server="web-2", spool=str(spool_of(agent).rename(world.folder / uuid4().hex)))
    for _ in range(2):
        process = moved.run()
        moved.await_sent()
        process.kill()
    assert "older copy" not in process.output
    assert world.urls(topic) == sorted(["/known", *(f"/{n}" for n in range(10))])


@pytest.mark.slow
def test_a_killed_agents_instance_is_ended_by_the_next_one_with_every_sequence_told_once(
    world: World,
) -> None:
    topic = world.topic()
    agent = world.agent(topic)
    agent.run()
    numbers, accepted = itertools.count(), list[str]()
    for _ in range(5):
        accepted += post_until_killed(agent, topic, 0.5, numbers)
        agent.run()
    agent.await_sent()
    assert agent.process is not None
    assert agent.process.stop() == 0
    events = world.events(topic)
    assert set(world.urls(topic)) >= set(accepted)
    for instance in {header.instance for header in events}:
        reports = world.reports(instance)
        assert [report.number for report in {r.number: r for r in reports}.values()] == list(
            range(len({report.number for report in reports}))
        )
        once = list({report.number: report for report in reports}.values())
        assert once[-1].closed_through == FOR_EVER
        acknowledged, failed = told(once)
        assert not acknowledged & failed
        assert sum(len(w.acknowledged) + len(w.failed) for r in once for w in r.windows) == len(
            acknowledged | failed
        ), "told twice"
        there = SequenceRanges((h.sequence, h.sequence) for h in events if h.instance == instance)
        assert not there - (acknowledged | failed)
        assert not acknowledged - there


def post_until_killed(
    agent: Agent, topic: str, seconds: float, numbers: Iterator[int], route: str = "events"
) -> list[str]:
    """Kill the agent after so many seconds under the load of three clients; the urls that it accepted."""
    accepted: list[str] = []

    def work() -> None:
        chance = random.Random()
        while True:
            urls = [f"/{next(numbers)}" for _ in range(chance.choice((1, 5, 200)))]
            try:
                answer = agent.post(topic, [ITEMS[route](url) for url in urls], route)
            except httpx.TransportError:
                return  # killed: it has them or not
            assert answer.status_code == 200, answer.text
            accepted.extend(urls)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    assert agent.process is not None
    agent.process.kill()
    for thread in threads:
        thread.join()
    return accepted


@dataclass
class LogFile:
    """A service's log: a thread writes lines to it, and rotates it now and then, until it is stopped."""

    path: Path
    written: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        chance = random.Random(1)
        for rotations in itertools.count(1):
            with self.path.open("a") as file:
                for _ in range(chance.randrange(1, 300)):
                    url = f"/line/{len(self.written)}"
                    file.write(json.dumps(event(url)) + "\n")
                    self.written.append(url)
                    if self.stop.wait(0.005):
                        return
            self.path.rename(self.path.with_name(f"{self.path.name}.{rotations}"))


@dataclass
class AgentAudit(AuditWorld):
    """dc1 and the aggregate cluster with readers and the auditor."""

    def agent(self, topic: str, *more: str) -> Agent:
        options = [*more, "--cluster", "dc1", "--bootstrap", self.clusters["dc1"].bootstrap, "--registry"]
        options += [self.registry, "--service", "shop", "--server", "web-1", "--lateness-ms", "0"]
        spool = str(self.folder / f"spool-{topic}")
        return Agent(self.start, [*options, "--spool", spool, "--subject", f"{topic}=PageView"])

    def urls(self, topic: str, cluster: str = "offline") -> Counter[str]:
        """Count the url fields of the events in a cluster, by default the aggregate cluster."""
        with self.clusters[cluster].client() as client:
            values = [v or b"" for contents in read_topic(client, topic).values() for v in contents.values]
        return Counter(url_of(value) for value in values)


AUDITED = ["agent-kills", "agent-json", "agent-left", "agent-rounds"]


@pytest.fixture(scope="module")
def audited(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> AgentAudit:
    folder = tmp_path_factory.mktemp("agent-audit")
    return audit_of_one_origin(AgentAudit, start_for_module, zookeeper, folder, AUDITED)


def assert_nothing_lost_and_complete(
    world: AgentAudit,
    topic: str,
    accepted: list[str],
    *,
    subject: str = "PageView",
    messages: MessageFormat = AVRO_MESSAGES,
) -> None:
    assert accepted
    sent = world.urls(topic, "dc1")
    assert sent.keys() >= set(accepted)
    wait_until("everything is in the aggregate cluster", lambda: world.urls(topic) == sent)
    world.await_tier(topic, "offline", sent.total())
    place = world.clusters["offline"].bootstrap, world.registry, world.warehouse
    load_here(*place, topic, subject=subject, messages=messages)
    (window,) = world.await_verdict(topic, "complete").windows
    assert window.findings == []
    assert window.tiers == dict.fromkeys(("dc1", "offline", "warehouse"), sent.total())
    assert not window.foreign
    assert window.acknowledged <= sent.total() <= window.acknowledged + window.failed
    assert httpx.get(f"{world.url}/v1/rejected-records").json() == []


@pytest.mark.slow
def test_the_windows_of_a_killed_agent_are_complete_without_an_operator(audited: AgentAudit) -> None:
    topic, numbers = "agent-kills", itertools.count()
    agent = audited.agent(topic)
    accepted: list[str] = []
    for _ in range(3):
        agent.run()
        accepted += post_until_killed(agent, topic, 0.5, numbers)
    process = agent.run()
    agent.await_sent()
    assert process.stop() == 0
    assert_nothing_lost_and_complete(audited, topic, accepted)


@pytest.mark.slow
def test_the_windows_of_a_killed_agent_with_messages_in_json_are_complete(audited: AgentAudit) -> None:
    topic, numbers = "agent-json", itertools.count()
    agent = audited.agent(topic)
    accepted: list[str] = []
    for _ in range(3):
        agent.run()
        accepted += post_until_killed(agent, topic, 0.5, numbers, "messages")
    process = agent.run()
    agent.await_sent()
    assert process.stop() == 0
    schema = {"type": "record", "name": "Viewed", "fields": [{"name": "url", "type": "string"}]}
    with SchemaRegistryClient(audited.registry) as registry:
        registry.register(topic, schema)
    messages = MessageFormat("json")
    assert_nothing_lost_and_complete(audited, topic, accepted, subject=topic, messages=messages)


@pytest.mark.slow
def test_windows_stay_open_while_a_killed_agent_has_events_and_no_successor(audited: AgentAudit) -> None:
    topic, numbers = "agent-left", itertools.count()
    agent = audited.agent(topic)
    years = (
        "--lateness-ms",
        str(20 * 365 * 24 * 3_600_000),
    )  # the clock closes nothing that events here are of
    agent.run(*years)
    assert agent.post(topic, event("/first")).status_code == 200
    agent.await_sent()
    post_until_killed(agent, topic, 0.5, numbers)

    def is_named() -> bool:
        (window,) = audited.ask(topic).windows
        return any("(shop on web-1 in dc1) has closed" in reason for reason in window.reasons)

    wait_until("the window is open because of it", is_named)
    assert audited.ask(topic).verdict in ("pending", "unknown")
    process = agent.run(*years)
    agent.await_sent()
    assert process.stop() == 0
    sent = audited.urls(topic, "dc1")
    wait_until("everything is in the aggregate cluster", lambda: audited.urls(topic) == sent)
    audited.await_tier(topic, "dc1", sent.total())
    audited.await_tier(topic, "offline", sent.total())
    audited.load(topic)
    audited.await_verdict(topic, "complete")


def test_lines_of_a_file_that_is_rotated_while_its_agent_is_killed_arrive(world: World) -> None:
    topic = world.topic()
    log = world.folder / f"{topic}.log"

    def write(*urls: str) -> None:
        with log.open("a") as file:
            file.writelines(json.dumps(event(url)) + "\n" for url in urls)

    agent = world.agent(topic, follow=f"{topic}={log}")
    agent.run()
    write("/1", "/2")
    wait_until("both arrive", lambda: world.urls(topic) == ["/1", "/2"])
    write("/3")
    assert agent.process is not None
    agent.process.kill()
    log.rename(log.with_name(f"{log.name}.1"))
    write("/4")
    agent.run()
    wait_until("all arrive", lambda: set(world.urls(topic)) == {"/1", "/2", "/3", "/4"})
    with log.open("a") as file:
        file.write("no event\n")
    write("/5")
    wait_until("the next one arrives", lambda: "/5" in world.urls(topic))
    numbers = httpx.get(f"{agent.url}/metrics").text
    assert f'millrace_agent_file_refused_lines_total{{path="{log}",topic="{topic}"}} 1.0' in numbers
    assert f'millrace_agent_file_unread_bytes{{path="{log}",topic="{topic}"}} 0.0' in numbers


@pytest.mark.slow
@pytest.mark.soak
def test_agents_killed_one_behind_the_other_under_load_lose_nothing(audited: AgentAudit) -> None:
    topic, numbers, chance = "agent-rounds", itertools.count(), random.Random(20)
    log = LogFile(audited.folder / "shop.log")
    log.path.touch()

    def all_is_taken() -> bool:
        status = log.path.stat()
        with closing(sqlite3.connect(audited.folder / f"spool-{topic}" / "spool.db")) as spool:
            position = spool.execute("select inode, offset from files").fetchall()
        return position == [(status.st_ino, status.st_size)]

    agent = audited.agent(topic, "--follow", f"{topic}={log.path}")
    agent.run()
    wait_until("the log is known: what is rotated from here on is read", all_is_taken)
    writer = threading.Thread(target=log.write)
    writer.start()
    accepted = post_until_killed(agent, topic, 1.0, numbers)
    try:
        for _ in range(3 * ROUNDS - 1):
            agent.run()
            accepted += post_until_killed(agent, topic, chance.uniform(0.05, 1.0), numbers)
    finally:
        log.stop.set()
        writer.join()
    process = agent.run()
    wait_until("the log is taken", all_is_taken, timeout_s=2 * WAIT_S)
    agent.await_sent()
    assert process.stop() == 0
    assert_nothing_lost_and_complete(audited, topic, [*accepted, *log.written])
