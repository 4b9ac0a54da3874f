"""One broker's copy of one partition: its role (leading, following, campaigning or waiting), and the changes
of the role.

The roles, and the events that end them:

    waiting      no broker leads, or the leader is this broker before a restart   a leader; its campaign
    following    the state names another broker                                   a newer epoch; its campaign
    campaigning  its turn came: it no longer copies from a leader                 the outcome of its write
    leading      its compare-and-set was answered                                 learning of a newer epoch

A replica elects itself. It leads only by a compare-and-set that it made and whose answer it received: a state
that names it as leader may date from before a crash, when followers took bytes that its own disk has lost. It
then elects itself again, in a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, Report
from millrace_broker.replication.following import Following
from millrace_broker.replication.leadership import Leadership, ReplicaLog, Snapshot
from millrace_broker.replication.state import (
    UNKNOWN_EPOCHS,
    Directories,
    elect,
    has_live_leader,
    may_lead,
    report,
)

CAMPAIGN_STEP_S = 0.5
"""Seconds between the campaigns of entitled replicas: the first campaign usually wins."""


class Replica:
    """The role of one broker's copy of one partition with several replicas."""

    def __init__(
        self,
        broker: int,
        directory: str,
        log: ReplicaLog,
        *,
        lag_s: float,
        prefer_after_s: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory` is the id of the log directory that holds `log`.

        `changed` is called after every event from outside that may change what this replica must do.
        """
        self.broker, self.directory, self.log = broker, directory, log
        self.leading: Leadership | None = None
        self.following: Following | None = None
        self.is_campaigning = False
        self.snapshot: Snapshot | None = None
        self.live: Directories = {}
        self._lag_s, self._prefer_after_s, self._changed = lag_s, prefer_after_s, changed
        self._leaderless_since: float | None = None
        self._is_sure = False
        """True once the log has had everything that a serving leader has committed: the log is
        no older copy."""
        self.has_seen_newer = False
        """True from the time when the broker finds ZooKeeper restored until this replica has reported."""

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Take in a state read from ZooKeeper; a state older than the known one changes nothing."""
        before = self.snapshot
        if before is None or snapshot.version > before.version:
            self.snapshot = snapshot
            self.has_seen_newer &= self.broker not in snapshot.state.reports
            self.has_seen_newer &= not self._is_settled(snapshot.state)
        self._take_role(now)
        if before is None or before[1:] != snapshot[1:]:  # most new versions are about other partitions
            self._changed()

    def see_brokers(self, live: Directories, now: float) -> None:
        """Adopt the list of registered brokers, as last read."""
        self.live = live
        self._take_role(now)
        self._changed()

    def _take_role(self, now: float) -> None:
        if self.snapshot is None:
            return
        state = self.snapshot.state
        if self.leading is not None:
            if (state.leader, state.leader_epoch) == (self.broker, self.leading.epoch):
                self.leading.observe(self.snapshot)
            else:
                self.leading = None
        if self.leading is not None or self.is_campaigning:
            return
        if state.leader in (self.broker, NO_LEADER) or self.owes_report:
            self._follow(None)
        elif self.following is None or self.following.epoch != state.leader_epoch:
            self._follow(Following(state.leader, state.leader_epoch, self.log))
        if state.leader != self.broker and has_live_leader(state, self.live):
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now

    def _follow(self, following: Following | None) -> None:
        if self.following is not None:
            self._is_sure |= self.following.has_everything
        self.following = following

    def see_epoch(self, epoch: int) -> None:
        """Stop leading if a follower knows a leader of a newer epoch, `epoch`."""
        if self.leading is not None and epoch > self.leading.epoch:
            self.leading = None
            self._changed()

    # After ZooKeeper was restored

    def forget_zookeeper(self) -> None:
        """Drop the role and the known state, because ZooKeeper was restored: the replica must report."""
        self._follow(None)
        self.leading = self.snapshot = None
        self.has_seen_newer = True
        self._changed()

    @property
    def owes_report(self) -> bool:
        """True while this replica must report its log before it may follow or campaign."""
        if self.snapshot is None or self.leading is not None or self.is_campaigning:
            return False
        return self.with_report(self.snapshot.state) is not None

    def with_report(self, state: PartitionState) -> PartitionState | None:
        """Return the state with a report of this log; None unless ZooKeeper was restored from an older copy.

        Each epoch is in ZooKeeper before it is in a log. Everything that is reported must be on the disk.
        """
        has_seen_newer = self.has_seen_newer and not self._is_settled(state)
        if not (state.reports or has_seen_newer or state.leader_epoch < self.log.epochs.last):
            return None
        return report(state, self.broker, Report(self.directory, self.log.epochs.last, self.log.end))

    def _is_settled(self, state: PartitionState) -> bool:
        """Return True if reports, or an operator, have chosen a leader since ZooKeeper was restored."""
        return not state.reports and state.leader_epoch > self.log.epochs.last + UNKNOWN_EPOCHS // 2

    # Elections

    @property
    def is_leaderless(self) -> bool:
        """True while no leader is known: this replica's turn to campaign may come."""
        return self._leaderless_since is not None and self.leading is None and not self.is_campaigning

    @property
    def due_at(self) -> float | None:
        """Time from which it is this replica's turn to campaign; None while it is not entitled to lead."""
        if self.snapshot is None or not self.is_leaderless or self.owes_report:
            return None
        assert self._leaderless_since is not None
        state = self.snapshot.state
        if not may_lead(state, self.broker, self.directory, self.live):
            return None
        return self._leaderless_since + self._rank(state) * CAMPAIGN_STEP_S

    def _rank(self, state: PartitionState) -> int:
        """Return the number of entitled replicas whose turn comes before this replica's.

        0 for the last leader.
        """
        if state.leader == self.broker:
            return 0
        entitled = [
            broker
            for broker in state.replicas
            if broker == self.broker
            or (broker in self.live and may_lead(state, broker, self.live[broker], self.live))
        ]
        return entitled.index(self.broker)

    def campaign(self) -> None:
        """Stop copying from a leader. A cut to the last whole unit, and then `election`, must follow.

        Bytes that are not flushed yet may stay unflushed: they become committed and visible only once they
        are on this disk, too.
        """
        self._follow(None)
        self.is_campaigning = True

    def election(self) -> tuple[int, PartitionState] | None:
        """Return (version to replace, state) for one compare-and-set; None when this replica may not lead."""
        assert self.snapshot is not None, "a campaign begins with a state"
        version, state, minimum = self.snapshot
        elected = elect(state, self.broker, self.directory, self.live, minimum)
        return None if elected is None else (version, elected)

    def won(self, snapshot: Snapshot, now: float) -> Leadership | None:
        """Adopt the state that the compare-and-set wrote.

        Return None if a newer state names another leader.
        """
        self.is_campaigning, self._leaderless_since = False, None
        if self.snapshot is None or snapshot.version >= self.snapshot.version:
            self.snapshot = snapshot
        newest, epoch = self.snapshot.state, snapshot.state.leader_epoch
        if (newest.leader, newest.leader_epoch) == (self.broker, epoch):
            self.leading = Leadership(
                self.broker,
                self.snapshot,
                self.log,
                now,
                lag_s=self._lag_s,
                prefer_after_s=self._prefer_after_s,
                is_sure=self._is_sure,
                changed=self._changed,
            )
        self._take_role(now)
        return self.leading

    def not_won(self, now: float) -> None:
        """Adopt the newest state: the compare-and-set failed, or its answer was lost. Campaign later."""
        self.is_campaigning, self._leaderless_since = False, None
        self._take_role(now)
