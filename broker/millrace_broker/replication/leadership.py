"""Leading one partition in one epoch: the replicas that count, the committed end, the proposed changes.

A position is committed once it is flushed on every in-sync replica and there are at least
`min.insync.replicas` of them. Readers see committed bytes only, so any in-sync replica may lead next without
asking another replica. Commits end where a *unit* ends, the bytes that one append wrote: for example a batch
and its filler.

A leadership reads its log through `ReplicaLog`. Its caller writes the proposed changes to ZooKeeper, one at a
time, and reports each outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.replication.state import Directories, expand, finish, prefer, resign, shrink
from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd, EpochMap

MAX_UNITS = 4096
"""Most ends of units that are remembered above the committed end. Beyond this number every second end is
forgotten."""
CLOSED_GRACE_S = 1.0
"""Seconds that a follower's closed connection may take to come back before it leaves the in-sync replicas."""
LAG_SAMPLES = 10
"""Samples of the log's end within the allowed lag: a follower's lag is measured to a tenth of the allowed
lag."""


class ReplicaLog(Protocol):
    """The log of a replica, as leaderships and followings see it."""

    @property
    def start(self) -> int:
        """Position of the log's first byte."""

    @property
    def end(self) -> int:
        """Position after the log's last batch, flushed or not."""

    @property
    def whole_end(self) -> int:
        """Position after the log's last whole unit."""

    @property
    def flushed(self) -> int:
        """Position below which everything is on the disk."""

    @property
    def committed(self) -> int:
        """Position below which everything is known to be committed. An append always ends there."""

    @property
    def epochs(self) -> EpochMap:
        """The epochs of the log's bytes."""


class Snapshot(NamedTuple):
    """One version of the topic's node in ZooKeeper, as far as it concerns the partition."""

    version: int
    state: PartitionState
    minimum: int
    """The topic's `min.insync.replicas`, read from the same version of its node in ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that the leader wants to write: of the in-sync replicas, of a reassignment, or of its own
    leadership.
    """

    joining: Directories = field(default_factory=dict)
    leaving: frozenset[int] = frozenset()
    finishes: bool = False
    """True if all replicas that a reassignment adds are in sync. Then there is no other change."""
    preferred: Directories = field(default_factory=dict)
    """The first replica, if it must lead. Then there is no other change."""
    yields: bool = False
    """True if an in-sync or eligible replica has a longer log and must lead. Then there is no
    other change."""

    def apply(self, snapshot: Snapshot, leader: int, epoch: int) -> PartitionState | None:
        """Return the state after the change; None when there is nothing to write (any more)."""
        _, state, minimum = snapshot
        if self.yields:
            return resign(state, leader, epoch, minimum, is_whole=True)
        if self.finishes:
            return finish(state, leader, epoch, minimum)
        if self.preferred:
            leads = (state.leader, state.leader_epoch) == (leader, epoch)
            return prefer(state, self.preferred) if leads else None
        if self.leaving:
            return shrink(state, leader, epoch, self.leaving, minimum)
        return expand(state, leader, epoch, self.joining, minimum)


@dataclass(slots=True)
class _Follower:
    flushed: int = -1
    """End up to which the follower's disk is known to hold the leader's bytes; -1: unknown in this epoch."""
    closed_at: float | None = None


