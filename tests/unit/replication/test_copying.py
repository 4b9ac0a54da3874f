"""Leaders and followers with real logs and the bytes of their requests, through changes of leaders."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from millrace.config import LogConfig
from millrace.errors import BrokerError, ErrorCode, NotLeader
from millrace.records import Message, build_batch
from millrace.records.file_slice import FileSlice
from millrace.wire.replica import (
    Acked,
    ReplicaAckRequest,
    ReplicaFetchRequest,
    ReplicaPartition,
    Wanted,
    decode_ack,
    decode_answer,
    decode_fetch,
    encode_ack,
    encode_answer,
    encode_fetch,
)
from millrace.zookeeper.topic_state import NO_LEADER, PartitionState
from millrace_broker.replication.committed import CommittedStates
from millrace_broker.replication.copying import Copying, checked
from millrace_broker.replication.leadership import CLOSED_GRACE_S, Snapshot
from millrace_broker.replication.replica import Replica
from millrace_broker.replication.session import Led, ReplicaSession
from millrace_broker.storage.partition_log import PartitionLog
from tests.unit.storage.logs import PRINCIPAL, Clock, batch, crash, crowded_batch, log_files

ROUNDS = int(os.environ.get("MILLRACE_ROUNDS", "1")) * 30
PARTITION = ReplicaPartition(UUID(int=5), 3)
DIRECTORIES = {1: "a" * 16, 2: "b" * 16, 3: "c" * 16}


class Node:
    """One broker's copy, which may lead, follow or be down."""

    def __init__(self, broker: int, folder: Path) -> None:
        self.broker, self._folder = broker, folder
        self.up()

    def up(self) -> None:
        self.log = PartitionLog(self._folder, LogConfig(segment_bytes=3000), Clock(), is_replica=True)
        self.replica = Replica(self.broker, DIRECTORIES[self.broker], self.log, lag_s=10, prefer_after_s=60)
        self.states = CommittedStates(self.log)
        self.copying: Copying | None = None
        self.sessions: dict[int, ReplicaSession] = {}
        self.named = False

    def down(self) -> None:
        crash(self.log)

    def find(self, partition: ReplicaPartition, epoch: int) -> Led:
        self.replica.see_epoch(epoch)
        if partition != PARTITION or self.replica.leading is None:
            raise NotLeader("another broker leads it")
        return Led(self.replica.leading, self.log)

    def append(self, rng: Random) -> None:
        leading = self.replica.leading
        assert leading is not None
        made = crowded_batch(300) if rng.random() < 0.2 else batch(rng.randint(1, 4))
        self.log.append([made], [PRINCIPAL])
        self.states.appended(self.log.appended)
        leading.appended()
        for session in self.sessions.values():
            session.changed(PARTITION)

    def flush(self) -> None:
        self.log.flush()
        leading = self.replica.leading
        if leading is not None and leading.flushed():
            self.publish()

    def publish(self) -> None:
        leading = self.replica.leading
        assert leading is not None
        self.states.publish(leading.committed)


