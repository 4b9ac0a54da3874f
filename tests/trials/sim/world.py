"""The world that replicas live in: machines, their disks, the network, ZooKeeper and clients.

Everything that takes time is an event on one heap, after a delay drawn at random. Most are short, some last
for seconds, so messages overtake each other. The drivers here do what `millrace_broker.replication` decides.

The invariants are those of docs/replication.md. The inductive one is checked after everything that may break
it: every in-sync or eligible replica has, flushed, all that was ever committed.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState
from millrace_broker.replication.following import Following, ReplicaDiverged
from millrace_broker.replication.leadership import Leadership, Proposal, Snapshot
from millrace_broker.replication.replica import Replica
from millrace_broker.replication.state import assign, depose, resign, with_minimum
from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd
from tests.trials.sim.history import LENGTH_S, Fault, History
from tests.trials.sim.ledger import Ledger
from tests.trials.sim.log import Batch, MemoryLog, Violation

LAG_S = 2.0
PREFER_AFTER_S = 2.0
"""Much sooner than in a broker, so that first replicas get the lead back within a history."""
SESSION_S = 1.0
FETCH_TIMEOUT_S = 0.5
ZOOKEEPER_TIMEOUT_S = 0.6
HEALED_S = 25.0
"""Limit for a history, after the last fault, to have all its replicas again."""


@dataclass(slots=True)
class Client:
    """A reader: it never goes back to a leader of an older epoch than it knows."""

    epoch: int = -1
    position: int = 0


@dataclass(slots=True, eq=False)
class Fetch:
    """One request of a follower, and where its answer goes."""

    follower: Machine
    life: int
    following: Following
    serial: int
    directory: str
    is_in_step: bool
    epoch: int
    position: int
    last_epoch: int
    flushed: int


class Machine:
    """A broker: a disk, and while it runs a process with a replica."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.log = MemoryLog()
        self.disks = 0
        self.copies = [MemoryLog()]
        """Copies of its disk, the newest last."""
        self.is_doubtful = False
        """True after an older copy took the disk's place unnoticed, until that has all that was committed."""
        self.is_unnoticed = False
        """True meanwhile: the rules find it while the other replicas live, so these have no faults."""
        self.had = (NO_EPOCH, 0)
        """(last epoch, end) that leaders may still take for flushed here, though the copy has less."""
        self.newest_seen = 0
        """The newest version of the node in ZooKeeper that it has seen; on its disk."""
        self.has_seen_newer = False
        """True from the start after ZooKeeper was restored until that is seen to."""
        self.life = 0
        """Number of the process's current life: messages meant for another life do not reach it."""
        self.is_up = self.refuses_flushes = self.is_flushing = False
        self.has_zookeeper = True
        self.paused_until = self.slow_until = 0.0
        self.replica = self._new_replica()
        self.parked: dict[int, Fetch] = {}
        self.serial = self.seen_sessions = 0
        self.fetched_at = 0.0
        self.unanswered: deque[tuple[int, int]] = deque()
        """(end, what stands there) of writes with acks=all."""

    @property
    def directory(self) -> str:
        return f"{self.broker}/{self.disks}"

    def _new_replica(self) -> Replica:
        return Replica(self.broker, self.directory, self.log, lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)

    def begin_life(self) -> None:
        self.life += 1
        self.is_up, self.refuses_flushes, self.is_flushing = True, False, False
        self.parked, self.unanswered = {}, deque()
        self.replica = self._new_replica()
        if self.has_seen_newer:
            self.replica.forget_zookeeper()

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Take in a state read from ZooKeeper."""
        self.newest_seen = max(self.newest_seen, snapshot.version)
        self.replica.observe(snapshot, now)
        self.has_seen_newer = self.replica.has_seen_newer


class World:
    """One history as it runs."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.now = 0.0
        self.counts = {"elections": 0, "commits": 0, "cuts": 0, "crashes": 0, "acknowledged": 0, "deposed": 0}
        self._rng = Random(history.seed)
        self._events: list[tuple[float, int, int, Machine | None, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._numbers = 0
        self._healing = False
        self._cut_links: set[frozenset[int]] = set()
        self._clients = [Client(), Client(), Client()]
        brokers = range(1, history.replicas + 1)
        self.machines = {broker: Machine(broker) for broker in brokers}
        isr = {broker: machine.directory for broker, machine in self.machines.items()}
        # ZooKeeper:
        self._node = Snapshot(0, PartitionState(NO_LEADER, tuple(brokers), isr, 0), history.minimum)
        self._nodes = [self._node]
        """All that there ever were."""
        self._sessions: dict[int, str] = {}
        self._sessions_version = 0
        self._ledger = Ledger()
        self._elected: set[int] = set()
        self._takes_early_writes = True
        """False once ZooKeeper was restored, or a disk unnoticed. Then a leader that does not serve takes no
        writes, as no broker ever does: an epoch may be led again, and must not get other bytes, and an older
        copy must not look like the newest log."""

    def run(self) -> None:
        """Play the history, then heal everything; Violation when an invariant breaks or it stays stuck."""
        for started in self.machines.values():
            self._start(started)
        for fault in self.history.faults:
            self._at(fault.at, None, self._strike, fault)
        self._at(0.3, None, self._produce)
        self._at(0.5, None, self._back_up)
        self._at(0.4, None, self._consume)
        self._at(LENGTH_S, None, self._heal)
        while self.now < LENGTH_S + HEALED_S:
            self.now, _, life, machine, handler, arguments = heappop(self._events)
            if machine is not None:
                if machine.life != life or not machine.is_up:
                    continue
                if machine.paused_until > self.now:
                    self._at(machine.paused_until + self._rng.random() * 0.01, machine, handler, *arguments)
                    continue
            handler(*arguments)
            if self._healing and handler == self._consume and self._is_whole():
                return
        raise Violation(f"stuck {HEALED_S} s after the last fault: {self._node}, live {self._sessions}")

    def _at(
        self, time: float, machine: Machine | None, handler: Callable[..., None], *arguments: Any
    ) -> None:
        """Call `handler` then, if the process that runs on `machine` now still does."""
        self._order += 1
        life = 0 if machine is None else machine.life
        heappush(self._events, (time, self._order, life, machine, handler, arguments))

    def _soon(self, machine: Machine | None, handler: Callable[..., None], *arguments: Any) -> None:
        self._at(self.now + self._delay(), machine, handler, *arguments)

    def _delay(self) -> float:
        kind, length = self._rng.random(), self._rng.random()
        if kind < 0.75 or self._healing:
            return 0.001 + 0.01 * length
        return 0.2 * length if kind < 0.96 else 2.5 * length

    def _send(
        self, sender: Machine, receiver: Machine, handler: Callable[..., None], *arguments: Any
    ) -> None:
        if receiver.is_up and frozenset((sender.broker, receiver.broker)) not in self._cut_links:
            self._soon(receiver, handler, receiver, *arguments)

    # ZooKeeper

    def _changed(self, state: PartitionState, minimum: int) -> None:
        self._node = Snapshot(self._node.version + 1, state, minimum)
        self._nodes.append(self._node)
        self._check_replicas()
        for machine in self.machines.values():
            self._soon(machine, self._notify, machine, self._node)

    def _notify(self, machine: Machine, snapshot: Snapshot) -> None:
        """A watch, perhaps late."""
        if machine.has_zookeeper:
            machine.observe(snapshot, self.now)
            self._after_roles(machine)

    def _sessions_changed(self) -> None:
        self._sessions_version += 1
        for machine in self.machines.values():
            self._soon(machine, self._see_brokers, machine, self._sessions_version, dict(self._sessions))

    def _see_brokers(self, machine: Machine, version: int, live: Mapping[int, str]) -> None:
        if machine.has_zookeeper and version >= machine.seen_sessions:
            machine.seen_sessions = version
            machine.replica.see_brokers(live, self.now)
            self._after_roles(machine)

    def _register(self, machine: Machine) -> None:
        if machine.has_zookeeper and self._sessions.get(machine.broker) != machine.directory:
            self._sessions[machine.broker] = machine.directory
            self._sessions_changed()

    def _expire(self, machine: Machine) -> None:
        """The session ends unless the broker has been heard of again."""
        silent = not machine.is_up or not machine.has_zookeeper or machine.paused_until > self.now
        if silent and self._sessions.pop(machine.broker, None) is not None:
            self._sessions_changed()

    def _compare_and_set(
        self,
        machine: Machine,
        version: int,
        state: PartitionState,
        answered: Callable[[Machine, Snapshot | None, bool], None],
    ) -> None:
        """Write `state` over that version. `answered` gets the node, and whether this wrote it.

        Or it gets None, for nobody knows: then it may be written long afterwards.
        """
        chance = 1.0 if self._healing else self._rng.random()
        if not machine.has_zookeeper or chance < 0.05:
            self._at(self.now + ZOOKEEPER_TIMEOUT_S, machine, answered, machine, None, False)
            if machine.has_zookeeper and chance < 0.04:
                self._soon(None, self._write, None, version, state, None)
            return
        self._soon(None, self._write, (machine, machine.life), version, state, answered)

    def _write(
        self,
        writer: tuple[Machine, int] | None,
        version: int,
        state: PartitionState,
        answered: Callable[[Machine, Snapshot | None, bool], None] | None,
    ) -> None:
        is_ours = version == self._node.version
        if is_ours:
            self._changed(state, self._node.minimum)
        if writer is not None and answered is not None and writer[0].life == writer[1]:
            self._soon(writer[0], answered, writer[0], self._node, is_ours)

    # A broker's process

    def _start(self, machine: Machine) -> None:
        if machine.is_up:
            return
        machine.begin_life()
        self._at(self.now, machine, self._tick, machine)
        self._rejoin(machine)

    def _rejoin(self, machine: Machine) -> None:
        """ZooKeeper can be reached: register, read everything."""
        if machine.has_zookeeper:
            self._soon(machine, self._register, machine)
            self._soon(machine, self._notify_newest, machine)

    def _notify_newest(self, machine: Machine) -> None:
        self._notify(machine, self._node)
        self._see_brokers(machine, self._sessions_version, dict(self._sessions))

    def _crash(self, machine: Machine, *, power_cut: bool) -> None:
        if machine.is_up:
            self.counts["crashes"] += 1
            machine.is_up = False
            machine.life += 1
            machine.log.recover(self._rng, power_cut=power_cut)
            self._check_replicas()
            self._at(self.now + SESSION_S, None, self._expire, machine)
            self._drop_connections(machine)

    def _drop_connections(self, machine: Machine) -> None:
        for other in self.machines.values():
            self._soon(other, self._closed, other, machine.broker, machine.directory)
            if machine.is_up:
                self._soon(machine, self._closed, machine, other.broker, other.directory)

    def _closed(self, machine: Machine, broker: int, directory: str) -> None:
        machine.parked.pop(broker, None)
        if machine.replica.leading is not None:
            machine.replica.leading.closed(broker, directory, self.now)

    def _tick(self, machine: Machine) -> None:
        self._at(self.now + 0.1 + 0.15 * self._rng.random(), machine, self._tick, machine)
        replica = machine.replica
        if machine.refuses_flushes:
            return
        if replica.leading is not None:
            proposal = replica.leading.propose(replica.live, self.now)
            if proposal is not None:
                self._soon(machine, self._apply, machine, replica.leading, proposal, self._node)
        elif replica.owes_report:
            self._report_log(machine)
        elif (due_at := replica.due_at) is not None and self.now >= due_at:
            replica.campaign()
            machine.log.cut(machine.log.whole_end)
            self._check_replicas()
            self._elect(machine)
        elif replica.following is not None and self.now - machine.fetched_at > FETCH_TIMEOUT_S:
            self._fetch(machine, replica.following)

    def _after_roles(self, machine: Machine) -> None:
        replica = machine.replica
        if replica.leading is None:
            machine.parked.clear()
            machine.unanswered.clear()
        else:
            self._after_commit(machine, replica.leading)
        following = replica.following
        if following is not None and not following.is_in_step:
            self._fetch(machine, following)

    # Elections and the in-sync replicas

    def _elect(self, machine: Machine) -> None:
        election = machine.replica.election()
        if election is None:
            machine.replica.not_won(self.now)
            self._after_roles(machine)
        else:
            self._compare_and_set(machine, *election, self._elected_or_not)

    def _elected_or_not(self, machine: Machine, snapshot: Snapshot | None, is_ours: bool) -> None:
        replica = machine.replica
        if snapshot is None or not is_ours:
            replica.not_won(self.now)
            self._soon(machine, self._notify_newest, machine)
        elif replica.won(snapshot, self.now) is not None:
            self.counts["elections"] += 1
            if snapshot.state.leader_epoch in self._elected:
                raise Violation(f"two leaders of epoch {snapshot.state.leader_epoch}")
            self._elected.add(snapshot.state.leader_epoch)
        self._after_roles(machine)

    def _report_log(self, machine: Machine) -> None:
        """ZooKeeper was restored: say there what the log holds, once all of that is on the disk."""
        log = machine.log
        log.cut(log.whole_end)
        if log.flushed < log.end:
            self._flush(machine)
            return
        assert machine.replica.snapshot is not None
        version, state, _ = machine.replica.snapshot
        reported = machine.replica.with_report(state)
        if reported is not None:
            self._compare_and_set(machine, version, reported, self._wrote_or_not)

    def _wrote_or_not(self, machine: Machine, snapshot: Snapshot | None, is_ours: bool) -> None:
        if snapshot is not None:
            self._notify(machine, snapshot)

    def _apply(self, machine: Machine, leading: Leadership, proposal: Proposal, snapshot: Snapshot) -> None:
        """Write what the leader proposed over the state just read, until it is certain what became of it."""
        if machine.replica.leading is not leading:
            return
        state = proposal.apply(snapshot, machine.broker, leading.epoch)
        if state is None:
            leading.decided(snapshot)
            machine.observe(snapshot, self.now)
            self._after_roles(machine)
            return

        def answered(machine: Machine, newest: Snapshot | None, is_ours: bool) -> None:
            if machine.replica.leading is not leading:
                return
            if newest is None or not is_ours:
                self._soon(machine, self._apply, machine, leading, proposal, newest or self._node)
            else:
                leading.decided(newest)
                machine.observe(newest, self.now)
                self._after_roles(machine)

        self._compare_and_set(machine, snapshot.version, state, answered)

    # Copying

    def _fetch(self, machine: Machine, following: Following) -> None:
        machine.serial += 1
        machine.fetched_at = self.now
        fetch = Fetch(
            machine,
            machine.life,
            following,
            machine.serial,
            machine.directory,
            following.is_in_step,
            following.epoch,
            *following.position,
            following.flushed,
        )
        self._send(machine, self.machines[following.leader], self._serve, fetch)

    def _serve(self, machine: Machine, fetch: Fetch) -> None:
        leading = machine.replica.leading
        if leading is None or fetch.epoch != leading.epoch:
            machine.replica.see_epoch(fetch.epoch)
            return
        leading.connected(fetch.follower.broker, fetch.directory, fetch.position, fetch.last_epoch)
        if leading.is_outrun:
            return
        if fetch.flushed >= 0 and leading.reported(fetch.follower.broker, fetch.directory, fetch.flushed):
            self._after_commit(machine, leading)
        diverging = leading.check(fetch.position, fetch.last_epoch)
        if diverging is not None:
            self._answer(machine, fetch, leading, diverging)
        elif machine.log.end > fetch.position or not fetch.is_in_step:
            self._answer(machine, fetch, leading, None)
        else:
            machine.parked[fetch.follower.broker] = fetch

    def _answer(
        self, machine: Machine, fetch: Fetch, leading: Leadership, diverging: EpochEnd | None
    ) -> None:
        batches = [] if diverging else machine.log.read(fetch.position, self._rng.randint(1, 6))
        if fetch.follower.life == fetch.life:
            self._send(
                machine,
                fetch.follower,
                self._take,
                fetch,
                diverging,
                batches,
                leading.committed,
                machine.log.start,
                machine.log.first_state,
            )

    def _wake_followers(self, machine: Machine, leading: Leadership) -> None:
        parked, machine.parked = machine.parked, {}
        for fetch in parked.values():
            self._serve_again(machine, fetch, leading)

    def _serve_again(self, machine: Machine, fetch: Fetch, leading: Leadership) -> None:
        diverging = leading.check(fetch.position, fetch.last_epoch)  # retention may have moved the start
        self._answer(machine, fetch, leading, diverging)

    def _take(
        self,
        machine: Machine,
        fetch: Fetch,
        diverging: EpochEnd | None,
        batches: list[Batch],
        committed: int,
        leader_start: int,
        leader_first_state: int,
    ) -> None:
        following, log = fetch.following, machine.log
        if machine.replica.following is not following or fetch.serial != machine.serial:
            return
        if diverging is not None:
            try:
                cut = following.cut_at(diverging, committed)
            except ReplicaDiverged as error:
                self._depose(machine, following, error)
                return
            self.counts["cuts"] += 1
            if cut is None:
                is_ahead = (
                    log.start > leader_start
                )  # its retention dropped what was committed, as the leader has it
                state = log.first_state if is_ahead else leader_first_state
                log.reset(max(log.start, leader_start), state)
            else:
                log.cut(cut)
            self._check_replicas()
        else:
            was_in_step = following.is_in_step
            for batch in batches:
                log.append(batch)
            log.committed = following.accepted(committed)
            log.drop_below(min(leader_start, log.committed, log.flushed))
            if log.flushed < log.end:
                self._flush(machine)
            elif not was_in_step:
                self._report(machine, following)
        self._fetch(machine, following)

    def _depose(self, machine: Machine, following: Following, error: ReplicaDiverged) -> None:
        assert machine.replica.snapshot is not None
        version, state, minimum = machine.replica.snapshot
        deposed = depose(state, following.leader, following.epoch, minimum)
        if error.leader_serves or deposed is None:
            raise Violation(str(error)) from error
        self.counts["deposed"] += 1
        self._compare_and_set(machine, version, deposed, self._wrote_or_not)

    def _report(self, machine: Machine, following: Following) -> None:
        if following.flushed < 0:
            return
        report = machine.broker, machine.directory, following.epoch, following.flushed
        self._send(machine, self.machines[following.leader], self._reported, *report)

    def _reported(self, machine: Machine, broker: int, directory: str, epoch: int, flushed: int) -> None:
        leading = machine.replica.leading
        if leading is None or epoch != leading.epoch:
            machine.replica.see_epoch(epoch)
        elif leading.reported(broker, directory, flushed):
            self._after_commit(machine, leading)

    def _flush(self, machine: Machine) -> None:
        if not machine.is_flushing:
            machine.is_flushing = True
            slow = self._rng.random() * 2 if machine.slow_until > self.now else 0.0
            delay = self._delay() + slow
            self._at(self.now + delay, machine, self._flushed, machine, machine.log.begin_flush())

    def _flushed(self, machine: Machine, begun: tuple[int, int]) -> None:
        machine.is_flushing = False
        replica, log = machine.replica, machine.log
        if machine.refuses_flushes:
            if replica.leading is not None:
                self._resign(machine, is_whole=False)
            return
        log.end_flush(begun)
        if replica.leading is not None:
            if replica.leading.flushed():
                self._after_commit(machine, replica.leading)
        elif replica.following is not None:
            self._report(machine, replica.following)
        if log.flushed < log.end:
            self._flush(machine)

    def _resign(self, machine: Machine, *, is_whole: bool) -> None:
        leading = machine.replica.leading
        assert leading is not None
        version, state, minimum = leading.snapshot
        resigned = resign(state, machine.broker, leading.epoch, minimum, is_whole=is_whole)
        if resigned is not None:
            self._compare_and_set(machine, version, resigned, self._resigned)

    def _resigned(self, machine: Machine, snapshot: Snapshot | None, is_ours: bool) -> None:
        if snapshot is not None:
            machine.observe(snapshot, self.now)
            self._after_roles(machine)

    # Clients

    def _produce(self) -> None:
        self._at(self.now + 0.3 * self._rng.random(), None, self._produce)
        leaders = [
            machine
            for machine in self._running()
            if (leading := machine.replica.leading) and (leading.is_serving or self._takes_early_writes)
        ]
        if not leaders:
            return
        machine = self._rng.choice(leaders)
        leading, log = machine.replica.leading, machine.log
        assert leading is not None
        for _ in range(self._rng.randint(1, 3)):
            sizes = [self._rng.randint(1, 50) for _ in range(self._rng.choice([1, 1, 2]))]
            log.write(leading.epoch, sizes, self._numbers + 1)
            self._numbers += len(sizes)
            leading.appended()
            if leading.has_enough:
                machine.unanswered.append((log.end, self._numbers))
        if self._rng.random() < 0.05 and leading.is_serving:
            begins = [batch.end for batch in log.read(log.start) if batch.is_whole]
            log.drop_below(self._rng.choice([end for end in begins if end <= leading.committed] or [0]))
        self._flush(machine)
        self._wake_followers(machine, leading)

    def _consume(self) -> None:
        self._at(self.now + 0.1 * self._rng.random(), None, self._consume)
        client = self._rng.choice(self._clients)
        for machine in self._running():
            leading = machine.replica.leading
            if leading is None or self._rng.random() < 0.3:
                continue
            if not leading.is_serving or client.epoch > leading.epoch:
                continue
            shown = leading.committed
            if shown < client.position:
                raise Violation(f"a reader at {client.position} was told {shown} in epoch {leading.epoch}")
            if shown not in self._ledger:
                raise Violation(f"{shown} was shown and is not committed")
            client.position, client.epoch = shown, leading.epoch

    def _running(self) -> Iterator[Machine]:
        return (m for m in self.machines.values() if m.is_up and m.paused_until <= self.now)

    # Invariants

    def _after_commit(self, machine: Machine, leading: Leadership) -> None:
        """A leader has committed more: note it, answer the producers that wait, tell the followers."""
        committed, log = leading.committed, machine.log
        if committed < 0 or committed == log.committed:
            return
        self.counts["commits"] += 1
        log.committed = max(log.committed, committed)
        self._ledger.commit(log, committed)
        self._check_replicas()
        while machine.unanswered and machine.unanswered[0][0] <= committed:
            self._ledger.acknowledge(*machine.unanswered.popleft())
            self.counts["acknowledged"] += 1
        self._wake_followers(machine, leading)

    def _check_replicas(self) -> None:
        """Invariant 4; of a disk that was lost nothing is expected."""
        state = self._node.state
        for broker, directory in (*state.isr.items(), *state.eligible.items()):
            machine = self.machines[broker]
            if machine.directory == directory:
                try:
                    self._ledger.check_replica(broker, machine.log, state)
                    machine.is_doubtful &= (machine.log.epochs.last, machine.log.flushed) < machine.had
                    machine.is_unnoticed &= machine.is_doubtful
                except Violation:
                    if not machine.is_doubtful:
                        raise

    def _is_whole(self) -> bool:
        """True when everything is as before the first fault."""
        leader = self.machines.get(self._node.state.leader)
        leading = leader.replica.leading if leader is not None else None
        return (
            leading is not None
            and leading.is_serving
            and leading.broker == self._node.state.replicas[0]
            and leading.committed >= self._ledger.end
            and len(self._node.state.isr) == self.history.replicas == len(self._node.state.target)
            and all(m.log.committed == m.log.end == leading.committed for m in self.machines.values())
        )

    # Faults

    def _back_up(self) -> None:
        self._at(self.now + self._rng.random(), None, self._back_up)
        machine = self._rng.choice(list(self.machines.values()))
        machine.copies.append(copy.deepcopy(machine.log))

    def _restore_disk(self, machine: Machine) -> None:
        self._crash(machine, power_cut=True)
        machine.had = (machine.log.epochs.last, machine.log.end)
        machine.log = copy.deepcopy(self._rng.choice(machine.copies[-4:]))
        machine.log.recover(self._rng, power_cut=True)

    def _restore_zookeeper(self, until: float) -> None:
        """Put an older copy of ZooKeeper back, and start all brokers again."""
        older = self._rng.choice(self._nodes[-8:])
        for machine in self.machines.values():
            self._crash(machine, power_cut=self._rng.random() < 0.3)
            machine.has_seen_newer |= machine.newest_seen > older.version
            machine.is_doubtful = True
            self._at(until + self._rng.random(), None, self._start, machine)
        self._sessions.clear()
        self._sessions_changed()
        self._elected.clear()
        self._takes_early_writes = False
        self._changed(older.state, older.minimum)

    def _strike(self, fault: Fault) -> None:
        machine, until = self.machines[fault.broker], self.now + fault.lasts_s
        if any(other.is_unnoticed for other in self.machines.values()):
            return
        match fault.kind:
            case "kill" | "power":
                self._crash(machine, power_cut=fault.kind == "power")
                self._at(until, None, self._start, machine)
            case "power of all":
                for other in self.machines.values():
                    self._crash(other, power_cut=True)
                    self._at(until + self._rng.random(), None, self._start, other)
            case "stop":
                if machine.is_up and machine.replica.leading is not None:
                    self._resign(machine, is_whole=True)
                self._at(self.now + 0.2, None, self._stop, machine, until)
            case "lose disk":
                self._crash(machine, power_cut=True)
                machine.log, machine.disks = MemoryLog(), machine.disks + 1
                self._at(until, None, self._start, machine)
            case "restore disk":
                self._restore_disk(machine)
                machine.disks += 1
                self._at(until, None, self._start, machine)
            case "restore disk unnoticed" if self._all_live():
                self._restore_disk(machine)
                machine.is_doubtful = machine.is_unnoticed = True
                self._takes_early_writes = False
                self._at(until, None, self._start, machine)
            case "restore ZooKeeper":
                self._restore_zookeeper(until)
            case "refuse flushes":
                machine.refuses_flushes = True
                self._at(until + 0.5, None, self._restart, machine)
            case "pause":
                machine.paused_until = max(machine.paused_until, until)
                self._at(self.now + SESSION_S, None, self._expire, machine)
                self._at(until, None, self._rejoin, machine)
            case "slow disk":
                machine.slow_until = until
            case "cut off":
                self._cut_links |= {frozenset((fault.broker, other)) for other in self.machines}
                self._at(until, None, self._mend_links, fault.broker)
            case "cut link":
                self._cut_links.add(frozenset((fault.broker, fault.other)))
                self._at(until, None, self._mend_links, fault.broker)
            case "reset":
                self._drop_connections(machine)
            case "no ZooKeeper":
                self._lose_zookeeper(machine, until)
            case "ZooKeeper away":
                for other in self.machines.values():
                    self._lose_zookeeper(other, until)
            case "minimum":
                self._set_minimum(min(self.history.minimum + 1, self.history.replicas))
                self._at(until, None, self._set_minimum, self.history.minimum)
            case "move":
                others = tuple(broker for broker in self.machines if broker != fault.broker)
                if len(others) >= self._node.minimum:
                    self._assign(others)
                    self._at(until, None, self._assign, (fault.broker, *others))

    def _all_live(self) -> bool:
        return self._sessions.keys() == self.machines.keys() == {one.broker for one in self._running()}

    def _stop(self, machine: Machine, until: float) -> None:
        self._crash(machine, power_cut=False)
        self._sessions.pop(machine.broker, None)
        self._sessions_changed()
        self._at(until, None, self._start, machine)

    def _restart(self, machine: Machine) -> None:
        if machine.refuses_flushes:
            self._crash(machine, power_cut=True)  # what a failed flush left in memory may not be on the disk
            self._start(machine)

    def _mend_links(self, broker: int) -> None:
        self._cut_links = {link for link in self._cut_links if broker not in link}

    def _lose_zookeeper(self, machine: Machine, until: float) -> None:
        machine.has_zookeeper = False
        self._at(self.now + SESSION_S, None, self._expire, machine)
        self._at(until, None, self._find_zookeeper, machine)

    def _find_zookeeper(self, machine: Machine) -> None:
        machine.has_zookeeper = True
        if machine.is_up:
            self._rejoin(machine)

    def _set_minimum(self, minimum: int) -> None:
        if minimum != self._node.minimum:
            self._changed(with_minimum(self._node.state, minimum), minimum)

    def _assign(self, target: tuple[int, ...]) -> None:
        """As an operator does it, who tries again while the only replica is away."""
        moved = assign(self._node.state, target, self._sessions, self._node.minimum)
        if moved is not None:
            self._changed(moved, self._node.minimum)
        else:
            self._at(self.now + 0.5, None, self._assign, target)

    def _heal(self) -> None:
        self._healing = True
        self._cut_links.clear()
        self._assign(tuple(self.machines))
        self._set_minimum(self.history.minimum)
        for machine in self.machines.values():
            machine.paused_until = machine.slow_until = 0.0
            self._restart(machine)
            self._start(machine)
            self._find_zookeeper(machine)
