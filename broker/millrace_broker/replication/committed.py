"""The states of a log at which commits may end: readers see what is committed, not what is flushed."""

from __future__ import annotations

from collections import deque
from itertools import islice

from millrace_broker.replication.leadership import MAX_UNITS
from millrace_broker.storage.sides import LoopSide
from millrace_broker.storage.state import LogState


class CommittedStates:
    """The states after whole appends that are not known to be committed, in order."""

    def __init__(self, log: LoopSide) -> None:
        self._log = log
        self._states = deque([log.whole])

    def appended(self, state: LogState) -> None:
        """Note that the log has grown up to `state`, the end of a whole append."""
        if len(self._states) >= MAX_UNITS:
            self._states = deque(islice(self._states, 1, None, 2))
        self._states.append(state)

    def publish(self, committed: int) -> bool:
        """Show readers the log up to the last known state at or below `committed`; True if that is more."""
        newest = None
        while self._states and self._states[0].end <= committed:
            newest = self._states.popleft()
        return newest is not None and self._log.publish(newest)
