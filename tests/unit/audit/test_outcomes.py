from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_audit.outcomes import Outcomes
from millrace_audit.reports import outcome
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.fingerprints import wrapped
from millrace_audit.reports.messages import FOR_EVER, MOST_WINDOWS, ReportedWindow
from millrace_audit.reports.outcome import portion, reported

HOUR = 6 * WINDOW_MS
FOR_EVER_MS = 1 << 60
events = st.lists(st.tuples(st.sampled_from(["PageView", "SearchQuery"]), st.integers(0, 4 * WINDOW_MS)))


def digest(topic: str, sequence: int) -> int:
    """Stands for the fingerprint of an event."""
    return hash((topic, sequence)) % (1 << 64)


def send(outcomes: Outcomes, topic: str, time_ms: int) -> int:
    state = outcomes.topic(topic)
    if not state.run_from <= time_ms < state.run_until:
        outcomes.begin_run(state, time_ms, FOR_EVER_MS)
    state.run_fingerprint += digest(topic, state.next_sequence)
    state.next_sequence += 1
    return state.next_sequence - 1


def take_news(outcomes: Outcomes, most: int = outcome.RANGES_PER_REPORT) -> list[list[ReportedWindow]]:
    """Return the new outcomes in reports of at most `most` ranges."""
    news, portions = outcomes.take_news(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "RANGES_PER_REPORT", most)
        while news:
            now, news = portion(news)
            portions.append(reported(now))
    return portions


