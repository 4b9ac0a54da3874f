"""Hours that a killed producer holds open: its own hours, and no hour that was final before its hello."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace_audit.answer import Verdict, utc
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service.answers import changes
from millrace_audit.auditor.service.heat import hours_of_all
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import NOTHING
from tests.unit.audit.story import OPTIONS, SAID, TOPIC, Story, W, found

HELLO = W + 46 * HOUR_MS + 3 * 60_000
"""Time of the hello of the producer that is killed afterwards."""
OWN = W + 46 * HOUR_MS
"""Hour of the hello."""
LATER = OWN + 2 * HOUR_MS


@pytest.fixture
def story() -> Iterator[Story]:
    store = AuditStore("sqlite://")
    yield Story(store)
    store.close()


def at(story: Story, time: int) -> Story:
    """Advance the readers and the auditor to a time."""
    story.options = replace(OPTIONS, clock_ms=lambda: time)
    story.beats(time)
    return story.apply()


def verdicts(story: Story, start: int, end: int) -> set[str]:
    return {each.verdict for each in story.completeness(start, (end - start) // WINDOW_MS).windows}


@pytest.fixture
def topic(story: Story) -> Story:
    """A topic of 46 hours, whose first hour has events and is published."""
    at(story, W - HOUR_MS)  # the topic does not exist yet
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 9)))
    story.publish(found((0, 9)))
    for hour in range(1, 47):
        at(story, W + hour * HOUR_MS + 2 * 60_000)
    assert verdicts(story, W, OWN) == {Verdict.COMPLETE}
    return story


def test_a_killed_producer_holds_no_hour_open_from_before_its_hello(topic: Story) -> None:
    topic.hello(2, time=HELLO)
    topic.report(0, (0, 4), instance=2, window=OWN, closed=NOTHING)
    topic.carry(found((0, 9), instance=2, window=OWN))
    at(topic, LATER)
    before = topic.completeness(W - 2 * HOUR_MS, 48 * 6)
    assert (before.verdict, before.proven) == (Verdict.COMPLETE, True)
    own = topic.completeness(OWN, 12)
    assert {each.verdict for each in own.windows} == {Verdict.UNKNOWN}
    assert "millrace audit --accept 2" in own.windows[0].reasons[0]
    assert own.watermark == utc(OWN), "the watermark stays where it was"
    with topic.store.reading() as session:
        assert changes(session, TOPIC, "").hours == [], "no hour changed its verdict"
        (hours,) = hours_of_all(session, topic.options, Progress(session), W - HOUR_MS, LATER)
        assert hours.hours == [None, Verdict.COMPLETE, *[None] * 45, *[Verdict.UNKNOWN] * 2]


def test_the_first_producer_of_a_topic_holds_no_hour_open_from_before_the_topic(story: Story) -> None:
    at(story, HELLO)
    story.hello(2, time=HELLO)
    story.count("dc1", SequenceCounts())
    at(story, LATER)
    assert verdicts(story, W, OWN) == {Verdict.COMPLETE}
    assert verdicts(story, OWN, LATER) == {Verdict.UNKNOWN}


def test_a_producer_that_sends_older_events_holds_their_windows_open(topic: Story) -> None:
    old = W + 5 * HOUR_MS
    topic.hello(2, time=HELLO)
    topic.carry(found((0, 9), instance=2, window=old))
    at(topic, LATER)
    assert topic.verdict(old) == Verdict.UNKNOWN, "events are there that the producer has not reported"
    assert verdicts(topic, W, old) == verdicts(topic, old + WINDOW_MS, OWN) == {Verdict.COMPLETE}
    topic.report(0, (0, 9), instance=2, window=old, closed=LATER)
    at(topic, LATER + 60_000)
    assert topic.verdict(old) == Verdict.COMPLETE


def test_a_producer_whose_clock_is_behind_holds_the_time_of_its_clock_open(topic: Story) -> None:
    at(topic, OWN + 2 * WINDOW_MS + 10_000)
    topic.hello(2, time=OWN + 2 * WINDOW_MS - 5_000)  # its first event has that time, and is not counted yet
    at(topic, OWN + 2 * WINDOW_MS + 70_000)
    assert verdicts(topic, W, OWN + WINDOW_MS) == {Verdict.COMPLETE}
    assert verdicts(topic, OWN + WINDOW_MS, OWN + 2 * WINDOW_MS) == {Verdict.PENDING}


def test_a_producer_that_was_there_holds_open_what_it_has_not_closed(topic: Story) -> None:
    topic.hello(2, time=HELLO, closed=OWN)
    topic.hello(3, time=HELLO, closed=OWN + 3 * WINDOW_MS)
    at(topic, LATER)
    assert verdicts(topic, OWN, LATER) == {Verdict.UNKNOWN}
    topic.report(0, instance=2, closed=LATER)
    at(topic, LATER + 60_000)
    assert verdicts(topic, OWN, OWN + 3 * WINDOW_MS) == {Verdict.COMPLETE}
    assert verdicts(topic, OWN + 3 * WINDOW_MS, LATER) == {Verdict.UNKNOWN}


@pytest.mark.parametrize("number", [0, 1])
def test_a_producer_whose_hello_was_lost_holds_all_open_that_it_has_not_closed(
    topic: Story, number: int
) -> None:
    topic.say(SAID, "dc1", None)
    with topic.store.writing() as session:
        ledger.note_reports_lost(session, topic.place((SAID, "dc1")), topic.said_end(), HELLO)
    topic.apply_only()
    at(topic, OWN + 4 * WINDOW_MS)  # the lost record was before the heartbeat of this time
    at(topic, LATER)
    topic.report(number, (0, 4), instance=2, window=LATER, closed=NOTHING, time=LATER)
    at(topic, LATER + WINDOW_MS)
    assert Verdict.COMPLETE not in verdicts(topic, OWN, LATER)
