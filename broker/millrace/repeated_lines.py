"""A log that clients cannot flood: many lines of one kind at once, then one a second that counts the rest.

What happens once for each partition is still told for every one of a thousand; what a client can cause as
often as it likes is not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

BURST = 1000
"""Lines of one kind that are printed at once; one more may be for each second that passes."""
MAX_KINDS = 10_000


class _Kind:
    __slots__ = ("at", "left", "left_out")

    def __init__(self, now: float) -> None:
        self.at, self.left, self.left_out = now, float(BURST), 0


class RepeatedLines(logging.Filter):
    """For a handler. Lines are of one kind when they come from the same call in the code."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, object], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a line too many; the next that is printed says how many were left out."""
        if getattr(record, "always", False):
            return True
        now = self._clock()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, record.msg), _Kind(now))
        kind.left = min(BURST, kind.left + now - kind.at)
        kind.at = now
        if kind.left < 1:
            kind.left_out += 1
            return False
        kind.left -= 1
        if kind.left_out:
            record.msg = f"{record.getMessage()} ({kind.left_out} like it were not logged before)"
            record.args = ()
            kind.left_out = 0
        return True
