"""One origin partition that this broker copies, and what one append of it is. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from millrace.mirror.runs import OffsetRules, Run
from millrace.records.mirror_position import MirrorPosition, Origin

Recorded = MirrorPosition | None


@dataclass(frozen=True, slots=True)
class TargetAppend:
    """A run on its way into a target partition; `visible` is called, on the loop, when consumers see it."""

    topic: str
    partition: int
    run: Run
    visible: Callable[[], None]


class MirrorTarget(Protocol):
    """The broker's side of mirroring, handed in. Both methods are called from the pulling threads."""

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        """What is recorded in a partition; NotLeader, LeaderNotAvailable, Unknown… when it is not here."""

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        """Have the broker's loop compare and append, in order; each None or what the log raised."""


@dataclass(slots=True)
class Pull:
    """One origin partition with a target here; belongs to the thread that reads from the origin's leader."""

    origin: Origin
    target: int
    rules: OffsetRules
    leader: int
    """The origin's broker to read it from."""
    stopped: bool = False
    stopped_at: Recorded = None
    """What was recorded when it stopped: a reset changes it, and the copying goes on."""
    start: int = -1
    """Where to begin when nothing is recorded; -1: not asked yet."""
    skip_to: int = -1
    """A fetch offset past the recorded one that leaves out no record; -1: none."""
    retry_at: float = 0.0
    pause: float = 0.0
    high_watermark: int = -1
    running: bool = False
    """True once that was reported and nothing has changed since."""

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition at the origin."""
        return self.origin.topic, self.origin.partition

    def is_same(self, other: Pull) -> bool:
        """True if both copy the same partition, in the same way, from the same broker."""
        mine = (self.origin, self.target, self.rules, self.leader)
        return mine == (other.origin, other.target, other.rules, other.leader)
