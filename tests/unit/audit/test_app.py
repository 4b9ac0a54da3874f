"""The auditor's service on a database that a story has filled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from millrace.topics_file import TopicPolicy
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.lease import Lease
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.service.app import MAX_BODY_BYTES, build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE, Decision, Heartbeat, RejectedMessages
from tests.support import Clock
from tests.unit.audit.story import NOW, OPTIONS, OWN, TOPIC, Story, W, found

SPAN = {"from": "2015-05-17T10:00Z", "to": "2015-05-17T10:10Z"}


@dataclass
class Worker:
    numbers: AuditNumbers
    trouble: str | None = None
    applied_at: int | None = None
    is_standby: bool = False
    story: Story | None = None

    def decide(self, decision: Decision) -> None:
        assert self.story is not None
        self.story.decide(decision)
        self.story.apply_only()


class Client:
    """Asks an application in this process."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app=app)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("POST", path, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://auditor") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())


@dataclass
class Service:
    story: Story
    worker: Worker
    client: Client

    def settle(self) -> None:
        Judging(self.story.store, self.story.options, self.worker.numbers.note_final).turn(math.inf)


@pytest.fixture
def service(tmp_path: object) -> Iterator[Service]:
    # A file: with the database in memory every thread of the service would have its own.
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    clock = [NOW]
    options = replace(OPTIONS, clock_ms=lambda: clock[0])
    story = Story(store, options)
    worker = Worker(AuditNumbers(store, options), story=story)
    yield Service(story, worker, Client(build_app(store, options, worker)))
    store.close()


def test_a_decision_that_another_auditor_judges_is_answered_as_applied(tmp_path: object) -> None:
    url, clock = f"sqlite:///{tmp_path}/audit.db", Clock()
    store, other = (AuditStore(url, Lease(clock)) for _ in range(2))
    store.renew()
    story = Story(store)
    story.hello(7)
    story.apply()

    class Loser(Worker):
        """A worker that loses the lease when its decision is applied."""

        def decide(self, decision: Decision) -> None:
            super().decide(decision)
            other.renew()

    client = Client(build_app(store, OPTIONS, Loser(AuditNumbers(store, OPTIONS), story=story)))
    answer = client.post("/v1/instances/7/accept", json={"reason": "rack gone"})
    assert answer.json() == {"instance": 7, "accepted": "rack gone"}
    assert client.post("/v1/instances/7/accept", json={"reason": "rack gone"}).status_code == 503
    store.close()
    other.close()


def test_health_says_how_far_behind_every_tier_is_and_which_one_stands(service: Service) -> None:
    answer = service.client.get("/v1/health")
    assert answer.status_code == 503
    assert "dc1 has sent no heartbeat: is its audit-reader running?" in answer.json()["trouble"]
    service.story.beats(NOW - 60_000)
    service.story.apply()
    answer = service.client.get("/v1/health")
    assert (answer.status_code, answer.json()["trouble"]) == (200, None)
    assert answer.json()["behind_s"] == {"dc1": 60.0, "dc2": 60.0, "offline": 60.0}
    service.story.beat("dc1", NOW)
    service.story.beat("dc2", NOW)
    service.story.beat("offline", NOW - 61_000)
    service.story.apply()
    answer = service.client.get("/v1/health")
    assert answer.status_code == 503
    assert "offline is counted through 2015-05-17T11:38:59Z, 61 s ago" in answer.json()["trouble"]
    service.story.beat("offline", NOW)
    service.story.say(OWN, OFFLINE, Heartbeat(time=NOW - 61_000, tier=WAREHOUSE, number=1), 1)
    service.story.apply()
    assert service.client.get("/v1/health").json()["trouble"] == (
        "warehouse is counted through 2015-05-17T11:38:59Z, 61 s ago: look at `millrace audit-warehouse`"
    )
    service.story.say(OWN, OFFLINE, Heartbeat(time=NOW, tier=WAREHOUSE, number=2), 1)
    service.story.say(OWN, OFFLINE, Heartbeat(time=NOW - 61_000, tier=WAREHOUSE, number=2), 1)  # again
    service.story.beat("offline", NOW - 61_000)
    service.story.apply()
    service.worker.trouble = "ZooKeeper does not answer"
    assert "ZooKeeper does not answer; offline is" in service.client.get("/v1/health").json()["trouble"]


