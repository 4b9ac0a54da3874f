"""States of a replicated log up to which readers may see records: only committed records are visible."""

from __future__ import annotations

from collections import deque
from itertools import islice

from millrace_broker.replication.leadership import MAX_UNITS
from millrace_broker.storage.sides import LoopSide
from millrace_broker.storage.state import LogState


class CommittedStates:
    """States of a log after each whole append that is not known to be committed, in order."""

    def __init__(self, log: LoopSide) -> None:
        self._log = log
        self._states = deque([log.whole])

    def appended(self, state: LogState) -> None:
        """Note that the log has grown up to `state`, the end of a whole append."""
        if len(self._states) >= MAX_UNITS:
            self._states = deque(islice(self._states, 1, None, 2))
        self._states.append(state)

    def publish(self, committed: int) -> bool:
        """Make the log visible up to the last known state at or below `committed`.

        Return True if more is visible.
        """
        newest = None
        while self._states and self._states[0].end <= committed:
            newest = self._states.popleft()
        return newest is not None and self._log.publish(newest)
