"""Incidents of stories: opened, grouped, continued, acknowledged, resolved and deleted."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from click.testing import CliRunner, Result
from sqlalchemy import select

from millrace.cli import cli
from millrace.errors import MillraceError
from millrace.topics_file import TopicPolicy
from millrace_audit import client
from millrace_audit.answer import Incident, to_json
from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore, IncidentRow, IncidentWindowRow
from millrace_audit.auditor.verdict.rules import RULES
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS
from millrace_audit.reports.messages import NOTHING, OFFLINE
from tests.support import REPOSITORY
from tests.unit.audit.story import NOW, OPTIONS, TOPIC, Story, W, found
from tests.unit.audit.test_app import Worker
from tests.unit.audit.test_store import as_of_revision_2

LATER = NOW + 20 * 60_000
PAYMENTS = {TOPIC: TopicPolicy(owner="payments")}


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> Story:
    """A story on each kind of database, with a clock that a test can set: `story.now[0]`."""
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    now = [NOW]
    told = Story(stores(url), replace(OPTIONS, policies=PAYMENTS, clock_ms=lambda: now[0]))
    told.now = now  # type: ignore[attr-defined]
    return told


def open_incidents(story: Story, **asked: Any) -> list[Incident]:
    with story.store.reading() as session:
        return incidents.find(session, story.options, **{"is_open": True, **asked})


def keys(story: Story, **asked: Any) -> list[str]:
    return [one.key for one in open_incidents(story, **asked)]


def silent(story: Story, windows: int) -> None:
    """Add a producer that reported some windows, closed none, and has been silent since."""
    story.hello(7)
    for number in range(windows):
        window = W + number * WINDOW_MS
        story.report(number, (number, number), instance=7, window=window, closed=NOTHING)
        story.count("dc1", found((number, number), instance=7, window=window))
        story.count(OFFLINE, found((number, number), instance=7, window=window))
    story.beats()
    story.apply()


def test_one_silent_producer_is_one_incident_of_all_its_hours(story: Story) -> None:
    silent(story, 8)
    (one,) = open_incidents(story, rule="producer-silent")
    assert one.key == "producer-silent:producer 7"
    assert (one.verdict, one.owner) == ("unknown", "payments")
    assert (one.services, one.servers) == (["shop"], ["web-7"])
    assert len(one.hours[TOPIC]) == len({(W + n * WINDOW_MS) // HOUR_MS for n in range(8)})
    assert one.command == 'millrace audit --accept 7 --reason "…"'
    assert one.title.startswith("instance 7 (shop on web-7 in dc1) has closed nothing; its last report")
    assert one.what == next(rule.when for rule in RULES if rule.name == "producer-silent")
    assert one.runbook == "docs/runbooks.md#millracewatermarkold"
    assert story.window()["incidents"] == keys(story)


def test_an_accepted_producer_ends_its_incident_and_a_new_silence_opens_it_again(story: Story) -> None:
    silent(story, 2)
    with story.store.writing() as session:
        incidents.acknowledge(session, "producer-silent:producer 7", "anna", "the rack burnt")
    (one,) = open_incidents(story, rule="producer-silent")
    assert (one.acknowledged_by, one.note, story.verdict()) == ("anna", "the rack burnt", "unknown")
    story.now[0] = LATER  # type: ignore[attr-defined]
    story.accept(instance=7)
    story.settle()
    assert not keys(story, rule="producer-silent")
    (one,) = open_incidents(story, is_open=False, rule="producer-silent")
    assert one.resolved is not None
    assert one.duration_s == 20 * 60
    assert (one.topics, one.hours, one.owner) == ([TOPIC], {}, "payments")
    with story.store.writing() as session, pytest.raises(MillraceError, match=r"no incident .* is open"):
        incidents.acknowledge(session, one.key, "anna", "")


def test_a_silent_producer_never_turns_an_hour_that_was_final(story: Story) -> None:
    story.whole()
    story.apply()
    assert story.verdict() == "complete"
    story.hello(7, closed=W + WINDOW_MS)
    story.beats()
    story.apply()
    assert story.verdict() == "complete"
    story.hello(8)  # closed nothing
    story.beats()
    story.apply()
    assert story.verdict() == "complete"
    assert not [key for key in story.window()["incidents"] if key.startswith("producer")]


def test_an_incident_has_the_text_of_its_newest_window_that_still_has_the_cause(story: Story) -> None:
    story.hello()
    for number in range(2):
        window = W + number * HOUR_MS
        story.report(number, (10 * number, 10 * number + 4), window=window, closed=window)
        story.count("dc1", found((10 * number, 10 * number + 3), window=window))
    story.beats()
    story.apply()
    (one,) = open_incidents(story, rule="missing-at-home")
    assert (one.verdict, one.key) == ("incomplete", "missing-at-home:dc1")
    assert "sequences 14" in one.title
    assert open_incidents(story)[0] == one, "the worst comes first"
    story.count("dc1", found((14, 14), window=W + HOUR_MS))
    story.beats(NOW + 6000)
    story.apply()
    (one,) = open_incidents(story, rule="missing-at-home")
    assert "sequences 4)" in one.title
    assert len(one.hours[TOPIC]) == 1
    story.count("dc1", found((4, 4)))
    story.beats(NOW + 12_000)
    story.apply()
    assert not keys(story, rule="missing-at-home")


def test_an_acknowledged_loss_is_not_acknowledged_any_more_when_it_grows(story: Story) -> None:
    story.hello()
    for number in range(2):
        window = W + number * HOUR_MS
        story.report(number, (10 * number, 10 * number + 4), window=window, closed=window)
        story.count("dc1", found((10 * number, 10 * number + 3), window=window))
        story.beats(NOW + 6000 * number)
        story.apply()
        (one,) = open_incidents(story, rule="missing-at-home")
        assert one.acknowledged_by == ""
        with story.store.writing() as session:
            incidents.acknowledge(session, one.key, "anna", "the disk burnt")
        story.beats(NOW + 6000 * number + 3000)
        story.apply()
        (one,) = open_incidents(story, rule="missing-at-home")
        assert (one.acknowledged_by, len(one.hours[TOPIC])) == ("anna", number + 1)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_the_records_leads_to_the_same_incidents(story: Story, seed: int) -> None:
    silent(story, 8)
    story.report(1, (20, 24), instance=9, window=W + HOUR_MS)
    story.beats()
    story.apply()
    other = AuditStore("sqlite://")
    again = story.interleaved(other, random.Random(seed))
    assert open_incidents(again) == open_incidents(story)
    other.close()


def test_waiting_without_a_command_and_complete_windows_are_no_incidents(story: Story) -> None:
    story.hello(7, time=NOW)
    story.whole()
    story.apply()
    assert story.verdict() == "pending"
    assert keys(story) == []
    story.accept(instance=7)
    story.settle()
    assert story.verdict() == "complete"
    assert keys(story) == []


def test_incidents_are_filtered_by_topic_rule_owner_and_key(story: Story) -> None:
    silent(story, 1)
    key = "producer-silent:producer 7"
    for asked in ({"topic": TOPIC}, {"rule": "producer-silent"}, {"owner": "payments"}, {"key": key}):
        assert key in keys(story, **asked), asked
    for other in ({"topic": "Other"}, {"rule": "unexpected"}, {"owner": "search"}, {"key": "unexpected:dc1"}):
        assert keys(story, **other) == [], other


def test_an_expired_window_ends_its_incident_and_old_ones_are_forgotten(story: Story) -> None:
    silent(story, 1)
    assert keys(story)
    story.now[0] = NOW + OPTIONS.keep_ms + HOUR_MS  # type: ignore[attr-defined]
    with story.store.writing() as session:
        expire(session, story.options)
    assert keys(story) == []
    assert open_incidents(story, is_open=False)
    story.now[0] += OPTIONS.keep_ms + HOUR_MS  # type: ignore[attr-defined]
    with story.store.writing() as session:
        expire(session, story.options)
    with story.store.reading() as session:
        assert not session.scalars(select(IncidentRow)).all()
        assert not session.scalars(select(IncidentWindowRow)).all()


def test_every_incident_survives_json() -> None:
    story = Story(AuditStore("sqlite://"))
    silent(story, 3)
    found = open_incidents(story)
    assert found
    assert [Incident.from_json(to_json(one)) for one in found] == found


def test_a_database_of_the_revision_before_finds_its_incidents(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    story = Story(AuditStore(url))
    silent(story, 2)
    before = keys(story)
    story.store.close()
    with closing(sqlite3.connect(tmp_path / "audit.db")) as database, database:
        as_of_revision_2(database.execute)
    story.store = AuditStore(url)
    assert keys(story) == []
    story.settle()
    assert keys(story) == before
    story.store.close()


@contextmanager
def served(story: Story) -> Iterator[str]:
    """Serve a story's database over HTTP; yield the URL."""
    app = build_app(story.store, story.options, Worker(AuditNumbers(story.store, story.options)))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_the_command_prints_incidents_each_with_a_command_that_can_be_copied(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"), replace(OPTIONS, policies=PAYMENTS))
    silent(story, 2)
    key = "producer-silent:producer 7"
    with served(story) as url:

        def audit(*options: str) -> Result:
            return CliRunner().invoke(cli, ["audit", "--auditor", url, *options])

        run = audit("--bad")
        assert run.exit_code == 1
        assert '    millrace audit --accept 7 --reason "…"' in run.stdout.splitlines()
        assert "owner payments" in " ".join(run.stdout.split())
        assert audit("--bad", "--windows").stdout.count(f"unknown {TOPIC} 2015-05-17T") == 2
        run = audit("--incident", key)
        assert f"{TOPIC} 2015-05-17T10" in run.stdout.splitlines()
        (one,) = json.loads(audit("--incident", key, "--json").stdout)
        assert (one["key"], one["hours"]) == (key, {TOPIC: ["2015-05-17T10:00:00Z"]})
        run = audit("--incident", "none:at-all")
        assert "no incident none:at-all is known" in str(run.exception)
        (one, *_) = client.incidents(url)
        assert one.key == key
    story.store.close()


def test_an_acknowledgement_names_who_works_on_an_incident(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"))
    story.hello()
    story.report(0, (0, 4), topic="a/b")
    story.beats()
    story.apply()
    key = "topic-not-counted-here:dc1/a/b"
    assert key in keys(story)
    with served(story) as url:
        path = f"{url}/v1/incidents/{quote(key, safe='')}/acknowledge"
        answer = httpx.post(path, json={"who": "anna", "note": "the reader gets the topic"})
        assert answer.json() == {"key": key, "acknowledged_by": "anna"}
        assert "no incident x is open" in httpx.post(f"{url}/v1/incidents/x/acknowledge", json={}).text
        (after,) = httpx.get(f"{url}/v1/incidents", params={"open": "true", "key": key}).json()
        assert (after["acknowledged_by"], after["note"]) == ("anna", "the reader gets the topic")
        metrics = httpx.get(f"{url}/metrics").text
        rule = 'rule="topic-not-counted-here"'
        assert (
            f'millrace_audit_incidents{{acknowledged="yes",owner="",{rule},verdict="unknown"}} 1.0' in metrics
        )
        assert f"millrace_audit_incident_hours{{{rule}}} 1.0" in metrics
        assert f"millrace_audit_incident_oldest_seconds{{{rule}}} 0.0" in metrics
    story.store.close()


def test_every_rule_that_makes_an_incident_has_a_key_and_a_runbook_that_exists() -> None:
    page = (REPOSITORY / "docs" / "runbooks.md").read_text()
    heads = re.findall(r"^### (.*)$", page, re.MULTILINE)
    for rule in RULES:
        if rule.verdict in ("incomplete", "unknown") or (rule.verdict == "pending" and rule.command):
            assert rule.cause, rule.name
        assert not rule.runbook or rule.runbook in heads, rule.name


def lossy(story: Story, hours: int) -> None:
    """A producer that reported five events in each of some hours; the last of the five is missing."""
    story.hello()
    for number in range(hours):
        window = W + number * HOUR_MS
        story.report(number, (10 * number, 10 * number + 4), window=window, closed=window)
        story.count("dc1", found((10 * number, 10 * number + 3), window=window))
    story.beats()
    story.apply()


def test_an_open_incident_ends_with_the_hours_that_still_have_its_cause() -> None:
    story = Story(AuditStore("sqlite://"))
    lossy(story, 2)
    (one,) = open_incidents(story, rule="missing-at-home")
    assert one.last_hour > one.first_hour
    story.count("dc1", found((14, 14), window=W + HOUR_MS))
    story.beats(NOW + 6000)
    story.apply()
    (one,) = open_incidents(story, rule="missing-at-home")
    assert [one.first_hour, one.last_hour] == [*one.hours[TOPIC], *one.hours[TOPIC]]
    story.store.close()


def test_an_owner_with_a_comma_finds_its_incidents() -> None:
    policies = {TOPIC: TopicPolicy(owner="payments, Berlin")}
    story = Story(AuditStore("sqlite://"), replace(OPTIONS, policies=policies))
    lossy(story, 1)
    assert "missing-at-home:dc1" in keys(story, owner="payments, Berlin")
    assert keys(story, owner="Berlin") == []
    story.store.close()


def test_an_incident_takes_the_verdict_that_its_rule_has_now() -> None:
    story = Story(AuditStore("sqlite://"))
    lossy(story, 1)
    with story.store.writing() as session:
        (row,) = session.scalars(select(IncidentRow).where(IncidentRow.rule == "missing-at-home"))
        row.verdict = "unknown"
    story.count("dc1", found((0, 3)))
    story.beats(NOW + 6000)
    story.apply()
    (one,) = open_incidents(story, rule="missing-at-home")
    assert one.verdict == "incomplete"
    story.store.close()


def test_a_list_of_incidents_has_at_most_the_requested_number(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"))
    lossy(story, 1)
    assert len(open_incidents(story)) > 1
    with served(story) as url:
        (one,) = client.incidents(url, limit=1)
        assert one.key == "missing-at-home:dc1"
        run = CliRunner().invoke(cli, ["audit", "--auditor", url, "--bad", "--limit", "1"])
        assert run.stdout.splitlines()[-1] == "the first 1: --limit shows more"
        assert httpx.get(f"{url}/v1/incidents?limit=0").status_code == 400
    story.store.close()


def test_an_acknowledgement_without_a_name_is_refused(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"))
    lossy(story, 1)
    with served(story) as url:
        answer = httpx.post(f"{url}/v1/incidents/missing-at-home:dc1/acknowledge", json={"who": " "})
        assert answer.status_code == 400
    story.store.close()


def test_an_address_without_the_route_is_named(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"))
    unknown = r"/old/v1/incidents is unknown there: .* version"
    with served(story) as url, pytest.raises(MillraceError, match=unknown):
        client.incidents(f"{url}/old")
    story.store.close()


def test_an_answer_of_another_form_is_an_error_in_one_line() -> None:
    times = ("first_seen", "last_seen", "first_hour", "last_hour", "resolved")
    one = dict.fromkeys(times, "2015-05-17T10:00:00Z")
    with pytest.raises(MillraceError, match="does not answer like an auditor of this version"):
        client._read(Incident.from_json, {**one, "hours": []}, "http://127.0.0.1:8082")
