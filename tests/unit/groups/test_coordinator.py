"""Coordinators of groups: which broker it is, how it takes a group over, gives it up, and is fenced."""

from __future__ import annotations

import dataclasses

import pytest

from millrace.errors import ErrorCode
from millrace.wire.group_messages import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest
from millrace_broker.coordination.groups import GroupKind, StreamsMember
from millrace_broker.groups import ClientName, Group, State, holding
from millrace_broker.groups.holding import FIRST_TIDY_S, IDLE_S, LONG_IDLE_S, SWEEP_S, TIDY_S, coordinator_of
from millrace_broker.groups.work import MAX_QUEUED, WAIT_S
from tests.unit.groups.coordinating import Answers, Broker, Cluster, logged_bugs, name_for
from tests.unit.groups.registry import Entry, MemoryRegistry

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
MINE, THEIRS = name_for(1), name_for(2)
SESSION_S = 30.0
"""Session timeout of a member that `Broker.stable` makes."""
RETENTION_S = 7 * 24 * 3600.0


# The choice


def test_the_choice_is_spread_and_changes_hands_only_with_the_broker_that_comes_or_goes() -> None:
    names = [f"group{n}" for n in range(2000)]
    three = {name: coordinator_of(name, [3, 1, 2]) for name in names}
    assert min(list(three.values()).count(broker) for broker in (1, 2, 3)) > 550
    two = {name: coordinator_of(name, [1, 2]) for name in names}
    assert all(two[name] == three[name] for name in names if three[name] != 3)
    assert coordinator_of("x", []) is None


def test_all_brokers_name_the_same_coordinator(one: Broker, two: Broker) -> None:
    for name in (MINE, THEIRS, "any other"):
        assert one.find(name) == two.find(name)
    assert one.find(MINE) == 1


def test_the_holder_stays_coordinator_when_the_choice_would_be_another(
    one: Broker, two: Broker, cluster: Cluster
) -> None:
    addresses = cluster.brokers
    cluster.brokers = {1: addresses[1]}
    one.use(THEIRS)
    cluster.brokers = addresses
    assert one.find(THEIRS) == two.find(THEIRS) == 1
    assert two.use(THEIRS) is NOT_COORDINATOR
    assert isinstance(one.use(THEIRS), Group)


