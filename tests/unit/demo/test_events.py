"""The made events cover what a log file does not: several windows in an hour, steps back over the hour."""

from __future__ import annotations

import itertools
from collections import Counter

from millrace_demo.events import HOUR_MS, made_events

START = 400_000 * HOUR_MS


def test_the_same_seed_makes_the_same_events() -> None:
    assert list(made_events(500, start_ms=START, hours=2, seed=1)) == list(
        made_events(500, start_ms=START, hours=2, seed=1)
    )


def test_events_fill_every_window_of_every_hour_and_step_back_over_the_boundaries() -> None:
    events = list(made_events(20_000, start_ms=START, hours=3, seed=2))
    times = [event.time_ms for event in events]
    assert min(times) >= START
    assert max(times) < START + 3 * HOUR_MS
    assert len({time // 600_000 for time in times}) == 18
    back_over_an_hour = sum(b // HOUR_MS < a // HOUR_MS for a, b in itertools.pairwise(times))
    assert back_over_an_hour > 10
    assert Counter(event.topic for event in events) == {"PageView": 16_000, "SearchQuery": 4_000}
