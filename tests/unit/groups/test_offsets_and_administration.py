"""Offsets that a broker writes or refuses to write, and its answers to those who administer groups."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest

from millrace.errors import ErrorCode
from millrace.wire.consumer_protocol import MAX_SUBSCRIBED_TOPICS
from millrace.wire.group_messages import LeaveGroupRequest, OffsetCommitRequest
from millrace.zookeeper.topic_state import TopicState
from millrace_broker.coordination.groups import CommittedOffset, GroupKind, StreamsMember
from millrace_broker.groups import State
from millrace_broker.groups.work import WAIT_S
from tests.unit.groups.coordinating import (
    Answers,
    Broker,
    Cluster,
    commit_request,
    logged_bugs,
    name_for,
    topic_state,
)
from tests.unit.groups.registry import Entry, MemoryRegistry

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
MINE, THEIRS = name_for(1), name_for(2)


# Committing


def test_offsets_carry_the_topics_id_and_the_time(one: Broker, cluster: Cluster) -> None:
    assert one.commit(MINE, 7) == {("t", 0): NONE}
    assert one.offsets(MINE) == {
        ("t", 0): CommittedOffset(
            offset=7, metadata="m", time_ms=5000, topic_id=cluster.topics["t"].topic_id, leader_epoch=-1
        )
    }


def test_offsets_of_a_topic_that_was_created_anew_count_as_not_committed(
    one: Broker, cluster: Cluster
) -> None:
    one.commit(MINE)
    cluster.topics = {"t": topic_state("t")}
    assert one.offsets(MINE) == {}


def test_an_offset_of_a_topic_that_this_broker_has_not_heard_of_is_shown(
    one: Broker, two: Broker, cluster: Cluster
) -> None:
    cluster.topics["late"] = topic_state("late")
    one.commit(MINE, 7, topic="late")
    cluster.written = dict(cluster.topics)
    del cluster.topics["late"]
    places = [("late", 0), ("late", 1), ("nobody's", 0)]
    found = two.fetch(MINE, places)
    assert [(place, offset.offset) for place, offset in found.items()] == [(("late", 0), 7)]
    assert two.offsets(MINE).keys() == {("late", 0)}


def test_the_offsets_of_many_groups_are_one_question(
    one: Broker, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.commit(MINE, 7)
    monkeypatch.setattr("millrace_broker.groups.work.MAX_QUEUED", 1)
    before = registry.asked
    asked = dict.fromkeys(["", MINE, *[f"nobody's {number}" for number in range(1000)]])
    found = one.ask(lambda answers: one.groups.offsets(asked, answers))
    assert found.pop("") is ErrorCode.INVALID_GROUP_ID
    assert {name: list(offsets) for name, offsets in found.items() if offsets} == {MINE: [("t", 0)]}
    assert len(found) == 1001
    assert registry.asked == before + 1, "of the one group its offsets"


def test_nothing_is_said_of_an_offset_without_zookeeper(one: Broker, registry: MemoryRegistry) -> None:
    registry.away = True
    assert one.fetch(MINE, [("late", 0)]) is NOT_AVAILABLE


@pytest.mark.parametrize("now", [{"t": topic_state("t")}, {}], ids=["made anew", "deleted"])
def test_no_offset_is_written_of_a_topic_that_is_another_by_now(
    one: Broker, cluster: Cluster, registry: MemoryRegistry, now: dict[str, TopicState]
) -> None:
    registry.entries[streams := name_for(1, 1)] = Entry(GroupKind.STREAMS)
    cluster.written = now
    for name in (MINE, streams):
        assert one.commit(name) == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert registry.entries[name].offsets == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nope"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"metadata": "x" * 4096}, ErrorCode.NONE),
        ({"metadata": None}, ErrorCode.NONE),
        ({"offset": -1}, ErrorCode.NONE),
        ({"member_id": "of a group it has left"}, ErrorCode.NONE),
        ({"generation_id_or_member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_each_offset_is_judged_for_itself(one: Broker, changes: dict[str, Any], code: ErrorCode) -> None:
    (answer,) = one.commit(MINE, **changes).values()
    assert answer is code


def test_zookeeper_is_asked_for_no_offset_of_a_partition_that_is_not_there(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.commit(MINE, 7)
    places = [("t", 0), *[("t", number) for number in range(1, 100)], ("nobody's", 0)]
    found = one.fetch(MINE, places)
    assert list(found) == [("t", 0)]
    assert registry.places == [{("t", 0)}]


@pytest.mark.parametrize("offset", [-1, -2])
def test_a_negative_offset_is_taken_as_a_reset(one: Broker, offset: int) -> None:
    """A negative offset is how kafkajs sends a group back to where its reset policy says."""
    one.commit(MINE, 7)
    one.commit(MINE, offset)
    assert one.offsets(MINE) == {}


def test_a_refused_partition_does_not_keep_the_others_from_being_committed(one: Broker) -> None:
    good, bad = commit_request(MINE, 1).topics[0], commit_request(MINE, 1, topic="nope").topics[0]
    request = OffsetCommitRequest(group_id=MINE, topics=(bad, good))
    codes = one.ask(lambda answers: one.groups.commit(request, answers))
    assert codes == {("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ("t", 0): NONE}
    assert one.offsets(MINE)["t", 0].offset == 1


def test_commits_that_come_while_one_is_written_are_written_together_in_order(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.use(MINE)
    registry.may_go_on.clear()
    answers = Answers()
    for offset in range(1, 6):
        one.groups.commit(commit_request(MINE, offset), answers)
    assert registry.blocked.acquire(timeout=10)
    registry.may_go_on.set()
    one.until("all are answered", lambda: len(answers.heard) == 5)
    assert [[each.offset for each in commit.values()] for commit in registry.commits] == [[1], [5]]


def test_without_zookeeper_a_commit_is_answered_in_time_and_members_stay(
    one: Broker, registry: MemoryRegistry
) -> None:
    group, member = one.stable(MINE)
    registry.may_go_on.clear()
    answers = Answers()
    one.groups.commit(commit_request(MINE, 1, **member), answers)
    one.groups.find(["another"], answers)
    one.passes(WAIT_S)
    assert answers.heard == [{("t", 0): NOT_AVAILABLE}, {"another": NOT_AVAILABLE}]
    assert one.find(MINE) == 1, "what is coordinated here needs no ZooKeeper to say"
    assert one.groups.held(MINE) is group
    assert group.state is State.STABLE


def test_a_commit_that_takes_too_long_may_be_tried_again_and_the_newer_one_wins(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.use(MINE)
    registry.may_go_on.clear()
    answers = Answers()
    one.groups.commit(commit_request(MINE, 1), answers)
    one.passes(WAIT_S)
    assert answers.heard == [{("t", 0): NOT_AVAILABLE}]
    one.groups.commit(commit_request(MINE, 2), answers)
    registry.may_go_on.set()
    one.until("the second is answered", lambda: len(answers.heard) == 2)
    assert answers.heard[1] == {("t", 0): NONE}
    assert registry.entries[MINE].offsets["t", 0].offset == 2


def test_an_error_of_zookeeper_is_told_as_one_that_may_be_tried_again(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.use(MINE)
    registry.away = True
    assert one.commit(MINE) == {("t", 0): NOT_AVAILABLE}
    assert one.offsets(MINE) is NOT_AVAILABLE
    registry.away = False
    assert one.commit(MINE) == {("t", 0): NONE}


# Administration


def test_each_broker_lists_its_share_and_together_they_list_every_group_once(
    one: Broker, two: Broker, registry: MemoryRegistry, cluster: Cluster
) -> None:
    for number in range(10):
        registry.entries[name_for(1 + number % 2, number)] = Entry(GroupKind.CLASSIC)
    registry.entries[name_for(2, 20)] = Entry(GroupKind.STREAMS)
    addresses, cluster.brokers = cluster.brokers, {1: cluster.brokers[1]}
    one.join(name_for(2, 1))
    cluster.brokers = addresses
    listed = [*one.listed(), *two.listed()]
    assert sorted(listed) == sorted(registry.entries)


def test_a_group_is_described_by_its_coordinator_or_if_it_has_none_by_any_broker(
    one: Broker, two: Broker, registry: MemoryRegistry
) -> None:
    one.join(MINE)
    assert one.look_at(MINE).group_state is State.COMPLETING
    assert two.look_at(MINE) is NOT_COORDINATOR
    assert two.look_at("nobody knows it").group_state is State.DEAD
    registry.entries[THEIRS] = Entry(GroupKind.CLASSIC)
    assert one.look_at(THEIRS).group_state is two.look_at(THEIRS).group_state is State.EMPTY


def test_a_streams_group_is_shown_with_its_consumers(one: Broker, registry: MemoryRegistry) -> None:
    members = {"consumer1": StreamsMember(topics={"t": 1}, host="here")}
    registry.entries["s"] = Entry(GroupKind.STREAMS, members=members)
    shown = one.look_at("s")
    assert (shown.group_state, shown.protocol_type) == (State.STABLE, "consumer")
    assert [(each.member_id, each.client_host) for each in shown.members] == [("consumer1", "here")]


def test_deleting_needs_a_group_without_members(one: Broker, two: Broker, registry: MemoryRegistry) -> None:
    assert one.delete(MINE) is ErrorCode.GROUP_ID_NOT_FOUND
    one.commit(MINE)
    assert two.delete(MINE) is NOT_COORDINATOR
    group, (joined,) = one.join(MINE)
    assert one.delete(MINE) is ErrorCode.NON_EMPTY_GROUP
    group.drop(NOT_COORDINATOR)
    registry.entries["s"] = Entry(GroupKind.STREAMS, members={"c": StreamsMember(topics={}, host="h")})
    assert one.delete("s") is ErrorCode.NON_EMPTY_GROUP
    assert joined.error_code == NONE


def test_a_deleted_group_is_forgotten_with_its_offsets(one: Broker, registry: MemoryRegistry) -> None:
    one.commit(MINE)
    assert one.delete(MINE) is NONE
    assert registry.entries == {}
    assert one.offsets(MINE) == {}
    registry.entries[THEIRS] = Entry(GroupKind.CLASSIC)
    assert one.delete(THEIRS) is NONE
    assert registry.entries == {}


def test_a_group_whose_node_was_left_over_here_is_shown_and_deleted(
    one: Broker, two: Broker, registry: MemoryRegistry
) -> None:
    # Taken over or given up while ZooKeeper went away: the node is this broker's, and nobody's members.
    registry.entries[MINE] = Entry(GroupKind.CLASSIC, coordinator=1)
    assert [group.protocol_type for group in one.listed().values()] == ["consumer"]
    assert two.listed() == {}
    assert one.look_at(MINE).group_state is State.EMPTY
    assert two.delete(MINE) is NOT_COORDINATOR
    assert one.delete(MINE) is NONE
    assert registry.entries == {}


def test_many_names_that_no_group_has_cost_one_look_at_zookeeper(
    one: Broker, registry: MemoryRegistry
) -> None:
    one.commit(MINE)
    registry.entries["elsewhere"] = Entry(GroupKind.CLASSIC)
    names = ["", MINE, "elsewhere", *[f"nobody's {number}" for number in range(100)]]
    before = registry.asked
    described = one.ask(lambda answers: one.groups.describe_groups(names, answers))
    states = {name: getattr(group, "group_state", group) for name, group in described.items()}
    assert (states.pop(""), states.pop(MINE)) == (ErrorCode.INVALID_GROUP_ID, State.EMPTY)
    assert states.pop("elsewhere") is State.EMPTY
    assert set(states.values()) == {State.DEAD}
    assert registry.asked == before + 2, "of the one elsewhere, its kind and its coordinator"


def test_every_group_that_is_coordinated_here_is_counted(one: Broker) -> None:
    one.join(MINE)
    one.use(name_for(1, 1))
    assert {group.name: len(group.members) for group in one.groups.coordinated()} == {
        MINE: 1,
        name_for(1, 1): 0,
    }


def test_groups_are_listed_with_their_state(one: Broker, registry: MemoryRegistry) -> None:
    one.join(MINE)
    joined = name_for(1, 1)
    one.stable(joined)
    registry.entries[name_for(1, 2)] = Entry(GroupKind.CLASSIC)
    read, unread = name_for(1, 3), name_for(1, 4)
    members = {"consumer1": StreamsMember(topics={"t": 1}, host="here")}
    registry.entries[read] = Entry(GroupKind.STREAMS, members=members)
    registry.entries[unread] = Entry(GroupKind.STREAMS)
    assert {name: group.group_state for name, group in one.listed().items()} == {
        MINE: State.COMPLETING,
        joined: State.STABLE,
        name_for(1, 2): State.EMPTY,
        read: State.STABLE,
        unread: State.EMPTY,
    }


def test_all_who_ask_for_the_groups_while_they_are_read_wait_for_one_more_reading(
    one: Broker, registry: MemoryRegistry
) -> None:
    registry.may_go_on.clear()
    answers = Answers()
    one.groups.list_groups(answers, answers)
    assert registry.blocked.acquire(timeout=10)
    for _ in range(50):
        one.groups.list_groups(answers, answers)
    registry.entries[MINE] = Entry(GroupKind.CLASSIC)
    registry.may_go_on.set()
    one.until("all are answered", lambda: len(answers.heard) == 51)
    assert all(MINE in listed for listed in answers.heard[1:])
    assert registry.asked < 10


def test_a_bug_while_groups_are_read_is_an_answer_and_the_next_reading_succeeds(
    one: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one.join(MINE)
    with monkeypatch.context() as patched:
        patched.setattr("millrace_broker.groups.coordinator._listed", None)
        assert one.listed() is ErrorCode.UNKNOWN_SERVER_ERROR
    assert logged_bugs(caplog) == 1
    assert list(one.listed()) == [MINE]


def test_commits_wait_for_no_administrator(
    one: Broker, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one.commit(MINE) == {("t", 0): NONE}
    go_on, answers = threading.Event(), Answers()
    for name in ("groups", "kind"):
        asked = getattr(registry, name)
        monkeypatch.setattr(registry, name, lambda *of, asked=asked: go_on.wait(10) and asked(*of))
    for number in range(10):
        one.groups.list_groups(answers, answers)
        one.groups.describe_groups([name_for(2, number)], answers)
    assert one.commit(MINE, 8) == {("t", 0): NONE}
    assert one.offsets(MINE)["t", 0].offset == 8
    assert answers.heard == []
    go_on.set()
    one.until("all are answered", lambda: len(answers.heard) == 20)


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def test_offsets_of_topics_that_nobody_reads_are_deleted(one: Broker, cluster: Cluster) -> None:
    cluster.topics["u"] = topic_state("u")
    _, member = one.stable(MINE, subscription("t"))
    for topic in ("t", "u"):
        one.commit(MINE, topic=topic, **member)
    assert one.delete_offsets(MINE, ("t", 0), ("u", 0), ("u", 1)) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): NONE,
        ("u", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert one.offsets(MINE).keys() == {("t", 0)}


def test_a_member_whose_subscription_nobody_understands_keeps_all_offsets(one: Broker) -> None:
    _, member = one.stable(MINE, b"of another kind")
    one.commit(MINE, **member)
    assert one.delete_offsets(MINE, ("t", 0)) == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_what_members_read_is_known_from_when_they_join(one: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    one.stable(MINE, subscription("t"))
    monkeypatch.setattr("millrace.wire.consumer_protocol.decode", None)
    assert one.delete_offsets(MINE, ("t", 0)) == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert one.delete_offsets(MINE) == {}


def test_a_member_that_names_more_topics_than_are_looked_at_keeps_all_offsets(one: Broker) -> None:
    one.stable(MINE, subscription(*(f"u{number}" for number in range(MAX_SUBSCRIBED_TOPICS + 1))))
    assert one.delete_offsets(MINE, ("t", 0)) == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_what_a_member_reads_no_longer_may_be_deleted(one: Broker, cluster: Cluster) -> None:
    cluster.topics["u"] = topic_state("u")
    group, member = one.stable(MINE, subscription("t"))
    one.commit(MINE, topic="u", **member)
    group.leave(LeaveGroupRequest.Member(member_id=member["member_id"]))
    one.stable(MINE, subscription("u"))
    assert one.delete_offsets(MINE, ("t", 0), ("u", 0)) == {
        ("t", 0): NONE,
        ("u", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }


def test_who_may_delete_offsets(one: Broker, two: Broker, registry: MemoryRegistry) -> None:
    assert one.delete_offsets("", ("t", 0)) is ErrorCode.INVALID_GROUP_ID
    assert one.delete_offsets(MINE, ("t", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert registry.entries == {}, "asking makes no group"
    one.commit(MINE)
    assert two.delete_offsets(MINE, ("t", 0)) is NOT_COORDINATOR
    one.join(MINE)
    assert one.delete_offsets(MINE, ("t", 0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    registry.entries["s"] = Entry(GroupKind.STREAMS, members={"c": StreamsMember(topics={}, host="h")})
    assert one.delete_offsets("s", ("t", 0)) is ErrorCode.NON_EMPTY_GROUP


def test_a_group_whose_last_offset_is_deleted_stays(one: Broker, registry: MemoryRegistry) -> None:
    one.commit(MINE)
    assert one.delete_offsets(MINE, ("t", 0)) == {("t", 0): NONE}
    assert registry.entries[MINE].offsets == {}
