"""Instances that hold many windows open: what that costs others, and how many one of them may hold."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from millrace_audit.auditor.judging import judge
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.records import reported
from millrace_audit.auditor.store import AuditStore, HeldOpenRow, ProducerRow, WindowRow
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING, ReportedWindow
from millrace_audit.reports.ranges import SequenceRanges
from tests.unit.audit.story import NOW, TOPIC, Story, W, found

OTHER = "Order"
GREEDY = 666


@pytest.fixture
def story() -> Iterator[Story]:
    store = AuditStore("sqlite://")
    yield Story(store)
    store.close()


@pytest.fixture
def five_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported, "MOST_OPEN_WINDOWS", 5)


def windows(first: int, count: int, topic: str = TOPIC) -> list[ReportedWindow]:
    """Windows of one event each, counted back from the one before the story's; `first` is the newest."""
    return [
        ReportedWindow(topic, W - (n + 1) * WINDOW_MS, SequenceRanges([(n, n)]), SequenceRanges(), n, 0)
        for n in range(first, first + count)
    ]


def judged(story: Story, topic: str) -> list[int]:
    """Windows that have a verdict, as numbers of windows before the story's."""
    with story.store.reading() as session:
        of_topic = (WindowRow.topic == topic, WindowRow.judged.is_not(None))
        found = session.scalars(select(WindowRow.window).where(*of_topic).order_by(WindowRow.window.desc()))
        return [(W - window) // WINDOW_MS - 1 for window in found]


def producer(session: Session, instance: int = GREEDY) -> ProducerRow:
    return session.scalars(select(ProducerRow).where(ProducerRow.instance == instance)).one()


def test_a_turn_judges_a_portion_of_each_topic_in_a_transaction_the_newest_first(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "PORTION", 3)
    monkeypatch.setattr(judge, "COMPARED", 3)
    monkeypatch.setattr(judge, "TRANSACTION_S", math.inf)
    story.hello(GREEDY)
    story.hello(1, topic=OTHER)
    story.report(0, instance=GREEDY, closed=NOTHING, windows=windows(0, 8))
    story.report(0, closed=NOTHING, windows=windows(0, 5, OTHER))
    story.apply_only()
    turns = Judging(story.store, story.options)
    assert turns.turn(0) == 6
    assert (judged(story, TOPIC), judged(story, OTHER)) == ([0, 1, 2], [0, 1, 2])
    assert turns._below, "windows are left"
    story.report(1, instance=GREEDY, closed=NOTHING, windows=windows(-3, 1))
    story.apply_only()
    turns.turn(0)
    assert judged(story, TOPIC) == [-3, *range(6)], "what is new comes first, then what was left"
    assert turns.turn(math.inf) == 2
    assert not turns.is_behind
    assert judged(story, TOPIC) == [-3, *range(8)]
    assert judged(story, OTHER) == [*range(5)]


def test_an_operators_decision_goes_between_two_portions(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "PORTION", 2)
    transactions: list[int] = []
    writing = story.store.writing

    @contextmanager
    def counted() -> Iterator[Session]:
        with writing() as session:
            yield session
        transactions.append(len(judged(story, TOPIC)))

    story.hello(GREEDY)
    story.report(0, instance=GREEDY, closed=NOTHING, windows=windows(0, 7))
    story.apply_only()
    monkeypatch.setattr(story.store, "writing", counted)
    Judging(story.store, story.options).turn(math.inf)
    assert transactions == [2, 4, 6, 7], "the lock is free after each of them"


def test_a_turn_that_had_no_time_for_a_topic_begins_the_next_one_with_it(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "PORTION", 2)
    monkeypatch.setattr(judge, "TRANSACTION_S", 0)
    for instance, topic in enumerate((TOPIC, OTHER), 1):
        story.hello(instance, topic=topic)
        story.report(0, instance=instance, closed=NOTHING, windows=windows(0, 4, topic))
    story.apply_only()
    turns = Judging(story.store, story.options)
    turns.turn(0)
    assert (judged(story, TOPIC), judged(story, OTHER)) == ([], [0, 1])
    turns.turn(0)
    assert (judged(story, TOPIC), judged(story, OTHER)) == ([0, 1], [0, 1])
    for _ in range(4):
        turns.turn(0)
    assert (judged(story, TOPIC), judged(story, OTHER)) == ([*range(4)], [*range(4)])


def test_a_window_that_was_complete_and_waits_to_be_judged_again_is_not_complete(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "PORTION", 1)
    both = found((0, 9))
    both.merge(found((10, 19), window=W + WINDOW_MS))
    story.hello()
    story.report(0, (0, 9), closed=NOTHING)
    story.report(1, (10, 19), window=W + WINDOW_MS)
    story.carry(both)
    story.beats()
    story.publish(both, windows=(W, W + WINDOW_MS))
    story.state(1, exists=True)
    story.apply()
    assert [story.verdict(W), story.verdict(W + WINDOW_MS)] == ["complete", "complete"]
    story.state(1, exists=True, trouble="a file is gone")
    story.apply_only()
    story.options = replace(story.options, clock_ms=lambda: NOW + 15 * 60_000)
    turns = Judging(story.store, story.options)
    turns.turn(0)
    assert [story.verdict(W), story.verdict(W + WINDOW_MS)] == ["pending", "unknown"]
    turns.turn(math.inf)
    assert [story.verdict(W), story.verdict(W + WINDOW_MS)] == ["unknown", "unknown"]


@pytest.mark.usefixtures("five_may_be_open")
def test_a_report_that_opens_too_many_windows_has_no_effect_and_nothing_is_complete_until_it_is_disowned(
    story: Story,
) -> None:
    story.whole()
    story.hello(GREEDY)
    story.report(0, instance=GREEDY, closed=NOTHING, windows=windows(0, 5))
    story.report(1, instance=GREEDY, closed=NOTHING, windows=windows(5, 1))
    story.report(2, instance=GREEDY)  # for ever: it does not get away with it
    story.apply()
    assert story.rejected_records() == [("Report", "more than 5 windows of its instance are open")]
    window = story.window()
    assert window["verdict"] == "unknown"
    missing = f"report 1 of instance {GREEDY} (shop on web-{GREEDY} in dc1) is missing"
    assert window["reasons"][0].startswith(missing)
    assert story.verdict(W - 6 * WINDOW_MS) == "unknown", "nobody knows what it has sent then"
    assert story.accept(instance=GREEDY, disown=True) == [GREEDY]
    story.settle()
    assert [story.verdict(W), story.verdict(W - 6 * WINDOW_MS)] == ["complete", "complete"]


@pytest.mark.usefixtures("five_may_be_open")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_instance_that_closes_windows_may_open_any_number_one_after_the_other(
    kind: str, request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]
) -> None:
    url = "sqlite://" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    story = Story(stores(url))
    story.hello()
    for number in range(8):
        mine = windows(8 - number, 3)
        closed = mine[0].window - WINDOW_MS
        story.report(number, closed=closed, windows=mine)
    story.apply()
    with story.store.reading() as session:
        assert producer(session, 1).held_open == session.scalar(select(func.count(HeldOpenRow.window))) == 2
    assert story.rejected_records() == []


