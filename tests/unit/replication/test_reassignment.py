"""Replicas that are moved: whoever counts has everything committed, whatever happens on the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, Replicas
from millrace_broker.replication.state import (
    assign,
    elect,
    expand,
    finish,
    has_live_leader,
    prefer,
    resign,
    shrink,
    unclean,
)

LIVE = {1: "a", 2: "b", 3: "c", 4: "d"}
LED = PartitionState(1, (1, 2), {1: "a", 2: "b"}, 7)


def assigned(state: PartitionState, *target: int, minimum: int = 1) -> PartitionState:
    changed = assign(state, target, LIVE, minimum)
    assert changed is not None
    return changed


def test_all_replicas_stay_until_those_that_are_added_are_in_sync() -> None:
    moving = assigned(LED, 3, 2)
    assert moving == replace(LED, replicas=(3, 2, 1), adding=(3,), removing=(1,))
    assert finish(moving, 1, 7, 1) is None
    joined = expand(moving, 1, 7, {3: "c"}, 1)
    assert joined is not None
    assert finish(joined, 2, 7, 1) is None, "it does not lead"
    assert finish(joined, 1, 6, 1) is None, "another epoch"
    assert finish(joined, 1, 7, 1) == PartitionState(NO_LEADER, (3, 2), {2: "b", 3: "c"}, 7)


def test_a_leader_that_stays_leads_on_in_its_epoch() -> None:
    moving = assigned(LED, 1, 3)
    joined = expand(moving, 1, 7, {3: "c"}, 1)
    assert joined is not None
    assert finish(joined, 1, 7, 1) == PartitionState(1, (1, 3), {1: "a", 3: "c"}, 7)


def test_a_cancelled_reassignment_ends_without_those_it_added() -> None:
    back = assigned(assigned(LED, 3, 4), 1, 2)
    assert back == replace(LED, replicas=(1, 2, 3, 4), adding=(3, 4), removing=(3, 4))
    assert finish(back, 1, 7, 1) == LED


def test_a_newer_target_replaces_the_one_before() -> None:
    moving = assigned(assigned(LED, 3, 2), 4, 2)
    assert moving == replace(LED, replicas=(4, 2, 3, 1), adding=(4, 3), removing=(3, 1))
    joined = expand(moving, 1, 7, {4: "d"}, 1)
    assert joined is not None
    assert finish(joined, 1, 7, 1) == PartitionState(NO_LEADER, (4, 2), {2: "b", 4: "d"}, 7)


def test_a_cancellation_goes_back_to_the_first_replicas_whatever_targets_there_were() -> None:
    moving = assigned(assigned(LED, 3, 4), 4, 2)
    before = [broker for broker in moving.replicas if broker not in moving.adding]
    assert sorted(before) == [1, 2]
    back = assigned(moving, 1, 2)
    assert finish(back, 1, 7, 1) == LED


def test_an_order_that_changes_alone_is_there_at_once() -> None:
    assert assigned(LED, 2, 1) == replace(LED, replicas=(2, 1))


def test_nobody_goes_who_is_needed_for_the_minimum() -> None:
    alone = replace(LED, replicas=(1, 2, 3), isr={1: "a", 3: "c"})
    going = assigned(alone, 1, 2, minimum=2)
    assert finish(going, 1, 7, 2) is None
    joined = expand(going, 1, 7, {2: "b"}, 2)
    assert joined is not None
    assert finish(joined, 1, 7, 2) == LED


def test_nobody_goes_who_may_lead_while_too_few_are_in_sync() -> None:
    alone = replace(LED, replicas=(1, 2, 3), isr={1: "a"}, eligible={3: "c"})
    going = assigned(alone, 1, 2, minimum=2)
    assert finish(going, 1, 7, 2) is None, "if the disk of 1 was lost next, everything would be"
    joined = expand(going, 1, 7, {2: "b"}, 2)
    assert joined is not None
    assert finish(joined, 1, 7, 2) == LED


def test_one_replica_becomes_several_and_several_one() -> None:
    single = PartitionState(1, (1,), {1: ""}, 0)
    assert assign(single, (1, 2), {2: "b"}, 1) is None, "its directory is not known"
    assert assigned(single, 1) == single
    moving = assigned(single, 2, 3)
    assert moving == PartitionState(NO_LEADER, (2, 3, 1), {1: "a"}, 0, adding=(2, 3), removing=(1,))
    led = elect(moving, 1, "a", LIVE, 1)
    assert led is not None
    joined = expand(led, 1, 1, {2: "b", 3: "c"}, 1)
    assert joined is not None
    several = finish(joined, 1, 1, 1)
    assert several == PartitionState(NO_LEADER, (2, 3), {2: "b", 3: "c"}, 1)
    led = elect(several, 2, "b", LIVE, 1)
    assert led is not None
    one = finish(assigned(led, 3), 2, 2, 1)
    assert one == PartitionState(3, (3,), {3: "c"}, 3), "it leads, in an epoch of its own"


def test_the_first_replica_gets_the_lead_if_it_is_alive_and_in_sync() -> None:
    state = replace(LED, leader=2)
    assert prefer(state, LIVE) == replace(LED, leader=NO_LEADER), "who led stays in sync"
    assert prefer(LED, LIVE) is None
    assert prefer(state, {1: "new", 2: "b"}) is None
    assert prefer(replace(state, isr={2: "b"}), LIVE) is None


def test_an_unclean_election_is_for_partitions_that_nobody_can_lead_without_a_loss() -> None:
    lost = replace(LED, replicas=(1, 2, 3), isr={1: "a"}, eligible={2: "b"})
    assert unclean(lost, 3, {3: "c", 2: "b"}) is None, "2 is eligible"
    assert unclean(lost, 3, {3: "c", 1: "a"}) is None
    assert unclean(lost, 4, LIVE) is None
    assert unclean(lost, 3, {2: "new"}) is None, "3 does not live"
    chosen = unclean(lost, 3, {1: "new", 3: "c"})
    assert chosen == replace(lost, leader=NO_LEADER, isr={3: "c"}, eligible={})
    assert elect(chosen, 3, "c", {3: "c"}, 2) is not None


class Moves(RuleBasedStateMachine):
    """One partition of five brokers, and which of them have everything that was ever committed."""

    def __init__(self) -> None:
        super().__init__()
        self.minimum = 2
        self.directories = {broker: f"{broker}" for broker in range(1, 6)}
        self.state = PartitionState(NO_LEADER, (1, 2, 3), {b: f"{b}" for b in (1, 2, 3)}, 0)
        self.target: Replicas = (1, 2, 3)
        self.complete = {1, 2, 3}
        self.disk_failed = False

    def take(self, state: PartitionState | None) -> None:
        self.state = self.state if state is None else state

    @rule(order=st.permutations(range(1, 6)), count=st.integers(2, 4))
    def moves(self, order: list[int], count: int) -> None:
        self.target = tuple(order[:count])
        self.take(assign(self.state, self.target, self.directories, self.minimum))

    @rule(broker=st.integers(1, 5), live=st.sets(st.integers(1, 5)))
    def campaigns(self, broker: int, live: set[int]) -> None:
        alive = {one: self.directories[one] for one in live | {broker}}
        self.take(elect(self.state, broker, self.directories[broker], alive, self.minimum))

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(gone=st.sets(st.integers(1, 5)))
    def loses(self, gone: set[int]) -> None:
        leader, epoch = self.state.leader, self.state.leader_epoch
        self.take(shrink(self.state, leader, epoch, gone, self.minimum))

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(broker=st.integers(1, 5))
    def gains(self, broker: int) -> None:
        """Let a replica that has copied everything join."""
        leader, epoch = self.state.leader, self.state.leader_epoch
        joined = expand(self.state, leader, epoch, {broker: self.directories[broker]}, self.minimum)
        if joined is not None:
            self.state = joined
            self.complete.add(broker)

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(is_whole=st.booleans())
    def resigns(self, is_whole: bool) -> None:
        leader, epoch = self.state.leader, self.state.leader_epoch
        self.disk_failed |= not is_whole
        self.take(resign(self.state, leader, epoch, self.minimum, is_whole=is_whole))

    @rule()
    def commits(self) -> None:
        if has_live_leader(self.state, self.directories) and len(self.state.isr) >= self.minimum:
            self.complete = set(self.state.isr)

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule()
    def finishes(self) -> None:
        before = self.state
        done = finish(before, before.leader, before.leader_epoch, self.minimum)
        if done is not None:
            self.state = done
            assert (done.adding, done.removing, done.replicas) == ((), (), self.target)
            assert len(done.isr) >= min(self.minimum, len(before.isr))

    @invariant()
    def who_counts_has_everything_and_is_a_replica(self) -> None:
        state = self.state
        counting = {*state.isr, *state.eligible}
        assert state.isr
        assert counting <= self.complete
        assert counting <= set(state.replicas)
        assert len(counting) >= self.minimum or self.disk_failed
        assert not set(state.isr) & set(state.eligible)
        assert state.leader in (NO_LEADER, *state.isr)
        assert len(set(state.replicas)) == len(state.replicas)
        assert {*state.adding, *state.removing} <= set(state.replicas)
        assert state.target == self.target


TestMoves = Moves.TestCase
