"""The record of refusals and changes: bounded for what a client can cause, whole for what changes rights."""

from __future__ import annotations

import json
import logging

import pytest

from millrace.repeated_lines import BURST, RepeatedLines
from millrace_broker.security.journal import MAX_KINDS, REPEAT_S, Journal, Requester

ALICE = Requester("User:alice", "10.0.0.1:5", "outside", "PRODUCE", "web\n\x1b[31m")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    told = [json.loads(record.getMessage().partition(": ")[2]) for record in caplog.records]
    caplog.clear()
    return told


def test_a_refusal_that_is_repeated_is_counted_and_told_again_later(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    journal = Journal(lambda: now)
    for _ in range(50):
        journal.refused(ALICE, "WRITE", ["topic t"])
    (line,) = lines(caplog)
    assert line.pop("time")
    assert line == {"what": "refused", **ALICE._asdict(), "operation": "WRITE", "resources": ["topic t"]}
    journal.refused(ALICE, "WRITE", ["topic u"])
    journal.refused(ALICE._replace(principal="User:bob"), "WRITE", ["topic t"])
    assert len(lines(caplog)) == 2
    now = REPEAT_S
    journal.refused(ALICE, "WRITE", ["topic t"])
    assert [line["not_told_before"] for line in lines(caplog)] == [49]


def test_what_a_client_writes_stays_on_one_line_and_short(caplog: pytest.LogCaptureFixture) -> None:
    long = ALICE._replace(client_id="x" * 10_000)
    Journal().refused(long, "READ", [f"topic {number}\n" for number in range(1_000)])
    (text,) = caplog.messages
    assert "\n" not in text
    assert len(text) < 1_000
    assert lines(caplog)[0]["more_resources"] == 990
    journal = Journal()
    journal.refused(ALICE, "READ", ["topic " + "x" * 1_000_000])
    assert len(caplog.messages[0]) < 1_000
    assert len(str([*journal._refusals])) < 1_000


def test_the_kinds_that_are_remembered_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millrace.security")
    journal = Journal(lambda: 0.0)
    for number in range(MAX_KINDS + 5):
        journal.refused(ALICE, "READ", [f"topic {number}"])
    assert len(journal._refusals) == 5


def test_changes_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        Journal().changed(ALICE, "created: a rule")
        Journal().allowed(ALICE, "DELETE", ["topic t"])
    assert [line["what"] for line in lines(caplog)] == ["changed", "allowed"] * 3
    flood = RepeatedLines()
    for _ in range(2 * BURST):
        Journal().changed(ALICE, "created: a rule")
        Journal().allowed(ALICE, "DELETE", ["topic t"])
    assert all(map(flood.filter, caplog.records))


def test_a_change_is_told_with_all_that_it_is_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    topics = [f"topic {number}" for number in range(1_000)]
    Journal().allowed(ALICE, "DELETE", topics)
    assert lines(caplog)[0]["resources"] == topics
