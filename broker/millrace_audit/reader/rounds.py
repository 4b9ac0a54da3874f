"""The rounds of a reader, which counts a tier for as long as its turn lasts.

The reader takes a turn, or stands by until there is one for it. It counts repeatedly while the session with
ZooKeeper lasts, then takes another turn. Errors are logged and the round is retried. Subclasses do the
counting.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress

from millrace.errors import MillraceError
from millrace_audit.reader.numbers import TierNumbers
from millrace_audit.reports.turn_taker import Holder, TurnTaker
from millrace_audit.reports.turns import Turn

logger = logging.getLogger("millrace.audit.reader")

IDLE_HEARTBEAT_S = 5.0
"""Interval of the heartbeats of a reader that has no news."""
RETRY_S = 1.0
_STAND_BY_S = 30.0


class TierReader(ABC):
    """Counts one tier until `stop` is set."""

    def __init__(
        self,
        taker: TurnTaker,
        numbers: TierNumbers,
        stop: threading.Event,
        *,
        interval_ms: int,
        may_replace: bool,
    ) -> None:
        """Prepare the reader; `may_replace` allows counting another source than the tier's
        newest turn did.
        """
        self._taker, self._numbers, self._stop = taker, numbers, stop
        self._may_replace = may_replace
        self._interval_s = interval_ms / 1000
        self._turn: Turn | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Count until `stop` is set; `ready` is called when the first turn has begun.

        Errors are logged and the round is retried. The turn lasts as long as its session with ZooKeeper.
        """
        with closing(self):
            while not self._stop.is_set():
                began, pause = time.monotonic(), self._interval_s
                try:
                    self._leave_ended_turn()
                    if self._turn is not None or self._begin_turn():
                        ready()
                        ready = _nothing
                        self.count_once()
                    self._numbers.trouble = None
                except MillraceError as error:
                    logger.warning("%s; trying again", error)
                    self._numbers.trouble = str(error)
                    pause = self.pause_s()
                self._stop.wait(max(0.0, began + pause - time.monotonic()))

    def close(self) -> None:
        """Release the turn and close every connection."""
        if self._turn is not None and not self._taker.lost.is_set():
            with suppress(MillraceError):
                self.release_turn()
        self.disconnect()

    def check_place(self) -> None:
        """Raise MillraceError when the tier's newest turn counted another source, which may not
        be replaced.
        """
        other = None if self._may_replace else self._taker.counted_elsewhere()
        if other is not None:
            raise MillraceError(self.refusal(other))

    def _leave_ended_turn(self) -> None:
        if self._turn is None:
            return
        if self._taker.lost.is_set():
            logger.warning("the session with ZooKeeper has ended, and turn %d with it", self._turn.number)
            self._turn = self._numbers.turn = None
        elif self.is_turn_over():
            logger.info("turn %d of tier %s ends", self._turn.number, self._numbers.tier)
            try:
                self.release_turn()
            finally:  # a turn that was left must not be continued
                self._turn = self._numbers.turn = None

    def _begin_turn(self) -> bool:
        """Stand by until the turn is free, and begin it. Return False when `stop` was set first."""
        stands_by = False
        while True:
            self.check_place()
            taken = self.take_turn()
            if not isinstance(taken, Holder):
                break
            self._numbers.trouble = None  # earlier failures no longer matter: this reader need not count now
            if not stands_by:
                line = "tier %s is counted by the reader on %s, process %d: this one stands by"
                logger.info(line, self._numbers.tier, taken.host, taken.pid)
                stands_by = True
            self.stand_by(_STAND_BY_S)
            if self._stop.is_set():
                return False
        self._turn = taken
        try:
            self.prepare(taken)
        except MillraceError:
            self._turn = None  # this session still holds it, and takes it again
            raise
        self._numbers.heartbeat_at = time.time()  # the first heartbeat is due from here on
        self._numbers.turn = taken.number
        logger.info("turn %d of tier %s begins", taken.number, self._numbers.tier)
        return True

    # Different for readers that share a tier.

    def take_turn(self) -> Turn | Holder:
        """Return the turn in which to count, or the reader that holds the tier."""
        return self._taker.take()

    def stand_by(self, timeout_s: float) -> None:
        """Return when there may be a turn to count in, when `stop` is set, or after `timeout_s`."""
        self._taker.wait_until_free(self._stop, timeout_s)

    def is_turn_over(self) -> bool:
        """Return True if the turn must end although its session lasts."""
        return False

    def release_turn(self) -> None:
        """End the turn at once, so that the next turn may begin."""
        self._taker.release()

    def pause_s(self) -> float:
        """Return the pause after a failure."""
        return RETRY_S

    # Defined by each kind of reader.

    @abstractmethod
    def refusal(self, newest: Turn) -> str:
        """Return the error text for a tier whose newest turn counted another source."""

    @abstractmethod
    def prepare(self, turn: Turn) -> None:
        """Begin a turn: find the offsets at which to continue, because another reader may have counted
        meanwhile.
        """

    @abstractmethod
    def count_once(self) -> None:
        """Count new messages and publish the counts."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close every connection."""


def _nothing() -> None:
    """Do nothing, in place of `ready` after its first call."""
