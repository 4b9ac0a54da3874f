"""Brokers with several listeners: who comes by one is told the addresses of that one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.wire.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from millrace.wire.messages import ApiKey
from tests.brokers import free_port
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import CLIENTS, KafkaClient, assert_reads_exactly
from tests.support import Process, wait_until

Addresses = dict[str, tuple[str, int]]


def _knows_both(client: ClusterClient) -> bool:
    return client.broker_ids() == [1, 2]


@pytest.fixture(scope="module")
def pair(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[RunningBroker, Addresses]]:
    """Two brokers; what clients are told of `outside` is another name for the machine."""
    folder, found = tmp_path_factory.mktemp("listeners"), []
    for number in (1, 2):
        inside, outside = free_port(), free_port()
        settings = {
            "listen": None,
            "listeners.inside.listen": f"127.0.0.1:{inside}",
            "listeners.outside.listen": f"0.0.0.0:{outside}",
            "listeners.outside.advertised": f"localhost:{outside}",
        }
        broker = start_broker(start_for_module, zookeeper, folder, "doors", broker_id=number, **settings)
        found.append((broker, {"inside": ("127.0.0.1", inside), "outside": ("localhost", outside)}))
    for broker, _ in found:
        with broker.client() as client:
            wait_until("it knows both", partial(_knows_both, client))
    return found


@pytest.mark.parametrize("listener", ["inside", "outside"])
def test_clients_are_told_the_addresses_of_the_listener_they_came_by(
    pair: list[tuple[RunningBroker, Addresses]], listener: str
) -> None:
    told = {number: addresses[listener] for number, (_, addresses) in enumerate(pair, 1)}
    for _, addresses in pair:
        _, port = addresses[listener]
        with ClusterClient(f"127.0.0.1:{port}", timeout_s=20) as client:
            client.broker_ids()
            assert client.addresses == told
            for group in ("a", "b", "c", "d"):
                found = client.call(
                    None,
                    ApiKey.FIND_COORDINATOR,
                    2,
                    FindCoordinatorRequest(key=group),
                    FindCoordinatorResponse,
                )
                assert (found.error_code, (found.host, found.port)) == (0, told[found.node_id])


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_what_came_by_one_listener_is_read_by_another(
    pair: list[tuple[RunningBroker, Addresses]], client: KafkaClient
) -> None:
    (broker, addresses), _ = pair
    topic = broker.create_topic(f"through-{client.name}", 2, flush_ms=5)
    for partition in (0, 1):
        expected = [f"{partition} {number}".encode() for number in range(50)]
        outside = "localhost:{}".format(addresses["outside"][1])
        client.produce(outside, topic, partition, expected, "none")
        assert_reads_exactly(client, broker.bootstrap, topic, partition, expected)
