"""Topics changed while real brokers serve them: new brokers, new settings, a deletion one broker missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from millrace.client.cluster_client import EARLIEST, ClusterClient
from millrace.client.topic_admin import add_partitions, alter_topic_settings
from tests.brokers import TestCluster, read_topic
from tests.compat.clients import CONFLUENT
from tests.support import Process, wait_until


def produce(bootstrap: str, topic: str, partition: int, *values: bytes) -> None:
    CONFLUENT.produce(bootstrap, topic, partition, list(values), "none")


@pytest.mark.slow
def test_partitions_settings_and_deletion_reach_every_broker(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, f"changes-{uuid4().hex[:6]}", tmp_path, zookeeper).start_brokers(1)
    registry = KazooClient(hosts=zookeeper)
    registry.start()

    def recorded(broker_id: int) -> object:
        path = f"/{cluster.name}/brokers/ids/{broker_id}"
        return json.loads(registry.get(path)[0])["topics"] if registry.exists(path) else None

    try:
        with cluster.client() as client:
            client.create_topic("changing", 2)
            produce(cluster.bootstrap, "changing", 0, b"first")
            wait_until("what it stores is recorded", lambda: recorded(1) == {"changing": "0-1"})

            cluster.start_brokers(2)
            with ClusterClient(cluster.brokers[2].address) as other:
                add_partitions(other, "changing", 4)
            leaders = {0: 1, 1: 1, 2: 2, 3: 2}
            wait_until("the first one knows them", lambda: client.topic("changing").partitions == leaders)
            for partition in range(1, 4):
                produce(cluster.bootstrap, "changing", partition, b"%d" % partition)
            found = {number: each.values for number, each in read_topic(client, "changing").items()}
            assert found == {0: [b"first"], 1: [b"1"], 2: [b"2"], 3: [b"3"]}
            wait_until("that is recorded, too", lambda: recorded(2) == {"changing": "2-3"})

            with ClusterClient(cluster.brokers[2].address) as other:
                alter_topic_settings(other, "changing", {"segment.bytes": "1024", "retention.bytes": "2048"})
            for _ in range(4):
                produce(cluster.bootstrap, "changing", 0, b"x" * 1000)
            wait_until(
                "the broker that leads it deletes the oldest messages",
                lambda: client.list_offsets("changing", EARLIEST, [0])[0] > 2000,
            )
            assert client.list_offsets("changing", EARLIEST, [2]) == {2: 0}

            cluster.brokers[2].kill()
            wait_until("its absence is known", lambda: client.topic("changing").partitions[2] == -1)
            client.delete_topic("changing")
            client.create_topic("changing", 1)
            cluster.restart(2)
            left = sorted(path.name for path in cluster.directory(2).iterdir() if path.is_dir())
            assert [name.split("-")[1] for name in left] == ["2", "3"]
            assert all(".foreign-" in name for name in left), "set aside, not served, not lost"
            assert recorded(2) == {}
            assert read_topic(client, "changing")[0].values == []
    finally:
        registry.stop()
        registry.close()