class World:
    """Three brokers, and the state that ZooKeeper would hold."""

    def __init__(self, folder: Path) -> None:
        self.nodes = {broker: Node(broker, folder / str(broker)) for broker in DIRECTORIES}
        self.down: set[int] = set()
        self.snapshot = Snapshot(1, PartitionState(NO_LEADER, (1, 2, 3), DIRECTORIES, 0), 2)
        self.committed = b""
        self.counts: Counter[str] = Counter()

    @property
    def leader(self) -> Node | None:
        node = self.nodes.get(self.snapshot.state.leader)
        return None if node is None or node.broker in self.down or node.replica.leading is None else node

    def elect(self, broker: int) -> None:
        node = self.nodes[broker]
        live = {b: at for b, at in DIRECTORIES.items() if b not in self.down}
        node.replica.observe(self.snapshot, 0.0)
        node.replica.see_brokers(live, 0.0)
        node.replica.campaign()
        node.copying = None
        node.log.cut(node.log.whole_end)
        election = node.replica.election()
        if election is None:
            node.replica.not_won(0.0)
            return
        self.snapshot = Snapshot(self.snapshot.version + 1, election[1], 2)
        node.log.lead(election[1].leader_epoch)
        node.states, node.sessions = CommittedStates(node.log), {}
        assert node.replica.won(self.snapshot, 0.0) is not None
        self.counts["elections"] += 1

    def fetch(self, broker: int, rng: Random) -> None:
        """One round of a follower with whoever leads, as far as it knows."""
        node, leader = self.nodes[broker], self.leader
        if leader is None or node is leader or broker in self.down:
            return
        node.replica.observe(self.snapshot, 0.0)
        following = node.replica.following
        assert following is not None
        if node.copying is None or node.copying.following is not following:
            node.copying, node.named = Copying(PARTITION, following, node.log), False
        wanted = node.copying.wanted
        request = ReplicaFetchRequest(broker, DIRECTORIES[broker], not node.named, 100, 0, [wanted], [])
        session = leader.sessions.get(broker)
        if session is None or not node.named:
            session = ReplicaSession(broker, DIRECTORIES[broker], leader.find)
            leader.sessions[broker] = session
        node.named = True
        if session.update(decode_fetch(memoryview(encode_fetch(request))), 0.0):
            leader.publish()
        parts = encode_answer(0, session.answer(rng.choice([1, 500, 5000]), final=rng.random() < 0.5))
        error, answers = decode_answer(memoryview(joined(parts)))
        assert error == 0
        for copied in answers:
            if copied.error:
                node.named = False
                self.counts["refused by a leader that resigns"] += 1
                continue
            work = node.copying.take(checked(copied, wanted))
            if work is not None:
                self.counts["cuts"] += 1
                work(node.log)

    def acknowledge(self, broker: int) -> None:
        node, leader = self.nodes[broker], self.leader
        if leader is None or broker in self.down or node is leader or node.copying is None:
            return
        node.log.flush()
        acked = node.copying.acked
        if acked is None:
            return
        body = encode_ack(ReplicaAckRequest(broker, DIRECTORIES[broker], [acked]))
        for one in decode_ack(memoryview(body)).acked:
            try:
                leading, _ = leader.find(one.partition, one.epoch)
            except BrokerError:
                continue
            if one.epoch == leading.epoch and leading.reported(broker, DIRECTORIES[broker], one.flushed):
                leader.publish()

    def propose(self) -> None:
        """Write what the leader wants changed in the in-sync replicas."""
        leader = self.leader
        if leader is None or leader.replica.leading is None:
            return
        leading = leader.replica.leading
        proposal = leading.propose({b: at for b, at in DIRECTORIES.items() if b not in self.down}, 0.0)
        state = None if proposal is None else proposal.apply(self.snapshot, leader.broker, leading.epoch)
        if state is not None:
            self.snapshot = Snapshot(self.snapshot.version + 1, state, 2)
            if leading.decided(self.snapshot):
                leader.publish()
            leader.replica.observe(self.snapshot, 0.0)
            self.counts["changes of the in-sync replicas"] += 1

    def check(self) -> None:
        """Check each log against all committed messages: the shorter is the beginning of the longer."""
        for broker, node in self.nodes.items():
            if broker in self.down:
                continue
            shown = content(node.log)[: node.log.committed]
            longer, shorter = max(shown, self.committed, key=len), min(shown, self.committed, key=len)
            assert longer.startswith(shorter)
            self.committed = longer


def joined(parts: list[bytes | FileSlice]) -> bytes:
    return b"".join(
        part if isinstance(part, bytes) else os.pread(part.file.fileno(), part.length, part.position)
        for part in parts
    )


def content(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in log_files(log.directory))


