"""The warehouse's client of the auditor, and an auditor's service on a database that a story has filled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn

from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import RejectedMessages
from millrace_warehouse.commands.auditor import auditor_at
from millrace_warehouse.history.hours import hour_of
from millrace_warehouse.publish.gate import MOST_HOURS, Judgement
from tests.brokers import free_port
from tests.support import wait_until
from tests.unit.audit.story import OPTIONS, TOPIC, Story, W, found
from tests.unit.audit.test_app import Worker

LOST, REJECTED = W - 3 * HOUR_MS, W - 7 * HOUR_MS


@contextmanager
def served(store: AuditStore) -> Iterator[str]:
    """Serve an auditor on a database, and stop it at the end."""
    worker = Worker(AuditNumbers(store, OPTIONS), applied_at=int(time.time() * 1000))
    port = free_port()
    config = uvicorn.Config(build_app(store, OPTIONS, worker), port=port, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until("the auditor", lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    store.close()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An auditor of an hour with rows, one with a lost event, one with a rejected message, and empty ones."""
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    story = Story(store)
    story.hello()
    story.report(0, (0, 9), closed=LOST)
    story.report(1, (10, 19), window=LOST, closed=LOST)
    story.report(2, (20, 29), window=REJECTED)
    for numbers, window in (((0, 9), W), ((10, 18), LOST), ((20, 29), REJECTED)):
        story.count("dc1", found(numbers, window=window))
        story.count("offline", found(numbers, window=window))
    rejected = [RejectedMessages(REJECTED, REJECTED, 1, 1, "no schema")]
    story.load(found((0, 9)), whole=False)
    story.load(found((10, 18), window=LOST), whole=False)
    story.load(found((20, 28), window=REJECTED), rejected=rejected)
    story.beats()
    story.apply()
    with served(store) as at:
        yield at


def test_an_hour_has_the_same_judgement_in_a_question_about_many_hours_as_in_one_of_its_own(url: str) -> None:
    auditor, newest = auditor_at(url), W // HOUR_MS + 1
    hours = [hour_of(number) for number in range(newest + 1 - MOST_HOURS, newest + 1)]
    together = auditor.judge(TOPIC, hours)
    assert [*together] == hours

    def said(judged: Judgement) -> Judgement:
        return replace(judged, verdict=replace(judged.verdict, checked=None))

    for hour in [hours[0], *hours[-10:]]:
        alone = auditor.judge(TOPIC, [hour])
        assert {hour: said(judged) for hour, judged in alone.items()} == {hour: said(together[hour])}
    lost, rejected, rows = (hour_of(time // HOUR_MS) for time in (LOST, REJECTED, W))
    expected = {lost: "incomplete", rejected: "incomplete", hours[-1]: "pending"}
    assert {hour: judged.verdict.verdict for hour, judged in together.items()} == {
        hour: expected.get(hour, "complete") for hour in hours
    }
    assert together[rejected].rejected == 1
    assert [load.rows for load in together[rows].loads] == [10]


def test_the_acceptance_of_a_silent_producer_stands_beside_its_complete_hour(tmp_path: Path) -> None:
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    story = Story(store)
    story.hello()
    story.report(0, (0, 9), closed=W)
    story.carry(found((0, 9)))
    story.beats()
    story.apply()
    story.accept(instance=1)
    story.settle()
    with served(store) as at:
        hour = hour_of(W // HOUR_MS)
        verdict = auditor_at(at).judge(TOPIC, [hour])[hour].verdict
    assert verdict.verdict == "complete"
    assert "accepted: burnt down" in verdict.reasons[0]
