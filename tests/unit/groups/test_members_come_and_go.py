"""Ids, sessions, leaving, committing: when somebody is a member, and what those hear who are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode
from millrace.wire.group_messages import JoinGroupRequest, LeaveGroupRequest
from millrace_broker.groups.group import State
from millrace_broker.groups.members import NEW_MEMBER_S
from millrace_broker.groups.timing import Memory
from tests.unit.groups.driving import NEVER_S, SESSION_S, Driven, new_group, sync_all

# Ids


def test_a_member_is_given_an_id_first_and_joins_with_it(driven: Driven) -> None:
    member = driven.member("librdkafka")
    assert member.join(needs_id=True) is ErrorCode.MEMBER_ID_REQUIRED
    assert member.member_id.startswith("librdkafka-")
    assert not driven.group.idle
    given = member.member_id
    assert member.join(needs_id=True) is None
    driven.gathers()
    assert member.joins[-1].member_id == given


def test_an_old_client_joins_without_that(driven: Driven) -> None:
    member = driven.member()
    assert member.join() is None
    driven.gathers()
    assert member.member_id.startswith("client-")


def test_an_id_that_nobody_comes_back_with_is_forgotten(driven: Driven) -> None:
    member = driven.member()
    member.join(needs_id=True)
    driven.time.passes(SESSION_S)
    assert driven.group.idle
    assert member.join(needs_id=True) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_members_that_were_given_an_id(driven: Driven) -> None:
    (member,) = driven.stable(1)
    new = driven.member("new")
    new.join(needs_id=True)
    member.metadata = b"changed"
    member.join()
    assert driven.state is State.PREPARING
    new.join(needs_id=True)
    assert member.generation == new.generation == 2


def test_a_rebalance_goes_on_when_an_id_is_given_back(driven: Driven) -> None:
    (member,) = driven.stable(1)
    new = driven.member("new")
    new.join(needs_id=True)
    member.metadata = b"changed"
    member.join()
    assert new.leave() is ErrorCode.NONE
    assert member.generation == 2


def test_a_rebalance_goes_on_when_nobody_comes_back_with_an_id(driven: Driven) -> None:
    (member,) = driven.stable(1)
    driven.member("new").join(needs_id=True)
    member.metadata = b"changed"
    member.join()
    driven.time.passes(SESSION_S)
    assert member.generation == 2


def test_a_stranger_is_told_to_begin_anew(driven: Driven) -> None:
    driven.stable(1)
    stranger = driven.member("stranger", member_id="client-of-another-life", generation=1)
    for code in (
        stranger.join(),
        stranger.sync(),
        stranger.heartbeat(),
        stranger.leave(),
        stranger.commits(),
    ):
        assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_a_former_generation_is_told_so(driven: Driven) -> None:
    members = driven.stable(2)
    members[0].join()
    members[1].join()
    members[1].generation = 1
    for code in (members[1].sync(), members[1].heartbeat(), members[1].commits()):
        assert code is ErrorCode.ILLEGAL_GENERATION


# Sessions


@pytest.mark.parametrize("seconds", [0.001, 5.999, 1800.001, 1e6])
def test_a_session_timeout_outside_the_limits_is_refused(driven: Driven, seconds: float) -> None:
    assert driven.member(session_s=seconds).join() is ErrorCode.INVALID_SESSION_TIMEOUT
    assert driven.group.idle


def test_what_clients_ask_for_by_themselves_is_within_the_limits(driven: Driven) -> None:
    for default in (6.0, 10.0, 45.0):  # of old Kafka, aiokafka, and of librdkafka and Java
        assert driven.member(session_s=default).join() is None


def test_a_member_stays_as_long_as_it_is_heard_of(driven: Driven) -> None:
    leader, member = driven.stable(2)
    for number in range(20):
        driven.time.passes(SESSION_S * 0.9)
        assert leader.heartbeat() is ErrorCode.NONE
        assert (member.heartbeat() if number % 2 else member.commits()) is ErrorCode.NONE


def test_a_member_that_is_not_heard_of_is_left_behind(driven: Driven) -> None:
    leader, silent = driven.stable(2)
    driven.time.passes(SESSION_S * 0.6)
    leader.heartbeat()
    driven.time.passes(SESSION_S * 0.4)
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert leader.generation == 2


def test_asking_again_is_being_heard_of(driven: Driven) -> None:
    leader, member = driven.stable(2)
    for _ in range(3):
        driven.time.passes(SESSION_S * 0.9)
        leader.sync()
        member.join()
    assert driven.group.state is State.STABLE


def test_a_group_whose_members_all_fall_silent_is_empty(driven: Driven) -> None:
    driven.stable(3)
    driven.time.passes(SESSION_S)
    assert driven.group.idle
    assert driven.memory.used == driven_empty_size()


def test_a_member_that_waits_needs_no_heartbeats(driven: Driven) -> None:
    leader, waiting = driven.stable(2)
    waiting.metadata = b"changed"
    waiting.join()
    for _ in range(5):
        driven.time.passes(SESSION_S * 0.9)
        leader.heartbeat()
    leader.join()
    assert waiting.generation == 2
    waiting.sync()
    for _ in range(5):
        driven.time.passes(SESSION_S * 0.9)
        leader.heartbeat()
    leader.sync({waiting.member_id: b"mine"})
    assert waiting.syncs[-1].assignment == b"mine"
    driven.time.passes(SESSION_S)
    assert driven.group.idle, "and once it is answered its session counts again"


def test_a_static_member_that_waited_has_a_session_again_when_a_rebalance_answers_it(driven: Driven) -> None:
    leader, member = driven.joined(2)
    held = driven.member("static", instance="one")
    held.join()
    leader.join()
    member.join()
    held.sync()
    for _ in range(3):
        driven.time.passes(SESSION_S * 0.7)
        leader.heartbeat()
        member.heartbeat()
    member.leave()
    leader.join()
    for _ in range(2):
        driven.time.passes(SESSION_S * 0.7)
    assert leader.generation == 3, "the static member that came not back is gone with its session"


def test_a_new_member_that_waits_too_long_is_let_go(driven: Driven) -> None:
    old, _ = driven.stable(2, rebalance_s=10 * NEW_MEMBER_S)
    new = driven.member("new")
    new.join()
    for _ in range(int(NEW_MEMBER_S / SESSION_S) + 1):
        old.heartbeat()
        driven.time.passes(SESSION_S * 0.9)
        old.heartbeat()
        driven.time.passes(SESSION_S * 0.1)
    assert new.joins[-1].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_whose_connection_closes_is_gone_at_once(driven: Driven) -> None:
    (old,) = driven.stable(1)
    new = driven.member("new")
    new.join()
    new.goes_away()
    old.join()
    assert old.generation == 2
    assert len(old.joins[-1].members) == 1


def test_a_known_member_whose_connection_closes_may_come_back_within_its_session(driven: Driven) -> None:
    first, second = driven.stable(2)
    second.metadata = b"changed"
    second.join()
    second.goes_away()
    first.join()
    assert driven.state is State.PREPARING, "it is not counted as joined"
    driven.time.passes(SESSION_S / 2)
    second.join()
    assert first.generation == second.generation == 2
    second.sync()
    second.goes_away()
    driven.time.passes(SESSION_S)
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_connection_closes_after_long_waiting_is_not_kept_for_ever(driven: Driven) -> None:
    leader, member = driven.joined(2)
    member.sync()
    for _ in range(3):
        driven.time.passes(SESSION_S / 2)
        leader.heartbeat()
    member.goes_away()
    for _ in range(2):
        driven.time.passes(SESSION_S / 2)
        leader.heartbeat()
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


# Leaving


def test_a_member_that_leaves_makes_the_others_rebalance_at_once(driven: Driven) -> None:
    leader, member = driven.stable(2)
    assert leader.leave() is ErrorCode.NONE
    assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    assert member.leads
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_is_answered(driven: Driven) -> None:
    _, member = driven.stable(2)
    member.metadata = b"changed"
    member.join()
    member.leave()
    assert member.joins[-1].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered(driven: Driven) -> None:
    _, member = driven.joined(2)
    member.sync()
    member.leave()
    assert member.syncs[-1].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_leave_before_they_ask_for_anything_are_not_missed(driven: Driven) -> None:
    for member in driven.joined(3):
        member.leave()
    driven.time.passes(NEVER_S)
    assert driven.group.idle


def test_the_last_member_that_leaves_leaves_an_empty_group(driven: Driven) -> None:
    members = driven.stable(3)
    for member in members:
        member.leave()
    assert driven.group.idle
    assert driven.group.state is State.EMPTY


def test_a_rebalance_ends_when_who_has_not_joined_leaves(driven: Driven) -> None:
    first, second, third = driven.stable(3)
    first.join()
    second.join()
    third.leave()
    assert first.generation == second.generation == 2


# Committing


def test_who_is_no_member_commits_only_while_there_are_no_members(driven: Driven) -> None:
    check = driven.group.check_commit
    assert check("", None, -1) is ErrorCode.NONE
    (member,) = driven.stable(1)
    assert check("", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(member.member_id, None, -1) is ErrorCode.ILLEGAL_GENERATION
    member.leave()
    assert check("", None, -1) is ErrorCode.NONE
    assert check("somebody", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_assigns_partitions_itself_may_have_an_instance_id(driven: Driven) -> None:
    # librdkafka sends what it is configured with, and the id it had in the group before it left.
    assert driven.group.check_commit("", "instance", -1) is ErrorCode.NONE
    assert driven.group.check_commit("former", "instance", -1) is ErrorCode.NONE
    driven.stable(1)
    assert driven.group.check_commit("", "instance", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_no_commit_between_join_and_sync(driven: Driven) -> None:
    leader, member = driven.joined(2)
    assert leader.commits() is ErrorCode.REBALANCE_IN_PROGRESS
    sync_all([leader, member])
    assert leader.commits() is ErrorCode.NONE


# Limits


@pytest.fixture
def small() -> Iterator[Driven]:
    yield from new_group(BrokerConfig(broker_id=1, cluster="test", group_max_size=2))


def test_a_full_group_takes_no_more_members_but_lets_known_ones_rejoin(small: Driven) -> None:
    members = small.stable(2)
    assert small.member("third").join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert small.member("third").join(needs_id=True) is ErrorCode.GROUP_MAX_SIZE_REACHED
    members[0].join()
    members[1].join()
    assert members[0].generation == 2


def test_ids_that_were_given_out_count_as_members(small: Driven) -> None:
    for _ in range(2):
        assert small.member().join(needs_id=True) is ErrorCode.MEMBER_ID_REQUIRED
    assert small.member().join(needs_id=True) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_that_tell_too_much_are_refused() -> None:
    for driven in new_group(memory=Memory(20_000)):
        assert driven.member("a", metadata=b"x" * 15_000).join() is None
        assert driven.member("b", metadata=b"x" * 15_000).join() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driven.member("c").join() is None


def test_protocols_without_names_and_metadata_are_counted(driven: Driven) -> None:
    before = driven.memory.used
    driven.member("a", protocols=[""] * 1000, metadata=b"").join()
    assert driven.memory.used - before > 100_000


def test_names_that_clients_give_themselves_are_counted(driven: Driven) -> None:
    before = driven.memory.used
    driven.member("x" * 30_000).join(needs_id=True)
    assert driven.memory.used - before > 30_000
    before = driven.memory.used
    driven.member("y" * 30_000, instance="z" * 30_000).join()
    assert driven.memory.used - before > 3 * 30_000, "and the member's id is made of one of them"


def names_looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every name of a protocol that is read from now on."""
    looked_at: list[str] = []

    def name(protocol: JoinGroupRequest.Protocol) -> str:
        looked_at.append(protocol[0])  # type: ignore[index]  # a tuple
        return looked_at[-1]

    monkeypatch.setattr(JoinGroupRequest.Protocol, "name", property(name))
    return looked_at


