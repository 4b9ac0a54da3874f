"""Agreement of members on a generation: which waits for which, which leads, what each receives."""

from __future__ import annotations

import pytest

from millrace.errors import ErrorCode
from millrace_broker.groups.group import State
from tests.unit.groups.driving import DELAY_S, REBALANCE_S, SESSION_S, Driven, sync_all


def test_a_new_group_has_no_members(driven: Driven) -> None:
    assert driven.state is State.EMPTY
    assert driven.group.idle


def test_the_first_members_share_one_generation_though_they_come_one_after_the_other(driven: Driven) -> None:
    members = [driven.member(f"client{number}") for number in range(4)]
    for member in members:
        assert member.join() is None
        assert driven.state is State.PREPARING
        driven.time.passes(DELAY_S * 0.9)
    assert not any(member.joins for member in members)
    driven.gathers()
    assert {member.generation for member in members} == {1}
    assert driven.state is State.COMPLETING


def test_newcomers_prolong_the_gathering_no_longer_than_the_rebalance_timeout(driven: Driven) -> None:
    first = driven.member("first", rebalance_s=2.0)
    first.join()
    for number in range(6):
        driven.member(f"late{number}", rebalance_s=2.0).join()
        driven.time.passes(0.4)
    assert len(first.joins) == 1
    assert first.generation == 1


def test_only_the_leader_is_told_the_members(driven: Driven) -> None:
    leader, *others = driven.joined(3)
    assert leader.leads
    told = leader.joins[-1].members
    assert [one.member_id for one in told] == [leader.member_id, *(m.member_id for m in others)]
    assert {one.metadata for one in told} == {b"topics"}
    for other in others:
        assert other.joins[-1].members == ()
        assert other.joins[-1].leader == leader.member_id


def test_members_get_what_the_leader_assigns_and_whom_it_leaves_out_gets_nothing(driven: Driven) -> None:
    leader, first, second = driven.joined(3)
    assert first.sync() is None
    assert first.syncs == [], "waits for the leader"
    leader.sync({first.member_id: b"one", leader.member_id: b"zero", "stranger": b"?"})
    second.sync()
    assert [m.syncs[-1].assignment for m in (leader, first, second)] == [b"zero", b"one", b""]
    assert driven.group.describe().group_state is State.STABLE


def test_a_stable_member_may_ask_for_its_assignment_again(driven: Driven) -> None:
    _, member = driven.stable(2)
    member.sync()
    assert member.syncs[-1] == member.syncs[-2]


def test_a_repeated_sync_releases_the_one_that_waits(driven: Driven) -> None:
    leader, member = driven.joined(2)
    member.sync()
    member.sync()
    assert [one.error_code for one in member.syncs] == [ErrorCode.REBALANCE_IN_PROGRESS]
    leader.sync({member.member_id: b"mine"})
    assert member.syncs[-1].assignment == b"mine"


def test_a_repeated_join_releases_the_one_that_waits(driven: Driven) -> None:
    members = driven.stable(2)
    members[1].metadata = b"changed"
    members[1].join()
    assert members[1].join() is ErrorCode.REBALANCE_IN_PROGRESS, "the answer to the first"
    members[0].join()
    assert members[1].joins[-1].generation_id == 2


def test_a_newcomer_makes_a_stable_group_rebalance_and_heartbeats_say_so(driven: Driven) -> None:
    old = driven.stable(2)
    new = driven.member("new")
    assert new.join() is None
    assert driven.state is State.PREPARING
    for member in old:
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert member.commits() is ErrorCode.NONE, "of what it did in the old generation"
        assert member.sync() is ErrorCode.REBALANCE_IN_PROGRESS
        member.join()
    assert {member.generation for member in [*old, new]} == {2}
    sync_all([*old, new])
    assert new.syncs[-1].assignment == f"{new.member_id} 2".encode()


def test_members_that_do_not_join_in_time_are_left_behind(driven: Driven) -> None:
    leader, lazy = driven.stable(2, rebalance_s=5.0)
    driven.time.passes(4.0)
    new = driven.member("new", rebalance_s=5.0)
    new.join()
    leader.join()
    lazy.heartbeat()
    driven.time.passes(4.9)
    lazy.heartbeat()
    assert new.joins == []
    driven.time.passes(0.1)
    assert new.generation == 2
    assert {one.member_id for one in leader.joins[-1].members} == {leader.member_id, new.member_id}
    assert lazy.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_leads_when_the_leader_does_not_join(driven: Driven) -> None:
    _, member = driven.stable(2, rebalance_s=5.0)
    new = driven.member("new", rebalance_s=5.0)
    new.join()
    member.join()
    driven.time.passes(5.0)
    assert member.leads
    assert len(member.joins[-1].members) == 2