class Leadership:
    """The state and the decisions of the leader of one epoch."""

    def __init__(
        self,
        broker: int,
        won: Snapshot,
        log: ReplicaLog,
        now: float,
        *,
        lag_s: float,
        prefer_after_s: float,
        is_sure: bool,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to lead; `won` is the state that the election wrote; the epoch starts where `log` ends.

        `lag_s` is the allowed lag: a follower that has not flushed the log's end of that time leaves the
        in-sync replicas. `prefer_after_s` is the time for which the first replica must be in sync before it
        becomes the leader. `is_sure` is True if `log` has had everything committed since this process
        started, so it is no older copy. `changed` is called when this leader may serve, and when it
        is outrun.
        """
        self.broker, self.epoch, self.start = broker, won.state.leader_epoch, log.end
        self.snapshot = won
        """The newest state that this leader has seen. A removal counts once it is in this state, not when it
        is proposed."""
        self.committed = -1
        """Position below which everything is committed; -1 until everything below `start` is known to be
        committed."""
        self.proposal: Proposal | None = None
        """The proposal that `propose` returned, while its outcome is unknown."""
        self.is_outrun = False
        """True once an in-sync or eligible replica has shown a longer log: that replica must lead."""
        self._is_sure, self._last_epoch = is_sure, log.epochs.last
        self._log, self._lag_s, self._prefer_after_s, self._changed = log, lag_s, prefer_after_s, changed
        self._units = deque([self.start])
        self._followers: dict[tuple[int, str], _Follower] = {}
        self._seen: set[tuple[int, str]] = set()
        """Replicas that have reported their logs' ends in this epoch."""
        self._ends = deque([(now, self.start)])
        self._preferred_since: float | None = None

    @property
    def is_serving(self) -> bool:
        """True once every in-sync replica has flushed everything that the log held when this epoch began.

        Until then this leader does not know how much of the log is committed. It shows nothing, and its
        broker takes no writes: a high watermark below its predecessor's would move readers back. A reader
        that knows a newer epoch gets no answer either (`Partition.check_epoch`).
        """
        return self.committed >= self.start

    @property
    def has_enough(self) -> bool:
        """False while there are fewer in-sync replicas than the minimum: then acks=all is refused."""
        return len(self.snapshot.state.isr) >= self.snapshot.minimum

    @property
    def lags(self) -> dict[int, int]:
        """Number of bytes of the log that each other replica may lack on its disk. From any thread."""
        end, state, flushed = self._log.end, self.snapshot.state, dict[int, int]()
        for (broker, _), follower in list(self._followers.items()):
            flushed[broker] = max(follower.flushed, flushed.get(broker, -1))
        return {
            broker: max(0, end - max(flushed.get(broker, -1), self._log.start))
            for broker in state.replicas
            if broker != self.broker
        }

    # Events

    def appended(self) -> None:
        """Note that the log has grown by one unit."""
        if len(self._units) >= MAX_UNITS:
            self._units = deque(islice(self._units, 1, None, 2))
        self._units.append(self._log.end)

    def flushed(self) -> bool:
        """Note that the log's own flush is done. Return True when more is committed."""
        return self._commit()

    def check(self, position: int, last_epoch: int) -> EpochEnd | None:
        """Return the point at which a follower's log diverges from this log, or None if it does not.

        The follower's log ends at `position` with a batch of `last_epoch`. If it does not diverge, its bytes
        are this log's bytes, and it may take the bytes that follow. Return (NO_EPOCH, start of this log) when
        the two logs have no common bytes, or the follower's log ends before this log begins. A log without a
        batch continues at its position: it begins where a leader's retention once ended, and that position is
        committed.
        """
        log = self._log
        here = log.epochs.end_of(last_epoch, log.end)
        if last_epoch == NO_EPOCH and log.start <= position <= log.end:
            return None
        if position < log.start or here.epoch == NO_EPOCH:
            return EpochEnd(NO_EPOCH, log.start)
        return None if here.epoch == last_epoch and position <= here.end else here

    def reported(self, broker: int, directory: str, flushed: int) -> bool:
        """Note the end up to which a follower of this epoch has flushed this leader's log.

        Return True if more is committed.
        """
        follower = self._followers.setdefault((broker, directory), _Follower())
        follower.flushed, follower.closed_at = max(follower.flushed, flushed), None
        return self._commit()

    def connected(self, broker: int, directory: str, position: int, last_epoch: int) -> None:
        """Note that a follower of this epoch copies; its log ends at `position` with a batch of `last_epoch`.

        The position may be before the end that the follower had flushed: its log was set aside and begun
        again, or its disk lost a file. The position may be after the end of this log, if this leader's disk
        is an older copy. Then this leader must resign before it serves.
        """
        follower = self._followers.setdefault((broker, directory), _Follower())
        follower.flushed, follower.closed_at = min(follower.flushed, position), None
        self._seen.add((broker, directory))
        if not (self._is_sure or self.is_serving):
            state = self.snapshot.state
            counts = directory in (state.isr.get(broker), state.eligible.get(broker))
            goes_further = (last_epoch, position) > (self._last_epoch, self.start)
            self.is_outrun |= counts and goes_further and self.check(position, last_epoch) is not None
            if self.is_outrun:
                self._changed()

    def closed(self, broker: int, directory: str, now: float) -> None:
        """Note that the follower's connection ended, or that it no longer copies this partition."""
        self._followers.setdefault((broker, directory), _Follower()).closed_at = now

    def observe(self, snapshot: Snapshot) -> bool:
        """Adopt a newer state in which this broker still leads in this epoch.

        Return True when more is committed.
        """
        if snapshot.version > self.snapshot.version:
            moved_away = set(self.snapshot.state.replicas).difference(snapshot.state.replicas)
            for replica in [one for one in self._followers if one[0] in moved_away]:
                del self._followers[replica]  # if it comes back, its log begins again
            self.snapshot = snapshot
        return self._commit()

    def decided(self, snapshot: Snapshot) -> bool:
        """Note that the proposal was written, or certainly never will be; `snapshot` was read after that."""
        self.proposal = None
        return self.observe(snapshot)

    # Proposals

    def propose(self, live: Directories, now: float) -> Proposal | None:
        """Return the next change to write, if a change is due. Called ten times in the allowed lag.

        Removals come first: commits wait for them.
        """
        self._note_end(now)
        preferred = self._preferred(live, now)
        if self.proposal is None and self.is_outrun:
            self.proposal = Proposal(yields=True)
            return self.proposal
        if self.proposal is None:
            leaving = self._leaving(live, now)
            joining = {} if leaving else self._joining(live, now)
            _, state, minimum = self.snapshot
            if leaving or joining:
                self.proposal = Proposal(joining, leaving)
                return self.proposal
            if finish(state, self.broker, self.epoch, minimum) is not None:
                self.proposal = Proposal(finishes=True)
                return self.proposal
            if preferred:
                self.proposal = Proposal(preferred=preferred)
                return self.proposal
        return None

    def _preferred(self, live: Directories, now: float) -> Directories:
        """Return the first replica, once it has been alive and in sync for long enough to lead again."""
        state = self.snapshot.state
        if prefer(state, live) is None or not self.is_serving or state.adding or state.removing:
            self._preferred_since = None
            return {}
        if self._preferred_since is None:
            self._preferred_since = now
        first = state.replicas[0]
        return {first: live[first]} if now - self._preferred_since >= self._prefer_after_s else {}

    def _leaving(self, live: Directories, now: float) -> frozenset[int]:
        return frozenset(
            broker
            for broker, directory in self.snapshot.state.isr.items()
            if broker != self.broker
            and (live.get(broker) != directory or self._is_late(broker, directory, now))
        )

    def _is_late(self, broker: int, directory: str, now: float) -> bool:
        follower = self._followers.get((broker, directory), _Follower())
        if follower.closed_at is not None and now - follower.closed_at >= CLOSED_GRACE_S:
            return True
        noted_at, end = self._ends[0]
        return now - noted_at >= self._lag_s and follower.flushed < end

    def _note_end(self, now: float) -> None:
        """Sample the log's end every tenth of the allowed lag.

        The oldest sample becomes as old as the allowed lag.
        """
        if now - self._ends[-1][0] >= self._lag_s / LAG_SAMPLES:
            self._ends.append((now, self._log.end))
        while len(self._ends) > 1 and now - self._ends[1][0] >= self._lag_s:
            self._ends.popleft()

    def _joining(self, live: Directories, now: float) -> Directories:
        """Return the followers that may join the in-sync replicas. Such a follower has flushed all committed
        bytes, and all bytes that this log held when the epoch began. A late follower is left out: it would be
        removed at once.

        Return no follower if this log may be an older copy, and a live in-sync or eligible replica has not
        reported its end.
        """
        state, floor = self.snapshot.state, max(self.committed, self.start)
        if not (self._is_sure or self.is_serving or self._has_seen(live, state)):
            return {}
        return {
            broker: directory
            for (broker, directory), follower in self._followers.items()
            if follower.flushed >= floor
            and follower.closed_at is None
            and live.get(broker) == directory
            and broker in state.replicas
            and broker not in state.isr
            and not self._is_late(broker, directory, now)
        }

    def _has_seen(self, live: Directories, state: PartitionState) -> bool:
        """Return True once every live replica that counts has connected in this epoch."""
        counting = {*state.isr.items(), *state.eligible.items()} & {*live.items()}
        return all(one in self._seen for one in counting if one[0] != self.broker)

    def _commit(self) -> bool:
        """Commit bytes that all in-sync replicas have flushed, up to a unit's end.

        Return True if more is committed.
        """
        if not self._units or not self.has_enough or self.is_outrun:
            return False
        flushed = min(self._log.flushed, self._flushed_by(self.snapshot.state.isr))
        if self.proposal is not None:  # a replica that may be in sync already must count
            flushed = min(flushed, self._flushed_by(self.proposal.joining))
        before = self.committed
        while self._units and self._units[0] <= flushed:
            self.committed = self._units.popleft()
        if before < self.start <= self.committed:
            self._changed()
        return self.committed > before

    def _flushed_by(self, replicas: Mapping[int, str]) -> int:
        """Return the end up to which all these replicas have flushed, without this broker."""
        unknown = _Follower()
        return min(
            (
                self._followers.get(item, unknown).flushed
                for item in replicas.items()
                if item[0] != self.broker
            ),
            default=self._log.flushed,
        )