def test_whatever_leads_and_stops_what_is_committed_stays_and_all_logs_become_one(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(ROUNDS):
        rng = Random(seed)
        world = World(tmp_path / str(seed))
        world.elect(1)
        for _ in range(60):
            broker = rng.choice([1, 2, 3])
            kind = rng.random()
            leader = world.leader
            if kind < 0.3 and leader is not None:
                leader.append(rng)
            elif kind < 0.4 and leader is not None:
                leader.flush()
            elif kind < 0.7:
                world.fetch(broker, rng)
            elif kind < 0.8:
                world.acknowledge(broker)
            elif kind < 0.86:
                world.propose()
            elif kind < 0.9 and broker not in world.down and not world.down:
                world.nodes[broker].down()
                world.down.add(broker)
            elif kind < 0.95 and broker in world.down:
                world.nodes[broker].up()
                world.down.discard(broker)
            elif broker not in world.down and world.snapshot.state.isr.get(broker):
                world.elect(broker)
            world.check()
        for broker in list(world.down):
            world.nodes[broker].up()
            world.down.discard(broker)
        world.elect(next(iter(world.snapshot.state.isr)))
        leader = world.leader
        assert leader is not None
        leader.append(rng)
        leader.flush()
        for _ in range(60):
            if world.leader is None:  # it resigned, as another one has more
                world.elect(next(iter(world.snapshot.state.isr)))
            for broker in DIRECTORIES:
                world.fetch(broker, rng)
                world.acknowledge(broker)
            world.propose()
        world.check()
        leader = world.leader
        assert leader is not None
        files = [content(node.log) for node in world.nodes.values()]
        assert files[0] == files[1] == files[2]
        assert leader.replica.leading is not None
        assert leader.log.committed == leader.replica.leading.committed == leader.log.end == len(files[0])
        assert [path.name for path in log_files(world.nodes[1].log.directory) if path.stat().st_size] == [
            path.name for path in log_files(world.nodes[2].log.directory) if path.stat().st_size
        ]
        counts += world.counts
        for node in world.nodes.values():
            crash(node.log)
    assert counts["elections"] > 2 * ROUNDS
    assert counts["cuts"] > ROUNDS / 10


def test_a_new_copy_of_a_log_whose_records_have_all_expired_refuses_no_reader_at_its_end(
    tmp_path: Path,
) -> None:
    world, rng = World(tmp_path), Random(1)
    world.down.add(3)
    world.elect(1)
    leader, copy = world.nodes[1].log, world.nodes[3].log
    world.nodes[1].append(rng)
    world.nodes[1].flush()
    while leader.committed < leader.end:
        world.fetch(2, rng)
        world.acknowledge(2)
    leader.config = replace(leader.config, retention_ms=1)
    leader._clock.now += 60  # type: ignore[attr-defined]
    leader.apply_retention()
    end_of_records = leader.high_watermark
    assert end_of_records < leader.start == leader.end
    assert leader.read(end_of_records, 100) is None

    world.down.discard(3)
    while copy.end < leader.end:
        world.fetch(3, rng)
    assert (copy.start, copy.end) == (leader.start, leader.end)
    assert (copy.log_start_offset, copy.high_watermark) == (end_of_records, end_of_records)
    assert copy.read(end_of_records, 100) is None
    crash(copy)
    world.nodes[3].up()
    again = world.nodes[3].log
    assert (again.log_start_offset, again.high_watermark) == (end_of_records, end_of_records)
    for node in world.nodes.values():
        node.down()


def test_a_follower_deletes_no_more_than_its_leader_has_given_up(tmp_path: Path) -> None:
    world, rng = World(tmp_path), Random(1)
    world.elect(1)
    leader, follower = world.nodes[1].log, world.nodes[2]

    def committed() -> None:
        world.nodes[1].append(rng)
        world.nodes[1].flush()
        while leader.committed < leader.end or follower.log.committed < leader.end:
            for broker in (2, 3):
                world.fetch(broker, rng)
                world.acknowledge(broker)

    committed()
    end_of_records = leader.high_watermark
    leader.config = replace(leader.config, retention_ms=1)
    leader._clock.now += 60  # type: ignore[attr-defined]
    leader.apply_retention()
    committed()
    assert leader.read(end_of_records, 100) is not None, "a reader of all before continues here"
    assert follower.copying is not None
    if (before := follower.copying.to_delete) is not None:
        follower.log.delete_records(before)
    assert follower.log.read(end_of_records, 100) is not None
    for node in world.nodes.values():
        node.down()


def follower_of(leader: Node) -> ReplicaSession:
    return ReplicaSession(2, DIRECTORIES[2], leader.find)


def fetch_request(*wanted: Wanted, starts_over: bool = False) -> ReplicaFetchRequest:
    return ReplicaFetchRequest(2, DIRECTORIES[2], starts_over, 100, 1000, wanted, [])


def test_a_partition_without_news_is_in_no_answer_and_an_answered_one_is_silent(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.elect(1)
    leader = world.nodes[1]
    session = follower_of(leader)
    session.update(fetch_request(Wanted(PARTITION, 1, 0, -1, -1), starts_over=True), 0.0)
    (first,) = session.answer(1000)  # it hears at once that its log is the beginning of the leader's
    assert (first.error, first.diverging_end, first.records) == (0, -1, None)
    session.update(fetch_request(Wanted(PARTITION, 1, 0, -1, 0)), 0.0)
    assert session.answer(1000) == []
    leader.append(Random(1))
    session.changed(PARTITION)
    (second,) = session.answer(1000)
    assert second.records is not None
    leader.append(Random(1))
    session.changed(PARTITION)
    assert session.answer(1000, final=True) == []  # until it is named again
    leader.down()


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_a_follower_of_another_epoch_is_refused_and_a_newer_one_ends_the_leadership(
    tmp_path: Path, epoch: int, code: ErrorCode
) -> None:
    world = World(tmp_path)
    world.elect(1)
    session = follower_of(world.nodes[1])
    session.update(fetch_request(Wanted(PARTITION, epoch, 0, -1, -1), starts_over=True), 0.0)
    assert [one.error for one in session.answer(1000)] == [code]
    assert (world.nodes[1].replica.leading is None) == (epoch == 2)
    world.nodes[1].down()


def test_a_replica_that_does_not_copy_any_more_is_out_of_sync_soon(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.elect(1)
    leading = world.nodes[1].replica.leading
    assert leading is not None
    session = follower_of(world.nodes[1])
    for broker in (2, 3):
        leading.connected(broker, DIRECTORIES[broker], 0, -1)
        leading.reported(broker, DIRECTORIES[broker], 0)
    session.update(fetch_request(Wanted(PARTITION, 1, 0, -1, 0), starts_over=True), 0.0)
    assert leading.propose(DIRECTORIES, 5.0) is None
    session.update(fetch_request()._replace(forgotten=[PARTITION]), 5.0)
    assert leading.propose(DIRECTORIES, 5.0 + CLOSED_GRACE_S / 2) is None
    proposal = leading.propose(DIRECTORIES, 5.0 + CLOSED_GRACE_S)
    assert proposal is not None
    assert proposal.leaving == {2}
    world.nodes[1].down()


def test_a_leader_remembers_of_a_follower_only_what_it_leads(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.elect(1)
    session = follower_of(world.nodes[1])
    session.update(fetch_request(Wanted(PARTITION, 1, 0, -1, -1), starts_over=True), 0.0)
    assert len(session.answer(1000)) == 1
    tracemalloc.start()
    for topic in range(6, 10):
        strange = [Wanted(ReplicaPartition(UUID(int=topic), number), 1, 0, -1, -1) for number in range(2000)]
        session.update(fetch_request(*strange), 0.0)
        assert {one.error for one in session.answer(1000)} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    del strange
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500_000
    world.nodes[1].down()


def test_requests_and_answers_are_read_as_they_were_written() -> None:
    wanted = [Wanted(PARTITION, 7, 1 << 40, 6, -1), Wanted(PARTITION._replace(number=4), 0, 0, -1, 9)]
    request = ReplicaFetchRequest(3, DIRECTORIES[3], True, 250, 1 << 20, wanted, [PARTITION])
    assert decode_fetch(memoryview(encode_fetch(request))) == request
    ack = ReplicaAckRequest(3, DIRECTORIES[3], [Acked(PARTITION, 7, 1 << 41)])
    assert decode_ack(memoryview(encode_ack(ack))) == ack


def test_a_cut_request_is_refused_wherever_it_is_cut() -> None:
    body = encode_fetch(
        ReplicaFetchRequest(3, DIRECTORIES[3], False, 1, 1, [Wanted(PARTITION, 1, 2, 3, 4)], [PARTITION])
    )
    ack = encode_ack(ReplicaAckRequest(3, DIRECTORIES[3], [Acked(PARTITION, 1, 2)]))
    for decode, whole in ((decode_fetch, body), (decode_ack, ack)):
        for end in range(len(whole)):
            with pytest.raises(BrokerError):
                decode(memoryview(whole[:end]))


def test_a_batch_may_be_larger_than_what_a_follower_asks_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.elect(1)
    leader = world.nodes[1]
    large = bytearray(build_batch([Message(1, None, b"x" * 5000)]))
    leader.log.append([large], [PRINCIPAL])
    session = follower_of(leader)
    session.update(fetch_request(Wanted(PARTITION, 1, 0, -1, -1), starts_over=True), 0.0)
    (copied,) = session.answer(10)
    assert isinstance(copied.records, FileSlice)
    assert copied.records.length == len(large)
    leader.down()
