"""Members with an instance id: they restart without a rebalance, and nobody else may be them meanwhile."""

from __future__ import annotations

from millrace.errors import ErrorCode
from millrace.wire.group_messages import LeaveGroupRequest
from millrace_broker.groups.group import State
from tests.unit.groups.driving import REBALANCE_S, SESSION_S, Driven, Joiner, sync_all


def statics(driven: Driven, count: int) -> list[Joiner]:
    members = [driven.member(f"client{n}", instance=f"instance{n}") for n in range(count)]
    for member in members:
        assert member.join(needs_id=True) is None, "no id is given out first"
    driven.gathers()
    sync_all(members)
    return members


def restarted(member: Joiner) -> Joiner:
    return member.driven.member(member.name, instance=member.instance)


def test_a_static_member_restarts_without_a_rebalance(driven: Driven) -> None:
    members = statics(driven, 3)
    again = restarted(members[1])
    assert again.join() is None
    assert again.generation == 1
    assert again.member_id != members[1].member_id
    again.sync()
    assert again.syncs[-1].assignment == members[1].syncs[-1].assignment
    assert members[0].heartbeat() is ErrorCode.NONE
    assert driven.state is State.STABLE


def test_an_empty_instance_id_is_one_like_any_other_and_nobody_without_one_takes_its_place(
    driven: Driven,
) -> None:
    (member,) = driven.stable(1, instance="")
    other = driven.member("other")
    assert other.join() is None
    assert other.joins == [], "it waits for the next generation"
    assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    again = restarted(member)
    again.join()
    assert member.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_its_former_self_is_fenced(driven: Driven) -> None:
    members = statics(driven, 2)
    old = members[1]
    restarted(old).join()
    for code in (old.join(), old.sync(), old.heartbeat(), old.commits(), old.leave()):
        assert code is ErrorCode.FENCED_INSTANCE_ID


def test_its_former_self_is_fenced_while_it_waits(driven: Driven) -> None:
    members = statics(driven, 2)
    members[1].metadata = b"changed"
    members[1].join()
    restarted(members[1]).join()
    assert members[1].joins[-1].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_leader_that_restarts_is_not_told_that_it_leads(driven: Driven) -> None:
    """Or it would assign anew, and no other member would hear of it."""
    leader, member = statics(driven, 2)
    again = restarted(leader)
    again.join()
    assert not again.leads
    assert again.joins[-1].members == ()
    member.metadata = b"changed"
    member.join()
    again.join()
    assert again.leads, "but from the next generation on it does"


def test_a_leader_that_restarts_and_can_be_told_so_has_nothing_to_assign(driven: Driven) -> None:
    """KIP-814: it goes on to watch the topics of all members."""
    leader, member = statics(driven, 2)
    again = restarted(leader)
    again.join(may_skip=True)
    told = again.joins[-1]
    assert again.leads
    assert told.skip_assignment
    assert {one.member_id for one in told.members} == {again.member_id, member.member_id}
    assert driven.state is State.STABLE
    other = restarted(member)
    other.join(may_skip=True)
    assert (other.leads, other.joins[-1].skip_assignment, other.joins[-1].members) == (False, False, ())


def test_a_restart_between_join_and_sync_starts_over(driven: Driven) -> None:
    """The leader may have assigned to the old id already."""
    members = [driven.member(f"client{n}", instance=f"instance{n}") for n in range(2)]
    for member in members:
        member.join()
    driven.gathers()
    again = restarted(members[1])
    assert again.join() is None
    assert driven.state is State.PREPARING
    members[0].join()
    sync_all([members[0], again])
    assert again.generation == 2


def test_a_restart_with_another_assignor_rebalances(driven: Driven) -> None:
    (member,) = statics(driven, 1)
    again = restarted(member)
    again.protocols = ("sticky",)
    again.join()
    driven.time.passes(0)
    assert again.joins[-1].protocol_name == "sticky"
    assert again.generation == 2


def test_a_static_member_that_does_not_come_back_is_gone_with_its_session(driven: Driven) -> None:
    leader, gone = statics(driven, 2)
    for _ in range(3):
        driven.time.passes(SESSION_S / 2.5)
        leader.heartbeat()
    leader.join()
    assert leader.generation == 2
    assert gone.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_keeps_a_static_member_that_is_just_away(driven: Driven) -> None:
    """Its session has not ended: what it had stays with it."""
    leader = driven.member("client0", instance="instance0", rebalance_s=3.0)
    away = driven.member("client1", instance="instance1", rebalance_s=3.0)
    for member in (leader, away):
        member.join()
    driven.gathers()
    sync_all([leader, away])
    leader.join()
    driven.time.passes(3.0)
    assert leader.generation == 2
    assert {one.group_instance_id for one in leader.joins[-1].members} == {"instance0", "instance1"}
    leader.sync({away.member_id: b"kept"})
    again = restarted(away)
    again.join()
    again.sync()
    assert again.syncs[-1].assignment == b"kept"