def test_a_group_nobody_of_which_joins_in_time_is_empty(driven: Driven) -> None:
    first, second = driven.stable(2, rebalance_s=3.0)
    first.join()
    first.goes_away()
    driven.time.passes(3.0)
    assert driven.group.idle
    for member in (first, second):
        assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_fails_between_join_and_sync_is_replaced(driven: Driven) -> None:
    leader, *others = driven.joined(3)
    for member in others:
        member.sync()
    driven.time.passes(SESSION_S)
    assert driven.state is State.PREPARING
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    for member in others:
        assert member.syncs[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
        member.join()
    sync_all(others)
    assert driven.group.describe().group_state is State.STABLE


def test_a_leader_that_lives_but_never_assigns_is_replaced_after_the_rebalance_timeout(
    driven: Driven,
) -> None:
    leader, member = driven.joined(2, rebalance_s=20.0)
    member.sync()
    for _ in range(5):
        assert leader.heartbeat() is ErrorCode.NONE
        driven.time.passes(4.0)
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.syncs[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    assert member.leads


def test_a_member_that_never_asks_for_its_assignment_is_left_behind(driven: Driven) -> None:
    leader, silent = driven.joined(2, rebalance_s=20.0)
    leader.sync({})
    for _ in range(5):
        for member in (leader, silent):
            assert member.heartbeat() is ErrorCode.NONE
        driven.time.passes(4.0)
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_missed_the_answer_gets_the_same_generation_again(driven: Driven) -> None:
    leader, member = driven.joined(2)
    member.join()
    assert member.joins[-1] == member.joins[-2]
    leader.join()
    assert leader.joins[-1] == leader.joins[-2]
    assert len(leader.joins[-1].members) == 2
    sync_all([leader, member])
    member.join()
    assert member.joins[-1].generation_id == 1
    assert driven.state is State.STABLE


def test_a_leader_that_joins_again_makes_the_group_rebalance(driven: Driven) -> None:
    leader, member = driven.stable(2)
    leader.join()
    assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_tells_something_new_makes_the_group_rebalance(driven: Driven) -> None:
    leader, member = driven.stable(2)
    member.metadata = b"owns nothing any more"
    member.join()
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert leader.joins[-1].members[1].metadata == b"owns nothing any more"


def test_a_member_that_tells_something_new_while_others_wait_for_assignments_starts_over(
    driven: Driven,
) -> None:
    leader, member = driven.joined(2)
    member.sync()
    leader.metadata = b"new"
    leader.join()
    assert member.syncs[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert driven.state is State.PREPARING


def test_the_protocol_most_members_prefer_is_taken_out_of_those_all_know(driven: Driven) -> None:
    told = [("sticky", "range", "own"), ("range", "sticky"), ("range", "sticky")]
    members = [driven.member(f"client{n}", protocols=protocols) for n, protocols in enumerate(told)]
    for member in members:
        member.join()
    driven.gathers()
    assert {member.joins[-1].protocol_name for member in members} == {"range"}


def test_an_upgrade_to_another_assignor_takes_it_when_all_members_know_it(driven: Driven) -> None:
    """As Kafka describes for cooperative-sticky: first offer both, then only the new one."""
    members = driven.stable(2)
    for member in members:
        member.protocols = ("cooperative-sticky", "range")
        member.join()
    assert {member.joins[-1].protocol_name for member in members} == {"cooperative-sticky"}


@pytest.mark.parametrize(
    ("protocols", "protocol_type"),
    [((), "consumer"), (("range",), ""), (("range",), "connect"), (("roundrobin",), "consumer")],
)
def test_members_without_a_protocol_in_common_are_refused(
    driven: Driven, protocols: tuple[str, ...], protocol_type: str
) -> None:
    members = driven.stable(2)
    odd = driven.member("odd", protocols=protocols, protocol_type=protocol_type)
    assert odd.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driven.state is State.STABLE
    assert members[0].heartbeat() is ErrorCode.NONE


def test_an_empty_group_may_change_its_protocol_type(driven: Driven) -> None:
    (member,) = driven.stable(1)
    member.leave()
    other = driven.member("connect", protocol_type="connect", protocols=("default",))
    other.join()
    driven.gathers()
    assert driven.group.describe().protocol_type == "connect"


def test_a_generation_number_is_never_used_twice(driven: Driven) -> None:
    (member,) = driven.stable(1)
    seen = [member.generation]
    for _ in range(3):
        member.leave()
        (member,) = driven.stable(1)
        seen.append(member.generation)
    assert seen == sorted(set(seen))


def test_a_description_shows_what_members_told_and_got_while_stable(driven: Driven) -> None:
    leader, member = driven.stable(2)
    stable = driven.group.describe()
    assert (stable.group_state, stable.protocol_type) == (State.STABLE, "consumer")
    assert stable.protocol_data == "range"
    assert [one.member_id for one in stable.members] == [leader.member_id, member.member_id]
    assert stable.members[1].member_assignment == f"{member.member_id} 1".encode()
    assert stable.members[1].client_id == "client1"
    member.leave()
    gathering = driven.group.describe()
    assert (gathering.group_state, gathering.protocol_data) == (State.PREPARING, "")
    assert gathering.members[0].member_assignment == b""


def test_a_dropped_group_sends_everybody_to_look_for_another_coordinator(driven: Driven) -> None:
    leader, member, waiting = driven.joined(3)
    driven.member("expected").join(needs_id=True)
    member.sync()
    waiting.metadata = b"changed"
    waiting.join()
    driven.group.drop(ErrorCode.NOT_COORDINATOR)
    assert member.syncs[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.joins[-1].error_code == ErrorCode.NOT_COORDINATOR
    for code in (leader.heartbeat(), leader.commits(), leader.leave(), leader.sync(), leader.join()):
        assert code is ErrorCode.NOT_COORDINATOR
    assert driven.memory.used == 0
    driven.time.passes(10 * REBALANCE_S)
    assert driven.state is State.DEAD
