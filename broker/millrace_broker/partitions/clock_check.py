"""Comparison of this machine's clock with ZooKeeper's: retention by time deletes only while the two agree.

ZooKeeper stamps each write with its own clock. Between two writes, and while ZooKeeper is away, the monotonic
clock measures how far ZooKeeper's has moved on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from millrace.errors import MillraceError
from millrace_broker.storage.segment import TimeRange

logger = logging.getLogger("millrace.broker")

MOST_DIFFERENCE_S = 300.0
"""Largest difference from ZooKeeper's clock at which retention by time still deletes."""
ASK_INTERVAL_S = 60.0


class StampedWrites(Protocol):
    """The part of `Cluster` that reads ZooKeeper's clock."""

    def zookeeper_time(self) -> float: ...


class ClockCheck:
    """Comparison of a clock with ZooKeeper's, and the wrong times that the clock showed. For one thread."""

    def __init__(
        self,
        clock: Callable[[], float],
        cluster: StampedWrites,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._cluster, self._monotonic = clock, cluster, monotonic
        self.difference_s = 0.0
        """Seconds by which the clock is ahead of ZooKeeper's."""
        self.wrong: list[TimeRange] = []
        """Times that the clock showed since the start while it was wrong."""
        self._zookeeper_ahead: float | None = None  # of the monotonic clock
        self._asked_at = -math.inf
        self._shown, self._looked_at = clock(), monotonic()

    @property
    def agrees(self) -> bool:
        return abs(self.difference_s) <= MOST_DIFFERENCE_S

    def look(self) -> bool:
        """Compare the clocks. True while they agree; False also until ZooKeeper has answered once."""
        if self._monotonic() - self._asked_at >= ASK_INTERVAL_S:
            self._ask()
        if self._zookeeper_ahead is None:
            return False
        before, shown, now = self.agrees, self._clock(), self._monotonic()
        elapsed = now - self._looked_at
        self.difference_s = shown - (now + self._zookeeper_ahead)
        # The clock may have been set at any time since the last look.
        if not before:
            self._note(self._shown, self._shown + elapsed)
        if not self.agrees:
            self._note(shown - elapsed, shown)
        self._shown, self._looked_at = shown, now
        if before and not self.agrees:
            word = "ahead of" if self.difference_s > 0 else "behind"
            logger.error(
                "the clock of this machine is %.0f s %s ZooKeeper's: retention by time deletes nothing on"
                " this broker until they agree within %.0f s. Set the clock that is wrong.",
                *(abs(self.difference_s), word, MOST_DIFFERENCE_S),
            )
        elif self.agrees and not before:
            logger.info("the clock of this machine agrees with ZooKeeper's again: retention by time goes on")
        return self.agrees

    def _ask(self) -> None:
        began = self._asked_at = self._monotonic()
        try:
            zookeeper_s = self._cluster.zookeeper_time()
        except MillraceError as error:
            logger.warning("cannot read ZooKeeper's clock again: %s", error)
        else:
            self._zookeeper_ahead = zookeeper_s - (began + self._monotonic()) / 2

    def _note(self, since: float, until: float) -> None:
        if self.wrong and self.wrong[-1][0] <= since <= self.wrong[-1][1] + 1:
            since = self.wrong.pop()[0]
        self.wrong.append((since, until))
