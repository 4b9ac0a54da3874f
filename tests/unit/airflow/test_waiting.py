"""Consequences of the audit's verdict, and the one line that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_airflow import waiting
from millrace_airflow.waiting import Decision, Step, ask, describe, judge
from millrace_audit.answer import Completeness, Finding, Window
from millrace_audit.auditor.store import AuditStore
from tests.unit.audit.story import TOPIC, Story, W
from tests.unit.audit.test_incidents import served, silent

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
END = START + timedelta(hours=1)
LATER = datetime(2026, 1, 1, tzinfo=UTC)


def finding(kind: str, sequences: Sequence[Sequence[int]] = ((3, 3), (7, 9))) -> Finding:
    count = sum(last - first + 1 for first, last in sequences)
    return Finding(kind, "offline", "web-7", "frontend", 42, sequences, count)


def window(number: int = 0, **fields: Any) -> Window:
    start = START + timedelta(minutes=10 * number)
    values: dict[str, Any] = {
        "verdict": "complete",
        "revision": 0,
        "acknowledged": 10,
        "failed": 0,
        "tiers": {},
        "findings": (),
        "reasons": (),
    }
    return Window(start=start, end=start + timedelta(minutes=10), **{**values, **fields})


def answer(verdict: str, *windows: Window) -> Completeness:
    return Completeness("PageView", START, END, verdict, None, windows)


def step(found: Completeness, **deadlines: datetime) -> Step:
    return judge(found, now=LATER, **{"until": LATER + timedelta(hours=1), **deadlines}).step


def test_complete_hours_let_the_dag_go_on() -> None:
    assert step(answer("complete", window())) is Step.GO_ON


def test_carried_hours_let_the_dag_go_on_where_that_is_enough_for_the_topic() -> None:
    carried = answer("carried", window(verdict="carried"))
    assert step(carried) is Step.WAIT
    assert step(carried, unknown_until=LATER) is Step.GO_ON
    assert step(replace(carried, enough="carried")) is Step.GO_ON
    assert step(replace(answer("pending", window(verdict="pending")), enough="carried")) is Step.WAIT


@pytest.mark.parametrize("verdict", ["incomplete", "unknown"])
def test_what_may_still_become_complete_is_waited_for_until_the_time_is_up(verdict: str) -> None:
    found = answer(verdict, window(verdict=verdict, findings=[finding("missing")]))
    assert step(found) is Step.WAIT
    assert step(found, until=LATER) is Step.TIME_IS_UP


def test_a_duplicate_cannot_go_away_and_ends_the_wait_at_once() -> None:
    assert step(answer("incomplete", window(), window(1, findings=[finding("duplicate")]))) is Step.GIVE_UP


def test_an_unknown_hour_is_let_through_after_its_own_delay_an_incomplete_one_never() -> None:
    assert step(answer("unknown"), unknown_until=LATER + timedelta(seconds=1)) is Step.WAIT
    assert step(answer("unknown"), unknown_until=LATER) is Step.GO_ON
    assert step(answer("incomplete"), unknown_until=LATER) is Step.WAIT
    assert step(answer("incomplete"), unknown_until=LATER, until=LATER) is Step.TIME_IS_UP


def test_the_line_names_tier_server_instance_sequences_and_window() -> None:
    line = describe(answer("incomplete", window(2, findings=[finding("missing")])))
    assert line == (
        "PageView [2015-05-17T10:00:00+00:00, 2015-05-17T11:00:00+00:00): incomplete:"
        " 4 missing at tier offline, window 2015-05-17T10:20:00+00:00: server web-7,"
        " service frontend, instance 42, sequences 3, 7-9"
    )


def test_a_reason_that_holds_for_many_windows_is_said_once() -> None:
    windows = [window(n, verdict="unknown", reasons=["web-7 has not closed the hour"]) for n in range(6)]
    line = describe(answer("unknown", *windows, window(reasons=["no heartbeat of dc2"])))
    assert line.endswith(": unknown: web-7 has not closed the hour (6 windows); no heartbeat of dc2")


def test_a_line_stays_a_line_however_much_is_missing() -> None:
    many = [[n * 2, n * 2] for n in range(100)]
    line = describe(answer("incomplete", *[window(n, findings=[finding("missing", many)]) for n in range(9)]))
    assert "sequences 0, 2, 4, 6, 8 and 95 more ranges" in line
    assert line.endswith("; and 4 more")
    assert len(line) < 1500


def test_an_auditor_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*arguments: object) -> Completeness:
        raise MillraceError("no auditor answers at http://a")

    monkeypatch.setattr(waiting, "completeness", no_answer)
    soon, passed = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)
    decision = ask("http://a", "PageView", START, END, soon, None)
    assert decision == Decision(Step.WAIT, "no auditor answers at http://a")
    assert ask("http://a", "PageView", START, END, passed, soon).step is Step.TIME_IS_UP


@pytest.mark.parametrize("said", [{"status": "ok"}, [], {"watermark": None, "topic": "T", "from": "soon"}])
def test_json_of_somebody_else_at_the_auditors_address_is_waited_out_like_no_answer(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    monkeypatch.setattr(httpx, "request", lambda *_, **__: httpx.Response(200, json=said))
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert ask("http://u:secret@a:1", "T", START, END, soon, None) == Decision(
        Step.WAIT, "http://***@a:1 does not answer like an auditor of this version: give the right address"
    )


def test_the_line_names_the_messages_that_loads_rejected() -> None:
    found = answer(
        "incomplete", window(rejected=1200), window(1, rejected=34, reasons=["load 7 rejected 34"])
    )
    assert ": incomplete, 1,234 messages rejected by loads: load 7 rejected 34" in describe(found)


def test_messages_without_a_header_are_nobodys() -> None:
    foreign = Finding("missing", "warehouse", "", "messages without a header", 0, [], 5)
    line = describe(answer("incomplete", window(findings=[foreign])))
    assert line.endswith(
        "5 missing at tier warehouse, window 2015-05-17T10:00:00+00:00: messages without a header"
    )


def test_a_wait_names_the_worst_incident_and_its_command(tmp_path: Path) -> None:
    story = Story(AuditStore(f"sqlite:///{tmp_path}/audit.db"))
    silent(story, 2)
    ends = W / 1000 + 600
    with served(story) as url:
        span = datetime.fromtimestamp(W / 1000, UTC), datetime.fromtimestamp(ends, UTC)
        found = ask(url, TOPIC, *span, LATER, None)
        over = ask(url, TOPIC, *span, START, START)
    assert found.step is Step.TIME_IS_UP
    assert "worst incident: instance 7 (shop on web-7 in dc1) has closed nothing" in found.reason
    assert found.reason.endswith('[producer-silent:producer 7]: millrace audit --accept 7 --reason "…"')
    assert over.step is Step.GO_ON
    assert "worst incident" not in over.reason
    story.store.close()
