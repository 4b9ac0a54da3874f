"""Names of an Apache Kafka in ZooKeeper: a cluster with two names would be filled twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.exceptions import NodeExistsError

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_mirror.kafka_aggregate import claim_name


class Nodes:
    """A ZooKeeper in memory, as far as names are claimed."""

    zookeeper = "127.0.0.1:2181"

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {"/zookeeper": b"", "/dc1/id": b"another"}
        self.client = SimpleNamespace(create_async=self._create)

    def children(self, _: str) -> list[str]:
        return sorted({path.split("/")[1] for path in self.nodes})

    def get(self, path: str) -> tuple[bytes, object] | None:
        return (self.nodes[path], None) if path in self.nodes else None

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    def _create(self, path: str, data: bytes, *, makepath: bool) -> None:
        if path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = data


def test_a_kafka_has_one_name() -> None:
    session = cast(Session, Nodes())
    kafka = cast(ClusterClient, SimpleNamespace(cluster_id="kafka-1", bootstrap="k:9092"))
    for _ in range(2):
        claim_name(session, "offline", kafka)
    with pytest.raises(
        MillraceError, match=r"k:9092 is cluster offline .* two names would copy everything tw"
    ):
        claim_name(session, "aggregate", kafka)
    other = cast(ClusterClient, SimpleNamespace(cluster_id="kafka-2", bootstrap="k:9092"))
    with pytest.raises(MillraceError, match=r"cluster offline in ZooKeeper at 127.0.0.1:2181 is kafka-1"):
        claim_name(session, "offline", other)