def test_an_acceptance_is_in_the_answer_at_once_and_in_the_history_with_who_said_it(service: Service) -> None:
    service.story.hello(7, time=NOW)
    service.story.whole()
    service.story.apply()
    ask = f"/v1/topics/{TOPIC}/completeness"
    assert service.client.get(ask, params=SPAN).json()["verdict"] == "pending"
    refused = service.client.post("/v1/instances/99/accept", json={"reason": "r"})
    assert refused.status_code == 400
    assert "nobody has heard of instance 99" in refused.json()["error"]
    assert service.client.post("/v1/instances/7/accept", json={"reason": " "}).status_code == 400
    for no_name in (rb'"\ud800"', b'"%s"' % (b"x" * 256)):
        for body in (b'{"service": %s, "reason": "r"}', b'{"service": "shop", "server": %s, "reason": "r"}'):
            assert service.client.post("/v1/accept", content=body % no_name).status_code == 400
    said = {"service": "shop", "reason": "rack gone", "who": "me@host"}
    assert service.client.post("/v1/accept", json=said).json() == {"instances": [7], "accepted": "rack gone"}
    answer = service.client.get(ask, params=SPAN).json()
    assert answer["verdict"] == "complete"
    assert "accepted: rack gone" in answer["windows"][0]["reasons"][0]
    (entry,) = service.client.get(f"/v1/topics/{TOPIC}/history", params=SPAN).json()
    assert (entry["who"], entry["what"]) == ("me@host", "accepted 1 of service shop: rack gone")


def test_the_answer_says_when_all_there_was_had_been_applied(service: Service) -> None:
    service.story.whole()
    service.story.apply()
    ask = f"/v1/topics/{TOPIC}/completeness"
    assert service.client.get(ask, params=SPAN).json()["applied_at"] is None
    service.worker.applied_at = NOW
    answer = service.client.get(ask, params=SPAN).json()
    assert answer["applied_at"] == "2015-05-17T11:40:00Z"
    assert answer["newest_load"] == {"load": 1, "sha256": ""}
    (hour,) = answer["hours"]
    assert hour["hour"] == "2015-05-17T10:00:00Z"
    assert hour["loads"] == [{"load": 1, "edition": 1, "sha256": "", "rows": 10, "rejected": 0}]


def test_the_answers_for_a_topic_name_its_owner(service: Service) -> None:
    service.story.whole()
    service.story.apply()
    options = replace(service.story.options, policies={TOPIC: TopicPolicy(owner="team-web")})
    client = Client(build_app(service.story.store, options, service.worker))
    assert client.get(f"/v1/topics/{TOPIC}/completeness", params=SPAN).json()["owner"] == "team-web"
    assert client.get("/v1/topics/Other/completeness", params=SPAN).json()["owner"] == ""
    assert [topic["owner"] for topic in client.get("/v1/topics").json()] == ["team-web"]
    assert [topic["owner"] for topic in service.client.get("/v1/topics").json()] == [""]


def test_what_an_operator_decides_of_loads_is_in_the_answer_at_once(service: Service) -> None:
    story, ask = service.story, f"/v1/topics/{TOPIC}/completeness"
    story.whole()
    story.load(SequenceCounts(), rejected=[RejectedMessages(W, W, 3, 0, "no value")])
    story.apply()
    assert service.client.get(ask, params=SPAN).json()["verdict"] == "incomplete"
    decided = f"/v1/topics/{TOPIC}/accept-rejected"
    assert service.client.post(decided, json={"load": 2, "reason": " "}).status_code == 400
    refused = service.client.post(decided, json={"load": 9, "reason": "r"})
    assert "load 9 of topic PageView has no rejected messages" in refused.json()["error"]
    done = service.client.post(decided, json={"load": 2, "reason": "a test page", "who": "me@host"})
    assert done.json() == {"load": 2, "messages": 3, "accepted": "a test page"}
    assert service.client.get(ask, params=SPAN).json()["verdict"] == "carried"
    story.state(1)
    story.apply()
    changes = service.client.get(f"/v1/topics/{TOPIC}/changes").json()
    assert (changes["hours"], changes["more"]) == (["2015-05-17T10:00:00Z"], False)
    again = service.client.get(f"/v1/topics/{TOPIC}/changes", params={"since": changes["cursor"]}).json()
    assert again == {"cursor": changes["cursor"], "hours": [], "more": False}
    name = changes["cursor"].rpartition(".")[0]
    for foreign in ("", "1", "another.1", f"{name}.", f"{name}.\u00b2", f"{name}.{'9' * 60}"):
        found = service.client.get(f"/v1/topics/{TOPIC}/changes", params={"since": foreign}).json()
        assert found == changes, foreign
    replaced = service.client.post(f"/v1/topics/{TOPIC}/replace-loads", json={"reason": "disk lost"})
    assert replaced.json() == {"loads": [2], "accepted": "disk lost"}
    whats = [entry["what"] for entry in service.client.get(f"/v1/topics/{TOPIC}/history", params=SPAN).json()]
    assert "accepted 3 messages that load 2 rejected: a test page" in whats
    assert "replaced 1 lost loads from load 2 on: disk lost" in whats


