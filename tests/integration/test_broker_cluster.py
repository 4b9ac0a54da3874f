"""Two brokers of one cluster: partitions are spread, each is served by its leader, clients find it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.errors import ErrorCode, MillraceError
from millrace.wire.codec import decode, encode
from millrace.wire.fields import TopicItems
from millrace.wire.messages import ApiKey, ListOffsetsRequest, ListOffsetsResponse
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import CLIENTS, CONFLUENT, KafkaClient, assert_reads_exactly
from tests.support import Process, wait_until


@pytest.fixture(scope="module")
def brokers(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> list[RunningBroker]:
    folder = tmp_path_factory.mktemp("brokers")
    found = [
        start_broker(start_for_module, zookeeper, folder, "pair", broker_id=number, session_timeout_ms=2000)
        for number in (1, 2)
    ]
    with found[0].client() as first:
        wait_until("the first knows the second", lambda: first.broker_ids() == [1, 2])
    return found


def knows(broker: RunningBroker, topic: str) -> bool:
    with broker.client() as cluster:
        return topic in cluster.topics([topic]) and bool(cluster.list_offsets(topic, LATEST))


def create_topic(brokers: list[RunningBroker], name: str, partitions: int, **options: int) -> str:
    """A new topic that every broker knows, its logs open: the others hear of it a moment later."""
    topic = brokers[0].create_topic(name, partitions, **options)
    for broker in brokers:
        wait_until(f"{broker.bootstrap} knows {topic}", partial(knows, broker, topic))
    return topic


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_clients_reach_every_partition_through_any_broker(
    brokers: list[RunningBroker], client: KafkaClient
) -> None:
    topic = create_topic(brokers, f"spread-{client.name}", 4, flush_ms=5)
    with brokers[1].client() as cluster:
        leaders = cluster.topic(topic).partitions
        assert sorted(leaders.values()) == [1, 1, 2, 2]
        for partition in leaders:
            expected = [f"{partition} {number}".encode() for number in range(50)]
            client.produce(brokers[partition % 2].bootstrap, topic, partition, expected, "none")
            assert_reads_exactly(client, brokers[1 - partition % 2].bootstrap, topic, partition, expected)
        fetched = cluster.fetch(topic, dict.fromkeys(leaders, 0), max_bytes=1 << 20, max_wait_ms=0)
        assert all(part.records for part in fetched.values()), "one call asks both brokers"
        offsets = cluster.list_offsets(topic, LATEST)
        assert offsets == {partition: part.high_watermark for partition, part in fetched.items()}


def test_a_broker_refuses_partitions_it_does_not_lead(brokers: list[RunningBroker]) -> None:
    topic = create_topic(brokers, "elsewhere", 2)
    with brokers[0].client() as cluster:
        wanted = tuple(ListOffsetsRequest.Partition(partition_index=p, timestamp=LATEST) for p in (0, 1))
        request = ListOffsetsRequest(topics=(TopicItems(name=topic, partitions=wanted),))
        body = encode(request, ApiKey.LIST_OFFSETS, 5)
        leaders = cluster.topic(topic).partitions
        for broker_id in (1, 2):
            answer = decode(
                ListOffsetsResponse,
                ApiKey.LIST_OFFSETS,
                5,
                cluster.ask(broker_id, ApiKey.LIST_OFFSETS, 5, body),
            )
            errors = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
            refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert errors == {p: 0 if leader == broker_id else refused for p, leader in leaders.items()}


@pytest.mark.slow
def test_the_other_partitions_go_on_while_a_broker_is_away(brokers: list[RunningBroker]) -> None:
    topic = create_topic(brokers, "away", 2)
    with brokers[0].client() as cluster:
        partition = next(p for p, leader in cluster.topic(topic).partitions.items() if leader == 1)
        orphan = 1 - partition
        CONFLUENT.produce(brokers[0].bootstrap, topic, orphan, [b"before"], "none")
        brokers[1].process.kill()
        CONFLUENT.produce(brokers[0].bootstrap, topic, partition, [b"meanwhile"], "none")
        wait_until("its absence is known", lambda: cluster.topic(topic).partitions[orphan] == -1)
        with ClusterClient(brokers[0].bootstrap, timeout_s=1) as hasty, pytest.raises(MillraceError):
            hasty.list_offsets(topic, LATEST)
        brokers[1].restart()
        CONFLUENT.produce(brokers[0].bootstrap, topic, orphan, [b"after"], "none")
        assert_reads_exactly(CONFLUENT, brokers[0].bootstrap, topic, orphan, [b"before", b"after"])
        assert_reads_exactly(CONFLUENT, brokers[0].bootstrap, topic, partition, [b"meanwhile"])
