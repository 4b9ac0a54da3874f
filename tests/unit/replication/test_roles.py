"""Decisions of one replica, step by step; whole histories are test_simulation's and `make sim`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, Report
from millrace_broker.replication.following import Following, ReplicaDiverged
from millrace_broker.replication.leadership import CLOSED_GRACE_S, MAX_UNITS, Leadership, Snapshot
from millrace_broker.replication.replica import CAMPAIGN_STEP_S, Replica
from millrace_broker.replication.state import UNKNOWN_EPOCHS
from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd
from tests.trials.sim.log import MemoryLog

LAG_S = 10.0
PREFER_AFTER_S = 30.0
LIVE = {1: "a", 2: "b", 3: "c"}
LED = PartitionState(1, (1, 2, 3), LIVE, 7)


def log_of(*units: tuple[int, int]) -> MemoryLog:
    """A flushed log with one unit of 10 bytes for each (epoch, number)."""
    log = MemoryLog()
    for epoch, number in units:
        log.write(epoch, [10], number)
    log.end_flush(log.begin_flush())
    return log


def write(log: MemoryLog, leading: Leadership, number: int) -> None:
    log.write(leading.epoch, [4, 6], number)
    leading.appended()
    log.end_flush(log.begin_flush())


def leader(
    log: MemoryLog, state: PartitionState = LED, minimum: int = 2, *, is_sure: bool = False
) -> Leadership:
    won = Snapshot(1, state, minimum)
    return Leadership(1, won, log, 0.0, lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S, is_sure=is_sure)


def test_a_leader_shows_nothing_before_all_in_sync_replicas_have_what_it_began_with() -> None:
    log = log_of((1, 1), (1, 2))
    leading = leader(log)
    assert (leading.start, leading.is_serving) == (20, False)
    leading.reported(2, "b", 20)
    leading.reported(3, "c", 19)
    assert not leading.is_serving
    assert leading.reported(3, "c", 20)
    assert (leading.is_serving, leading.committed) == (True, 20)


def test_a_commit_waits_for_the_slowest_disk_and_ends_with_a_unit() -> None:
    log = log_of((1, 1))
    leading = leader(log)
    write(log, leading, 2)
    write(log, leading, 4)
    leading.reported(2, "b", 30)
    assert leading.reported(3, "c", 24)  # in the middle of the last unit
    assert leading.committed == 20
    assert leading.reported(3, "c", 30)
    assert leading.committed == 30


def test_nothing_is_committed_below_the_minimum() -> None:
    log = log_of((1, 1))
    leading = leader(log, PartitionState(1, (1, 2, 3), {1: "a"}, 7))
    write(log, leading, 2)
    assert not leading.has_enough
    assert not leading.flushed()
    leading.observe(Snapshot(2, PartitionState(1, (1, 2, 3), {1: "a", 2: "b"}, 7), 2))
    assert leading.reported(2, "b", 20)


def test_a_removal_counts_once_it_is_written() -> None:
    log = log_of((1, 1))
    leading = leader(log)
    write(log, leading, 2)
    leading.reported(2, "b", 20)
    live = {1: "a", 2: "b"}
    proposal = leading.propose(live, 0.1)
    assert proposal is not None
    assert proposal.leaving == {3}
    assert leading.propose(live, 0.2) is None  # one at a time
    assert not leading.flushed()
    without = proposal.apply(leading.snapshot, 1, 7)
    assert without is not None
    assert leading.decided(Snapshot(2, without, 2))
    assert leading.committed == 20


def test_a_replica_joins_with_everything_committed_and_counts_from_its_proposal_on() -> None:
    log = log_of((1, 1))
    leading = leader(log, PartitionState(1, (1, 2, 3), {1: "a", 2: "b"}, 7))
    leading.reported(2, "b", 10)
    leading.reported(3, "c", 9)
    assert leading.propose(LIVE, 0.1) is None
    leading.reported(3, "c", 10)
    assert leading.propose({**LIVE, 3: "new"}, 0.2) is None  # the disk of that report is gone
    proposal = leading.propose(LIVE, 0.3)
    assert proposal is not None
    assert proposal.joining == {3: "c"}
    write(log, leading, 2)
    assert not leading.reported(2, "b", 20)
    assert leading.reported(3, "c", 20)


@pytest.mark.parametrize(("after", "leaving"), [(CLOSED_GRACE_S - 0.1, set()), (CLOSED_GRACE_S, {2})])
def test_a_closed_connection_has_a_second_to_come_back(after: float, leaving: set[int]) -> None:
    leading = leader(log_of((1, 1)))
    leading.closed(2, "b", 5.0)
    proposal = leading.propose(LIVE, 5.0 + after)
    assert (set() if proposal is None else proposal.leaving) == leaving


def test_a_replica_that_lacks_what_was_there_a_lag_ago_goes_out_and_an_idle_one_stays() -> None:
    log = log_of((1, 1))
    leading = leader(log)
    leading.reported(2, "b", 10)
    leading.reported(3, "c", 10)
    for second in range(60):
        assert leading.propose(LIVE, float(second)) is None
    write(log, leading, 2)
    leading.reported(2, "b", 20)
    proposals = {second: leading.propose(LIVE, float(second)) for second in range(60, 75)}
    proposed = {second: proposal.leaving for second, proposal in proposals.items() if proposal is not None}
    assert proposed == {70: {3}}


def test_a_late_replica_does_not_join_though_it_has_everything_committed() -> None:
    log = log_of((1, 1))
    leading = leader(log, PartitionState(1, (1, 2), {1: "a", 2: "b"}, 7))
    leading.reported(2, "b", 10)
    write(log, leading, 2)
    assert leading.propose(LIVE, 1.0) is None
    proposal = leading.propose(LIVE, 1.0 + LAG_S)
    assert proposal is not None
    assert proposal.leaving == {2}
    leading.decided(Snapshot(2, PartitionState(1, (1, 2), {1: "a"}, 7), 2))
    assert leading.committed == 10, "too few replicas are in sync to commit more"
    assert leading.propose(LIVE, 1.0 + LAG_S) is None
    leading.reported(2, "b", 20)
    proposal = leading.propose(LIVE, 1.0 + LAG_S)
    assert proposal is not None
    assert proposal.joining == {2: "b"}


def test_the_first_replica_leads_again_once_it_has_been_in_sync_for_a_while() -> None:
    log = log_of((1, 1))
    leading = leader(log, PartitionState(1, (2, 1, 3), {1: "a", 2: "b", 3: "c"}, 7))
    for broker in (2, 3):
        leading.reported(broker, LIVE[broker], 10)
    assert leading.propose(LIVE, 10.0) is None
    assert leading.propose({1: "a", 2: "new", 3: "c"}, 11.0) is not None, "it is gone"
    leading.decided(Snapshot(2, leading.snapshot.state, 2))
    assert leading.propose(LIVE, 12.0) is None, "it is back, and begins again"
    assert leading.propose(LIVE, 11.0 + PREFER_AFTER_S) is None
    proposal = leading.propose(LIVE, 12.0 + PREFER_AFTER_S)
    assert proposal is not None
    given = proposal.apply(leading.snapshot, 1, 7)
    assert given == replace(leading.snapshot.state, leader=NO_LEADER)
    led_since = Snapshot(3, replace(leading.snapshot.state, leader=3, leader_epoch=8), 2)
    assert proposal.apply(led_since, 1, 7) is None


def test_a_replica_that_was_moved_away_and_comes_back_is_not_counted_for_what_it_had() -> None:
    state = PartitionState(1, (1, 2, 3), {1: "a", 2: "b"}, 7)
    leading = leader(log_of((1, 1)), state, is_sure=True)
    leading.reported(3, "c", 10)
    leading.observe(Snapshot(2, replace(state, replicas=(1, 2)), 2))
    leading.observe(Snapshot(3, state, 2))
    assert leading.propose(LIVE, 0.1) is None
    leading.connected(3, "c", 0, NO_EPOCH)
    assert leading.propose(LIVE, 0.2) is None
    leading.reported(3, "c", 10)
    assert leading.propose(LIVE, 0.3) is not None


def test_a_replica_whose_log_is_shorter_than_it_was_is_not_counted_for_what_is_gone() -> None:
    state = PartitionState(1, (1, 2, 3), {1: "a", 2: "b"}, 7)
    leading = leader(log_of((1, 1)), state, is_sure=True)
    leading.reported(3, "c", 10)
    leading.connected(3, "c", 4, 1)  # its broker came back, and its disk has lost a file
    assert leading.propose(LIVE, 0.1) is None
    leading.reported(3, "c", 10)
    leading.connected(3, "c", 10, 1)
    assert leading.propose(LIVE, 0.2) is not None


def test_units_are_forgotten_before_they_are_too_many_and_the_last_one_stays() -> None:
    log = log_of((1, 1))
    leading = leader(log)
    for number in range(3 * MAX_UNITS):
        write(log, leading, 2 * number + 2)
    leading.reported(2, "b", log.end)
    assert leading.reported(3, "c", log.end)
    assert leading.committed == log.end


def test_a_follower_is_told_where_its_log_leaves_the_leaders() -> None:
    leading = leader(log_of((0, 1), (2, 2), (2, 3)))
    assert leading.check(30, 2) is None
    assert leading.check(20, 2) is None
    assert leading.check(40, 2) == EpochEnd(2, 30)
    assert leading.check(20, 1) == EpochEnd(0, 10)
    assert leading.check(0, NO_EPOCH) is None
    assert leading.check(50, NO_EPOCH) == EpochEnd(NO_EPOCH, 0)


def test_a_follower_that_ends_before_the_leaders_log_starts_begins_anew_there() -> None:
    log = log_of((0, 1), (2, 2), (2, 3))
    log.drop_below(10)
    leading = leader(log)
    for position, epoch in ((0, NO_EPOCH), (5, 0), (10, 0)):
        assert leading.check(position, epoch) == EpochEnd(NO_EPOCH, 10)
    follower = Following(1, 7, log_of((0, 1)))
    assert follower.cut_at(EpochEnd(NO_EPOCH, 10), -1) is None


def test_a_follower_cuts_where_both_logs_end_their_part_of_an_epoch() -> None:
    follower = Following(1, 7, log_of((0, 1), (1, 2), (3, 3)))
    assert follower.cut_at(EpochEnd(2, 25), -1) == 20
    assert follower.cut_at(EpochEnd(1, 15), -1) == 15
    assert follower.flushed == -1


def test_a_follower_never_begins_anew_before_its_own_start() -> None:
    log = log_of((0, 1), (2, 2), (3, 3))
    log.drop_below(20)
    follower = Following(1, 7, log)
    assert follower.cut_at(EpochEnd(2, 20), -1) is None  # its own part of epoch 2 is dropped
    log.reset(max(log.start, 0), log.first_state)
    assert leader(log_of((0, 1), (2, 2), (5, 4))).check(*follower.position) is None


def test_a_follower_stops_rather_than_cut_what_is_committed() -> None:
    log = log_of((0, 1), (1, 2))
    follower = Following(1, 7, log)
    log.committed = follower.accepted(20)
    assert (log.committed, follower.flushed) == (20, 20)
    for leader_committed in (-1, 10):
        with pytest.raises(ReplicaDiverged, match="ends at 10, below the committed 20") as raised:
            follower.cut_at(EpochEnd(0, 10), leader_committed)
        assert raised.value.leader_serves == (leader_committed == 10)


@pytest.mark.parametrize("leader_committed", [-1, 10])
def test_an_empty_follower_does_not_begin_anew_over_and_over_at_a_leader_that_ends_before_its_start(
    leader_committed: int,
) -> None:
    log = MemoryLog()
    log.reset(30, 0)  # retention deleted everything, also at the former leader
    follower = Following(1, 7, log)
    diverging = leader(log_of((0, 1))).check(*follower.position)
    assert diverging is not None
    with pytest.raises(ReplicaDiverged, match="ends before 30, where this log begins") as raised:
        follower.cut_at(diverging, leader_committed)
    assert raised.value.leader_serves == (leader_committed == 10)


def test_a_leader_whose_log_is_an_older_copy_resigns_when_a_replica_that_counts_has_more() -> None:
    leading = leader(log_of((1, 1)))
    leading.connected(3, "c", 20, 1)
    proposal = leading.propose(LIVE, 0.1)
    assert proposal is not None
    resigned = proposal.apply(leading.snapshot, 1, 7)
    assert resigned == replace(LED, leader=NO_LEADER, isr={2: "b", 3: "c"})
    leading.reported(2, "b", 10)
    leading.reported(3, "c", 10)
    assert not leading.is_serving, "what the other one has may be committed"


@pytest.mark.parametrize(
    ("broker", "directory", "position", "last_epoch", "is_sure"),
    [
        (3, "c", 10, 1, False),  # has as much
        (3, "c", 30, 0, False),  # more of an epoch that a later leader has cut
        (3, "new", 20, 1, False),  # a directory that does not count
        (3, "c", 20, 1, True),  # the leader has had everything since its process started
    ],
)
def test_a_leader_does_not_resign_for_what_it_need_not_have(
    broker: int, directory: str, position: int, last_epoch: int, is_sure: bool
) -> None:
    leading = leader(log_of((1, 1)), is_sure=is_sure)
    leading.connected(broker, directory, position, last_epoch)
    assert leading.propose(LIVE, 0.1) is None


def test_an_unsure_leader_admits_nobody_before_those_that_count_have_shown_their_logs() -> None:
    leading = leader(log_of((1, 1)), PartitionState(1, (1, 2, 3), {1: "a", 2: "b"}, 7))
    leading.connected(3, "c", 10, 1)
    leading.reported(3, "c", 10)
    leading.closed(2, "b", 0.1)  # a connection of before
    assert leading.propose(LIVE, 0.1) is None, "broker 2 may have more"
    leading.connected(2, "b", 10, 1)
    proposal = leading.propose(LIVE, 0.2)
    assert proposal is not None
    assert proposal.joining == {3: "c"}


def test_nobody_waits_for_the_log_of_a_replica_that_is_away() -> None:
    leading = leader(log_of((1, 1)), PartitionState(1, (1, 2, 3), {1: "a"}, 7, eligible={2: "b"}))
    leading.connected(3, "c", 10, 1)
    leading.reported(3, "c", 10)
    proposal = leading.propose({1: "a", 3: "c"}, 0.1)
    assert proposal is not None
    assert proposal.joining == {3: "c"}


def test_a_leader_that_serves_does_not_resign_for_what_was_never_committed() -> None:
    leading = leader(log_of((1, 1)))
    leading.reported(2, "b", 10)
    leading.reported(3, "c", 10)
    leading.connected(3, "c", 20, 1)
    assert not leading.is_outrun


def test_a_replica_that_had_everything_since_its_process_started_is_sure_of_its_log() -> None:
    log = log_of((1, 1))
    replica = Replica(2, "b", log, lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.observe(Snapshot(1, LED, 2), 0.0)
    assert replica.following is not None
    replica.following.accepted(10)
    replica.see_brokers({2: "b", 3: "c"}, 0.1)
    replica.campaign()
    leading = replica.won(Snapshot(2, replace(LED, leader=2, leader_epoch=8, isr={2: "b", 3: "c"}), 2), 0.2)
    assert leading is not None
    leading.connected(3, "c", 20, 1)
    assert not leading.is_outrun


def test_a_replica_reports_when_its_log_has_a_newer_epoch_than_zookeeper_knows() -> None:
    replica = Replica(3, "c", log_of((7, 1), (8, 2)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.see_brokers({3: "c"}, 0.0)
    replica.observe(Snapshot(1, LED, 2), 0.0)
    assert (replica.owes_report, replica.following, replica.due_at) == (True, None, None)
    reported = replica.with_report(LED)
    assert reported is not None
    assert (reported.leader, reported.reports) == (NO_LEADER, {3: Report("c", last_epoch=8, end=20)})
    replica.observe(Snapshot(2, reported, 2), 0.1)
    assert not replica.owes_report
    assert replica.due_at is None, "brokers 1 and 2 have not reported"


def test_a_replica_reports_when_its_broker_has_found_zookeeper_restored_and_then_once() -> None:
    replica = Replica(1, "a", log_of((7, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.see_brokers(LIVE, 0.0)
    replica.observe(Snapshot(5, LED, 2), 0.0)
    assert [replica.due_at] == [0.0]
    replica.forget_zookeeper()
    replica.observe(Snapshot(3, LED, 2), 0.0)  # a restored node counts its versions from an older one on
    assert (replica.owes_report, replica.due_at) == (True, None)
    reported = replica.with_report(LED)
    assert reported is not None
    replica.observe(Snapshot(4, reported, 2), 0.1)
    replica.observe(Snapshot(5, replace(LED, leader=2, leader_epoch=9_000), 2), 0.2)
    assert not replica.owes_report
    assert replica.following is not None


def test_a_replica_that_notices_late_reports_no_more_where_a_leader_was_chosen_since() -> None:
    replica = Replica(3, "c", log_of((7, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.forget_zookeeper()
    replica.see_brokers({**LIVE, 3: "c"}, 0.0)
    # By the others' reports, or by hand.
    chosen = replace(LED, leader_epoch=LED.leader_epoch + UNKNOWN_EPOCHS + 1)
    replica.observe(Snapshot(9, chosen, 2), 0.0)
    assert not replica.owes_report
    assert not replica.has_seen_newer
    assert replica.following is not None


def test_what_a_follower_knows_as_committed_ends_with_a_unit() -> None:
    log = log_of((0, 1))
    log.append(log.read(0)[0]._replace(start=10, end=20, before=1, after=2, is_whole=False))
    assert Following(1, 7, log).accepted(30) == 10


def test_whoever_changes_a_replica_its_life_is_woken() -> None:
    woken: list[None] = []
    log = log_of((7, 1))
    replica = Replica(
        1, "a", log, lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S, changed=lambda: woken.append(None)
    )

    def wakes(event: Callable[[], object]) -> bool:
        woken.clear()
        event()
        return bool(woken)

    led = replace(LED, leader_epoch=8, isr={1: "a", 2: "b"})
    assert wakes(lambda: replica.see_brokers(LIVE, 0.0))
    assert wakes(lambda: replica.observe(Snapshot(1, LED, 2), 0.0))
    assert not wakes(lambda: replica.observe(Snapshot(2, LED, 2), 0.0)), "it is about other partitions"
    replica.campaign()
    leading = replica.won(Snapshot(3, led, 2), 0.0)
    assert leading is not None
    assert wakes(lambda: leading.reported(2, "b", log.end)), "it may serve"
    assert not wakes(lambda: leading.reported(2, "b", log.end))
    assert wakes(lambda: replica.see_epoch(9))
    assert wakes(replica.forget_zookeeper)


def test_a_leader_that_is_outrun_wakes_the_life_of_its_replica() -> None:
    woken: list[None] = []
    leading = Leadership(
        1,
        Snapshot(1, LED, 2),
        log_of((1, 1)),
        0.0,
        lag_s=LAG_S,
        prefer_after_s=PREFER_AFTER_S,
        is_sure=False,
        changed=lambda: woken.append(None),
    )
    leading.connected(3, "c", 20, 1)
    assert leading.is_outrun
    assert woken


def test_replicas_campaign_one_after_the_other() -> None:
    state = Snapshot(1, PartitionState(1, (1, 2, 3), LIVE, 7), 2)
    replicas = [
        Replica(broker, at, log_of((1, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
        for broker, at in LIVE.items()
    ]
    for replica in replicas[1:]:
        replica.observe(state, 0.0)
        replica.see_brokers(LIVE, 0.0)
        assert replica.due_at is None
        replica.see_brokers({2: "b", 3: "c"}, 100.0)
    assert [replica.due_at for replica in replicas[1:]] == [100.0, 100.0 + CAMPAIGN_STEP_S]


def test_a_replica_leads_by_an_answer_it_heard_and_by_nothing_else() -> None:
    replica = Replica(1, "a", log_of((1, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.see_brokers(LIVE, 0.0)
    replica.observe(Snapshot(4, LED, 2), 0.0)  # from its life before
    assert replica.leading is None
    assert replica.due_at == 0.0
    replica.campaign()
    election = replica.election()
    assert election is not None
    version, elected = election
    assert (version, elected.leader_epoch) == (4, 8)
    replica.not_won(0.1)  # its answer was lost
    replica.observe(Snapshot(5, elected, 2), 0.2)
    assert replica.leading is None
    assert replica.due_at == 0.1
    replica.campaign()
    version, elected = replica.election() or pytest.fail("it may lead")
    leading = replica.won(Snapshot(6, elected, 2), 0.3)
    assert leading is not None
    assert leading.epoch == 9


def test_who_won_when_another_has_won_since_follows() -> None:
    replica = Replica(1, "a", log_of((1, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    replica.observe(Snapshot(4, PartitionState(NO_LEADER, (1, 2, 3), LIVE, 7), 2), 0.0)
    replica.campaign()
    _, elected = replica.election() or pytest.fail("it may lead")
    replica.observe(Snapshot(6, PartitionState(2, (1, 2, 3), LIVE, 9), 2), 0.1)
    assert replica.won(Snapshot(5, elected, 2), 0.2) is None
    assert replica.following is not None
    assert (replica.following.leader, replica.following.epoch) == (2, 9)


def test_a_leader_stops_when_it_hears_of_a_newer_one() -> None:
    replica = Replica(1, "a", log_of((1, 1)), lag_s=LAG_S, prefer_after_s=PREFER_AFTER_S)
    newer = Snapshot(9, PartitionState(2, (1, 2, 3), LIVE, 9), 2)
    for hear in (partial(replica.see_epoch, 9), partial(replica.observe, newer, 1.0)):
        replica.snapshot = Snapshot(4, PartitionState(NO_LEADER, (1, 2, 3), LIVE, 7), 2)
        replica.campaign()
        _, elected = replica.election() or pytest.fail("it may lead")
        assert replica.won(Snapshot(5, elected, 2), 0.2) is not None
        replica.see_epoch(8)
        assert replica.leading is not None
        hear()
        assert replica.leading is None