@pytest.mark.usefixtures("five_may_be_open")
def test_a_window_counts_once_however_often_it_is_reported(story: Story) -> None:
    story.hello()
    for number in range(9):
        story.report(number, closed=NOTHING, windows=[*windows(0, 3), *windows(0, 2, OTHER)])
    story.report(9, closed=FOR_EVER, windows=windows(3, 9))
    story.apply()
    assert story.rejected_records() == []
    with story.store.reading() as session:
        assert session.scalar(select(func.count(HeldOpenRow.window))) == 0
        assert producer(session, 1).done


@pytest.mark.usefixtures("five_may_be_open")
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_hit_at_the_same_report_in_whatever_parts_it_is_read(story: Story, seed: int) -> None:
    story.whole()
    story.hello(GREEDY)
    for number in range(6):
        story.report(number, instance=GREEDY, closed=NOTHING, windows=windows(2 * number, 2))
    story.apply()
    store = AuditStore("sqlite://")
    other = story.interleaved(store, random.Random(seed))
    assert other.answer(W - 9 * WINDOW_MS, 10) == story.answer(W - 9 * WINDOW_MS, 10)
    assert other.rejected_records() == story.rejected_records()
    store.close()


def test_an_acceptance_is_seen_by_open_windows_and_writes_to_none_of_them(story: Story) -> None:
    story.hello(GREEDY)
    story.report(0, instance=GREEDY, closed=NOTHING, windows=windows(0, 5))
    story.beats(NOW + 6000)
    story.apply()
    story.accept(instance=GREEDY)
    with story.store.reading() as session:
        changed = session.scalars(select(WindowRow.window).where(WindowRow.is_changed)).all()
        before = session.scalars(select(WindowRow.judged)).all()
    assert (len(before), changed) == (5, [])
    story.settle()
    with story.store.reading() as session:
        after = session.scalars(select(WindowRow.judged)).all()
    assert ["burnt down" in str(each) for each in (*before, *after)] == [False] * 5 + [True] * 5
