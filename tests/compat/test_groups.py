"""Consumer groups of real clients: members and coordinators killed, static members, cooperative rebalances.

Covered, for confluent-kafka, kafka-python and aiokafka alike where the client can: one to eight members,
every assignor the client has, members that join, leave and are killed, coordinators that are killed, resuming
exactly after a restart, static members, offsets and groups in each client's own admin client; kcat's groups.
Nothing is lost, and twice is read only what the first reader could not commit.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.admin
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from millrace_broker.groups.holding import coordinator_of
from tests.brokers import TestCluster
from tests.compat.clients import KCAT, kcat
from tests.compat.groups import Members, feed, fill
from tests.support import Process, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
ASSIGNORS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]
STATIC = ("confluent-kafka", "kafka-python", "aiokafka")
PARTITIONS = 8
SETTINGS = "group_min_session_timeout_ms = 500\n[log]\nflush_ms = 20\n"


@pytest.fixture(scope="module")
def cluster(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    """Broker 1 leads all partitions, so that 2 and 3 can be killed as coordinators."""
    folder = tmp_path_factory.mktemp("groups")
    made = TestCluster(start_for_module, "groups", folder, zookeeper, SETTINGS).start_brokers(1)
    with made.client() as client:
        for name in CLIENTS:
            client.create_topic(f"led-by-1-{name}", PARTITIONS)
    return made.start_brokers(2, 3)


@pytest.fixture
def topic(cluster: TestCluster, request: pytest.FixtureRequest) -> str:
    """A topic nobody has used."""
    name = re.sub("[^a-z0-9-]", "_", request.node.name)
    with cluster.client() as client:
        client.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def members(start: Callable[..., Process], cluster: TestCluster, topic: str) -> Members:
    """A group of its own for each test."""
    return Members(start, cluster.bootstrap, topic, f"group of {topic}")


def coordinated_by(broker_id: int, name: str) -> str:
    """The name with a number behind it, such that the choice falls on this broker."""
    names = (f"{name} {number}" for number in range(1000))
    return next(each for each in names if coordinator_of(each, (1, 2, 3)) == broker_id)


# Members


@pytest.mark.parametrize(("client", "assignor"), ASSIGNORS)
def test_members_join_and_leave_and_every_message_is_read_once(
    members: Members, client: str, assignor: str
) -> None:
    with feed(members.bootstrap, members.topic, PARTITIONS) as sent:
        first = members.add(client, assignor=assignor)
        members.balanced(PARTITIONS)
        members.add(client, assignor=assignor)
        members.add(client, assignor=assignor)
        members.balanced(PARTITIONS)
        first.close()
        members.balanced(PARTITIONS)
    members.received(sent)
    members.check_deliveries()


@pytest.mark.parametrize("client", CLIENTS)
def test_eight_members_share_eight_partitions_and_survive_kills(members: Members, client: str) -> None:
    with feed(members.bootstrap, members.topic, PARTITIONS) as sent:
        for _ in range(8):
            members.add(client, pause_s=0.05)
        members.balanced(PARTITIONS, timeout_s=60)
        for member in members.started[:3]:
            wait_until("it is reading", functools.partial(member.events, "committed"))
            member.kill()
        members.balanced(PARTITIONS)
    members.received(sent)
    members.check_deliveries()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_coordinator_that_is_killed_is_replaced(
    members: Members, cluster: TestCluster, client: str
) -> None:
    members.group, members.topic = coordinated_by(2, members.group), f"led-by-1-{client}"
    with feed(members.bootstrap, members.topic, PARTITIONS) as sent:
        for _ in range(3):
            members.add(client)
        members.balanced(PARTITIONS)
        cluster.brokers[2].kill()
        before = [len(member.events("committed")) for member in members.started]
        wait_until(
            "all commit again, at another coordinator",
            lambda: all(
                len(member.events("committed")) > count + 3
                for member, count in zip(members.started, before, strict=True)
            ),
            timeout_s=60,
        )
    members.received(sent)
    members.check_deliveries()
    cluster.restart(2)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_resumes_exactly_where_it_stopped(members: Members, client: str) -> None:
    values = fill(members.bootstrap, members.topic, PARTITIONS, 800)
    for number in range(3):
        member = members.add(client)
        members.received(values)
        member.close()
        values = [*values, *fill(members.bootstrap, members.topic, PARTITIONS, 80, first=800 + 80 * number)]
    members.add(client)
    members.received(values)
    members.check_deliveries()


def test_members_of_different_clients_share_a_group(members: Members) -> None:
    """All three write and read the same metadata and assignments."""
    with feed(members.bootstrap, members.topic, PARTITIONS) as sent:
        for client in CLIENTS:
            members.add(client, assignor="roundrobin")
            members.balanced(PARTITIONS)
    members.received(sent)
    members.check_deliveries()


# Static members


@pytest.mark.parametrize("client", STATIC)
def test_a_static_member_restarts_without_a_rebalance(members: Members, client: str) -> None:
    patient = {"session_ms": 60_000, "rebalance_ms": 60_000}
    other, one = (members.add(client, instance=name, **patient) for name in ("a", "b"))
    members.balanced(PARTITIONS)
    held, seen = one.partitions, len(other.events("assigned", "revoked"))
    one.kill()
    again = members.add(client, instance="b", **patient)
    wait_until("it has its partitions again", lambda: again.partitions == held)
    values = fill(members.bootstrap, members.topic, PARTITIONS, 400)
    members.received(values)
    assert len(other.events("assigned", "revoked")) == seen, "the other one noticed nothing"
    members.check_deliveries()


def test_the_second_of_two_members_with_one_instance_id_fences_the_first(members: Members) -> None:
    first = members.add("confluent-kafka", instance="same")
    members.balanced(PARTITIONS)
    members.add("confluent-kafka", instance="same")
    wait_until("the first is told", lambda: [e for e in first.events("error") if "fenced" in e[2].lower()])


# Cooperative rebalances


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
def test_a_cooperative_rebalance_moves_only_what_must_move(members: Members, client: str) -> None:
    with feed(members.bootstrap, members.topic, PARTITIONS) as sent:
        old = [members.add(client, assignor="cooperative-sticky") for _ in range(2)]
        members.balanced(PARTITIONS)
        seen = [len(member.events("revoked")) for member in old]
        held = [member.partitions for member in old]
        new = members.add(client, assignor="cooperative-sticky")
        members.balanced(PARTITIONS)
        for member, had, count in zip(old, held, seen, strict=True):
            revoked = [p for _, _, partitions in member.events("revoked")[count:] for p in partitions]
            assert len(revoked) <= 2, f"{member.name} gave up {revoked}"
            assert member.partitions == had - set(revoked), "and kept all others"
        assert len(new.partitions) >= 2
    members.received(sent)
    members.check_deliveries()


# kcat


def test_kcat_reads_as_a_member_and_resumes(cluster: TestCluster, topic: str) -> None:
    group = ("-G", f"kcat of {topic}", topic, "-b", cluster.bootstrap, "-q")
    options = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=3000", "-f", "%s\\n", "-e")
    KCAT.produce(cluster.bootstrap, topic, 0, [b"%d" % n for n in range(100)], "none")
    assert len(kcat(*group[3:], *options, *group[:3]).split()) == 100
    KCAT.produce(cluster.bootstrap, topic, 0, [b"%d" % n for n in range(100, 110)], "none")
    assert kcat(*group[3:], *options, *group[:3]).split() == [b"%d" % n for n in range(100, 110)]


# Administration


def confluent_admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def test_confluent_kafka_administers_groups(cluster: TestCluster, members: Members) -> None:
    admin, name = confluent_admin(cluster.bootstrap), members.group
    member = members.add("confluent-kafka")
    members.balanced(PARTITIONS)
    fill(cluster.bootstrap, members.topic, PARTITIONS, 80)
    wait_until("it has committed", lambda: len(member.events("committed")) and len(member.delivered) == 80)
    listed = admin.list_consumer_groups().result().valid
    assert [group.group_id for group in listed].count(name) == 1
    described = admin.describe_consumer_groups([name])[name].result()
    assert described.state.name == "STABLE"
    (shown,) = described.members
    assert sorted(p.partition for p in shown.assignment.topic_partitions) == list(range(PARTITIONS))
    assert shown.client_id == "rdkafka"
    assert shown.host == "/127.0.0.1"
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([name])[name].result()
    member.close()
    wait_until(
        "it is empty", lambda: admin.describe_consumer_groups([name])[name].result().state.name == "EMPTY"
    )
    asked = ConsumerGroupTopicPartitions(name)
    committed = admin.list_consumer_group_offsets([asked])[name].result().topic_partitions
    assert len(committed) == PARTITIONS
    moved = ConsumerGroupTopicPartitions(name, [TopicPartition(members.topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])[name].result()
    again = members.add("confluent-kafka")
    wait_until("it reads partition 0 again", lambda: len(again.delivered) == 10)
    assert {record[0] for _, record in again.delivered} == {0}
    again.close()
    wait_until("it is deleted", lambda: _deleted(admin, name))
    assert name not in [group.group_id for group in admin.list_consumer_groups().result().valid]
    assert not admin.list_consumer_group_offsets([asked])[name].result().topic_partitions


def _deleted(admin: AdminClient, name: str) -> bool:
    try:
        admin.delete_consumer_groups([name])[name].result()
    except Exception as error:
        assert "NON_EMPTY_GROUP" in str(error)  # noqa: PT017  # not yet
        return False
    return True


def test_kafka_python_administers_groups(cluster: TestCluster, members: Members) -> None:
    name = members.group
    fill(cluster.bootstrap, members.topic, PARTITIONS, 80)
    member = members.add("kafka-python")
    wait_until("it has committed", lambda: len(member.events("committed")) and len(member.delivered) == 80)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        assert [group["group_id"] for group in admin.list_groups()].count(name) == 1
        described = admin.describe_groups([name])[name]
        assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
        assert len(described["members"]) == 1
        member.close()
        offsets = admin.list_group_offsets(name)
        found = offsets.get(name, offsets)
        assert len(found) == PARTITIONS
        deleted = json.dumps(admin.delete_groups([name]), default=str)
        assert "OK" in deleted or "NoError" in deleted or "0" in deleted, deleted
        assert admin.describe_groups([name])[name]["group_state"] == "Dead"
    finally:
        admin.close()


def test_aiokafka_administers_groups(cluster: TestCluster, members: Members) -> None:
    name = members.group
    fill(cluster.bootstrap, members.topic, PARTITIONS, 80)
    member = members.add("aiokafka")
    wait_until("it has read all", lambda: len(member.delivered) == 80)
    wait_until("it has committed", lambda: member.events("got", "committed")[-1][0] == "committed")

    async def run() -> tuple[Any, Any, Any]:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            listed = await admin.list_consumer_groups()
            described = await admin.describe_consumer_groups([name])
            offsets = await admin.list_consumer_group_offsets(name)
        finally:
            await admin.close()
        return listed, described, offsets

    listed, described, offsets = asyncio.run(run())
    assert [group[0] for group in listed].count(name) == 1
    assert described[0].groups[0][2] == "Stable"
    assert len(offsets) == PARTITIONS


@pytest.fixture(autouse=True)
def _all_brokers_live(cluster: TestCluster) -> Iterator[None]:
    """A test that fails half-way must not leave the next one with a dead broker."""
    yield
    for number, broker in cluster.brokers.items():
        if not broker.process.running:
            cluster.restart(number)
