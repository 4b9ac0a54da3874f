"""The comparison with ZooKeeper's clock; all three clocks are the test's."""

from __future__ import annotations

import logging

import pytest

from millrace.errors import MillraceError
from millrace_broker.partitions.clock_check import ASK_INTERVAL_S, MOST_DIFFERENCE_S, ClockCheck

DAY_S = 24 * 3600.0
TRUE_TIME = 1_431_856_800.0


class Clocks:
    """The true time, a machine's clock that may be wrong, and a ZooKeeper that may be away."""

    def __init__(self) -> None:
        self.passed = self.wrong_by = 0.0
        self.is_away = False
        self.check = ClockCheck(self.shown, self, lambda: 77 + self.passed)

    def shown(self) -> float:
        return TRUE_TIME + self.passed + self.wrong_by

    def zookeeper_time(self) -> float:
        if self.is_away:
            raise MillraceError("ZooKeeper does not answer")
        return TRUE_TIME + self.passed


def test_a_clock_is_trusted_within_the_bound_and_each_change_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clocks = Clocks()
    for wrong_by, agrees in (
        (MOST_DIFFERENCE_S - 1, True),
        (MOST_DIFFERENCE_S + 1, False),
        (8 * DAY_S, False),
        (0.0, True),
        (1 - MOST_DIFFERENCE_S, True),
        (-8 * DAY_S, False),
    ):
        clocks.wrong_by = wrong_by
        for _ in range(2):
            clocks.passed += 1
            assert clocks.check.look() is agrees
            assert clocks.check.difference_s == pytest.approx(wrong_by)
    lines = [(record.levelname, record.message.partition("ZooKeeper's")[0]) for record in caplog.records]
    assert lines == [
        ("ERROR", "the clock of this machine is 301 s ahead of "),
        ("INFO", "the clock of this machine agrees with "),
        ("ERROR", "the clock of this machine is 691200 s behind "),
    ]


def test_while_zookeeper_is_away_a_jump_is_noticed_and_a_clock_that_was_never_compared_is_not_trusted() -> (
    None
):
    clocks = Clocks()
    clocks.is_away = True
    assert not clocks.check.look()
    clocks.is_away, clocks.passed = False, ASK_INTERVAL_S
    assert clocks.check.look()
    clocks.is_away, clocks.passed = True, 10 * ASK_INTERVAL_S
    assert clocks.check.look()
    clocks.wrong_by = DAY_S
    assert not clocks.check.look()


def test_all_times_that_a_wrong_clock_has_shown_are_known_whenever_it_was_set() -> None:
    clocks, written = Clocks(), list[float]()
    clocks.check.look()
    for wrong_by in (-8 * DAY_S, -8 * DAY_S, 3 * DAY_S, 0.0):
        clocks.passed += 2
        clocks.wrong_by = wrong_by  # right behind a look, and right before one
        written.append(clocks.shown())
        clocks.passed += 2
        written.append(clocks.shown())
        clocks.check.look()
    right, wrong = written[-2:], written[:-2]
    assert clocks.check.look()

    def is_noted(time: float) -> bool:
        return any(since <= time <= until for since, until in clocks.check.wrong)

    assert all(map(is_noted, wrong))
    assert not any(map(is_noted, right))
    assert len(clocks.check.wrong) == 2
