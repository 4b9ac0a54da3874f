"""Facts that windows share: read once for each topic, and equal to the facts of each window alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import select

from millrace_audit.auditor.judging.topic_facts import topic_facts
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.store import AuditStore, WindowRow
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import OFFLINE, Unreadable
from tests.unit.audit.story import NOW, TOPIC, Story, W, found


def steps(story: Story, dice: random.Random) -> Iterator[None]:
    """Write records of all kinds about ten windows in portions."""
    starts = [W + at * WINDOW_MS for at in range(10)]
    reports = dict.fromkeys(range(1, 13), 0)
    for instance in reports:
        story.hello(instance, time=W)
    yield
    for number in range(12):
        instance, window = dice.choice([*reports]), dice.choice(starts)
        numbers, closed = (10 * number, 10 * number + 9), dice.choice([W, *starts])
        story.report(reports[instance], numbers, instance=instance, window=window, closed=closed, time=window)
        reports[instance] += 1
        counts = found(numbers, instance=instance, window=window)
        if dice.random() < 0.5:
            story.carry(counts)
        else:
            story.count("dc1", counts)
        yield
        stuck = [Unreadable(TOPIC, f"dc1-{TOPIC}", 0, 7, "damaged")] if dice.random() < 0.1 else []
        for tier in ("dc1", "dc2", OFFLINE):
            time = W + number * (NOW - W) // 12
            story.beat(tier, time, unreadable=stuck if tier == "dc1" else [])
            yield


def facts_of(story: Story, windows: list[int], *, is_shared: bool) -> dict[int, tuple[WindowFacts, str]]:
    """Return the facts and digest of each window, in the order of the list."""
    answer = {}
    with story.store.reading() as session:
        columns = select(WindowRow.window, WindowRow.positions)
        positions = {row.window: row.positions for row in session.execute(columns)}
        (shared,) = topic_facts(session, story.options, Progress(session), [TOPIC])
        for window in windows:
            facts = shared
            if not is_shared:
                (facts,) = topic_facts(session, story.options, Progress(session), [TOPIC])
            where = (window, positions.get(window))
            answer[window] = facts.of_window(*where), facts.digest(*where)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_shared_facts_are_those_of_each_window_alone_and_a_digest_changes_exactly_with_them(
    stores: Callable[[str], AuditStore], seed: int
) -> None:
    dice = random.Random(seed)
    story = Story(stores("sqlite://"))
    before: dict[int, tuple[WindowFacts, str]] = {}
    changes = stays = 0
    for _ in steps(story, dice):
        story.apply_only()
        windows = [W + at * WINDOW_MS for at in range(-1, 11)]
        dice.shuffle(windows)
        now = facts_of(story, windows, is_shared=True)
        assert now == facts_of(story, sorted(windows), is_shared=False)
        for window, (facts, digest) in before.items():
            assert (facts == now[window][0]) == (digest == now[window][1]), window
            changes, stays = changes + (digest != now[window][1]), stays + (digest == now[window][1])
        before = now
    assert changes > 50
    assert stays > 50
