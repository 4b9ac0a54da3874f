"""All commits ever, by whichever leader, and the invariants about them."""

from __future__ import annotations

from millrace.zookeeper.topic_state import PartitionState
from tests.trials.sim.log import MemoryLog, Violation


class Ledger:
    """Every position that was committed, and what stands for all bytes up to there."""

    def __init__(self) -> None:
        self.end = 0
        self._states = {0: 0}

    def __contains__(self, position: int) -> bool:
        return position in self._states

    def commit(self, log: MemoryLog, committed: int) -> None:
        """A leader with this log takes everything below `committed` for so; Violation when it must not.

        Commits end with a unit, and nobody ever commits other bytes at a position.
        """
        if committed > log.start and not log.batch_before(committed).is_whole:
            raise Violation(f"committed up to {committed}, within a unit")
        for batch in log.read(self.end):
            if batch.end > committed:
                break
            if self._states.get(batch.start) != batch.before:
                raise Violation(f"{batch} is committed behind other bytes")
            self._states[batch.end] = batch.after
            self.end = batch.end
        if committed > log.start and self._states.get(committed) != log.state_at(committed):
            raise Violation(f"two leaders committed different bytes up to {committed}")

    def acknowledge(self, end: int, number: int) -> None:
        """A producer is told that its unit, which ends there, is committed."""
        if self._states.get(end) != number:
            raise Violation(f"acknowledged at {end}, and something else was committed there")

    def check_replica(self, broker: int, log: MemoryLog, state: PartitionState) -> None:
        """Invariant 4 for one in-sync or eligible replica: it has, flushed, all that was ever committed."""
        here = log.state_at(self.end)
        differs = here != self._states[self.end] and (here is not None or log.start != self.end)
        if log.flushed < self.end or log.start > self.end or differs:
            raise Violation(
                f"broker {broker} counts and has {log.start} to {log.flushed}, not all of {self.end},"
                f" committed: {state}"
            )
