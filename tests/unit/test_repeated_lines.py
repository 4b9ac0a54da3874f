"""A flood of log lines becomes a trickle that says how much was left out."""

from __future__ import annotations

import logging

from millrace.repeated_lines import BURST, MAX_KINDS, RepeatedLines


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self._repeated = RepeatedLines(lambda: self.now)

    def line(self, text: str, *args: object) -> str | None:
        """Return the printed line, None if it is held back."""
        record = logging.LogRecord("millrace.server", logging.WARNING, "", 0, text, args, None)
        return record.getMessage() if self._repeated.filter(record) else None


def test_lines_of_one_kind_are_limited_and_counted() -> None:
    log = Log()
    assert [log.line("refused %s", n) for n in range(BURST)] == [f"refused {n}" for n in range(BURST)]
    assert [log.line("refused %s", n) for n in range(50)] == [None] * 50
    log.now = 1.0
    assert log.line("refused %s", 7) == "refused 7 (similar lines before it, not logged: 50)"
    assert log.line("refused %s", 8) is None
    log.now = 2.0
    assert log.line("refused %s", 9) == "refused 9 (similar lines before it, not logged: 1)"


def test_a_flood_hides_no_other_line() -> None:
    log = Log()
    for number in range(2 * BURST):
        log.line("refused %s", number)
    assert log.line("cannot append to %s", "t-0") == "cannot append to t-0"


def test_a_quiet_time_lets_many_lines_through_again() -> None:
    log = Log()
    for _ in range(2 * BURST):
        log.line("refused")
    log.now = 10_000.0
    assert sum(log.line("refused") is not None for _ in range(2 * BURST)) == BURST


def test_lines_that_are_all_different_take_bounded_memory() -> None:
    log = Log()
    for number in range(3 * MAX_KINDS):
        assert log.line(f"composed {number}") is not None
    assert len(log._repeated._kinds) <= MAX_KINDS