def test_a_body_of_any_size_is_not_read_to_its_end(service: Service) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1_000):
            read += 1 << 16
            yield b" " * (1 << 16)

    json = {"content-type": "application/json"}
    refused = service.client.post("/v1/accept", content=endless(), headers=json)
    assert (refused.status_code, refused.headers["connection"]) == (413, "close")
    assert read <= 3 * MAX_BODY_BYTES


def test_an_instance_that_was_nobody_is_disowned_with_all_it_said(service: Service) -> None:
    service.story.whole()
    service.story.hello(666, service="evil")
    service.story.report(0, (0, 99), instance=666, service="evil")
    service.story.beats(NOW + 6000)
    service.story.apply()
    ask = f"/v1/topics/{TOPIC}/completeness"
    assert service.client.get(ask, params=SPAN).json()["verdict"] == "incomplete"
    said = {"reason": "not one of ours", "who": "me@host", "disown": True}
    service.client.post("/v1/instances/666/accept", json=said)
    (window,) = service.client.get(ask, params=SPAN).json()["windows"]
    assert (window["verdict"], window["acknowledged"]) == ("complete", 10)
    assert (
        "reports of instance 666 (evil on web-666 in dc1) do not count: not one of ours"
        in window["reasons"][0]
    )
    (changed, entry) = service.client.get(f"/v1/topics/{TOPIC}/history", params=SPAN).json()
    assert entry["what"] == "incomplete became complete at revision 0"
    assert changed["what"] == "disowned instance 666: not one of ours"


def test_what_is_not_complete_and_who_is_a_stranger_is_listed(service: Service) -> None:
    service.story.hello()
    service.story.report(0, (0, 9))
    service.story.report(0, (0, 99), server="evil")
    service.story.carry(found((0, 8)))
    service.story.beats()
    service.story.apply()
    (bad,) = service.client.get("/v1/bad").json()
    assert (bad["topic"], bad["window"]["verdict"]) == (TOPIC, "incomplete")
    assert service.client.get("/v1/bad", params={"topic": "Other"}).json() == []
    (stranger,) = service.client.get("/v1/rejected-records").json()
    assert stranger["who"] == "instance 1 (shop on evil)"
    assert stranger["cause"] == "it contradicts the first hello of its instance"
    (topic,) = service.client.get("/v1/topics").json()
    assert topic["held_by"] == "incomplete: 1 missing at dc1 (shop on web-1)"
    assert {"/v1/bad", "/metrics"} <= set(service.client.get("/").json()["paths"])


def test_the_numbers_say_verdicts_watermarks_delays_and_strangers(service: Service) -> None:
    service.story.whole()
    service.story.report(5, instance=8)
    for key, there in service.story.partitions.items():
        with service.story.store.writing() as session:
            ledger.apply(session, service.story.place(key), there, NOW)
    service.settle()
    text = service.client.get("/metrics").text
    for line in (
        f'millrace_audit_windows{{topic="{TOPIC}",verdict="complete"}} 1.0',
        f'millrace_audit_watermark_age_seconds{{topic="{TOPIC}"}} 600.0',
        'millrace_audit_behind_seconds{tier="dc1"} 0.0',
        "millrace_audit_rejected_records 1.0",
        f'millrace_audit_delay_seconds_count{{tier="home",topic="{TOPIC}"}} 1.0',
        f'millrace_audit_delay_seconds_sum{{tier="warehouse",topic="{TOPIC}"}} 5400.0',
    ):
        assert line in text, line


def test_a_window_that_is_not_judged_yet_has_one_verdict_wherever_it_is_asked_for(service: Service) -> None:
    story, ahead = service.story, NOW - NOW % WINDOW_MS + 12 * WINDOW_MS
    story.hello()
    story.report(0, (0, 9), window=ahead)
    story.beats(NOW - 60_000)
    story.apply()
    assert story.verdict(ahead) == "pending"
    text = service.client.get("/metrics").text
    assert f'millrace_audit_windows{{topic="{TOPIC}",verdict="pending"}} 1.0' in text
    assert 'verdict="unknown"' not in text
