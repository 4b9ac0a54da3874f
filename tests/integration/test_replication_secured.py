"""Brokers copy from each other by TLS: a certificate says who they are, and nobody else may."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.connection import Connection
from millrace.config import ClientSecurity
from millrace.errors import ErrorCode
from millrace.wire.messages import ApiKey
from millrace.wire.replica import ReplicaFetchRequest, encode_fetch
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation, ResourceType
from tests.brokers import free_port
from tests.certificates import Authority, Issued
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until

BROKER, ADMIN = "User:CN=broker", "User:CN=admin"
MAY_COPY = Rule(
    ResourceType.CLUSTER, Pattern.LITERAL, "kafka-cluster", BROKER, "*", Operation.CLUSTER_ACTION, True
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(authority: Authority, issued: Issued) -> ClientSecurity:
    return ClientSecurity(protocol="SSL", ca=authority.ca, certificate=issued.certificate, key=issued.key)


def start_secured(
    start: Callable[..., Process], zookeeper: str, folder: Path, authority: Authority, broker: Issued
) -> dict[str, int]:
    """Two brokers with a listener for clients and one for themselves; the ports of the first."""
    ports: dict[str, int] = {}
    running: list[RunningBroker] = []
    for broker_id in (1, 2):
        own = {name: free_port() for name in ("clients", "internal")}
        ports = ports or own
        settings: dict[str, Any] = {"listen": None, "default_replicas": 2, "session_timeout_ms": 2000}
        settings |= {"tls.certificate": broker.certificate, "tls.key": broker.key, "tls.ca": authority.ca}
        settings |= {"security.authorizer": True, "security.super_users": [ADMIN]}
        settings |= {"replica_listener": "internal", "replica_client.protocol": "SSL"}
        settings |= {"replica_client.ca": authority.ca, "replica_client.certificate": broker.certificate}
        settings |= {"replica_client.key": broker.key}
        for name, port in own.items():
            settings |= {f"listeners.{name}.listen": f"127.0.0.1:{port}"}
            settings |= {f"listeners.{name}.protocol": "SSL"}
            settings |= {f"listeners.{name}.client_certificates": "required"}
        running.append(start_broker(start, zookeeper, folder, folder.name, broker_id, **settings))
    return ports


def refusal(port: int, security: ClientSecurity) -> int:
    """Return the error code that a client gets for a follower's request."""
    body = encode_fetch(ReplicaFetchRequest(2, "0" * 16, True, 0, 1, (), ()))
    with Connection("127.0.0.1", port, client_id="x", timeout_s=10, security=security) as connection:
        (code,) = struct.unpack_from(">h", connection.request(ApiKey.REPLICA_FETCH, 0, body, timeout_s=10))
    return int(code)


def test_brokers_copy_by_their_own_listener_with_their_right_and_nobody_else_does(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path, authority: Authority
) -> None:
    broker, admin, stranger = (authority.issue(name) for name in ("broker", "admin", "stranger"))
    ports = start_secured(start, zookeeper, tmp_path, authority, broker)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{ports['clients']}",
            "security.protocol": "SSL",
            "ssl.ca.location": authority.ca,
            "ssl.certificate.location": admin.certificate,
            "ssl.key.location": admin.key,
            "acks": "all",
            "log_level": 0,
        }
    )
    with Cluster.connect(zookeeper, tmp_path.name, create=False) as cluster:
        wait_until("both are registered", lambda: len(cluster.brokers) == 2)
        cluster.create_topic("t", 1, {"min.insync.replicas": "2"}, replicas=2)
        wait_until("it has a leader", lambda: cluster.topics["t"].partitions[0].leader > 0)
        stored: list[object] = []
        producer.produce("t", b"x" * 100_000, on_delivery=lambda error, _: stored.append(error))
        assert producer.flush(2) == 1, "the follower has no right to copy yet"
        acls = AclStore(cluster.session, tmp_path.name)
        acls.change(lambda rules: [*rules, MAY_COPY])
        assert producer.flush(60) == 0
        assert stored == [None]
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert refusal(ports["internal"], tls(authority, stranger)) == refused
    assert refusal(ports["clients"], tls(authority, admin)) == refused, "it is not the brokers' listener"
    assert refusal(ports["internal"], tls(authority, broker)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
