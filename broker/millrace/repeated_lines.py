"""A log that clients cannot flood: many lines of one kind at once, then one line a second that counts the
rest.

Lines for a thousand partitions at once are still logged. Lines that a client can cause at will are limited.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

BURST = 1000
"""Lines of one kind that may be logged at once; each second allows one more."""
MAX_KINDS = 10_000


class _Kind:
    __slots__ = ("at", "left", "left_out")

    def __init__(self, now: float) -> None:
        self.at, self.left, self.left_out = now, float(BURST), 0


class RepeatedLines(logging.Filter):
    """A filter for a handler. Lines are of one kind if they have the same logger and unformatted message."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, object], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a line over the limit.

        The next logged line of its kind states how many were left out.
        """
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
            record.msg = f"{record.getMessage()} (similar lines before it, not logged: {kind.left_out})"
            record.args = ()
            kind.left_out = 0
        return True