def test_a_holder_that_is_dead_must_first_lose_its_session(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    one.use(MINE)
    cluster.brokers = {2: cluster.brokers[2]}
    assert two.find(MINE) is NOT_AVAILABLE
    assert two.use(MINE) is NOT_COORDINATOR
    registry.session_ends(1)
    assert two.find(MINE) == 2
    assert isinstance(two.use(MINE), Group)


def test_only_the_chosen_broker_takes_a_group_over(one: Broker, registry: MemoryRegistry) -> None:
    assert one.use(THEIRS) is NOT_COORDINATOR
    assert registry.entries == {}


def test_a_group_needs_a_name_of_reasonable_length(one: Broker) -> None:
    for name in ("", "x" * 1001):
        for answer in (one.find(name), one.use(name), one.look_at(name), one.delete(name), one.offsets(name)):
            assert answer is ErrorCode.INVALID_GROUP_ID
        assert one.commit(name) == {("t", 0): ErrorCode.INVALID_GROUP_ID}


def test_requests_that_come_during_a_take_over_share_it(one: Broker, registry: MemoryRegistry) -> None:
    registry.may_go_on.clear()
    answers = Answers()
    for _ in range(3):
        one.groups.use(MINE, answers, answers)
    registry.may_go_on.set()
    one.until("three answers", lambda: len(answers.heard) == 3)
    assert len(set(map(id, answers.heard))) == 1


def test_a_take_over_that_takes_long_is_answered_in_time_and_used_when_it_succeeds(
    one: Broker, registry: MemoryRegistry
) -> None:
    registry.may_go_on.clear()
    answers = Answers()
    one.groups.use(MINE, answers, answers)
    one.passes(WAIT_S - 0.5)
    assert answers.heard == []
    one.passes(0.5)
    assert answers.heard == [NOT_AVAILABLE]
    registry.may_go_on.set()
    one.until("it is held", lambda: one.groups.held(MINE))
    assert len(answers.heard) == 1


def test_a_bug_in_one_clients_answer_is_logged_once_and_costs_the_others_none(
    one: Broker, registry: MemoryRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(_: Group) -> None:
        raise RuntimeError("a bug")

    registry.may_go_on.clear()
    answers, failed = Answers(), Answers()
    one.groups.use(MINE, answers, answers)
    one.groups.use(MINE, wrong, failed)
    one.groups.use(MINE, answers, answers)
    registry.may_go_on.set()
    one.until("all are answered", lambda: len(answers.heard) == 2 and failed.heard)
    assert all(isinstance(each, Group) for each in answers.heard)
    assert failed.heard == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert logged_bugs(caplog) == 1


def test_a_bug_in_a_take_over_answers_all_who_wait_and_the_next_one_may_succeed(
    one: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers()
    with monkeypatch.context() as patched:
        patched.setattr("millrace_broker.groups.holding.Commits", None)
        for _ in range(3):
            one.groups.use(MINE, answers, answers)
        one.until("all are answered", lambda: len(answers.heard) == 3)
    assert answers.heard == [ErrorCode.UNKNOWN_SERVER_ERROR] * 3
    assert logged_bugs(caplog) == 1
    assert isinstance(one.use(MINE), Group)


def test_a_group_that_is_given_up_before_the_answer_of_its_take_over_is_refused(
    one: Broker, registry: MemoryRegistry
) -> None:
    answers = Answers()
    for _ in range(2):
        one.groups.use(MINE, lambda _: one.groups.delete_groups([MINE], lambda _: None), answers)
    one.until("the second is refused", lambda: answers.heard)
    assert answers.heard == [NOT_AVAILABLE]


def test_a_streams_group_is_refused_to_classic_members(one: Broker, registry: MemoryRegistry) -> None:
    registry.entries[MINE] = Entry(GroupKind.STREAMS)
    assert one.use(MINE) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert one.commit(MINE, member_id="a") == {("t", 0): ErrorCode.INCONSISTENT_GROUP_PROTOCOL}


def test_a_streams_group_is_put_somewhere_else_only_while_it_has_no_consumers(
    one: Broker, registry: MemoryRegistry
) -> None:
    entry = registry.entries[MINE] = Entry(GroupKind.STREAMS)
    assert one.commit(MINE, 3) == {("t", 0): NONE}
    entry.members["c"] = StreamsMember(topics={}, host="h")
    assert one.commit(MINE, 4) == {("t", 0): ErrorCode.NON_EMPTY_GROUP}
    assert entry.offsets["t", 0].offset == 3


# Giving up


def test_a_group_that_never_commits_leaves_nothing_behind(one: Broker, registry: MemoryRegistry) -> None:
    one.use(MINE)
    assert MINE in registry.entries
    one.passes(IDLE_S + 3)
    one.until("it is gone", lambda: MINE not in registry.entries)
    assert one.groups.held(MINE) is None


def test_a_group_that_commits_without_members_is_taken_over_once(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.commit(MINE)
    group = one.groups.held(MINE)
    for offset in range(4):
        one.passes(IDLE_S + 20)
        assert one.groups.held(MINE) is group
        assert one.commit(MINE, offset) == {("t", 0): NONE}


def test_a_take_over_that_took_too_long_is_there_when_its_client_asks_again(
    one: Broker, registry: MemoryRegistry
) -> None:
    registry.may_go_on.clear()
    answers = Answers()
    one.groups.use(MINE, answers, answers)
    one.passes(WAIT_S + 1)
    assert answers.heard == [NOT_AVAILABLE]
    registry.may_go_on.set()
    one.until("it is taken over", lambda: one.groups.held(MINE))
    group = one.groups.held(MINE)
    one.passes(IDLE_S + 60)
    assert one.use(MINE) is group
    one.passes(IDLE_S + 3)
    one.until("it is given up after its use", lambda: one.groups.held(MINE) is None)


def test_of_many_groups_that_only_commit_none_stays_long(
    one: Broker, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "MANY", 3)
    names = [name_for(1, number) for number in range(6)]
    for name in names:
        one.commit(name)
    one.passes(IDLE_S + 3)
    one.until("few are held", lambda: sum(one.groups.held(name) is not None for name in names) <= 3)


def test_old_offsets_of_a_group_that_goes_on_to_commit_without_members_expire(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.commit(MINE)
    offsets = registry.entries[MINE].offsets
    offsets["gone", 0] = dataclasses.replace(offsets["t", 0], time_ms=0)
    one.wall_s = 5.0 + RETENTION_S + 60
    one.commit(MINE, 8)
    for _ in range(int(TIDY_S / (LONG_IDLE_S / 2))):
        one.commit(MINE, 9)
        one.passes(LONG_IDLE_S / 2)
    one.until("only the used one is left", lambda: list(registry.entries[MINE].offsets) == [("t", 0)])


def test_a_group_with_offsets_is_kept_without_a_coordinator(one: Broker, registry: MemoryRegistry) -> None:
    one.commit(MINE)
    one.passes(LONG_IDLE_S + 3)
    one.until("nobody coordinates it", lambda: registry.entries[MINE].coordinator is None)
    assert registry.entries[MINE].offsets


def test_a_group_with_members_is_kept(one: Broker) -> None:
    group, _ = one.join(MINE)
    one.passes(IDLE_S + 5)
    assert one.groups.held(MINE) is group
    assert len(group.members) == 1


def test_what_a_killed_coordinator_left_of_groups_without_offsets_is_deleted_by_whose_share_it_is(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.passes(FIRST_TIDY_S - 5)
    kept = [name_for(1, number) for number in (1, 2, 3)]
    one.commit(kept[0])
    one.join(kept[1])
    registry.entries[kept[2]] = Entry(GroupKind.CLASSIC, coordinator=2)
    for name in (MINE, THEIRS):
        registry.entries[name] = Entry(GroupKind.CLASSIC)
    streams = name_for(1, 4)
    registry.entries[streams] = Entry(GroupKind.STREAMS)
    one.passes(5)
    one.until("ours is gone", lambda: MINE not in registry.entries)
    assert sorted(registry.entries) == sorted([*kept, THEIRS, streams])


def test_offsets_of_a_group_without_members_expire_after_the_retention(
    one: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    late = name_for(1, 1)
    one.commit(MINE)
    one.wall_s += TIDY_S
    one.commit(late)
    one.passes(LONG_IDLE_S + 3)
    one.until("nobody coordinates them", lambda: {e.coordinator for e in registry.entries.values()} == {None})
    one.wall_s = 5.0 + RETENTION_S - 1
    one.passes(TIDY_S)
    assert sorted(registry.entries) == sorted([MINE, late])
    one.wall_s += 2
    cluster.zookeeper_s = one.wall_s - 2
    one.passes(TIDY_S)
    assert sorted(registry.entries) == sorted([MINE, late]), "a broker's clock alone says nothing"
    cluster.zookeeper_s += 2
    one.passes(TIDY_S)
    one.until("the older one is gone", lambda: [*registry.entries] == [late])


def test_offsets_of_a_group_with_members_are_kept_and_count_as_used(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.commit(MINE)
    one.stable(MINE)
    one.wall_s += 2 * RETENTION_S
    used = one.groups.held(MINE)
    assert used is not None
    for member in used.members:
        member.session.cancel()
    one.passes(2 * TIDY_S)
    one.until("kept", lambda: registry.entries[MINE].kept)
    assert registry.entries[MINE].offsets


def test_a_coordinator_that_gives_a_group_up_says_when_its_last_member_left(
    one: Broker, registry: MemoryRegistry
) -> None:
    commits_only = name_for(1, 1)
    one.commit(commits_only)
    group, member = one.stable(MINE)
    one.commit(MINE, **member)
    group.leave(LeaveGroupRequest.Member(member_id=member["member_id"]))
    one.passes(LONG_IDLE_S + 3)
    one.until("nobody coordinates them", lambda: {e.coordinator for e in registry.entries.values()} == {None})
    assert {name: entry.kept for name, entry in registry.entries.items()} == {MINE: 1, commits_only: 0}


def test_a_group_that_is_deleted_while_it_is_taken_over_is_claimed_again(
    one: Broker, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[str] = []
    claim = registry.claim

    def claimed_too_early(group: str, kind: GroupKind) -> None:
        claim(group, kind)
        claims.append(group)
        if len(claims) == 1:
            del registry.entries[group]

    monkeypatch.setattr(registry, "claim", claimed_too_early)
    assert isinstance(one.use(MINE), Group)
    assert len(claims) == 2


def test_a_group_whose_node_was_left_over_here_is_taken_up_again_whatever_the_choice_is_now(
    one: Broker, two: Broker, registry: MemoryRegistry
) -> None:
    registry.entries[THEIRS] = Entry(GroupKind.CLASSIC, coordinator=1)
    assert one.find(THEIRS) == two.find(THEIRS) == 1
    assert two.use(THEIRS) is NOT_COORDINATOR
    assert isinstance(one.use(THEIRS), Group)


def test_more_groups_than_may_be_asked_about_at_once_are_given_up_in_turn(
    one: Broker, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        one.use(name_for(1, number))
    monkeypatch.setattr("millrace_broker.groups.work.MAX_QUEUED", 5)
    one.passes(IDLE_S)

    def gone() -> bool:
        one.passes(SWEEP_S)
        return not registry.entries

    one.until("nothing is left of them", gone)


def test_a_broker_that_stops_gives_its_groups_up(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    one.commit(MINE)
    group, heard = one.join(MINE)
    one.groups.close()
    assert group.state is State.DEAD
    cluster.brokers = {2: cluster.brokers[2]}
    assert two.find(MINE) == 2
    assert two.offsets(MINE)["t", 0].offset == 7
    assert heard[-1].error_code == NONE


# Fencing


def test_a_coordinator_that_was_replaced_drops_the_group_at_its_next_commit(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    group, member = one.stable(MINE)
    registry.session_ends(1)
    cluster.brokers = {2: cluster.brokers[2]}
    two.use(MINE)
    assert one.commit(MINE, **member) == {("t", 0): NOT_COORDINATOR}
    assert registry.entries[MINE].offsets == {}
    assert group.state is State.DEAD
    assert one.use(MINE) is NOT_COORDINATOR


def test_a_coordinator_that_was_replaced_notices_it_when_zookeeper_is_back(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    group, _ = one.stable(MINE)
    registry.session_ends(1)
    cluster.brokers = {2: cluster.brokers[2]}
    two.use(MINE)
    one.groups.check()
    one.until("the group is dropped", lambda: group.state is State.DEAD)


def test_an_offset_is_not_written_by_a_coordinator_that_was_replaced(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    one.commit(MINE, 1)
    registry.session_ends(1)
    cluster.brokers = {2: cluster.brokers[2]}
    two.commit(MINE, 2)
    assert one.commit(MINE, 3) == {("t", 0): NOT_COORDINATOR}
    assert registry.entries[MINE].offsets["t", 0].offset == 2
    assert one.groups.held(MINE) is None


def test_a_coordinator_that_nobody_replaced_keeps_its_members_over_a_lost_session(
    one: Broker, registry: MemoryRegistry
) -> None:
    group, (joined,) = one.join(MINE)
    registry.session_ends(1)
    one.groups.check()
    one.until("it coordinates again", lambda: registry.entries[MINE].coordinator == 1)
    one.passes(0.5)
    assert group.heartbeat(joined.member_id, None, joined.generation_id) is NONE
    assert one.groups.held(MINE) is group


def test_a_check_without_zookeeper_drops_nothing(one: Broker, registry: MemoryRegistry) -> None:
    group, _ = one.join(MINE)
    registry.away = True
    one.groups.check()
    one.passes(1)
    assert one.groups.held(MINE) is group


def test_a_coordinator_that_could_not_ask_whether_it_still_is_asks_again(
    one: Broker, registry: MemoryRegistry
) -> None:
    group, _ = one.join(MINE)
    registry.session_ends(1)
    registry.away = True
    one.groups.check()
    one.until("it has asked", lambda: registry.refused)
    registry.away = False

    def coordinates() -> bool:
        one.passes(SWEEP_S)
        return registry.entries[MINE].coordinator == 1

    one.until("it coordinates again", coordinates)
    assert one.groups.held(MINE) is group


def test_a_coordinator_drops_a_group_that_another_has_coordinated_in_between(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    group, member = one.stable(MINE)
    assert one.commit(MINE, 1, **member) == {("t", 0): NONE}
    registry.session_ends(1)
    addresses, cluster.brokers = cluster.brokers, {2: cluster.brokers[2]}
    assert two.commit(MINE, 9) == {("t", 0): NONE}
    registry.session_ends(2)
    cluster.brokers = addresses
    one.groups.check()
    one.until("its members are sent away", lambda: group.state is State.DEAD)
    assert one.commit(MINE, 2, **member) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert registry.entries[MINE].offsets["t", 0].offset == 9


# Standing still


def test_after_a_standstill_a_coordinator_that_was_replaced_answers_nobody_as_if_it_were_not(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    group, member = one.stable(MINE)
    registry.session_ends(1)
    cluster.brokers = {2: cluster.brokers[2]}
    assert isinstance(two.use(MINE), Group)
    one.standstills += 1
    assert one.use(MINE) is NOT_COORDINATOR
    assert group.heartbeat(member["member_id"], None, member["generation_id_or_member_epoch"])


def test_after_a_standstill_a_coordinator_that_is_still_it_goes_on_with_its_members(
    one: Broker, registry: MemoryRegistry
) -> None:
    group, _ = one.stable(MINE)
    registry.session_ends(1)  # and nobody took the group meanwhile
    one.standstills += 1
    assert one.use(MINE) is group
    assert group.state is State.STABLE
    assert one.commit(MINE, member_id="nobody") == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}


def test_without_zookeeper_nobody_is_answered_after_a_standstill(
    one: Broker, registry: MemoryRegistry
) -> None:
    group, _ = one.stable(MINE)
    registry.away = True
    one.standstills += 1
    answers = Answers()
    one.groups.use(MINE, answers, answers)
    one.passes(WAIT_S)
    assert answers.heard == [NOT_AVAILABLE]
    # What was asked while it was away is refused first: else the sweep would not ask again.
    one.until("no question is under way", lambda: one.groups._work.room == MAX_QUEUED)
    registry.away = False
    one.passes(SWEEP_S)
    assert one.use(MINE) is group


@pytest.mark.parametrize("asks", [True, False], ids=["its heartbeat has come", "nothing has come yet"])
def test_a_standstill_longer_than_their_sessions_does_not_cost_a_groups_members_their_places(
    one: Broker, registry: MemoryRegistry, asks: bool
) -> None:
    group, member = one.stable(MINE)
    identity = member["member_id"], None, member["generation_id_or_member_epoch"]
    registry.away = True
    one.standstills += 1
    one.now += 2 * SESSION_S
    answers = Answers()
    if asks:
        one.groups.use(MINE, answers, answers)
    one.passes(2 * SESSION_S)  # for which ZooKeeper is away, too
    one.until("no question is under way", lambda: one.groups._work.room == MAX_QUEUED)
    registry.away = False
    one.passes(SWEEP_S)
    assert one.use(MINE) is group
    assert group.heartbeat(*identity) is NONE
    one.passes(SESSION_S + 1)
    assert not len(group.members), "a session ends as ever"


def asks_to_join(group: Group, member_id: str = "", *, needs_id: bool = False) -> list[JoinGroupResponse]:
    """Send a JoinGroup of a member; return the list that gets its answer."""
    heard: list[JoinGroupResponse] = []
    request = JoinGroupRequest(
        group_id=MINE,
        session_timeout=int(SESSION_S * 1000),
        member_id=member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequest.Protocol(name="range", metadata=b""),),
    )
    group.join(request, ClientName("c", "/h"), heard.append, needs_id=needs_id)
    return heard


@pytest.mark.parametrize("before_s", [SWEEP_S / 4, SESSION_S / 2], ids=["due before a sweep", "due later"])
def test_after_a_standstill_no_time_of_a_rebalance_ends_before_the_coordinator_is_known(
    one: Broker, registry: MemoryRegistry, before_s: float
) -> None:
    """The rebalance has `before_s` left when the broker stands still."""
    group, member = one.stable(MINE)
    one.passes(SWEEP_S / 4)
    (promised,) = asks_to_join(group, needs_id=True)
    new = asks_to_join(group)
    heartbeat = member["member_id"], None, member["generation_id_or_member_epoch"]
    while one.now < 100 + SWEEP_S / 4 + SESSION_S - before_s:
        one.passes(0.5)
        group.heartbeat(*heartbeat)
    registry.away = True
    one.standstills += 1
    one.now += before_s + 0.2
    one.mailbox.run()
    assert (new, len(group.members), group.members.expected) == ([], 2, 1)
    one.passes(2 * SESSION_S)  # for which ZooKeeper is away, too
    one.until("no question is under way", lambda: one.groups._work.room == MAX_QUEUED)
    registry.away = False
    one.passes(SWEEP_S)
    assert one.use(MINE) is group
    one.passes(SESSION_S - 2 * SWEEP_S)
    assert group.heartbeat(*heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (new, len(group.members), group.members.expected) == ([], 2, 1)
    one.passes(3 * SWEEP_S)
    assert group.members.expected == 0
    assert [answer.generation_id for answer in new] == [2], "the rebalance ends without the missing member"
    assert asks_to_join(group, promised.member_id)[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_has_waited_too_long_for_a_group_is_forgotten(one: Broker, registry: MemoryRegistry) -> None:
    one.stable(MINE)
    registry.away = True
    one.standstills += 1
    answers = Answers()
    for _ in range(20):
        one.groups.use(MINE, answers, answers)
        one.passes(1)
    held = one.groups._ownership.get(MINE)
    assert held is not None
    assert len(held.waiting) <= WAIT_S + 1
    assert answers.heard == [NOT_AVAILABLE] * (20 - int(WAIT_S) + 1)


def test_a_standstill_while_it_is_asked_who_coordinates_has_that_asked_again(
    one: Broker, two: Broker, cluster: Cluster, registry: MemoryRegistry
) -> None:
    one.stable(MINE)
    registry.may_go_on.clear()
    one.standstills += 1
    answers = Answers()
    one.groups.use(MINE, answers, answers)
    assert registry.blocked.acquire(timeout=10)
    one.standstills += 1
    one.groups.use(MINE, answers, answers)
    registry.may_go_on.set()
    one.until("both are answered", lambda: len(answers.heard) == 2)
    assert all(isinstance(each, Group) for each in answers.heard)