def test_an_assignment_takes_no_look_at_protocols(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, member = driven.joined(2)
    looked_at = names_looked_at(monkeypatch)
    sync_all([leader, member])
    assert looked_at == []


def test_whether_a_member_may_join_is_found_without_a_look_at_the_protocols_of_the_others(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.stable(20, protocols=[f"p{number}" for number in range(1000)])
    looked_at = names_looked_at(monkeypatch)
    assert driven.member("new", protocols=["unknown"]).join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(looked_at) < 10


def test_leaders_that_assign_too_much_are_refused() -> None:
    for driven in new_group(memory=Memory(20_000)):
        (leader,) = driven.joined(1)
        assert leader.sync({leader.member_id: b"x" * 20_000}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert leader.sync({leader.member_id: b"x"}) is None


@pytest.mark.parametrize("instance", [None, "static"])
def test_members_go_on_when_other_groups_have_taken_all_the_memory(instance: str | None) -> None:
    for driven in new_group(memory=Memory(20_000)):
        (member,) = driven.stable(1, metadata=b"x" * 3_000, instance=instance)
        driven.memory.add(20_001 - driven.memory.used)
        if instance is not None:
            member.member_id = ""  # it was restarted
        for _ in range(2):
            assert member.join() is None
            assert member.sync({member.member_id: f"{member.member_id} 1".encode()}) is None
        member.metadata = b"x" * 3_001
        assert member.join() is ErrorCode.COORDINATOR_NOT_AVAILABLE, "which it may try again"


def test_what_members_tell_anew_and_are_assigned_is_counted(driven: Driven) -> None:
    leader, member = driven.joined(2)
    before = driven.memory.used
    leader.sync({leader.member_id: b"x" * 1000, member.member_id: b"x" * 500})
    assert driven.memory.used == before + 1500
    member.metadata = b"y" * 3000
    member.join()
    assert driven.memory.used == before + 1500 + 3000 - len(b"topics")


def driven_empty_size() -> int:
    """Return the memory that a group without members counts for."""
    for driven in new_group():
        return driven.memory.used
    raise AssertionError


def test_nothing_is_counted_for_members_that_have_gone(driven: Driven) -> None:
    for _ in range(3):
        members = driven.stable(3)
        driven.member("new").join(needs_id=True)
        driven.member("static", instance="i").join()
        for member in members:
            member.leave()
        driven.group.leave(LeaveGroupRequest.Member(member_id="", group_instance_id="i"))
        driven.time.passes(SESSION_S)
    assert driven.memory.used == driven_empty_size()
