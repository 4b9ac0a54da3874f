"""Hours that are no longer complete: the changes name them, so that a publisher withdraws them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace_audit.answer import Verdict
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import OFFLINE, ForeignCount, RejectedMessages
from tests.unit.audit.story import NOW, OPTIONS, TOPIC, Story, W, found

HOUR = W - W % HOUR_MS
EMPTY = W + 2 * WINDOW_MS
"""Window without events in the hour of the story's window."""
NOBODY = SequenceCounts()
SILENT = OPTIONS.hello_patience_ms + 60_000
"""Time after which a killed producer is silent."""


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> AuditStore:
    return stores("sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def story(store: AuditStore) -> Story:
    """An instance has sent events in one window of the hour, has closed the whole hour, and goes on."""
    assert HOUR == W
    story = Story(store)
    story.hello(closed=W - 6 * WINDOW_MS)
    story.report(0, (0, 9), closed=NOW)
    story.carry(found((0, 9)))
    story.beats()
    story.apply()
    assert story.completeness(HOUR, 6).verdict == Verdict.COMPLETE
    assert changed(story) == []
    return story


def changed(story: Story) -> list[int]:
    with story.store.reading() as session:
        hours = answers.changes(session, TOPIC, "").hours
    return sorted(int(hour.timestamp()) * 1000 for hour in hours)


def at(story: Story, time: int) -> Story:
    """Advance the readers and the auditor to a time."""
    story.options = replace(OPTIONS, clock_ms=lambda: time)
    story.beats(time)
    return story.apply()


# Windows without events.


def lost(story: Story) -> None:
    late = found((10, 14), window=EMPTY)
    story.report(1, (10, 14), window=EMPTY)
    story.count("dc1", late)
    story.count(OFFLINE, late)
    story.load(NOBODY)


def repeated(story: Story) -> None:
    late = found((10, 10), window=EMPTY)
    story.report(1, (10, 10), window=EMPTY)
    story.count("dc1", late)
    story.count(OFFLINE, late)
    story.count("dc1", NOBODY)
    story.count(OFFLINE, late)
    story.load(late)


def rejected(story: Story) -> None:
    late = [ForeignCount(EMPTY, 1, 77)]
    story.count("dc1", NOBODY, foreign=late)
    story.count(OFFLINE, NOBODY, foreign=late)
    story.load(NOBODY, unkeyed=[], rejected=[RejectedMessages(EMPTY, EMPTY, 1, 0, "no schema")])


@pytest.mark.parametrize("happens", [lost, repeated, rejected])
def test_the_changes_name_an_hour_with_a_late_problem_in_a_window_that_had_no_events(
    story: Story, happens: Callable[[Story], None]
) -> None:
    happens(story)
    at(story, NOW + 60_000)
    assert story.completeness(HOUR, 6).verdict == Verdict.INCOMPLETE
    assert changed(story) == [HOUR]
    with story.store.reading() as session:
        (line,) = answers.history(session, TOPIC, HOUR, HOUR + HOUR_MS)
    assert line["what"] == "a window with late messages became incomplete at revision 1"


def test_the_changes_do_not_name_an_hour_whose_late_events_arrive_everywhere(story: Story) -> None:
    story.report(1, (10, 14), window=EMPTY)
    story.carry(found((10, 14), window=EMPTY))
    at(story, NOW + 60_000)
    assert story.completeness(HOUR, 6).verdict == Verdict.COMPLETE
    assert story.window(EMPTY)["revision"] == 1
    assert changed(story) == []


def test_a_window_without_events_is_complete_once_judging_has_stored_that_it_is_final(story: Story) -> None:
    last = NOW + 5 * WINDOW_MS
    story.report(1, closed=last + HOUR_MS)
    story.beats(last + WINDOW_MS + 70_000)
    story.options = replace(OPTIONS, clock_ms=lambda: last + WINDOW_MS + 70_000)
    story.apply_only()
    assert story.completeness(last).verdict == Verdict.PENDING, "its first event would not be late"
    story.settle()
    assert story.completeness(last).verdict == Verdict.COMPLETE


@pytest.mark.parametrize("hour", [HOUR - HOUR_MS, HOUR, None])
def test_the_changes_name_the_hours_of_a_finding_of_verify(story: Story, hour: int | None) -> None:
    at(story, NOW + 60_000)
    story.verified((hour, "rows/x.parquet is gone"))
    story.apply()
    assert story.completeness(HOUR if hour is None else hour, 6).verdict != Verdict.COMPLETE
    assert changed(story) == ([HOUR, HOUR + HOUR_MS] if hour is None else [hour])


def test_the_changes_name_hours_without_events_in_which_rejected_messages_may_be(story: Story) -> None:
    story.load(NOBODY, rejected=[RejectedMessages(EMPTY, NOW - WINDOW_MS, 5, 0, "no schema")])
    story.apply()
    assert story.completeness(HOUR + HOUR_MS).verdict == Verdict.INCOMPLETE
    assert changed(story) == [HOUR, HOUR + HOUR_MS]


# Windows that a producer opens again.


def test_a_hello_opens_the_windows_that_it_has_not_closed_also_those_that_were_final(story: Story) -> None:
    story.hello(2, closed=W, time=NOW)
    story.count("dc1", found((0, 4), instance=2, window=EMPTY))
    at(story, NOW + 60_000)
    assert [story.verdict(W - WINDOW_MS), story.verdict(W)] == [Verdict.COMPLETE, Verdict.PENDING]
    assert Judging(story.store, story.options).turn(math.inf) == 0, "open windows are not marked again"
    assert changed(story) == [], "more reports may come"


def test_the_changes_name_the_hours_that_a_killed_backfill_has_opened(story: Story) -> None:
    story.hello(2, closed=EMPTY, time=NOW)
    story.carry(found((0, 4), instance=2, window=NOW))
    story.report(1, closed=NOW + SILENT, time=NOW + SILENT)
    judging = Judging(story.store, story.options)
    for time in (NOW, NOW + SILENT):
        story.options = judging._options = replace(OPTIONS, clock_ms=lambda time=time: time)  # type: ignore[misc]
        story.beats(time)
        story.apply_only()
        judging.turn(math.inf)
    assert story.verdict(W) == Verdict.COMPLETE, "the backfill sends no events from before"
    assert story.completeness(HOUR, 6).verdict == Verdict.UNKNOWN
    assert changed(story) == [HOUR, HOUR + HOUR_MS], "their open windows have no row"
    with story.store.reading() as session:
        cursor = answers.changes(session, TOPIC, "").cursor
    judging.turn(math.inf)
    with story.store.reading() as session:
        assert answers.changes(session, TOPIC, cursor).hours == [], "an hour is named once"


def backfill(story: Story) -> None:
    """Instance 2 opens the window, and is killed before it reports the window's events."""
    story.hello(2, closed=W, time=NOW)
    story.carry(found((0, 4), instance=2, window=EMPTY))
    story.report(0, (0, 4), instance=2, window=EMPTY, closed=W, time=NOW)
    story.report(1, closed=NOW + SILENT, time=NOW + SILENT)


def test_the_same_records_give_the_same_verdicts_after_a_killed_backfill(
    story: Story, stores: Callable[[str], AuditStore]
) -> None:
    backfill(story)
    at(story, NOW + 60_000)
    at(story, NOW + SILENT)
    assert story.verdict() == Verdict.UNKNOWN
    assert changed(story) == [HOUR, HOUR + HOUR_MS]
    other = Story(AuditStore("sqlite://"), story.options)
    other.partitions = story.partitions
    assert other.apply().verdict() == Verdict.UNKNOWN
    other.store.close()


def test_the_hours_of_a_backfill_are_complete_again_when_it_has_closed_them(story: Story) -> None:
    backfill(story)
    at(story, NOW + 60_000)
    story.report(1, instance=2)
    at(story, NOW + 120_000)
    assert story.completeness(HOUR, 6).verdict == Verdict.COMPLETE
    assert changed(story) == []


def test_a_report_that_withdraws_a_promise_opens_the_windows_that_were_final(story: Story) -> None:
    story.report(1, closed=W, time=NOW)
    at(story, NOW + 60_000)
    assert [story.verdict(W - WINDOW_MS), story.verdict(W)] == [Verdict.COMPLETE, Verdict.PENDING]


def test_a_missing_report_leaves_final_windows_with_events_and_the_changes_name_those_without(
    story: Story,
) -> None:
    story.report(2, closed=NOW)
    at(story, NOW + 60_000)
    assert [story.verdict(W), story.verdict(EMPTY)] == [Verdict.COMPLETE, Verdict.UNKNOWN]
    assert changed(story) == [HOUR, HOUR + HOUR_MS]
