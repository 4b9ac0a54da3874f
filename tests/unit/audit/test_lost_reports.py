"""Lost records of the warehouse's reader: the counts of published tables may be outdated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import NOTHING, WAREHOUSE, Heartbeat
from tests.unit.audit.story import NOW, OPTIONS, OWN, STEP, Story, W, found

LATER = W + 20 * WINDOW_MS
PLACE = (OWN, "offline")
RULE = "records of `millrace audit-warehouse` were lost from "
LOST = 5
"""Records that are lost between two records of the story."""


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> Story:
    sqlite = request.param == "sqlite"
    url = "sqlite://" if sqlite else request.getfixturevalue("postgres_url")
    return Story(stores(url), replace(OPTIONS, clock_ms=lambda: LATER))


def published(story: Story, number: int | None = None) -> None:
    """A complete hour that is published and final, and a complete window that is not published."""
    story.hello(2)
    story.report(0, (0, 4), instance=2, window=W + WINDOW_MS)
    story.carry(found((0, 4), instance=2, window=W + WINDOW_MS))
    story.whole()
    story.publish(found((0, 9)), number=number)
    story.beats(LATER - WINDOW_MS)
    story.apply()


def lose(story: Story) -> None:
    """Lose records after all applied ones; the next records of the story lie behind them."""
    start = len(story.partitions[PLACE]) * STEP
    with story.store.writing() as session:
        ledger.lose(session, story.place(PLACE), start, start + STEP * LOST)
    for _ in range(LOST):
        story.say(*PLACE, None)
    story._applied[PLACE] += LOST


def reasons(story: Story, start: int = W) -> list[str]:
    return [str(reason) for reason in story.window(start)["reasons"]]


def test_a_final_published_hour_is_unknown_after_lost_records_until_its_table_is_counted_again(
    story: Story,
) -> None:
    published(story)
    assert story.verdict() == "complete"
    lose(story)
    story.apply()
    assert story.verdict() == "unknown"
    (reason,) = reasons(story)
    assert reason.startswith(RULE)
    assert reason.endswith("`millrace audit-warehouse --count-tables-again`")
    story.beats(LATER)
    assert story.apply().verdict() == "unknown", "the reader goes on, and repeats nothing"
    assert [story.verdict(W + WINDOW_MS), story.verdict(NOW)] == ["complete", "complete"], "not published"
    story.publish(found((0, 9)), turn=2)
    assert story.apply().verdict() == "complete"


def test_a_published_hour_is_found_at_any_offset_of_a_long_log(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "place", lambda key: replace(Story.place(story, key), shift=1 << 40))
    published(story)
    lose(story)
    assert story.apply().verdict() == "unknown"


def test_lost_records_before_the_count_of_a_table_do_not_matter(story: Story) -> None:
    story.beats(W - WINDOW_MS)
    story.apply()
    lose(story)
    story.beats(W - WINDOW_MS + 6000)
    published(story)
    assert story.verdict() == "complete"


def test_what_the_lost_record_told_is_found_when_the_table_is_counted_again(story: Story) -> None:
    published(story)
    lose(story)
    story.publish(found((0, 6)), turn=2)
    assert story.apply().verdict() == "incomplete"
    assert story.findings() == [("missing", "table", [[7, 9]])]


def test_an_hour_that_is_incomplete_stays_incomplete(story: Story) -> None:
    story.whole()
    story.publish(found((0, 6)))
    story.beats(LATER - WINDOW_MS)
    assert story.apply().verdict() == "incomplete"
    lose(story)
    assert story.apply().verdict() == "incomplete"


def test_records_of_a_log_that_was_cut_back_count_as_older_than_the_loss(story: Story) -> None:
    published(story)
    end = len(story.partitions[PLACE]) * STEP
    cut = 8 * STEP  # the count of the table is among the records that were cut off
    with story.store.writing() as session:
        ledger.lose(session, story.place(PLACE), end - cut, end)
    story.apply()
    assert story.verdict() == "unknown"
    # The auditor adds the length that was cut off to the offsets of the new records.
    story.beats(LATER)
    story.publish(found((0, 9)), turn=2)
    assert story.apply().verdict() == "complete"


def says(story: Story, number: int, time: int = NOW, turn: int = 1) -> None:
    story.say(*PLACE, Heartbeat(time=time, tier=WAREHOUSE, number=number), turn)


def begins(story: Story, turn: int) -> None:
    says(story, 0, NOTHING, turn)


def test_a_hole_in_the_numbers_of_a_turn_is_a_lost_record(story: Story) -> None:
    begins(story, 1)
    story.publish(found((0, 9)), number=1)
    published(story, number=2)
    says(story, 3)
    says(story, 3)
    begins(story, 1)
    says(story, 4)
    assert story.apply().verdict() == "complete", "a repeat is no hole"
    says(story, 6)
    assert story.apply().verdict() == "unknown"
    assert reasons(story)[0].startswith(RULE)
    story.beats(LATER)
    begins(story, 2)
    assert story.apply().verdict() == "unknown"
    story.publish(found((0, 9)), number=1, turn=2)
    assert story.apply().verdict() == "complete"
    expected = story.window()
    for seed in range(5):
        other = AuditStore("sqlite://")
        again = story.interleaved(other, random.Random(seed), from_half=seed % 2 == 1)
        assert {**again.window(), "revision": 0} == {**expected, "revision": 0}
        other.close()


def test_the_first_records_of_a_turn_are_missed(story: Story) -> None:
    published(story, number=1)
    begins(story, 2)
    says(story, 3, turn=2)
    assert story.apply().verdict() == "unknown"


def test_a_reader_of_the_version_before_leaves_numbers_out(story: Story) -> None:
    published(story, number=1)
    begins(story, 2)
    says(story, 1, turn=2)
    says(story, 5, turn=3)
    says(story, 9, turn=3)
    assert story.apply().verdict() == "complete"


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_answer_is_the_same_whatever_was_judged_before_the_loss(
    story: Story, *, is_repeated: bool
) -> None:
    published(story)
    lose(story)
    story.beats(LATER)
    if is_repeated:
        story.publish(found((0, 9)), turn=2)
    expected = story.apply().window()
    other = AuditStore("sqlite://")
    dice = random.Random(7)
    again = Story(other, story.options)
    before = next(n for n, heard in enumerate(story.partitions[PLACE]) if heard.record is None)
    places = [*story.partitions]
    dice.shuffle(places)
    for place in places:  # nothing is judged before everything is applied
        there = story.partitions[place]
        parts = [there] if place != PLACE else [there[:before], there[before + LOST :]]
        for part in parts:
            with other.writing() as session:
                if part is parts[-1] and place == PLACE:
                    ledger.lose(session, again.place(place), before * STEP, (before + LOST) * STEP)
                ledger.apply(session, again.place(place), part, LATER)
    again.settle()
    found_again = again.window()
    assert {**found_again, "revision": 0} == {**expected, "revision": 0}
    other.close()
