"""Requests that name everything a cluster has are served; requests for more get an error for each item."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire import group_messages as gm
from millrace.wire.codec import decode, encode
from millrace.wire.fields import TopicItems
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse, TopicPartitions
from tests.committed_groups import write_groups
from tests.compat.brokers import RunningBroker, start_broker
from tests.integration.faults.wire import Wire
from tests.support import Process, wait_until

CLUSTER = "large-requests"
TOPICS, PARTITIONS, GROUPS = ("wide-0", "wide-1"), range(1_000), 2_500
LATEST = -1
OF_EACH = {ErrorCode.NONE}


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    """A broker with two topics of 1,000 partitions."""
    started = start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), CLUSTER)
    for topic in TOPICS:
        started.create_topic(topic, len(PARTITIONS))
    return started


@pytest.fixture(scope="module")
def small(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    """A broker of a cluster without topics and groups."""
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("small"), f"{CLUSTER}-small")


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap, timeout_s=60) as connected:
        yield connected


@pytest.fixture(scope="module")
def groups(broker: RunningBroker, zookeeper: str) -> list[str]:
    """Groups that have committed once, written as a coordinator leaves them."""
    with broker.client() as client:
        topic_id = client.topic(TOPICS[0]).topic_id
    return write_groups(zookeeper, CLUSTER, TOPICS[0], topic_id, GROUPS)


def ask(wire: Wire, key: ApiKey, version: int, request: object, response: type[Any]) -> Any:
    """Send a request of a version without flexible headers, and decode the answer."""
    return decode(response, key, version, wire.ask(key, version, encode(request, key, version)))


def list_offsets(wire: Wire, topics: tuple[str, ...], partitions: range) -> ListOffsetsResponse:
    """Ask for the latest offsets."""
    Partition = ListOffsetsRequest.Partition
    wanted = tuple(Partition(partition_index=number, timestamp=LATEST) for number in partitions)
    request = ListOffsetsRequest(topics=tuple(TopicItems(name=name, partitions=wanted) for name in topics))
    answer: ListOffsetsResponse = ask(wire, ApiKey.LIST_OFFSETS, 5, request, ListOffsetsResponse)
    assert [topic.name for topic in answer.topics] == [*topics]
    assert all([p.partition_index for p in topic.partitions] == [*partitions] for topic in answer.topics)
    return answer


def codes(topics: tuple[TopicItems[Any], ...]) -> set[int]:
    """The error codes of all partitions."""
    return {partition.error_code for topic in topics for partition in topic.partitions}


def test_one_request_lists_the_offsets_of_every_partition(wire: Wire) -> None:
    assert codes(list_offsets(wire, TOPICS, PARTITIONS).topics) == OF_EACH


def test_one_group_commits_and_reads_back_offsets_of_every_partition(wire: Wire) -> None:
    Partition = gm.OffsetCommitRequest.Partition
    offsets = tuple(Partition(partition_index=n, committed_offset=n) for n in PARTITIONS)
    commit = gm.OffsetCommitRequest(
        group_id="everything", topics=tuple(TopicItems(name=name, partitions=offsets) for name in TOPICS)
    )
    committed = ask(wire, ApiKey.OFFSET_COMMIT, 7, commit, gm.OffsetCommitResponse)
    assert codes(committed.topics) == OF_EACH
    wanted = tuple(TopicPartitions(name=name, partition_indexes=tuple(PARTITIONS)) for name in TOPICS)
    fetch = gm.OffsetFetchRequest(group_id="everything", topics=wanted)
    fetched = ask(wire, ApiKey.OFFSET_FETCH, 5, fetch, gm.OffsetFetchResponse)
    assert codes(fetched.topics) == OF_EACH
    found = {(t.name, p.partition_index): p.committed_offset for t in fetched.topics for p in t.partitions}
    assert found == {(name, number): number for name in TOPICS for number in PARTITIONS}


def test_a_partition_that_a_request_names_often_is_answered_once(wire: Wire, groups: list[str]) -> None:
    """Each may have committed 4,096 characters of metadata: a small request must not get a huge answer."""
    wanted = (TopicPartitions(name=TOPICS[0], partition_indexes=(0,) * 1_000),)
    fetch = gm.OffsetFetchRequest(group_id=groups[0], topics=wanted)
    fetched = ask(wire, ApiKey.OFFSET_FETCH, 5, fetch, gm.OffsetFetchResponse)
    assert [p.committed_offset for topic in fetched.topics for p in topic.partitions] == [7]


def test_one_request_describes_every_group(wire: Wire, groups: list[str]) -> None:
    request = gm.DescribeGroupsRequest(groups=tuple(groups))
    answer = ask(wire, ApiKey.DESCRIBE_GROUPS, 4, request, gm.DescribeGroupsResponse)
    assert [group.group_id for group in answer.groups] == groups
    assert {(group.error_code, group.group_state) for group in answer.groups} == {(0, "Empty")}


def test_one_request_reads_the_offsets_of_every_group(broker: RunningBroker, groups: list[str]) -> None:
    key, version = ApiKey.OFFSET_FETCH, 8
    Group = gm.OffsetFetchRequest.Group
    request = gm.OffsetFetchRequest(groups=tuple(Group(group_id=name, topics=None) for name in groups))
    with broker.client(timeout_s=60) as client:
        raw = client.ask(1, key, version, encode(request, key, version))
    answer = decode(gm.OffsetFetchResponse, key, version, raw)
    assert {group.error_code for group in answer.groups} == OF_EACH
    assert [group.group_id for group in answer.groups] == groups
    found = [p.committed_offset for group in answer.groups for t in group.topics for p in t.partitions]
    assert found == [7] * GROUPS


def test_one_request_finds_the_coordinator_of_every_group(broker: RunningBroker, groups: list[str]) -> None:
    key, version = ApiKey.FIND_COORDINATOR, 4
    request = gm.FindCoordinatorRequest(coordinator_keys=tuple(groups))
    with broker.client(timeout_s=60) as client:
        raw = client.ask(1, key, version, encode(request, key, version))
    answer = decode(gm.FindCoordinatorResponse, key, version, raw)
    assert {(one.node_id, one.error_code) for one in answer.coordinators} == {(1, 0)}
    assert [one.key for one in answer.coordinators] == groups


def produce(wire: Wire, topics: Sequence[str], partitions: range) -> list[int]:
    """Send a message to each partition; the error codes."""
    records = build_batch([Message(0, None, b"v")])
    batches = b"".join(struct.pack(">ii", number, len(records)) + records for number in partitions)
    body = struct.pack(">hhii", -1, 1, 30_000, len(topics))
    for topic in topics:
        body += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", len(partitions)) + batches
    schema: Any = load_response_schema(ApiKey.PRODUCE, 7)
    answer, _ = entity_reader(schema)(wire.ask(ApiKey.PRODUCE, 7, body), 0)
    return [one.error_code for topic in answer.responses for one in topic.partition_responses]


def test_one_request_produces_to_every_partition(wire: Wire) -> None:
    assert produce(wire, TOPICS, PARTITIONS) == [ErrorCode.NONE] * 2_000


def test_each_item_of_a_request_for_more_than_there_is_gets_an_error(small: RunningBroker) -> None:
    with Wire(small.bootstrap, timeout_s=60) as wire:
        for partitions in (range(3_000), range(5_000)):
            answer = list_offsets(wire, ("made-up",), partitions)
            assert codes(answer.topics) == {ErrorCode.INVALID_REQUEST}
            assert produce(wire, ("made-up",), partitions) == [ErrorCode.INVALID_REQUEST] * len(partitions)
        few = list_offsets(wire, ("made-up",), range(1))
        assert codes(few.topics) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_log_names_the_client_whose_request_closes_its_connection(small: RunningBroker) -> None:
    with Wire(small.bootstrap, timeout_s=60) as wire, pytest.raises(ConnectionError):
        list_offsets(wire, ("made-up",), range(100_000))

    def named() -> bool:
        lines = [line for line in small.process.output.splitlines() if "closed the connection" in line]
        return any(
            all(word in line for word in ("LIST_OFFSETS v5", "'test'", "User:ANONYMOUS")) for line in lines
        )

    wait_until("the log names API, version, client id and principal", named)
