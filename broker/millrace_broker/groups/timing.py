"""Time and memory of groups: deadlines that can be moved, and a count of bytes with a limit."""

from __future__ import annotations

from collections.abc import Callable

from millrace_broker.mailbox import Mailbox, Timer

MAX_BYTES = 64 << 20
"""Limit of all groups together: 10,000 members with 4 KiB of metadata and assignment each."""


class Deadline:
    """Calls `passed` on the loop once its time is over; not set at first.

    If `stands_still` returns True then, nothing is called until `restart` has begun the whole time again.

    A heartbeat comes far more often than a session runs out, so moving a deadline later sets no new timer:
    the running timer checks, when it is due, whether time is left.
    """

    __slots__ = ("_at", "_mailbox", "_passed", "_seconds", "_stands_still", "_timer", "_timer_at")

    def __init__(
        self, mailbox: Mailbox, passed: Callable[[], object], stands_still: Callable[[], bool]
    ) -> None:
        self._mailbox, self._passed, self._stands_still = mailbox, passed, stands_still
        self._seconds: float | None = None
        """The whole time; None while the deadline is not set."""
        self._at = self._timer_at = 0.0
        self._timer: Timer | None = None

    def set(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = self._mailbox.now() + seconds
        if self._timer is None or self._timer_at > self._at:
            self._stop()
            self._arm(seconds)

    def restart(self) -> None:
        """Begin the whole time again, if the deadline is set."""
        if self._seconds is not None:
            self.set(self._seconds)

    def cancel(self) -> None:
        self._seconds = None
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        self._timer_at = self._at
        self._timer = self._mailbox.after(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        left = self._at - self._mailbox.now()
        if left > 0:
            self._arm(left)
        elif not self._stands_still():
            self._seconds = None
            self._passed()


class Memory:
    """Counts the memory of all groups. It is limited, because members choose the size of their data."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self.used = 0
        self.members = 0
        """Members of all groups."""

    def add(self, size: int) -> None:
        self.used += size

    def has_room(self, size: int) -> bool:
        return self.used + size <= self._limit
