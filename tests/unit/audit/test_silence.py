"""`silent_after` of a topic: the auditor accepts silent instances, until they report again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from sqlalchemy import select

from millrace.topics_file import TopicPolicy
from millrace_audit.auditor.service.acceptance import accept_silent
from millrace_audit.auditor.store import AuditStore, HistoryRow
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import FOR_EVER, Decision
from millrace_audit.reports.seals import seal_of
from tests.unit.audit.story import OPTIONS, TOPIC, Story, W, found, key_of

DAY = TopicPolicy(silent_after="24h")
OTHER = "SearchQuery"
KILLED = W + HOUR_MS
"""Time of the last report of the instance that is killed."""


@pytest.fixture
def story() -> Iterator[Story]:
    """Instance 1 ends, instance 2 reports half of its events and is killed."""
    store = AuditStore("sqlite://")
    story = Story(store)
    story.whole()
    story.hello(2)
    story.report(0, (0, 4), instance=2, closed=W, time=KILLED)
    story.carry(found((0, 9), instance=2))
    yield story
    store.close()


def at(story: Story, hours: float, policies: Mapping[str, TopicPolicy]) -> list[Decision]:
    """Advance the auditor and the readers to a time after the last report; return the decisions then."""
    now = KILLED + int(hours * HOUR_MS)
    story.options = replace(OPTIONS, clock_ms=lambda: now, policies=policies)
    story.beats(now)
    story.apply()
    return decisions(story)


def decisions(story: Story) -> list[Decision]:
    with story.store.reading() as session:
        return accept_silent(session, story.options)


def decide(story: Story, made: list[Decision]) -> None:
    for decision in made:
        story.decide(decision)
    story.apply()


def test_an_instance_is_accepted_after_the_silence_that_its_topic_asks_for(story: Story) -> None:
    assert at(story, 23.9, {TOPIC: DAY}) == []
    assert story.verdict() == "unknown"
    (made,) = at(story, 24.1, {TOPIC: DAY})
    assert (made.kind, made.instance, made.who, made.reason) == ("accept", 2, "auditor", "silent for 24h")
    decide(story, [made])
    assert story.verdict() == "complete", "unreported events are judged like failed events"
    assert any("silent for 24h" in reason for reason in story.window()["reasons"])
    with story.store.reading() as session:
        rows = [(row.topic, row.who, row.what) for row in session.scalars(select(HistoryRow)) if row.topic]
    assert (TOPIC, "auditor", "accepted instance 2: silent for 24h") in rows
    assert decisions(story) == [], "it is accepted already"


def test_no_instance_is_accepted_by_default(story: Story) -> None:
    assert at(story, 1000, {TOPIC: TopicPolicy(proof="carried")}) == []
    assert at(story, 1001, {OTHER: DAY}) == []
    assert story.verdict() == "unknown"


def test_an_instance_of_several_topics_waits_for_the_longest_and_for_ever_if_one_has_none(
    story: Story,
) -> None:
    story.hello(2, topic=OTHER, seal=seal_of(key_of(2, 1)))
    assert at(story, 100, {TOPIC: DAY}) == []
    longer = TopicPolicy(silent_after="7d")
    assert at(story, 24 * 6, {TOPIC: DAY, OTHER: longer}) == []
    (made,) = at(story, 24 * 7 + 1, {TOPIC: DAY, OTHER: longer})
    assert made.reason == "silent for 7d"


def test_an_instance_of_another_cluster_with_the_same_number_must_be_silent_too(story: Story) -> None:
    story.hello(2, "dc2", topic=OTHER)
    assert at(story, 100, {TOPIC: DAY}) == []
    story.hello(2, "dc2", topic=OTHER, time=KILLED + 90 * HOUR_MS)
    assert at(story, 100, {TOPIC: DAY, OTHER: DAY}) == []
    (made,) = at(story, 115, {TOPIC: DAY, OTHER: DAY})
    assert made.instance == 2


def test_an_accepted_instance_that_reports_again_is_awaited_again(story: Story) -> None:
    decide(story, at(story, 25, {TOPIC: DAY}))
    assert story.verdict() == "complete"
    story.report(1, instance=2, closed=W, time=KILLED + 26 * HOUR_MS)
    assert at(story, 26, {TOPIC: DAY}) == []
    assert story.verdict() in ("pending", "unknown")
    story.report(2, (5, 9), instance=2, closed=FOR_EVER, time=KILLED + 27 * HOUR_MS)
    assert at(story, 27, {TOPIC: DAY}) == []
    assert story.verdict() == "complete"
    assert at(story, 100, {TOPIC: DAY}) == [], "it has ended"


def test_reports_that_a_mirror_has_not_brought_make_no_instance_silent(story: Story) -> None:
    at(story, 1, {TOPIC: DAY})
    now = KILLED + 30 * HOUR_MS
    story.options = replace(story.options, clock_ms=lambda: now)
    for time in (now - 6000, now):  # the counts come, the reports before them do not
        story.beat("dc1", time, through=story.said_end() + 100)
    story.apply()
    assert decisions(story) == []
    story.report(1, instance=2, closed=W, time=now - HOUR_MS)
    story.apply()
    assert decisions(story) == []
