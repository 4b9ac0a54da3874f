"""Rights at a listener with TLS and logins, as kafka-python and aiokafka meet, read and write them."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import GroupAuthorizationFailedError as AioGroupRefused
from aiokafka.errors import TopicAuthorizationFailedError as AioTopicRefused

from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.users import Users
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation
from millrace_broker.security.rights import ResourceType as Types
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    from kafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PASSWORD = "long enough"
VALUES = [f"value {number}".encode() for number in range(100)]


@dataclass
class Guarded:
    """A broker where web may write and read topic t in group g, admin everything, and nobody nothing."""

    broker: RunningBroker
    ca: str
    port: int

    def settings(self, user: str) -> dict[str, Any]:
        """As both libraries name them."""
        return {
            "bootstrap_servers": f"localhost:{self.port}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": user,
            "sasl_plain_password": PASSWORD,
            "ssl_context": ssl.create_default_context(cafile=self.ca),
        }


@pytest.fixture(scope="module")
def guarded(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Guarded:
    folder = tmp_path_factory.mktemp("rights")
    authority = Authority(folder)
    issued = authority.issue("server")
    session = Session.connect(zookeeper)
    for user in ("admin", "web", "nobody"):
        Users(session, "met").set_password(user, PASSWORD)
    may = [
        (Types.TOPIC, "t", Operation.WRITE),
        (Types.TOPIC, "t", Operation.READ),
        (Types.GROUP, "g", Operation.READ),
    ]
    AclStore(session, "met").change(
        lambda _: [Rule(type_, Pattern.LITERAL, name, "User:web", "*", one, True) for type_, name, one in may]
    )
    session.close()
    port = free_port()
    settings: dict[str, Any] = {
        "listen": None,
        "tls.certificate": issued.certificate,
        "tls.key": issued.key,
        "listeners.inside.listen": f"127.0.0.1:{free_port()}",
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.advertised": f"localhost:{port}",
        "listeners.only.protocol": "SASL_SSL",
        "security.authorizer": True,
        "security.super_users": ["User:admin", "User:ANONYMOUS"],
    }
    broker = start_broker(start_for_module, zookeeper, folder, "met", **settings)
    for topic in ("t", "secret"):
        broker.create_topic(topic, 1, flush_ms=5)
    return Guarded(broker, authority.ca, port)


def test_kafka_python_writes_and_reads_what_its_user_may_and_is_told_what_not(guarded: Guarded) -> None:
    producer = kafka.KafkaProducer(**guarded.settings("web"), acks="all")
    for value in VALUES:
        producer.send("t", value)
    producer.flush(30)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secret", b"x").get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "t", **guarded.settings("web"), group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    got = [message.value for _, message in zip(VALUES, consumer, strict=False)]
    consumer.close()
    assert got == VALUES


def test_kafka_pythons_administration_adds_and_lists_rules_with_the_right_to(guarded: Guarded) -> None:
    topic = kafka.admin.ResourcePattern(kafka.admin.ResourceType.TOPIC, "python")
    rule = kafka.admin.ACL(
        "User:python", "*", kafka.admin.ACLOperation.READ, kafka.admin.ACLPermissionType.ALLOW, topic
    )
    admin = kafka.admin.KafkaAdminClient(**guarded.settings("admin"))
    assert admin.create_acls([rule])["succeeded"] == [rule]
    about = kafka.admin.ACLFilter(
        None,
        None,
        kafka.admin.ACLOperation.ANY,
        kafka.admin.ACLPermissionType.ANY,
        kafka.admin.ResourcePatternFilter(
            kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY
        ),
    )
    wait_until("the rule is listed", lambda: rule in admin.describe_acls(about)[0])
    admin.close()
    stranger = kafka.admin.KafkaAdminClient(**guarded.settings("nobody"))
    with pytest.raises(ClusterAuthorizationFailedError):
        stranger.describe_acls(about)
    stranger.close()


def test_aiokafka_writes_and_reads_what_its_user_may_and_is_told_what_not(guarded: Guarded) -> None:
    async def by(user: str, group: str) -> list[bytes | None]:
        producer = aiokafka.AIOKafkaProducer(**guarded.settings(user), acks="all")
        try:
            await producer.start()
            for value in VALUES:
                await producer.send_and_wait("t", value)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "t", **guarded.settings(user), group_id=group, auto_offset_reset="earliest"
        )
        try:
            await consumer.start()
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in VALUES]
        finally:
            await consumer.stop()

    assert len(asyncio.run(by("web", "g"))) == len(VALUES)
    with pytest.raises(AioGroupRefused):
        asyncio.run(by("web", "another"))
    with pytest.raises(AioTopicRefused):
        asyncio.run(by("nobody", "g"))
