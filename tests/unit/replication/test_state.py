"""Each change of a partition's state: who may make it, and what it leaves for the next one."""

from __future__ import annotations

from dataclasses import replace

from millrace.coordination.state import NO_LEADER, PartitionState
from millrace.replication.state import (
    elect,
    expand,
    has_live_leader,
    may_lead,
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
