"""Each change of a partition's state: who may make it, and what it leaves for the next one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millrace.zookeeper.topic_state import NO_LEADER, PartitionState, Report
from millrace_broker.replication.state import (
    UNKNOWN_EPOCHS,
    depose,
    elect,
    expand,
    has_live_leader,
    may_lead,
    report,
    resign,
    shrink,
    unclean,
    with_minimum,
)

DIRECTORIES = {1: "a", 2: "b", 3: "c"}
LED = PartitionState(1, (1, 2, 3), DIRECTORIES, 7)


def test_an_in_sync_replica_elects_itself_in_a_new_epoch_with_who_lives_of_the_others() -> None:
    elected = elect(LED, 2, "b", {2: "b", 3: "c"}, 2)
    assert elected == replace(LED, leader=2, leader_epoch=8, isr={2: "b", 3: "c"})


def test_the_leader_before_is_out_even_if_it_still_looks_alive() -> None:
    elected = elect(LED, 2, "b", DIRECTORIES, 2)
    assert elected is not None
    assert elected.isr == {2: "b", 3: "c"}


def test_a_leader_that_restarted_keeps_the_others() -> None:
    elected = elect(LED, 1, "a", DIRECTORIES, 2)
    assert elected == replace(LED, leader_epoch=8)


def test_a_broker_with_another_directory_is_not_the_replica_that_the_state_names() -> None:
    assert elect(LED, 2, "new", {2: "new", 3: "c"}, 2) is None
    assert has_live_leader(LED, {1: "a"})
    assert not has_live_leader(LED, {1: "new"})
    elected = elect(LED, 3, "c", {2: "new", 3: "c"}, 1)
    assert elected is not None
    assert elected.isr == {3: "c"}


def test_who_is_removed_below_the_minimum_has_everything_committed_and_stays_eligible() -> None:
    one = shrink(LED, 1, 7, {3}, 2)
    assert one == replace(LED, isr={1: "a", 2: "b"})  # enough: from now on 3 may lack something
    two = shrink(one, 1, 7, {2}, 2)
    assert two == replace(LED, isr={1: "a"}, eligible={2: "b"})
    assert shrink(LED, 1, 7, {2, 3}, 2) == replace(LED, isr={1: "a"}, eligible={2: "b", 3: "c"})


def test_an_eligible_replica_leads_while_no_in_sync_one_lives() -> None:
    below = replace(LED, isr={1: "a"}, eligible={2: "b"})
    assert not may_lead(below, 2, "b", {1: "a", 2: "b"})
    assert elect(below, 2, "b", {2: "b", 3: "c"}, 2) == replace(
        below, leader=2, leader_epoch=8, isr={2: "b"}, eligible={1: "a"}
    )
    assert elect(below, 2, "b", {1: "new", 2: "b"}, 2) is not None  # an empty disk is not in its way
    assert elect(below, 3, "c", {3: "c"}, 2) is None


def test_a_leader_that_lacks_committed_messages_is_deposed_while_another_replica_counts() -> None:
    assert depose(LED, 1, 7, 2) == replace(LED, leader=NO_LEADER, isr={2: "b", 3: "c"})
    alone = replace(LED, isr={1: "a"}, eligible={2: "b"})
    assert depose(alone, 1, 7, 2) == replace(alone, leader=NO_LEADER, isr={2: "b"}, eligible={})
    assert depose(replace(LED, isr={1: "a"}), 1, 7, 2) is None, "an operator had it elected"
    assert depose(LED, 1, 6, 2) is None


def reported(*reports: Report) -> PartitionState:
    """A state of an older ZooKeeper, after these reports of brokers 1, 2, ..."""
    state = LED
    for broker, one in enumerate(reports, 1):
        changed = report(state, broker, one)
        assert changed is not None
        state = changed
    return state


def test_after_zookeeper_was_restored_the_furthest_log_leads_once_all_have_reported() -> None:
    two = reported(Report("a", 6, 500), Report("b", 9, 40))
    assert (two.leader, two.leader_epoch) == (NO_LEADER, 7 + UNKNOWN_EPOCHS)
    assert not any(may_lead(two, broker, at, DIRECTORIES) for broker, at in DIRECTORIES.items())
    three = reported(Report("a", 6, 500), Report("b", 9, 40), Report("c", 9, 30))
    assert [may_lead(three, broker, at, DIRECTORIES) for broker, at in DIRECTORIES.items()] == [
        False,
        True,
        False,
    ]
    elected = elect(three, 2, "b", DIRECTORIES, 2)
    assert elected == replace(LED, leader=2, leader_epoch=8 + UNKNOWN_EPOCHS, isr={2: "b"})


def test_replicas_that_reported_the_same_log_are_in_sync_with_the_one_that_leads() -> None:
    state = reported(Report("a", 9, 40), Report("b", 9, 40), Report("c", 9, 40))
    elected = elect(state, 2, "b", {1: "a", 2: "b", 3: "new"}, 2)
    assert elected is not None
    assert elected.isr == {1: "a", 2: "b"}


def test_a_report_of_a_directory_that_is_gone_is_replaced_before_anybody_leads() -> None:
    state = reported(Report("a", 9, 40), Report("b", 9, 30), Report("c", 9, 30))
    live = {1: "new", 2: "b", 3: "c"}
    assert not any(may_lead(state, broker, at, live) for broker, at in live.items())
    again = report(state, 1, Report("new", -1, 0))
    assert again is not None
    assert may_lead(again, 2, "b", live)
    assert report(again, 1, Report("new", -1, 0)) is None
    assert report(again, 4, Report("d", 10, 900)) is None, "no replica"


def test_an_operator_ends_the_wait_for_reports_with_an_epoch_above_those_of_silent_replicas() -> None:
    state = reported(Report("a", 9, 40))
    ended = unclean(state, 1, {1: "a"})
    assert ended == replace(LED, leader=NO_LEADER, leader_epoch=7 + UNKNOWN_EPOCHS, isr={1: "a"})
    assert may_lead(ended, 1, "a", {1: "a"})


logs = st.builds(Report, st.sampled_from("abc"), st.integers(-1, 3), st.integers(0, 3))


@given(st.lists(logs, min_size=3, max_size=3), st.permutations([1, 2, 3]))
def test_whatever_is_reported_in_whatever_order_who_may_lead_has_the_most(
    logs: list[Report], order: list[int]
) -> None:
    state, live = LED, {broker: one.directory for broker, one in enumerate(logs, 1)}
    for broker in order:
        assert not any(may_lead(state, *one, live) for one in live.items()) or not state.reports
        state = report(state, broker, logs[broker - 1]) or state
    leaders = [broker for broker, at in live.items() if may_lead(state, broker, at, live)]
    most = max(one[1:] for one in logs)
    assert leaders == [broker for broker, one in enumerate(logs, 1) if one[1:] == most]
    for broker in leaders:
        elected = elect(state, broker, live[broker], live, 2)
        assert elected is not None
        assert elected.leader_epoch > max(LED.leader_epoch, *(one.last_epoch for one in logs))
        assert (set(elected.isr), elected.reports) == (set(leaders), {})


def test_nobody_is_eligible_once_enough_are_in_again() -> None:
    below = replace(LED, isr={1: "a"}, eligible={2: "b"})
    assert expand(below, 1, 7, {3: "c"}, 3) == replace(below, isr={1: "a", 3: "c"})
    assert expand(below, 1, 7, {3: "c"}, 2) == replace(below, isr={1: "a", 3: "c"}, eligible={})
    assert with_minimum(below, 1).eligible == {}
    assert with_minimum(below, 3) == below


def test_a_broker_that_is_in_under_another_directory_goes_out_before_it_comes_in() -> None:
    assert expand(LED, 1, 7, {2: "new"}, 2) is None
    out = shrink(LED, 1, 7, {2}, 2)
    assert out is not None
    assert expand(out, 1, 7, {2: "new"}, 2) == replace(LED, isr={1: "a", 3: "c", 2: "new"})


def test_only_a_replica_comes_in() -> None:
    assert expand(replace(LED, isr={1: "a"}), 1, 7, {4: "d"}, 2) is None


def test_only_the_leader_of_the_epoch_changes_who_counts() -> None:
    for leader, epoch in ((2, 7), (1, 6), (1, 8)):
        assert shrink(LED, leader, epoch, {3}, 2) is None
        assert expand(replace(LED, isr={1: "a"}), leader, epoch, {2: "b"}, 2) is None
        assert resign(LED, leader, epoch, 2, is_whole=True) is None


def test_a_leader_does_not_remove_itself() -> None:
    assert shrink(LED, 1, 7, {1}, 2) is None


def test_a_leader_that_stops_goes_out_and_stays_eligible_if_its_disk_is_whole() -> None:
    assert resign(LED, 1, 7, 2, is_whole=True) == replace(LED, leader=NO_LEADER, isr={2: "b", 3: "c"})
    two = replace(LED, isr={1: "a", 2: "b"})
    assert resign(two, 1, 7, 2, is_whole=True) == replace(
        two, leader=NO_LEADER, isr={2: "b"}, eligible={1: "a"}
    )
    assert resign(two, 1, 7, 2, is_whole=False) == replace(two, leader=NO_LEADER, isr={2: "b"})


def test_the_last_in_sync_replica_stays_named_when_it_resigns() -> None:
    last = replace(LED, isr={1: "a"})
    assert resign(last, 1, 7, 1, is_whole=False) == replace(last, leader=NO_LEADER)


def test_the_last_in_sync_replica_gives_the_lead_to_eligible_ones() -> None:
    alone = replace(LED, isr={1: "a"}, eligible={2: "b"})
    failed = resign(alone, 1, 7, 2, is_whole=False)
    assert failed == replace(alone, leader=NO_LEADER, isr={2: "b"}, eligible={})
    assert may_lead(failed, 2, "b", DIRECTORIES), "though broker 1 lives, without a disk that takes a flush"
    assert not may_lead(failed, 1, "a", DIRECTORIES)
    stopped = resign(alone, 1, 7, 2, is_whole=True)
    assert stopped == replace(alone, leader=NO_LEADER, isr={2: "b"}, eligible={1: "a"})


def test_nobody_has_a_partition_with_one_replica_led_uncleanly() -> None:
    one = PartitionState(1, (1,), {1: ""}, 0)
    assert unclean(one, 1, {1: "a"}) is None