def told(portions: list[list[ReportedWindow]]) -> dict[tuple[str, int], tuple[set[int], set[int]]]:
    found: dict[tuple[str, int], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for window in (window for windows in portions for window in windows):
        for part, ranges in zip(
            found[window.topic, window.window], (window.acknowledged, window.failed), strict=True
        ):
            numbers = {n for first, last in ranges for n in range(first, last + 1)}
            assert not part & numbers, "nothing is told twice"
            part |= numbers
    return dict(found)


@given(events, st.integers(0, 5), st.randoms(use_true_random=False))
def test_every_event_is_told_once_as_acknowledged_or_failed(
    sent: list[tuple[str, int]], cuts: int, chance: random.Random
) -> None:
    outcomes = Outcomes()
    expected: dict[tuple[str, int], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    portions = []
    cut_at = {chance.randrange(len(sent) + 1) for _ in range(cuts)}
    for index, (topic, time_ms) in enumerate(sent):
        sequence = send(outcomes, topic, time_ms)
        failed = chance.random() < 0.2
        expected[topic, window_start(time_ms)][failed].add(sequence)
        if failed:
            outcomes.fail(topic, time_ms, sequence, digest(topic, sequence))
        if index in cut_at:
            outcomes.cut(index)
            outcomes.resolve(index)
            portions += take_news(outcomes, chance.randrange(1, 5))
    outcomes.cut(len(sent))
    outcomes.resolve(len(sent))
    portions += take_news(outcomes, 3)
    assert told(portions) == expected
    for (topic, window), parts in expected.items():
        here = [w for portion in portions for w in portion if (w.topic, w.window) == (topic, window)]
        for part, name in zip(parts, ("fingerprint", "failed_fingerprint"), strict=True):
            total = sum(digest(topic, sequence) for sequence in part)
            assert wrapped(sum(getattr(w, name) for w in here)) == wrapped(total)
    assert take_news(outcomes, 3) == []
    assert outcomes.open_from == FOR_EVER


def test_only_what_was_cut_off_in_time_has_an_outcome() -> None:
    outcomes = Outcomes()
    send(outcomes, "PageView", 0)
    outcomes.cut(1.0)
    send(outcomes, "PageView", WINDOW_MS)
    outcomes.cut(2.0)
    outcomes.resolve(1.5)
    assert told(take_news(outcomes, 10)) == {("PageView", 0): ({0}, set())}
    assert outcomes.open_from == WINDOW_MS
    outcomes.resolve(2.0)
    assert told(take_news(outcomes, 10)) == {("PageView", WINDOW_MS): ({1}, set())}


def test_the_earliest_window_with_a_pending_event_stays_open() -> None:
    outcomes = Outcomes()
    assert outcomes.open_from == FOR_EVER
    send(outcomes, "PageView", HOUR + 5)
    send(outcomes, "SearchQuery", 2 * HOUR)
    assert outcomes.open_from == HOUR, "before it is cut off as well"
    outcomes.cut(1.0)
    assert outcomes.open_from == HOUR


def test_a_failure_that_comes_after_the_acknowledgement_was_told_is_told_as_well() -> None:
    outcomes = Outcomes()
    sequence = send(outcomes, "PageView", 7)
    outcomes.cut(1.0)
    outcomes.resolve(1.0)
    assert told(take_news(outcomes, 10)) == {("PageView", 0): ({0}, set())}
    outcomes.fail("PageView", 7, sequence, digest("PageView", sequence))
    (late,) = take_news(outcomes, 10)
    assert told([late]) == {("PageView", 0): (set(), {0})}
    value = wrapped(digest("PageView", 0))
    assert (late[0].fingerprint, late[0].failed_fingerprint) == (wrapped(-value), value), "it is taken back"


def test_an_event_of_the_run_that_is_ahead_of_the_clock_is_none_of_it() -> None:
    outcomes = Outcomes()
    state = outcomes.topic("PageView")
    outcomes.begin_run(state, 5, 7)
    assert (state.run_from, state.run_until) == (0, 8)
    assert outcomes.open_from == 0, "before it is sent as well"
    outcomes.cut(1.0)
    assert (state.run_until, outcomes.open_from) == (0, FOR_EVER), "and nothing was"


def test_a_long_stream_in_order_costs_one_range_per_window() -> None:
    outcomes = Outcomes()
    for index in range(60_000):
        send(outcomes, "PageView", index * 20)
    outcomes.cut(1.0)
    outcomes.resolve(1.0)
    (portion,) = take_news(outcomes, 1000)
    assert [window.acknowledged.pairs() for window in portion] == [[[0, 29_999]], [[30_000, 59_999]]]
    assert outcomes.topic("PageView").acknowledged.pairs() == [[0, 59_999]]


def test_news_of_many_windows_come_in_as_many_portions_as_reports_may_hold() -> None:
    outcomes = Outcomes()
    for index in range(2 * MOST_WINDOWS + 1):
        send(outcomes, "PageView", index * WINDOW_MS)
    outcomes.cut(1.0)
    outcomes.resolve(1.0)
    assert [len(portion) for portion in take_news(outcomes, 20_000)] == [MOST_WINDOWS, MOST_WINDOWS, 1]


def test_acknowledged_and_failed_ranges_share_the_room_of_a_portion() -> None:
    outcomes = Outcomes()
    for index in range(200):
        send(outcomes, "PageView", 0)
        if index % 2:
            outcomes.fail("PageView", 0, index, 1)
    outcomes.cut(1.0)
    outcomes.resolve(1.0)
    portions = take_news(outcomes, 30)
    sizes = [sum(w.acknowledged.range_count + w.failed.range_count for w in p) for p in portions]
    assert (max(sizes), sum(sizes)) == (30, 200)


def test_news_in_portions_stay_small_and_lose_nothing() -> None:
    outcomes = Outcomes()
    for index in range(1000):
        send(outcomes, "PageView", (index % 3) * WINDOW_MS)
    outcomes.cut(1.0)
    outcomes.resolve(1.0)
    portions = take_news(outcomes, 50)
    assert max(sum(w.acknowledged.range_count for w in portion) for portion in portions) <= 50
    assert sum(len(numbers) for numbers, _ in told(portions).values()) == 1000


def test_a_window_is_open_from_its_first_event_until_a_report_closes_it() -> None:
    outcomes = Outcomes()
    for time_ms in (HOUR, HOUR + 1, HOUR + WINDOW_MS):
        send(outcomes, "PageView", time_ms)
    send(outcomes, "SearchQuery", HOUR)
    assert len(outcomes.open) == 3
    outcomes.close(HOUR + WINDOW_MS - 1)
    assert len(outcomes.open) == 3, "it is not over before its end"
    outcomes.close(HOUR + WINDOW_MS)
    assert outcomes.open == {("PageView", HOUR + WINDOW_MS)}
    outcomes.fail("SearchQuery", HOUR, 0, 1)
    outcomes.take_news()
    assert ("SearchQuery", HOUR) in outcomes.open, "what a report names is open until it is closed again"
    outcomes.close(FOR_EVER)
    assert outcomes.open == set()
