"""The replicas that this broker keeps of partitions with several: the life of each is one coroutine.

A life leads, follows, reports, campaigns or waits, as the replica's state machine (`replication.replica`)
decides. It sleeps until the state machine has changed, the disk refuses a write, or its turn to campaign
comes. Methods run on the event loop unless their docstring says otherwise; none waits for a disk, a network
or ZooKeeper.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millrace import errors
from millrace.config import BrokerConfig
from millrace.records.topic_partition import TopicPartition
from millrace.wire.replica import ReplicaAckRequest, ReplicaFetchRequest, ReplicaPartition
from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.mailbox import Mailbox, outcome, started_threads
from millrace_broker.partitions.copier import Copier
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.partitions.followers import Connected, Followers, SendCopied
from millrace_broker.partitions.hosted import HostedPartition, HostedPartitions, Obstacle
from millrace_broker.partitions.replicated_partition import ReplicatedPartition
from millrace_broker.partitions.topic_writes import UNKNOWN, Apply, TopicWrites, Written, snapshot_of
from millrace_broker.replication.copying import Copying
from millrace_broker.replication.following import ReplicaDiverged
from millrace_broker.replication.leadership import CLOSED_GRACE_S, Leadership, Proposal, Snapshot
from millrace_broker.replication.replica import Replica
from millrace_broker.replication.session import Led, check_epoch
from millrace_broker.replication.state import Directories, depose, elect, resign
from millrace_broker.storage.sides import CutSide

logger = logging.getLogger("millrace.replication")

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
"""Pause between two checks whether a hand-over, or the end of a replica, may continue."""

EVENTS = ("elected", "unclean", "in_sync", "out_of_sync", "cut")
Step: TypeAlias = Callable[[HostedPartition], Coroutine[object, None, None]]


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


class Replicas:
    """All replicas that this broker keeps of partitions with several."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        mailbox: Mailbox,
        flushes: FlushThreads,
        hosted: HostedPartitions,
        directory: str,
        doubtful: Callable[[], bool],
    ) -> None:
        """`directory` is the id of the broker's log directory; `doubtful` is passed to the partitions."""
        self._config, self._cluster, self._mailbox = config, cluster, mailbox
        self._flushes, self._hosted, self._directory, self._doubtful = flushes, hosted, directory, doubtful
        self._live: Directories = {}
        self.is_stopping = False
        """True while the broker stops and hands its partitions over: it leads none of them again."""
        self._events = Counter(dict.fromkeys(EVENTS, 0))
        self._alone_from = mailbox.now() + config.session_timeout_ms / 1000
        """Time from which a replica campaigns even if other in-sync replicas have not come back."""
        self._followers = Followers(mailbox, self._find)
        self._pool = started_threads(8, "replicas")
        self._copier = Copier(config, directory, cluster, mailbox, flushes, self._pool, hosted)
        self._writes = TopicWrites(cluster, mailbox, self._pool)
        self._lag_s = config.replica_lag_ms / 1000
        mailbox.every(min(1.0, self._lag_s / 10), self._tick)
        self._unreported: set[ReplicaPartition] = set()
        """Partitions with replicas here that have not reported since ZooKeeper was restored."""

    # What there is

    def forget_zookeeper(self) -> None:
        """Drop every role and state read so far, as ZooKeeper was restored; each replica reports its log."""
        self._unreported = self._named()
        for one in self._hosted.replicating():
            one.replica.forget_zookeeper()

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

    def begin(self, one: HostedPartition) -> None:
        """Begin the life of a replica whose log is open."""
        self._live = self._live or self._registered()
        one.replica = Replica(
            self._config.broker_id,
            self._directory,
            one.log,
            lag_s=self._lag_s,
            prefer_after_s=PREFER_AFTER_LAGS * self._lag_s,
            changed=one.changes.notify,
        )
        one.is_replicated = True
        if one.id in self._unreported:
            one.replica.forget_zookeeper()
        self._observe(one)
        one.replica.see_brokers(self._live, self._mailbox.now())
        self._mailbox.begin(self._life(one))

    def refresh(self) -> None:
        """Apply a change of the live brokers, and let replicas that went away owe no report."""
        before, self._live = self._live, self._registered()
        if self._unreported:
            self._unreported &= self._named()
        if self._live != before:
            for one in self._hosted.replicating():
                one.replica.see_brokers(self._live, self._mailbox.now())

    def topic_changed(self, one: HostedPartition) -> None:
        """Apply a change of the topic of a partition, if it is a replica."""
        if one.is_replicating:
            known = one.replica.snapshot
            if known is None or known.version < one.topic.version:
                self._observe(one)

    def _registered(self) -> Directories:
        return {broker: at.directory for broker, at in self._cluster.brokers.items()}

    def _observe(self, one: HostedPartition) -> None:
        one.replica.observe(snapshot_of(one.topic, one.key[1]), self._mailbox.now())

    def numbers(self) -> ReplicaNumbers:
        """Return the present metrics. May be called from any thread."""
        roles = Counter(dict.fromkeys(("leading", "following", "waiting", "stopped"), 0))
        under_replicated = under_min_isr = moving = 0
        lags = Counter[int]()
        for one in self._hosted.replicating():
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
        return {one.key: one.stopped for one in self._hosted.replicating() if one.stopped}

    # The life of a replica

    async def _life(self, one: HostedPartition) -> None:
        """Take one step after the other, each until another one is due, until the partition is removed."""
        while True:
            try:
                await self._end_role(one)
                if one.gone is not None:
                    break
                if not one.replica.has_seen_newer:
                    self._unreported.discard(one.id)
                await self._step(one)(one)
            except Exception:
                logger.exception("a bug in the replication of %s; trying again", one.name)
                if one.replica.is_campaigning:
                    one.replica.not_won(self._mailbox.now())
                await self._mailbox.sleep(WRITE_AGAIN_S)
        while one.is_flushing or one.is_deleting:
            await self._mailbox.sleep(LOOK_S)
        one.ended.set_result(None)

    def _step(self, one: HostedPartition) -> Step:
        """Return what the replica must do now."""
        replica = one.replica
        if replica.leading is not None:
            return self._lead
        if one.stopped:
            return self._wait
        if replica.owes_report and not self.is_stopping:
            return self._report
        turn_at = self._turn_at(one)
        if turn_at is not None and self._mailbox.now() >= turn_at:
            return self._campaign
        return self._wait if replica.following is None else self._follow

    def _turn_at(self, one: HostedPartition) -> float | None:
        """Return the time from which the replica may campaign; None unless something changes before."""
        due_at, snapshot = one.replica.due_at, one.replica.snapshot
        if due_at is None or snapshot is None or one.stopped or self.is_stopping:
            return None
        # When all brokers start, another one may have more, and may find that ZooKeeper was put back.
        alone_from = 0.0 if snapshot.state.isr.items() <= self._live.items() else self._alone_from
        return max(due_at, one.campaign_from, alone_from)

    async def _wait(self, one: HostedPartition) -> None:
        """Wait for a change, or for this replica's turn to campaign."""
        turn_at = self._turn_at(one)
        await one.changes.wait(None if turn_at is None else turn_at - self._mailbox.now())

    async def _end_role(self, one: HostedPartition) -> None:
        """Stop copying or leading, and wait until no flush of the leadership uses the log any more."""
        self._copier.end(one)
        if (partition := one.leading) is not None:
            one.leading = one.partition = None
            logger.info("leads %s no more", one.name)
            self._followers.changed(one.id)
            why = one.gone or errors.NotLeader(f"another broker leads {one.name} now")
            await outcome(partition.close(why))

    def _stop(self, one: HostedPartition, why: str) -> None:
        logger.error("%s takes no part in replication until a restart: %s", one.name, why)
        one.stopped = why
        one.changes.notify()

    def _maybe_stop(self, one: HostedPartition) -> None:
        """Let another replica lead if the log takes no more writes.

        If this leader can still flush and is the only in-sync replica, it serves readers and followers until
        another replica is in sync.
        """
        leading = one.replica.leading
        is_needed = leading is not None and len(leading.snapshot.state.isr) == 1
        may_stop = one.log.flush_refusal is not None or not is_needed
        if one.log.refusal is not None and may_stop and not one.stopped:
            self._stop(one, one.log.refusal)

    def _tick(self) -> None:
        """Check lags and leaders: ten times in `replica_lag_ms`, at least once a second."""
        now = self._mailbox.now()
        self._followers.end_closed(now)
        for one in self._hosted.replicating():
            self._propose(one)
            if one.log.refusal is not None:
                self._maybe_stop(one)
            if (partition := one.leading) is not None:
                partition.refuse_late(now)
                if one.log.lacks_room:
                    one.changes.notify()

    # Following

    async def _follow(self, one: HostedPartition) -> None:
        """Copy from the leader until another one leads, or this replica's turn to campaign comes."""
        following = one.replica.following
        assert following is not None, "its step is to follow"
        try:
            copying = self._copier.begin(one, following)
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
            logger.error("cannot copy %s: %s; trying again", one.name, error)
            await self._mailbox.sleep(COPY_AGAIN_S)
            return
        while self._follows(one, copying):
            if one.obstacle is None:
                await self._wait(one)
            else:
                await self._overcome(one, copying, one.obstacle)
            self._maybe_stop(one)

    def _follows(self, one: HostedPartition, copying: Copying) -> bool:
        is_current = one.gone is None and one.replica.following is copying.following
        return is_current and self._step(one) == self._follow

    async def _overcome(self, one: HostedPartition, copying: Copying, obstacle: Obstacle) -> None:
        """Cut the log where it diverges from the leader's, or get over an error; then ask for more."""
        error: Exception | None = None
        pause_s = 0.0
        if isinstance(obstacle, Exception):
            error = obstacle
        else:
            error = await self._change_log(one, obstacle)
            if error is None:
                self._events["cut"] += 1
                leader = copying.following.leader
                logger.info("cut %s to %s, as broker %s has it", one.name, one.log.end, leader)
        if isinstance(error, ReplicaDiverged) and not error.leader_serves:
            await self._depose(one, copying, error)
        elif error is not None:
            pause_s = self._failed(one, error)
        until = self._mailbox.now() + pause_s
        while self._follows(one, copying) and (left_s := until - self._mailbox.now()) > 0:
            await one.changes.wait(left_s)
        if self._follows(one, copying):
            self._copier.ask_again(one)

    def _failed(self, one: HostedPartition, error: Exception) -> float:
        """Return the pause before the next try: the leader may have changed, or the disk may have room."""
        self._maybe_stop(one)
        if one.stopped:
            return 0.0
        if isinstance(error, errors.MillraceError) and not isinstance(error, errors.BrokerError):
            self._stop(one, str(error))  # only an operator can help
            return 0.0
        leader_says = isinstance(
            error, (errors.NotLeader, errors.FencedLeaderEpoch, errors.UnknownLeaderEpoch)
        )
        if errors.is_bug(error):
            logger.error("a bug while copying %s; trying again", one.name, exc_info=error)
        elif not leader_says:
            logger.warning("copying %s: %s; trying again", one.name, error)
        if one.log.lacks_room and one.thread is not None:
            # Commits wait until the leader drops this replica, so the leader must learn of it at once.
            one.thread.forget(one.id)
            return FULL_DISK_AGAIN_S
        return ASK_AGAIN_S if leader_says else COPY_AGAIN_S

    async def _depose(self, one: HostedPartition, copying: Copying, error: ReplicaDiverged) -> None:
        """Have another replica lead, as this leader lacks committed messages and has not served yet."""
        leader, epoch = copying.following.leader, copying.following.epoch
        newest, wrote = await self._write(one, lambda new: depose(new.state, leader, epoch, new.minimum))
        if wrote:
            logger.error("%s: broker %s leads no more: %s", one.name, leader, error)
        elif newest is not None and self._follows(one, copying):
            self._stop(one, str(error))  # no other replica may lead

    async def _change_log(self, one: HostedPartition, work: Callable[[CutSide], None]) -> Exception | None:
        """Cut, restart or flush the log in a thread; return the exception that `work` raised, if any.

        No other code uses the log meanwhile.
        """
        one.is_changing, failure = True, None
        try:
            await outcome(self._pool.submit(work, one.opened))
        except Exception as error:
            failure = error
        one.is_changing = False
        return failure

    # Elections

    async def _write(self, one: HostedPartition, apply: Apply) -> Written:
        """Write a change of the partition, and observe the state that the answer brings."""
        newest, wrote = await self._writes.write(one, apply)
        if newest is not None:
            one.replica.observe(newest, self._mailbox.now())
        return newest, wrote

    async def _campaign(self, one: HostedPartition) -> None:
        """Cut an incomplete append, then try to be elected in the state that made this replica campaign."""
        replica = one.replica
        assert replica.snapshot is not None, "it is due by a state"
        epoch, live = replica.snapshot.state.leader_epoch, self._live
        replica.campaign()

        def apply(newest: Snapshot) -> PartitionState | None:
            if newest.state.leader_epoch != epoch or replica.with_report(newest.state) is not None:
                return None  # another replica was faster, or ZooKeeper was restored
            return elect(newest.state, replica.broker, replica.directory, live, newest.minimum)

        newest, wrote = UNKNOWN
        error = None
        if one.log.end != one.log.whole_end:  # nearly every log is whole
            error = await self._change_log(one, lambda log: log.cut(log.whole_end))
            self._log_failed(one, error)
        if error is None and one.gone is None:
            newest, wrote = await self._write(one, apply)
        now = self._mailbox.now()
        if newest is not None and wrote:
            replica.won(newest, now)
            return
        if newest is None:
            one.campaign_from = now + (WRITE_AGAIN_S if error is None else CAMPAIGN_AGAIN_S)
        replica.not_won(now)

    def _log_failed(self, one: HostedPartition, error: Exception | None) -> None:
        if error is not None:
            logger.error(
                "the log of %s: %s", one.name, error, exc_info=error if errors.is_bug(error) else None
            )

    # Leading

    async def _lead(self, one: HostedPartition) -> None:
        """Lead until a newer epoch is known, and serve clients once and while the leadership allows it."""
        leading = one.replica.leading
        assert leading is not None, "its step is to lead"
        partition = one.leading = ReplicatedPartition(
            *one.key,
            one.topic_id,
            leading,
            one.opened,
            self._mailbox,
            self._flushes,
            self._doubtful,
            cut_off=lambda: not self._cluster.is_connected,
            grown=lambda: self._followers.changed(one.id),
            flush_failed=one.changes.notify,
        )
        one.is_resigning = False
        self._events["elected"] += 1
        logger.info("leads %s in epoch %s from %s on", one.name, leading.epoch, leading.start)
        self._followers.changed(one.id)
        partition.flush()  # a flush of before may still run, and does not report to this leadership
        leading.flushed()  # only now: if the flush of before has just ended, no other flush reports
        while self._leads(one, leading):
            self._maybe_stop(one)
            self._propose(one)
            partition.show_committed()
            if one.stopped:
                await self._resign(one)  # until that is written, no other replica campaigns
            elif one.log.lacks_room and self._has_heir(leading) and not self.is_stopping:
                logger.warning("%s: the disk has no room, so that another replica is to lead", one.name)
                await self._when_followed([one])
                await self._resign(one)  # if ZooKeeper does not answer, this replica leads on
            if self._leads(one, leading):
                may_serve = not (one.stopped or one.is_resigning or self.is_stopping)
                if one.partition is None and leading.is_serving and may_serve:
                    one.serve(partition, self._config)
                await one.changes.wait(WRITE_AGAIN_S if one.stopped else None)

    def _leads(self, one: HostedPartition, leading: Leadership) -> bool:
        return one.gone is None and one.replica.leading is leading

    def _has_heir(self, leading: Leadership) -> bool:
        """Return True if another in-sync replica lives."""
        isr = leading.snapshot.state.isr
        return any(self._live.get(broker) == at for broker, at in isr.items() if broker != leading.broker)

    def _propose(self, one: HostedPartition) -> None:
        """Write the due change of the in-sync replicas, if this broker leads."""
        leading = one.replica.leading
        if leading is not None and one.leading is not None:
            proposal = leading.propose(self._live, self._mailbox.now())
            if proposal is not None:
                logger.info("%s: %s", one.name, _words(proposal))
                self._mailbox.begin(self._carry_out(one, leading, proposal))

    async def _carry_out(self, one: HostedPartition, leading: Leadership, proposal: Proposal) -> None:
        """Write a proposal until its outcome is known. Joining replicas count as in sync meanwhile."""
        broker, epoch = self._config.broker_id, leading.epoch
        if proposal.preferred:
            one.is_resigning = True
            await self._when_followed([one])
        while self._leads(one, leading):
            newest, _ = await self._write(one, lambda state: proposal.apply(state, broker, epoch))
            if not self._leads(one, leading):
                return
            one.is_resigning = False  # it is served until ZooKeeper answers
            one.changes.notify()
            if newest is not None:
                leading.decided(newest)
                self._events["in_sync"] += len(proposal.joining)
                self._events["out_of_sync"] += len(proposal.leaving)
                return
            await self._mailbox.sleep(WRITE_AGAIN_S)

    def resign_unopened(self, one: HostedPartition, *, is_whole: bool) -> None:
        """Resign as leader of a partition whose log cannot be opened, if other replicas may lead.

        They do not campaign while this broker is the leader. `is_whole` is True if the disk still has all
        bytes that were flushed.
        """
        broker, state = self._config.broker_id, one.topic.partitions[one.key[1]]
        if state.leader == broker and (len(state.isr) > 1 or state.eligible):
            epoch = state.leader_epoch

            def apply(newest: Snapshot) -> PartitionState | None:
                return resign(newest.state, broker, epoch, newest.minimum, is_whole=is_whole)

            self._mailbox.begin(self._writes.write(one, apply))

    async def _resign(self, one: HostedPartition) -> None:
        """Try once to write that this broker no longer leads.

        All flushed bytes are on the disk, unless a flush failed: then that is unknown.
        """
        leading = one.replica.leading
        if leading is None:
            return

        def apply(newest: Snapshot) -> PartitionState | None:
            is_whole = one.log.flush_refusal is None
            return resign(newest.state, leading.broker, leading.epoch, newest.minimum, is_whole=is_whole)

        await self._write(one, apply)

    def hand_over(self, then: Callable[[], None]) -> None:
        """Hand over all partitions led here, because the broker stops; then call `then`.

        Followers first copy what was written. If ZooKeeper does not answer, the broker stops all the same:
        other replicas lead when its registration ends.
        """
        self.is_stopping = True
        self._mailbox.begin(self._hand_over(then))

    async def _hand_over(self, then: Callable[[], None]) -> None:
        led = [one for one in self._hosted.replicating() if one.leading is not None]
        resigning = set(led)

        async def resign_one(one: HostedPartition) -> None:
            await self._resign(one)
            resigning.discard(one)

        await self._when_followed(led)
        deadline = self._mailbox.now() + RESIGN_S
        for one in led:
            self._mailbox.begin(resign_one(one))
        while resigning and self._mailbox.now() < deadline:
            await self._mailbox.sleep(LOOK_S)
        then()

    async def _when_followed(self, led: Sequence[HostedPartition]) -> None:
        """Take no more writes, and wait until the followers have everything, at most HAND_OVER_S."""
        deadline = self._mailbox.now() + HAND_OVER_S
        for one in led:
            if (partition := one.leading) is not None:
                try:
                    partition.write()  # what came in this turn: its bytes do not stay
                    partition.flush()
                except Exception:
                    logger.exception("followers of %s may lack what was written last", one.name)
                one.partition = None
        while self._mailbox.now() < deadline and any(
            one.leading is not None and one.leading.leading.committed < one.log.end for one in led
        ):
            await self._mailbox.sleep(LOOK_S)

    # After ZooKeeper was restored

    async def _report(self, one: HostedPartition) -> None:
        """Flush the log and report its end in ZooKeeper. From then on the partition has no leader."""
        replica, log_ = one.replica, one.log

        def bring_to_disk(log: CutSide) -> None:
            if log.end > log.whole_end:
                log.cut(log.whole_end)
            log.flush()

        def apply(newest: Snapshot) -> PartitionState | None:
            return replica.with_report(newest.state) if log_.flushed == log_.end else None

        while one.is_flushing or one.is_deleting:
            await self._mailbox.sleep(ASK_AGAIN_S)
        if one.gone is not None or not replica.owes_report:  # its role has changed meanwhile
            return
        error = await self._change_log(one, bring_to_disk)
        self._log_failed(one, error)
        if error is None and one.gone is None:
            newest, wrote = await self._write(one, apply)
            if newest is not None and wrote:
                missing = sorted(set(newest.state.replicas).difference(newest.state.reports))
                logger.warning(
                    "%s: ZooKeeper was restored from an older copy. Start brokers %s: the partition waits"
                    " until they report what they have (or for `millrace topics elect --unclean`)",
                    one.name,
                    missing,
                )
        if replica.owes_report:
            await one.changes.wait(CAMPAIGN_AGAIN_S if error is not None else WRITE_AGAIN_S)

    # Followers

    def _find(self, partition: ReplicaPartition, epoch: int) -> Led:
        one = self._hosted.replica(partition)
        if one is None:
            raise errors.NotLeader(f"no replica of {partition} is stored here")
        one.replica.see_epoch(epoch)
        if one.replica.leading is None:
            raise errors.NotLeader(f"{one.name} is not led here")
        return Led(one.replica.leading, one.log)

    def fetch(self, connection: Connected, request: ReplicaFetchRequest, answer: SendCopied) -> None:
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
                continue  # the answer to its next fetch has the error
            if leading.reported(request.follower, request.directory, one.flushed):
                grown.append(one.partition)
        self._show(grown)

    def _show(self, partitions: Iterable[ReplicaPartition]) -> None:
        for partition in partitions:
            one = self._hosted.replica(partition)
            if one is not None and one.leading is not None:
                one.leading.show_committed()

    def _check_follower(self, follower: int, directory: str) -> None:
        """Refuse a follower that is not a registered broker: the number of other followers is unknown."""
        address = self._cluster.brokers.get(follower)
        if address is None or address.directory != directory:
            raise errors.NotLeader(f"broker {follower} is not registered with the directory {directory}")

    def close(self) -> None:
        """End the threads, after the event loop has ended."""
        self._copier.close()
        self._pool.shutdown(wait=True, cancel_futures=True)


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
