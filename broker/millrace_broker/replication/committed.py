"""What a log amounts to where commits may end: readers are shown what is committed, not what is flushed."""

from __future__ import annotations

from collections import deque
from itertools import islice

from millrace_broker.replication.leadership import MAX_UNITS
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.state import LogState


class CommittedStates:
    """The states behind whole appends that are not known to be committed, in order."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._states = deque([log.whole])

    def appended(self, state: LogState) -> None:
        """The log has grown up to here, the end of a whole append."""
        if len(self._states) >= MAX_UNITS:
            self._states = deque(islice(self._states, 1, None, 2))
        self._states.append(state)

    def publish(self, committed: int) -> bool:
        """Show readers what lies below `committed`, up to a state that is known; True if that is more."""
        newest = None
        while self._states and self._states[0].end <= committed:
            newest = self._states.popleft()
        return newest is not None and self._log.publish(newest)
