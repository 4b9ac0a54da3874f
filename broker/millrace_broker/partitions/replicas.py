"""The replicated partitions that this broker stores. Carries out what their state machines decide.

Each replica leads, follows or waits (`replication.replica`). This module cuts logs in threads, gathers
compare-and-sets by topic, runs the threads that copy from other leaders, and keeps the timers. Methods run on
the event loop unless their docstring says otherwise; none waits for a disk, a network or ZooKeeper.

A compare-and-set reads the topic's newest state, applies the waiting changes and writes the result. If its
outcome is unknown, nothing changes here: the next state that is read shows whether it was written.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from millrace import errors
from millrace.config import BrokerConfig
from millrace.records.topic_partition import TopicPartition
from millrace.wire.replica import ReplicaAckRequest, ReplicaFetchRequest, ReplicaPartition, Wanted
from millrace.zookeeper.topic_state import PartitionState, TopicState
from millrace_broker.allowance import Allowance
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.mailbox import Mailbox, Steps, outcome, started_threads
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.partitions.followers import Answer, Connected, Followers
from millrace_broker.partitions.replicated_partition import ReplicatedPartition
from millrace_broker.replication.copying import Checked, Copying
from millrace_broker.replication.following import Following, ReplicaDiverged
from millrace_broker.replication.leader_thread import ANSWER_BYTES, LeaderThread, Received
from millrace_broker.replication.leadership import CLOSED_GRACE_S, Leadership, Proposal, Snapshot
from millrace_broker.replication.replica import Replica
from millrace_broker.replication.session import Led, check_epoch
from millrace_broker.replication.state import Directories, depose, elect, resign
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.sides import BackgroundSide, CutSide, LoopSide

logger = logging.getLogger("millrace.replication")

CAMPAIGN_TICK_S = 0.1
"""Interval at which replicas without a leader check whether they should campaign."""
GATHER_S = 0.02
"""Time for which changes of one topic are gathered into one write."""
WRITE_AGAIN_S = 0.5
CAMPAIGN_AGAIN_S = 5.0
"""Pause before a replica campaigns again after its log could not be cut. The disk may then have room."""
ASK_AGAIN_S, COPY_AGAIN_S = 0.1, 0.5
"""Pause before asking a new leader again that does not lead yet; pause after other failures."""
FULL_DISK_AGAIN_S = 2 * CLOSED_GRACE_S
"""Pause before a full disk is tried again. Meanwhile the leader drops the replica from the in-sync set."""
PREFER_AFTER_LAGS = 6
"""Time in sync before the first replica leads again, in multiples of `replica_lag_ms`: 60 s by default."""
HAND_OVER_S = 0.5
"""Longest time for which a leader that hands over waits for its followers to catch up."""
RESIGN_S = 3.0
"""Longest time for which the leader then waits for ZooKeeper."""
LOOK_S = 0.01
"""Pause between two checks whether a hand-over may continue."""

EVENTS = ("elected", "unclean", "in_sync", "out_of_sync", "cut")

Apply: TypeAlias = Callable[[Snapshot], PartitionState | None]
"""Function from the newest state to the state to write; None if nothing must be written (any more)."""
Written: TypeAlias = tuple[Snapshot | None, bool]
"""The newest state, and True if the change is in it. (None, False) if the outcome is unknown."""
UNKNOWN: Written = (None, False)


class Owner(Protocol):
    """Interface of the broker that replicas use."""

    def replica_leads(self, key: TopicPartition, partition: ReplicatedPartition) -> None:
        """Serve a partition that this broker now leads."""

    def replica_leads_no_more(self, key: TopicPartition, partition: ReplicatedPartition) -> None: ...

    def at_end_of_turn(self, function: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplicaNumbers:
    """Metrics: number of replicas in each role, and number of events of each kind."""

    roles: Mapping[str, int]
    under_replicated: int
    """Number of partitions that are led here and have replicas out of sync."""
    under_min_isr: int
    lags: Mapping[int, int]
    """Bytes that each follower has not acknowledged as flushed, for the partitions led here."""
    moving_bytes: int
    """Bytes of `lags` that reassignments wait for."""
    events: Mapping[str, int]


class _Change(NamedTuple):
    number: int
    apply: Apply
    written: Future[Written]


@dataclass(slots=True, eq=False)
class StoredReplica:
    """A partition with several replicas, and this broker's present work on it."""

    key: TopicPartition
    id: ReplicaPartition
    opened: PartitionLog
    """The whole log, for threads, which use their own sides of it."""
    log: LoopSide
    replica: Replica
    topic: TopicState
    """The topic's newest state seen by this replica."""
    partition: ReplicatedPartition | None = None
    """Set while the partition is led here, served or not yet."""
    is_served: bool = False
    gives_way: bool = False
    """True while this leader hands over. Nothing is written then, so that nothing is lost."""
    copying: Copying | None = None
    """Set while this replica follows a leader."""
    thread: LeaderThread | None = None
    is_changing: bool = False
    """True while a thread cuts the log. No other code may use the log then."""
    is_flushing: bool = False
    """True while a flush runs, and during the pause after a failed flush."""
    is_deleting: bool = False
    """True while a thread deletes the records that the leader has deleted."""
    campaign_from: float = 0.0
    """Time before which the replica does not campaign, as its last campaign failed."""
    is_reporting: bool = False
    """True while the log's end is being reported to a restored ZooKeeper."""
    closing: int = 0
    """Number of former leaderships of this partition with an unfinished flush."""
    stopped: str = ""
    """Reason why the replica does not replicate until the broker restarts; empty while it replicates."""
    when_free: Callable[[], None] | None = None
    """Callback to run when no thread uses the log any more; set once the replica is removed."""

    @property
    def name(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def is_busy(self) -> bool:
        return self.is_changing or self.is_flushing or self.is_deleting or self.closing > 0


class Replicas:
    """All replicated partitions that this broker stores."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        mailbox: Mailbox,
        flushes: FlushThreads,
        owner: Owner,
        directory: str,
        doubtful: Callable[[], bool],
    ) -> None:
        """`directory` is the id of the broker's log directory; `doubtful` is passed to the partitions."""
        self._config, self._cluster, self._mailbox = config, cluster, mailbox
        self._flushes, self._owner, self._directory, self._doubtful = flushes, owner, directory, doubtful
        self._stored: dict[ReplicaPartition, StoredReplica] = {}
        self._threads: dict[int, LeaderThread] = {}
        self._limit = Allowance(config.replica_catch_up_bytes_per_second, ANSWER_BYTES)
        self._leaderless: dict[StoredReplica, None] = {}
        self._live: Directories = {}
        self._changes: dict[tuple[str, UUID], list[_Change]] = {}
        self._writing: set[tuple[str, UUID]] = set()
        self.is_stopping = False
        """True while the broker stops and hands its partitions over: it leads none of them again."""
        self._events = Counter(dict.fromkeys(EVENTS, 0))
        self._alone_from = mailbox.now() + config.session_timeout_ms / 1000
        """Time from which a replica campaigns even if other in-sync replicas have not come back."""
        self._followers = Followers(mailbox, self._find, owner.at_end_of_turn)
        self._pool = started_threads(8, "replicas")
        self._lag_s = config.replica_lag_ms / 1000
        self._is_ticking = self._is_campaigning = False
        self._unreported: set[ReplicaPartition] = set()
        """Partitions with replicas here that have not reported since ZooKeeper was restored."""

    # What there is

    def forget_zookeeper(self) -> None:
        """Drop every role and state read so far, as ZooKeeper was restored; each replica reports its log."""
        self._unreported = self._named()
        for one in list(self._stored.values()):
            one.replica.forget_zookeeper()
            self._settle(one)

    @property
    def have_reported(self) -> bool:
        """True once no replica owes a report to a restored ZooKeeper; from any thread."""
        return not self._unreported

    def _named(self) -> set[ReplicaPartition]:
        """Return the replicated partitions that are stored here according to ZooKeeper."""
        return {
            ReplicaPartition(topic.topic_id, number)
            for topic in self._cluster.topics.values()
            for number, state in topic.partitions.items()
            if state.is_replicated and self._config.broker_id in state.replicas
        }

    def add(self, key: TopicPartition, topic: TopicState, log_: PartitionLog) -> None:
        """Begin to replicate a partition whose log is open."""
        if not self._stored:  # later `refresh` takes in who lives, for all of them
            self._live = self._registered()
        partition = ReplicaPartition(topic.topic_id, key[1])
        replica = Replica(
            self._config.broker_id,
            self._directory,
            log_,
            lag_s=self._lag_s,
            prefer_after_s=PREFER_AFTER_LAGS * self._lag_s,
        )
        if partition in self._unreported:
            replica.forget_zookeeper()
        one = self._stored[partition] = StoredReplica(key, partition, log_, log_, replica, topic)
        self._see(one)
        if not self._is_ticking:
            self._is_ticking = True
            self._mailbox.every(min(1.0, self._lag_s / 10), self._tick)

    def remove(
        self, key: TopicPartition, topic_id: UUID, why: errors.BrokerError, then: Callable[[], None]
    ) -> None:
        """Stop replicating a partition. `then` is called once nothing uses its log any more."""
        one = self._stored.pop(ReplicaPartition(topic_id, key[1]))
        self._leaderless.pop(one, None)
        self._stop_copying(one)
        if one.partition is not None:
            self._end_leading(one, why)
        self._followers.changed(one.id)
        one.when_free = then
        self._maybe_free(one)

    def numbers(self) -> ReplicaNumbers:
        """Return the present metrics. May be called from any thread."""
        roles = Counter(dict.fromkeys(("leading", "following", "waiting", "stopped"), 0))
        under_replicated = under_min_isr = moving = 0
        lags = Counter[int]()
        for one in list(self._stored.values()):
            leading = one.replica.leading
            if one.stopped:
                roles["stopped"] += 1
            elif leading is not None:
                roles["leading"] += 1
                state = leading.snapshot.state
                under_replicated += len(state.isr) < len(state.replicas)
                under_min_isr += not leading.has_enough
                missing = leading.lags
                lags.update(missing)
                moving += sum(missing[broker] for broker in state.adding if broker in missing)
            else:
                roles["following" if one.copying is not None else "waiting"] += 1
        return ReplicaNumbers(roles, under_replicated, under_min_isr, lags, moving, self._events.copy())

    def count(self, event: str) -> None:
        """Count one of EVENTS that happened in another module."""
        self._events[event] += 1

    @property
    def stopped(self) -> Mapping[TopicPartition, str]:
        """Replicas that no longer replicate, with the reason. From any thread."""
        return {one.key: one.stopped for one in list(self._stored.values()) if one.stopped}

    def _is_stored(self, one: StoredReplica) -> bool:
        """Return False once the replica was removed, even if its partition was added again."""
        return self._stored.get(one.id) is one

    def _maybe_free(self, one: StoredReplica) -> None:
        if one.when_free is not None and not one.is_busy:
            then, one.when_free = one.when_free, None
            then()

    def refresh(self) -> None:
        """Apply changes of the cluster's snapshot. Few of 1,000 partitions usually change."""
        before, self._live = self._live, self._registered()
        if self._unreported:
            self._unreported &= self._named()
        changed = []
        for one in list(self._stored.values()):
            name, number = one.key
            topic = self._cluster.topics.get(name)
            if topic is None or topic.topic_id != one.id.topic_id or number not in topic.partitions:
                continue
            is_new, one.topic = topic is not one.topic, topic
            is_unknown = one.replica.snapshot is None
            if (
                is_unknown
                or self._live != before
                or (is_new and not _says(one.replica.snapshot, topic, number))
            ):
                self._see(one)
                changed.append(one)
            elif is_new:  # nothing but its version, which an older answer must not go behind
                one.replica.observe(_snapshot(topic, number), self._mailbox.now())
        self._propose(changed)

    def _registered(self) -> Directories:
        return {broker: at.directory for broker, at in self._cluster.brokers.items()}

    def _see(self, one: StoredReplica) -> None:
        one.replica.observe(_snapshot(one.topic, one.key[1]), self._mailbox.now())
        one.replica.see_brokers(self._live, self._mailbox.now())
        self._settle(one)
        if one in self._leaderless:
            self._maybe_campaign(one)  # at once, where a leader has just resigned

    # Roles

    def _begin(self, one: StoredReplica, steps: Steps) -> None:
        """Run a coroutine that may change the replica's role; each step ends with `_settle`."""
        self._mailbox.begin(steps, lambda: self._settle(one))

    def _settle(self, one: StoredReplica) -> None:
        """Act on the replica's present role. A plain call that may change the role must end with this."""
        if not self._is_stored(one):
            return
        if one.log.refusal is not None:
            self._maybe_give_up(one)
        replica, partition = one.replica, one.partition
        if not replica.has_seen_newer:
            self._unreported.discard(one.id)
        if partition is not None and replica.leading is not partition.leading:
            self._end_leading(one, errors.NotLeader(f"another broker leads {one.name} now"))
        elif partition is not None:
            if partition.leading.is_outrun:
                self._propose([one])
            partition.show_committed()
            is_closed = one.gives_way or self.is_stopping
            if not one.is_served and partition.leading.is_serving and not is_closed:
                one.is_served = True
                self._owner.replica_leads(one.key, partition)
        if one.copying is not None and one.copying.following is not replica.following:
            self._stop_copying(one)
        may_act = not (one.is_changing or one.stopped or self.is_stopping)
        if may_act and replica.following is not None and one.copying is None:
            self._copy(one, replica.following)
        if may_act and replica.owes_report:
            if not one.is_reporting:
                self._begin(one, self._report(one))
        elif may_act and replica.is_leaderless:
            self._leaderless[one] = None
            if not self._is_campaigning:
                self._is_campaigning = True
                self._mailbox.after(CAMPAIGN_TICK_S, self._campaign_who_is_due)
        else:
            self._leaderless.pop(one, None)

    def _lead(self, one: StoredReplica, leading: Leadership) -> None:
        topic, number = one.key
        partition = one.partition = ReplicatedPartition(
            topic,
            number,
            one.id.topic_id,
            leading,
            one.opened,
            self._mailbox,
            self._flushes,
            self._doubtful,
            cut_off=lambda: not self._cluster.is_connected,
            grown=lambda: self._followers.changed(one.id),
            flush_failed=lambda: self._settle(one),
        )
        one.is_served = False
        self._events["elected"] += 1
        logger.info("leads %s in epoch %s from %s on", one.name, leading.epoch, leading.start)
        self._followers.changed(one.id)
        leading.flushed()
        partition.maybe_flush()

    def _end_leading(self, one: StoredReplica, why: errors.BrokerError) -> None:
        partition, one.partition = one.partition, None
        assert partition is not None, "it was led here"
        logger.info("leads %s no more", one.name)
        one.gives_way = False
        self._serve_no_more(one, partition)
        one.closing += 1

        def idle() -> None:
            one.closing -= 1
            self._maybe_free(one)

        partition.close(why, idle)
        self._followers.changed(one.id)

    def _serve_no_more(self, one: StoredReplica, partition: ReplicatedPartition) -> None:
        if one.is_served:
            one.is_served = False
            self._owner.replica_leads_no_more(one.key, partition)

    def _maybe_give_up(self, one: StoredReplica) -> None:
        """Let another replica lead, because the log takes no more writes.

        If this leader can still flush and is the only in-sync replica, it serves readers and followers until
        another replica is in sync.
        """
        leading = one.replica.leading
        is_needed = leading is not None and len(leading.snapshot.state.isr) == 1
        if not one.stopped and not (is_needed and one.log.flush_refusal is None):
            one.stopped = one.log.refusal or "its log takes nothing any more"
            logger.error("%s takes no part in replication until a restart: %s", one.name, one.stopped)
            self._stop_copying(one)
            self._begin(one, self._resign_stopped(one))

    async def _yield_for_room(self, one: StoredReplica) -> None:
        """Resign for another in-sync replica, as this disk has no room for the log.

        If no other in-sync replica is alive, this one keeps the lead: it serves readers, and room may return.
        """
        leading, partition = one.replica.leading, one.partition
        if leading is None or partition is None or one.gives_way or one.stopped or self.is_stopping:
            return
        isr = leading.snapshot.state.isr
        if not any(self._live.get(broker) == at for broker, at in isr.items() if broker != leading.broker):
            return
        logger.warning("%s: the disk has no room, so that another replica is to lead", one.name)
        one.gives_way = True
        await self._when_followed([one])
        await self._resign(one)
        one.gives_way = False  # if ZooKeeper does not answer, this replica leads again

    async def _resign_stopped(self, one: StoredReplica) -> None:
        """Resign, and retry until that is written: while this broker is the leader, no other campaigns."""
        while (one.replica.leading is not None or one.replica.is_campaigning) and self._is_stored(one):
            await self._resign(one)
            await self._mailbox.sleep(WRITE_AGAIN_S)

    def resign_unopened(self, key: TopicPartition, topic: TopicState, *, is_whole: bool) -> None:
        """Resign as leader of a partition whose log cannot be opened, if other replicas may lead.

        They do not campaign while this broker is the leader. `is_whole` is True if the disk still has all
        bytes that were flushed.
        """
        broker, state = self._config.broker_id, topic.partitions[key[1]]
        if state.leader == broker and (len(state.isr) > 1 or state.eligible):
            epoch = state.leader_epoch

            def apply(newest: Snapshot) -> PartitionState | None:
                return resign(newest.state, broker, epoch, newest.minimum, is_whole=is_whole)

            self._mailbox.begin(self._write(key, topic.topic_id, apply))

    # Time

    def _tick(self) -> None:
        """Check lags and leaders: ten times in `replica_lag_ms`, at least once a second."""
        now = self._mailbox.now()
        self._followers.end_closed(now)
        self._propose(self._stored.values())
        for one in self._stored.values():
            if one.partition is not None:
                one.partition.refuse_late(now)
            if one.log.refusal is not None:
                self._settle(one)
            elif one.log.lacks_room:
                self._begin(one, self._yield_for_room(one))

    def _campaign_who_is_due(self) -> None:
        self._is_campaigning = bool(self._leaderless)
        if self._is_campaigning:  # first: the rest may raise
            self._mailbox.after(CAMPAIGN_TICK_S, self._campaign_who_is_due)
        for one in list(self._leaderless):
            self._maybe_campaign(one)

    # Elections

    def _maybe_campaign(self, one: StoredReplica) -> None:
        now = self._mailbox.now()
        may_act = not (one.is_changing or self.is_stopping)
        if may_act and one.replica.is_due(now) and now >= one.campaign_from:
            isr = one.topic.partitions[one.key[1]].isr
            # When all brokers start, another one may have more, and may find that ZooKeeper was put back.
            if now >= self._alone_from or isr.items() <= self._live.items():
                self._begin(one, self._campaign(one))

    async def _campaign(self, one: StoredReplica) -> None:
        """Cut an incomplete append, then try to be elected in the state that made this replica campaign."""
        replica = one.replica
        assert replica.snapshot is not None, "it is due by a state"
        epoch, live = replica.snapshot.state.leader_epoch, self._live
        self._leaderless.pop(one, None)
        replica.campaign()
        self._stop_copying(one)

        def apply(newest: Snapshot) -> PartitionState | None:
            if newest.state.leader_epoch != epoch or replica.with_report(newest.state) is not None:
                return None  # another replica was faster, or ZooKeeper was restored
            return elect(newest.state, replica.broker, replica.directory, live, newest.minimum)

        newest, wrote = UNKNOWN
        error = None
        if one.log.end != one.log.whole_end:  # nearly every log is whole
            error = await self._change_log(one, lambda log_: log_.cut(log_.whole_end))
            self._log_failed(one, error)
        if error is None and self._is_stored(one):
            newest, wrote = await self._write(one.key, one.id.topic_id, apply)
        now = self._mailbox.now()
        if newest is not None and wrote and self._is_stored(one):
            leading = replica.won(newest, now)
            if leading is not None:
                self._lead(one, leading)
        else:
            if newest is not None:
                replica.observe(newest, now)
            else:
                one.campaign_from = now + (WRITE_AGAIN_S if error is None else CAMPAIGN_AGAIN_S)
            replica.not_won(now)

    def _propose(self, replicas: Iterable[StoredReplica]) -> None:
        """Write the due changes of in-sync replicas."""
        for one in replicas:
            leading = one.replica.leading
            if leading is not None and one.partition is not None:
                proposal = leading.propose(self._live, self._mailbox.now())
                if proposal is not None:
                    logger.info("%s: %s", one.name, _words(proposal))
                    self._begin(one, self._carry_out(one, leading, proposal))

    async def _carry_out(self, one: StoredReplica, leading: Leadership, proposal: Proposal) -> None:
        """Write a proposal until its outcome is known. Joining replicas count as in sync meanwhile."""
        broker, epoch = self._config.broker_id, leading.epoch
        if proposal.preferred:
            one.gives_way = True
            await self._when_followed([one])
        while one.replica.leading is leading and self._is_stored(one):
            newest, _ = await self._write(
                one.key, one.id.topic_id, lambda state: proposal.apply(state, broker, epoch)
            )
            if one.replica.leading is not leading:
                return
            one.gives_way = False  # it is served until ZooKeeper answers
            if newest is not None:
                leading.decided(newest)
                self._events["in_sync"] += len(proposal.joining)
                self._events["out_of_sync"] += len(proposal.leaving)
                one.replica.observe(newest, self._mailbox.now())
                return
            await self._mailbox.sleep(WRITE_AGAIN_S)

    async def _resign(self, one: StoredReplica) -> None:
        """Try once to write that this broker no longer leads.

        All flushed bytes are on the disk, unless a flush failed: then that is unknown.
        """
        leading = one.replica.leading
        if leading is None:
            return

        def apply(newest: Snapshot) -> PartitionState | None:
            is_whole = one.log.flush_refusal is None
            return resign(newest.state, leading.broker, leading.epoch, newest.minimum, is_whole=is_whole)

        newest, _ = await self._write(one.key, one.id.topic_id, apply)
        if newest is not None:
            one.replica.observe(newest, self._mailbox.now())

    def hand_over(self, then: Callable[[], None]) -> None:
        """Hand over all partitions led here, because the broker stops; then call `then`.

        Followers first copy what was written. If ZooKeeper does not answer, the broker stops all the same:
        other replicas lead when its registration ends.
        """
        self.is_stopping = True
        self._mailbox.begin(self._hand_over(then))

    async def _hand_over(self, then: Callable[[], None]) -> None:
        led = [one for one in self._stored.values() if one.partition is not None]
        missing = set(led)

        async def resign_one(one: StoredReplica) -> None:
            await self._resign(one)
            missing.discard(one)

        await self._when_followed(led)
        deadline = self._mailbox.now() + RESIGN_S
        for one in led:
            self._begin(one, resign_one(one))
        while missing and self._mailbox.now() < deadline:
            await self._mailbox.sleep(LOOK_S)
        then()

    async def _when_followed(self, led: Sequence[StoredReplica]) -> None:
        """Take no more writes, and wait until the followers have everything, at most HAND_OVER_S."""
        deadline = self._mailbox.now() + HAND_OVER_S
        for one in led:
            if (partition := one.partition) is not None:
                try:
                    partition.write()  # what came in this turn: its bytes do not stay
                    partition.flush()
                except Exception:
                    logger.exception("followers of %s may lack what was written last", one.name)
                self._serve_no_more(one, partition)
        while self._mailbox.now() < deadline and any(
            one.partition is not None and one.partition.leading.committed < one.log.end for one in led
        ):
            await self._mailbox.sleep(LOOK_S)

    # After ZooKeeper was restored

    async def _report(self, one: StoredReplica) -> None:
        """Flush the log and report its end in ZooKeeper. From then on the partition has no leader."""
        one.is_reporting = True
        replica, log_ = one.replica, one.log

        def bring_to_disk(log_: CutSide) -> None:
            if log_.end > log_.whole_end:
                log_.cut(log_.whole_end)
            log_.flush()

        def apply(newest: Snapshot) -> PartitionState | None:
            return replica.with_report(newest.state) if log_.flushed == log_.end else None

        while one.is_busy:
            await self._mailbox.sleep(ASK_AGAIN_S)
        if not (self._is_stored(one) and replica.owes_report):  # its role has changed meanwhile
            one.is_reporting = False
            return
        error = await self._change_log(one, bring_to_disk)
        self._log_failed(one, error)
        if error is None and self._is_stored(one):
            newest, wrote = await self._write(one.key, one.id.topic_id, apply)
            if newest is not None and wrote:
                missing = sorted(set(newest.state.replicas).difference(newest.state.reports))
                logger.warning(
                    "%s: ZooKeeper was restored from an older copy. Start brokers %s: the partition waits"
                    " until they report what they have (or for `millrace topics elect --unclean`)",
                    one.name,
                    missing,
                )
            if newest is not None:
                replica.observe(newest, self._mailbox.now())
        await self._mailbox.sleep(CAMPAIGN_AGAIN_S if error is not None else WRITE_AGAIN_S)
        one.is_reporting = False

    # Compare-and-set

    async def _write(self, key: TopicPartition, topic_id: UUID, apply: Apply) -> Written:
        """Write a change, together with other changes of its topic."""
        topic = (key[0], topic_id)
        if topic not in self._changes and topic not in self._writing:
            self._mailbox.after(GATHER_S, lambda: self._mailbox.begin(self._write_topic(topic)))
        change = _Change(key[1], apply, Future())
        self._changes.setdefault(topic, []).append(change)
        return await outcome(change.written)

    async def _write_topic(self, topic: tuple[str, UUID]) -> None:
        """Write a topic's waiting changes, and further changes that arrive meanwhile."""
        self._writing.add(topic)
        while changes := self._changes.pop(topic, []):
            written = [UNKNOWN] * len(changes)
            try:
                written = await outcome(self._pool.submit(_write, self._cluster, topic, changes))
            except Exception as error:
                logger.warning(
                    "cannot change who leads %s: %s", topic[0], error, exc_info=errors.is_bug(error)
                )
            for change, its_outcome in zip(changes, written, strict=True):
                change.written.set_result(its_outcome)
        self._writing.discard(topic)

    # Following

    def _copy(self, one: StoredReplica, following: Following) -> None:
        try:
            one.thread = self._thread(following.leader)
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
            logger.error("cannot copy %s: %s; trying again", one.name, error)
            self._mailbox.after(COPY_AGAIN_S, lambda: self._settle(one))
            return
        assert one.replica.snapshot is not None, "it follows by a state"
        state, us = one.replica.snapshot.state, self._config.broker_id
        # Who is eligible has everything committed, and writes may wait for it.
        is_behind = self._directory not in (state.isr.get(us), state.eligible.get(us))
        one.copying = Copying(one.id, following, one.log, is_behind=is_behind)
        one.thread.want(one.copying)

    def _stop_copying(self, one: StoredReplica) -> None:
        if one.thread is not None:
            one.thread.forget(one.id)
        one.copying = one.thread = None

    def _thread(self, leader: int) -> LeaderThread:
        thread = self._threads.get(leader)
        if thread is None:
            thread = self._threads[leader] = LeaderThread(
                leader,
                self._config.broker_id,
                self._directory,
                lambda: self._address(leader),
                self._config.replica_client,
                lambda thread, received: self._mailbox.post(lambda: self._take(thread, received)),
                self._limit,
            )
        if thread.ident is None:
            thread.start()
        return thread

    def _address(self, leader: int) -> tuple[str, int] | None:
        """Return the address at which brokers reach a leader; from any thread."""
        address = self._cluster.brokers.get(leader)
        if address is None:
            return None
        listener = self._config.replica_listener
        return address.at(listener) if listener else (address.host, address.port)

    def _take(self, thread: LeaderThread, received: Iterable[Received]) -> None:
        """Apply a leader's answers."""
        try:
            for one in received:
                self._take_one(thread, *one)
        finally:
            thread.taken()

    def _take_one(self, thread: LeaderThread, wanted: Wanted, answer: Checked | errors.MillraceError) -> None:
        one = self._stored.get(wanted.partition)
        if one is None or one.copying is None or one.thread is not thread or one.is_changing:
            return
        copying = one.copying
        if wanted[1:4] != copying.wanted[1:4]:  # an answer to what was asked before
            thread.want(copying)
            return
        try:
            if isinstance(answer, errors.MillraceError):
                raise answer
            work = copying.take(answer)
        except errors.MillraceError as error:
            self._failed(one, copying, error)
            return
        except Exception:
            logger.exception("a bug while copying %s; trying again", one.name)
            self._mailbox.begin(self._copy_on(one, copying, COPY_AGAIN_S))
            return
        if work is not None:
            self._begin(one, self._cut(one, copying, work))
        else:
            thread.want(copying)
            self._mailbox.begin(self._flush(one))
            if (before := copying.to_delete) is not None and not one.is_deleting:
                self._mailbox.begin(self._delete_records(one, before))

    async def _delete_records(self, one: StoredReplica, before: int) -> None:
        """Delete the records that the leader has deleted, so that they stay deleted if this replica leads."""
        one.is_deleting = True
        try:
            await outcome(self._pool.submit(_delete_records, one.opened, before))
        except Exception as error:  # the leader says it again, some time
            logger.warning("%s still begins where it did: %s", one.name, error, exc_info=errors.is_bug(error))
        one.is_deleting = False
        self._maybe_free(one)

    async def _cut(self, one: StoredReplica, copying: Copying, work: Callable[[CutSide], None]) -> None:
        """Cut the log where it diverges from the leader's, then continue copying."""
        error = await self._change_log(one, work)
        if one.copying is copying and isinstance(error, errors.MillraceError):
            self._failed(one, copying, error)
        elif one.copying is copying and error is None:
            self._events["cut"] += 1
            logger.info("cut %s to %s, as broker %s has it", one.name, one.log.end, copying.following.leader)
            assert one.thread is not None, "it copies"
            one.thread.want(copying)
        else:
            self._log_failed(one, error)
            self._mailbox.begin(self._copy_on(one, copying, COPY_AGAIN_S))

    def _failed(self, one: StoredReplica, copying: Copying, error: errors.MillraceError) -> None:
        """Retry soon: the leader may have changed, or the disk may have room."""
        leader_says = isinstance(
            error, (errors.NotLeader, errors.FencedLeaderEpoch, errors.UnknownLeaderEpoch)
        )
        if isinstance(error, ReplicaDiverged) and not error.leader_serves:
            self._begin(one, self._depose(one, copying, error))
            return
        if not isinstance(error, errors.BrokerError):  # only an operator can help
            self._stop_diverged(one, error)
            return
        if one.log.refusal is not None:
            self._settle(one)
            return
        if not leader_says:
            logger.warning("copying %s: %s; trying again", one.name, error)

        if one.log.lacks_room and one.thread is not None:
            # Commits wait until the leader drops this replica, so tell the leader at once.
            one.thread.forget(one.id)
            again_s = FULL_DISK_AGAIN_S
        else:
            again_s = ASK_AGAIN_S if leader_says else COPY_AGAIN_S
        self._mailbox.begin(self._copy_on(one, copying, again_s))

    async def _copy_on(self, one: StoredReplica, copying: Copying, in_s: float) -> None:
        """Ask the leader for more, after a pause."""
        await self._mailbox.sleep(in_s)
        if one.copying is copying and one.thread is not None:
            one.thread.want(copying)

    def _stop_diverged(self, one: StoredReplica, error: errors.MillraceError) -> None:
        one.stopped = str(error)
        self._stop_copying(one)
        logger.error("%s takes no part in replication until a restart: %s", one.name, error)

    async def _depose(self, one: StoredReplica, copying: Copying, error: ReplicaDiverged) -> None:
        """Have another replica lead, as this leader lacks committed messages and has not served yet."""
        leader, epoch = copying.following.leader, copying.following.epoch
        newest, wrote = await self._write(
            one.key, one.id.topic_id, lambda new: depose(new.state, leader, epoch, new.minimum)
        )
        if newest is not None:
            one.replica.observe(newest, self._mailbox.now())
        if wrote:
            logger.error("%s: broker %s leads no more: %s", one.name, leader, error)
        elif newest is not None and one.copying is copying:
            self._stop_diverged(one, error)  # no other replica may lead
        elif one.copying is copying and one.thread is not None:
            one.thread.want(copying)

    async def _flush(self, one: StoredReplica) -> None:
        """Flush copied bytes and acknowledge them to the leader, until nothing is left to flush."""
        while one.copying is not None and not (
            one.is_flushing or one.is_changing or one.log.end == one.log.flushed
        ):
            copying, has_failed, one.is_flushing = one.copying, False, True
            try:
                await self._flushes.flush(one.opened)
            except Exception as error:
                has_failed = True
                logger.error("flush of %s failed: %s", one.name, error, exc_info=errors.is_bug(error))
                if one.log.flush_refusal is None:
                    await self._mailbox.sleep(COPY_AGAIN_S)  # answers that come meanwhile begin no flush
            one.is_flushing = False
            self._maybe_free(one)
            if one.log.flush_refusal is not None:
                self._settle(one)
                return
            acked = copying.acked
            if (
                acked is not None
                and not has_failed
                and one.copying is copying
                and one.thread is not None
                and not one.is_changing
            ):
                one.thread.ack(acked)

    async def _change_log(self, one: StoredReplica, work: Callable[[CutSide], None]) -> Exception | None:
        """Cut, restart or flush the log in a thread; return the exception that `work` raised, if any.

        No other code uses the log meanwhile.
        """
        one.is_changing, failure = True, None
        try:
            await outcome(self._pool.submit(work, one.opened))
        except Exception as error:
            failure = error
        one.is_changing = False
        self._maybe_free(one)
        return failure

    def _log_failed(self, one: StoredReplica, error: Exception | None) -> None:
        if error is not None:
            logger.error(
                "the log of %s: %s", one.name, error, exc_info=error if errors.is_bug(error) else None
            )

    def retentions(self) -> list[tuple[str, BackgroundSide, int | None]]:
        """Return the logs under retention: a leader's own, and a follower's with its leader's start."""
        return [
            (one.name, one.opened, None if one.partition is not None else _leader_start(one))
            for one in self._stored.values()
            if not one.is_changing
        ]

    # Leading

    def _find(self, partition: ReplicaPartition, epoch: int) -> Led:
        one = self._stored.get(partition)
        if one is None:
            raise errors.NotLeader(f"no replica of {partition} is stored here")
        one.replica.observe_epoch(epoch)
        if one.replica.leading is None:
            if one.partition is not None:
                self._mailbox.post(lambda: self._settle(one))
            raise errors.NotLeader(f"{one.name} is not led here")
        return Led(one.replica.leading, one.log)

    def fetch(self, connection: Connected, request: ReplicaFetchRequest, answer: Answer) -> None:
        """Serve a follower's request, now or once there is something new."""
        self._check_follower(request.follower, request.directory)
        if self._followers.fetch(connection, request, answer):
            self._show(wanted.partition for wanted in request.wanted)

    def acknowledged(self, request: ReplicaAckRequest) -> None:
        """Record the bytes that a follower has flushed."""
        self._check_follower(request.follower, request.directory)
        grown = []
        for one in request.acked:
            try:
                leading = self._find(one.partition, one.epoch).leading
                check_epoch(leading, one.epoch)
            except errors.BrokerError:
                continue  # its next fetch is told so
            if leading.reported(request.follower, request.directory, one.flushed):
                grown.append(one.partition)
        self._show(grown)

    def _show(self, partitions: Iterable[ReplicaPartition]) -> None:
        for partition in partitions:
            one = self._stored.get(partition)
            if one is not None and one.partition is not None:
                self._settle(one)

    def _check_follower(self, follower: int, directory: str) -> None:
        """Refuse a follower that is not a registered broker: the number of other followers is unknown."""
        address = self._cluster.brokers.get(follower)
        if address is None or address.directory != directory:
            raise errors.NotLeader(f"broker {follower} is not registered with the directory {directory}")

    def close(self) -> None:
        """End the threads, after the event loop has ended."""
        for thread in self._threads.values():
            thread.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _leader_start(one: StoredReplica) -> int:
    """Return the position before which a follower may delete. While unknown, its log's own start."""
    following = one.copying is not None and one.copying.following.is_in_step
    return one.copying.leader_start if one.copying is not None and following else one.log.start


def _delete_records(log_: BackgroundSide, before: int) -> int:
    return log_.delete_records(before)


def _snapshot(topic: TopicState, number: int) -> Snapshot:
    return Snapshot(topic.version, topic.partitions[number], topic.minimum(number))


def _says(known: Snapshot | None, topic: TopicState, number: int) -> bool:
    """Return True if the known state of the partition equals the topic's, whatever their versions."""
    return known is not None and known[1:] == (topic.partitions[number], topic.minimum(number))


def _write(cluster: Cluster, topic: tuple[str, UUID], changes: Sequence[_Change]) -> list[Written]:
    """Make several changes in one compare-and-set; return the outcome of each. Call it in a thread."""
    name, topic_id = topic
    made: set[int] = set()

    def change(newest: TopicState) -> TopicState:
        made.clear()
        if newest.topic_id != topic_id:
            raise errors.UnknownTopicOrPartition(f"topic {name} was deleted and created anew")
        partitions = dict(newest.partitions)
        for index, one in enumerate(changes):
            if one.number in partitions:
                state = one.apply(
                    Snapshot(newest.version, partitions[one.number], newest.minimum(one.number))
                )
                if state is not None:
                    partitions[one.number] = state
                    made.add(index)
        return dataclasses.replace(newest, partitions=partitions)

    written = cluster.change_topic(name, change)
    return [
        (_snapshot(written, one.number), index in made) if one.number in written.partitions else UNKNOWN
        for index, one in enumerate(changes)
    ]


def _words(proposal: Proposal) -> str:
    if proposal.finishes:
        return "the replicas that were to come are in sync, so the others go"
    if proposal.preferred:
        return "the first replica is in sync again and is to lead"
    if proposal.yields:
        return "another replica has a longer log, as this disk lost power or came back from an older copy"
    come = [f"broker {broker} is in sync" for broker in proposal.joining]
    go = [f"broker {broker} is not in sync any more" for broker in proposal.leaving]
    return ", ".join(come + go)