def test_a_group_of_static_members_that_are_all_away_ends_with_their_sessions(driven: Driven) -> None:
    first, second = (driven.member(f"c{n}", instance=f"i{n}", rebalance_s=2.0) for n in range(2))
    first.join()
    second.join()
    driven.gathers()
    sync_all([first, second])
    first.join()
    first.goes_away()
    driven.time.passes(2.0)
    assert driven.state is State.PREPARING, "nobody has joined: it waits for their sessions"
    driven.time.passes(SESSION_S)
    assert driven.group.idle


def test_a_static_member_is_taken_out_by_its_instance_id(driven: Driven) -> None:
    leader, member = statics(driven, 2)
    assert (
        driven.group.leave(LeaveGroupRequest.Member(member_id="", group_instance_id="instance1"))
        is ErrorCode.NONE
    )
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    unknown = LeaveGroupRequest.Member(member_id="", group_instance_id="instance1")
    assert driven.group.leave(unknown) is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_id_belongs_to_one_member(driven: Driven) -> None:
    first, second = statics(driven, 2)
    thief = driven.member("thief", instance=first.instance, member_id=second.member_id, generation=1)
    assert thief.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert first.heartbeat() is ErrorCode.NONE


def test_static_and_dynamic_members_share_a_group(driven: Driven) -> None:
    static = driven.member("static", instance="one")
    dynamic = driven.member("dynamic")
    static.join()
    dynamic.join()
    driven.gathers()
    sync_all([static, dynamic])
    dynamic.leave()
    static.join()
    driven.time.passes(REBALANCE_S)
    assert static.generation == 2


def test_a_restarted_member_that_dies_again_is_gone_with_its_session(driven: Driven) -> None:
    (member,) = statics(driven, 1)
    again = restarted(member)
    again.join()
    driven.time.passes(SESSION_S)
    assert driven.group.idle


def test_a_restart_before_the_first_sync_leaves_no_trace_of_the_former_self(driven: Driven) -> None:
    leader = driven.member("leader")
    static = driven.member("static", instance="one")
    leader.join()
    static.join()
    driven.gathers()
    leader.sync({static.member_id: b"its"})
    again = restarted(static)
    again.join()
    again.sync()
    assert again.syncs[-1].assignment == b"its"
    for _ in range(20):
        driven.time.passes(SESSION_S / 2)
        assert (leader.heartbeat(), again.heartbeat()) == (ErrorCode.NONE, ErrorCode.NONE)


def test_a_new_static_member_whose_connection_closes_has_its_session_to_come_back(driven: Driven) -> None:
    (old,) = driven.stable(1)
    static = driven.member("static", instance="one")
    static.join()
    static.goes_away()
    old.join()
    driven.time.passes(SESSION_S / 2)
    old.heartbeat()
    assert old.generation == 1
    driven.time.passes(SESSION_S / 2)
    assert old.generation == 2


def test_a_leader_that_is_away_does_not_lead(driven: Driven) -> None:
    leader, member = (driven.member(f"c{n}", instance=f"i{n}", rebalance_s=3.0) for n in range(2))
    leader.join()
    member.join()
    driven.gathers()
    sync_all([leader, member])
    member.metadata = b"changed"
    member.join()
    driven.time.passes(3.0)
    assert member.leads
    assert len(member.joins[-1].members) == 2


def test_one_that_comes_back_while_all_others_are_away_does_not_wait_for_their_sessions(
    driven: Driven,
) -> None:
    first, second = (driven.member(f"c{n}", instance=f"i{n}", rebalance_s=2.0) for n in range(2))
    first.join()
    second.join()
    driven.gathers()
    sync_all([first, second])
    first.join()
    first.goes_away()
    driven.time.passes(2.5)
    second.join()
    driven.time.passes(1.5)
    assert second.generation == 2


def test_an_instance_that_left_is_unknown_not_fenced(driven: Driven) -> None:
    first, second = statics(driven, 2)
    first.leave()
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_is_counted_once(driven: Driven) -> None:
    (member,) = statics(driven, 1)
    before = driven.memory.used
    again = restarted(member)
    again.join()
    assert driven.memory.used == before


def test_an_id_that_was_given_to_a_dynamic_member_brings_no_instance_id(driven: Driven) -> None:
    (static,) = driven.stable(1, instance="i")
    other = driven.member()
    assert other.join(needs_id=True) is ErrorCode.MEMBER_ID_REQUIRED
    other.instance = "i"
    assert other.join() is ErrorCode.FENCED_INSTANCE_ID
    assert static.heartbeat() is ErrorCode.NONE
    assert static.leave() is ErrorCode.NONE
    other.instance = "j"
    assert other.join() is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_ask_for_no_time_get_some_and_are_not_waited_for_without_a_pause(driven: Driven) -> None:
    driven.stable(1, instance="i", rebalance_s=0.0)
    newcomer = driven.member(rebalance_s=0.0)
    newcomer.join()
    newcomer.goes_away()
    assert (driven.time.mailbox.seconds_to_next() or 0) > 0
    driven.time.passes(2 * SESSION_S)
    assert driven.state is State.EMPTY
