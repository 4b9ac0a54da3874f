"""Topics as ZooKeeper holds them: what is written reads back, partitions are spread, none is reused."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    MillraceError,
    NoLiveBroker,
    PolicyViolation,
)
from millrace.records.mirror_position import Origin
from millrace.topic_names import check_topic_name
from millrace.zookeeper.topic_state import (
    NO_LEADER,
    REPLICATING,
    BrokerAddress,
    PartitionState,
    TopicState,
    decode_topic,
    encode_topic,
)
from millrace_broker.coordination.new_partitions import (
    OriginRecreated,
    new_topic,
    with_mirrors,
    with_partitions,
)
from millrace_broker.coordination.placement import Load

ORIGIN = Origin("dc1", "PageView", UUID(int=7), 0)
EMPTY = TopicState("PageView", UUID(int=1), {}, {})


def live(*numbers: int, protocol: int = REPLICATING, rack: str = "") -> dict[int, BrokerAddress]:
    """Brokers that are alive, of a release that copies."""
    return {n: BrokerAddress("h", n, {}, rack, f"{n:016x}", protocol) for n in numbers}


def _load(*topics: TopicState) -> Load:
    return Load().changed((), topics)


def leaders(topic: TopicState) -> list[int]:
    return [partition.leader for partition in topic.partitions.values()]


def test_a_topic_reads_back_as_it_was_written() -> None:
    plain = new_topic("plain", 5, {"retention.ms": "1000"}, live(1, 2), Load())
    mirrored = with_mirrors(EMPTY, [ORIGIN], live(1, 2), Load())
    for topic in (plain, mirrored, EMPTY):
        assert decode_topic(topic.name, encode_topic(topic)) == topic


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 3}',
        b'{"version": 1, "topic_id": "x"}',
        b"\xff\xfe",
        encode_topic(dataclasses.replace(EMPTY, partitions={0: PartitionState(1, (), {}, 0)})),
    ],
)
def test_an_entry_nobody_can_read_is_an_error_that_names_the_topic(data: bytes) -> None:
    with pytest.raises(MillraceError, match="topic clicks is unreadable"):
        decode_topic("clicks", data)


def test_partitions_go_round_the_brokers_beginning_with_the_least_loaded() -> None:
    first = new_topic("first", 3, {}, live(1, 2), Load())
    assert leaders(first) == [1, 2, 1]
    second = new_topic("second", 3, {}, live(1, 2), _load(first))
    assert leaders(second) == [2, 1, 2]


def test_a_topic_needs_a_live_broker_and_no_negative_number_of_partitions() -> None:
    with pytest.raises(NoLiveBroker):
        new_topic("t", 1, {}, {}, Load())
    with pytest.raises(InvalidPartitions):
        new_topic("t", -1, {}, live(1), Load())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\n"])
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_every_origin_partition_gets_a_number_of_its_own_spread_over_the_brokers() -> None:
    topic = EMPTY
    origins = [Origin(f"dc{dc}", "PageView", UUID(int=dc), p) for dc in (1, 2) for p in range(3)]
    for origin in origins:
        topic = with_mirrors(topic, [origin], live(1, 2), Load())
    assert [topic.target_of(origin) for origin in origins] == list(range(6))
    assert Counter(leaders(topic)) == {1: 3, 2: 3}


def test_an_origin_that_was_created_anew_gets_a_new_partition_only_when_that_is_known() -> None:
    topic = with_mirrors(EMPTY, [ORIGIN], live(1), Load())
    anew = Origin("dc1", "PageView", uuid4(), 0)
    with pytest.raises(OriginRecreated, match="mirror reset"):
        with_mirrors(topic, [anew], live(1), Load())
    topic = with_mirrors(topic, [anew], live(1), Load(), recreated=True)
    assert (topic.target_of(ORIGIN), topic.target_of(anew)) == (0, 1)
    assert topic.former_origin(anew) == ORIGIN


def test_a_cluster_is_not_mirrored_once_more_under_a_misspelt_name() -> None:
    topic = with_mirrors(EMPTY, [ORIGIN], live(1), Load())
    with pytest.raises(PolicyViolation, match="of 'dc9' is mirrored already, as one of 'dc1'"):
        with_mirrors(topic, [dataclasses.replace(ORIGIN, cluster="dc9")], live(1), Load(), recreated=True)


def test_a_topic_with_partitions_of_its_own_is_not_mirrored_into() -> None:
    with pytest.raises(PolicyViolation, match="partitions of its own"):
        with_mirrors(new_topic("PageView", 1, {}, live(1), Load()), [ORIGIN], live(1), Load())


def test_new_partitions_go_to_the_brokers_that_lead_the_fewest_and_the_others_stay() -> None:
    topic = new_topic("t", 4, {}, live(1, 2), Load())
    grown = with_partitions(topic, 10, live(1, 2, 3), _load(topic))  # broker 3 joined later
    assert leaders(grown)[:4] == leaders(topic)
    assert Counter(leaders(grown)) == {1: 4, 2: 3, 3: 3}
    assert list(grown.partitions) == list(range(10))
    assert (grown.topic_id, grown.settings) == (topic.topic_id, topic.settings)


def test_partitions_are_only_ever_added_and_only_to_topics_of_this_cluster() -> None:
    topic = new_topic("t", 4, {}, live(1), Load())
    for count in (-1, 0, 3, 4):
        with pytest.raises(InvalidPartitions, match="has 4 partitions"):
            with_partitions(topic, count, live(1), Load())
    with pytest.raises(NoLiveBroker):
        with_partitions(topic, 5, {}, Load())
    for mirrored in (EMPTY, with_mirrors(EMPTY, [ORIGIN], live(1), Load())):
        with pytest.raises(PolicyViolation, match="mirrored"):
            with_partitions(mirrored, 5, live(1), Load())


def test_a_topic_that_zookeeper_would_not_take_is_refused() -> None:
    assert len(encode_topic(new_topic("t", 10_000, {}, live(1), Load()))) < 1_000_000
    with pytest.raises(InvalidPartitions, match="12000 partitions does not fit"):
        encode_topic(new_topic("t", 12_000, {}, live(1), Load()))


def test_all_replicas_of_a_new_partition_are_in_sync_under_their_directories_and_elect_a_leader() -> None:
    topic = new_topic("t", 2, {}, live(1, 2, 3), Load(), replicas=3)
    state = topic.partitions[0]
    assert (state.leader, state.leader_epoch, state.replicas) == (NO_LEADER, 0, (1, 2, 3))
    assert state.isr == {n: f"{n:016x}" for n in (1, 2, 3)}
    assert (topic.minimum(0), topic.fewest_replicas) == (2, 3)
    grown = with_partitions(topic, 4, live(1, 2, 3), _load(topic))
    assert [len(partition.replicas) for partition in grown.partitions.values()] == [3, 3, 3, 3]
    assert json.loads(encode_topic(grown))["version"] == 2


def test_replicas_are_spread_over_racks() -> None:
    brokers = {**live(1, 2, rack="a"), **live(3, 4, rack="b")}
    topic = new_topic("t", 4, {}, brokers, Load(), replicas=2)
    assert [state.replicas for state in topic.partitions.values()] == [(1, 3), (2, 4), (3, 1), (4, 2)]


def test_brokers_without_a_rack_share_that_of_their_host() -> None:
    brokers = {n: dataclasses.replace(live(n)[n], host="left" if n < 3 else "right") for n in (1, 2, 3, 4)}
    topic = new_topic("t", 4, {}, brokers, Load(), replicas=2)
    assert [state.replicas for state in topic.partitions.values()] == [(1, 3), (2, 4), (3, 1), (4, 2)]
    grown = with_partitions(topic, 6, brokers, _load(topic))
    assert all(len({n < 3 for n in state.replicas}) == 2 for state in grown.partitions.values())
    assert len(new_topic("u", 1, {}, brokers, Load(), replicas=4).partitions[0].replicas) == 4


def test_a_rack_that_is_named_like_a_host_is_that_of_the_host() -> None:
    brokers = live(1, 2, 3)
    brokers[2] = dataclasses.replace(brokers[2], host="other", rack="h")
    brokers[3] = dataclasses.replace(brokers[3], host="other")
    topic = new_topic("t", 2, {}, brokers, Load(), replicas=2)
    assert [state.replicas for state in topic.partitions.values()] == [(1, 3), (2, 3)]


def test_a_mirrored_topic_has_the_replicas_that_its_first_partitions_got() -> None:
    origins = [dataclasses.replace(ORIGIN, partition=number) for number in (0, 1)]
    topic = with_mirrors(EMPTY, origins[:1], live(1, 2), Load(), replicas=2)
    assert topic.partitions[0].replicas == (1, 2)
    assert with_mirrors(topic, origins, live(1, 2), Load()).partitions[1].replicas == (2, 1)
    assert with_mirrors(topic, origins[:1], live(1), Load(), replicas=2) == topic, "nothing is to be placed"


@pytest.mark.parametrize(("replicas", "alive"), [(0, 2), (-2, 2), (3, 2)])
def test_a_number_of_replicas_that_the_live_brokers_cannot_hold_is_refused(replicas: int, alive: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=f"{replicas} replicas.* {alive} are alive"):
        new_topic("t", 1, {}, live(*range(alive)), Load(), replicas=replicas)


def test_nothing_has_several_replicas_while_a_broker_runs_that_does_not_copy() -> None:
    brokers = {**live(1, 2), **live(3, protocol=1)}
    with pytest.raises(InvalidReplicationFactor, match="upgrade broker 3"):
        new_topic("t", 1, {}, brokers, Load(), replicas=2)
    with pytest.raises(InvalidReplicationFactor, match="upgrade broker 3"):
        new_topic("t", 1, {}, brokers, Load(), assigned=[(1, 2)])
    assert new_topic("t", 1, {}, brokers, Load()).partitions[0].leader == 1


def test_brokers_are_where_the_client_says() -> None:
    topic = new_topic("t", 2, {}, live(1, 2, 3), Load(), assigned=[(3, 1), (2, 3)])
    assert [state.replicas for state in topic.partitions.values()] == [(3, 1), (2, 3)]
    grown = with_partitions(topic, 3, live(1, 2, 3), Load(), assigned=[(1, 2)])
    assert grown.partitions[2].replicas == (1, 2)
    single = new_topic("t", 1, {}, live(1, 2, 3), Load(), assigned=[(2,)])
    assert single.partitions[0] == PartitionState(2, (2,), {2: ""}, 0)


@pytest.mark.parametrize(
    ("assigned", "reason"),
    [
        ([(1, 2), (1,)], "have 2 replicas, not 1"),
        ([(1, 1)], "none twice"),
        ([(1, 2), ()], "one or more"),
        ([()], "one or more"),
        ([(1, 9)], "no broker 9 is alive"),
    ],
)
def test_brokers_that_cannot_be_are_refused(assigned: Sequence[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=reason):
        new_topic("t", 1, {}, live(1, 2), Load(), assigned=assigned)


def test_each_new_partition_and_no_other_is_assigned() -> None:
    topic = new_topic("t", 1, {}, live(1, 2), Load(), replicas=2)
    with pytest.raises(InvalidReplicaAssignment, match="2 more partitions, and brokers are named for 1"):
        with_partitions(topic, 3, live(1, 2), Load(), assigned=[(1, 2)])


@pytest.mark.parametrize(("replicas", "minimum"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_two_of_three_replicas_commit_where_nothing_is_said(replicas: int, minimum: int) -> None:
    topic = new_topic("t", 1, {}, live(*range(5)), Load(), replicas=replicas)
    assert topic.minimum(0) == minimum
    said = dataclasses.replace(topic, settings={"min.insync.replicas": "1"})
    assert said.minimum(0) == 1


DIRECTORIES = st.dictionaries(
    st.integers(0, 2**31 - 1), st.text("0123456789abcdef", min_size=16, max_size=16)
)
REPLICATED = st.builds(
    PartitionState,
    leader=st.integers(-1, 2**31 - 1),
    replicas=st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=5, unique=True).map(tuple),
    isr=DIRECTORIES,
    leader_epoch=st.integers(0, 2**31 - 1),
    origin=st.none() | st.just(ORIGIN),
    eligible=DIRECTORIES,
    adding=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    removing=st.lists(st.integers(0, 9), max_size=2).map(tuple),
)
SINGLE = st.builds(
    lambda leader, epoch: PartitionState(leader, (leader,), {leader: ""}, epoch),
    st.integers(0, 99),
    st.integers(0, 99),
)


@given(
    st.dictionaries(st.integers(0, 9), REPLICATED, min_size=1), st.dictionaries(st.integers(10, 19), SINGLE)
)
def test_a_topic_with_several_replicas_reads_back_as_it_was_written(
    replicated: dict[int, PartitionState], single: dict[int, PartitionState]
) -> None:
    topic = dataclasses.replace(
        EMPTY, settings={"min.insync.replicas": "2"}, partitions={**replicated, **single}
    )
    data = encode_topic(topic)
    assert json.loads(data)["version"] == 2
    assert decode_topic(topic.name, data) == topic


def test_a_topic_with_one_replica_is_written_as_version_1_byte_for_byte() -> None:
    partitions = {
        0: PartitionState(1, (1,), {1: "0123456789abcdef"}, 3),
        1: PartitionState(2, (2,), {2: ""}, 0, ORIGIN),
    }
    topic = dataclasses.replace(EMPTY, settings={"retention.ms": "1"}, partitions=partitions)
    assert encode_topic(topic) == (
        b'{"version": 1, "topic_id": "00000000000000000000000000000001", "settings": {"retention.ms": "1"}, '
        b'"partitions": {"0": {"leader": 1, "replicas": [1], "isr": [1], "leader_epoch": 3, "origin": null}, '
        b'"1": {"leader": 2, "replicas": [2], "isr": [2], "leader_epoch": 0, "origin": {"cluster": "dc1", '
        b'"topic": "PageView", "topic_id": "00000000000000000000000000000007", "partition": 0}}}}'
    )


def test_a_thousand_partitions_with_three_replicas_fit_into_a_node() -> None:
    directories = {broker: f"{broker:016x}" for broker in (1, 2, 3)}
    state = PartitionState(1, (1, 2, 3), directories, 12345, ORIGIN)
    data = encode_topic(dataclasses.replace(EMPTY, partitions=dict.fromkeys(range(2000), state)))
    assert len(data) < 2000 * 320
