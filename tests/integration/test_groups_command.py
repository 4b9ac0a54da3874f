"""`millrace groups` on both kinds of group, through the brokers."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as ClassicConsumer
from confluent_kafka import Producer

from millrace.cli import cli
from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.group_client import GroupClient
from millrace.errors import GroupNotEmpty, MillraceError
from millrace_commands.message_counts import count_messages, offset_of_last
from millrace_consumer import Consumer
from tests.brokers import TestCluster
from tests.support import WAIT_S, Process, wait_until

TOPIC = "clicks"
COUNT = 60


@pytest.fixture(scope="module")
def cluster(
    start_for_module: Callable[..., Any], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    name = f"groups-{uuid.uuid4().hex[:8]}"
    settings = "group_initial_rebalance_delay_ms = 0\n[log]\nflush_ms = 10\n"
    found = TestCluster(start_for_module, name, tmp_path_factory.mktemp("groups"), zookeeper, settings)
    found.start_brokers(1, 2)
    with found.client() as client:
        client.create_topic(TOPIC, 2)
    producer = Producer({"bootstrap.servers": found.bootstrap, "log_level": 0})
    for number in range(COUNT):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2, timestamp=1000 + number)
    assert producer.flush(WAIT_S) == 0
    return found


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[ClusterClient]:
    with cluster.client() as found:
        yield found


class Runner:
    """Runs `millrace groups` in this process."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> str:
        result = CliRunner().invoke(cli, ["groups", *arguments, "--bootstrap", self._bootstrap])
        if result.exception is not None:
            raise result.exception
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def groups(cluster: TestCluster) -> Runner:
    return Runner(cluster.bootstrap)


def read_as_streams(cluster: TestCluster, group: str, count: int) -> Consumer:
    """A consumer that has taken `count` messages of the topic, and still holds the last."""
    consumer = Consumer(cluster.zookeeper, cluster.name, group, session_timeout_ms=2000)
    stream = consumer.create_message_streams({TOPIC: 1})[TOPIC][0]
    for _ in range(count):
        next(stream)
    return consumer


def read_as_classic(cluster: TestCluster, group: str, count: int) -> ClassicConsumer:
    consumer = ClassicConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([TOPIC])
    taken = 0
    while taken < count:
        taken += len(consumer.consume(count - taken, timeout=1))
    consumer.commit(asynchronous=False)
    return consumer


@pytest.mark.parametrize("last", [1, 7, COUNT // 2, 1000])
def test_the_last_messages_of_each_partition_are_consumed(cluster: TestCluster, last: int) -> None:
    arguments = ["consume", TOPIC, "--last", str(last), "--until-end", "--bootstrap", cluster.bootstrap]
    read = CliRunner().invoke(cli, arguments)
    assert read.exit_code == 0, read.output
    assert sorted(map(int, read.stdout.split())) == [*range(max(0, COUNT - 2 * last), COUNT)]


def test_messages_between_offsets_are_counted_and_many_estimated(client: ClusterClient) -> None:
    start, end = client.bounds(TOPIC, 0)
    for last in range(1, COUNT // 2 + 1):
        first = offset_of_last(client, TOPIC, 0, last)
        assert count_messages(client, TOPIC, 0, first, end) == (last, True)
    assert count_messages(client, TOPIC, 0, end, end) == (0, True)
    with client_of_small_batches(client) as (topic, messages):
        start, end = client.bounds(topic, 0)
        estimate = count_messages(client, topic, 0, start, end, most=500)
        assert not estimate.exact
        assert abs(estimate.messages - messages) <= messages / 10


@contextmanager
def client_of_small_batches(client: ClusterClient) -> Iterator[tuple[str, int]]:
    """A topic of batches of one message, and how many there are."""
    topic, messages = f"small-{uuid.uuid4().hex[:8]}", 100
    client.create_topic(topic, 1)
    settings = {"bootstrap.servers": client.bootstrap, "log_level": 0, "batch.num.messages": 1}
    producer = Producer(settings)
    for number in range(messages):
        producer.produce(topic, b"%03d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0
    yield topic, messages


@pytest.mark.parametrize(("kind", "read"), [("streams", read_as_streams), ("classic", read_as_classic)])
def test_a_group_is_listed_described_moved_and_deleted(
    cluster: TestCluster, client: ClusterClient, groups: Runner, kind: str, read: Callable[..., Any]
) -> None:
    group = f"{kind} group/ö"
    consumer = read(cluster, group, COUNT)
    if kind == "streams":
        consumer.commit()
    listed = {row["group"]: row for row in groups.json("list")}
    assert listed[group] == {"group": group, "kind": kind, "state": "Stable", "members": 1}
    ends = client.list_offsets(TOPIC, LATEST)
    described = groups.json("describe", group)
    assert [(row["partition"], row["committed"], row["lag_bytes"]) for row in described["partitions"]] == [
        (number, end, 0) for number, end in sorted(ends.items())
    ]
    (member,) = described["members"]
    assert {row["member"] for row in described["partitions"]} == {member}
    assert all(row["host"] for row in described["partitions"])
    assert "lag in messages" in groups("describe", group)
    with pytest.raises(MillraceError, match=r"has members \(1\): stop them"):
        groups("seek", group, TOPIC, "--to", "earliest")
    with pytest.raises(GroupNotEmpty):
        GroupClient(client).commit(group, {(TOPIC, 0): 0})
    with pytest.raises(MillraceError, match="has members"):
        groups("delete", group)
    consumer.close()
    wait_until("it is empty", lambda: groups.json("describe", group)["state"] == "Empty")
    starts = client.list_offsets(TOPIC, EARLIEST)
    groups("seek", group, TOPIC, "--to", "earliest")
    moved = groups.json("describe", group)
    assert [(row["committed"], row["lag_bytes"]) for row in moved["partitions"]] == [
        (starts[number], ends[number] - starts[number]) for number in sorted(ends)
    ]
    assert {(row["lag_messages"], row["lag_is_exact"]) for row in moved["partitions"]} == {(COUNT // 2, True)}
    assert moved["kind"] == kind
    again = read(cluster, group, COUNT)  # everything once more
    again.close()
    wait_until("it is empty", lambda: groups.json("describe", group)["state"] == "Empty")
    groups("delete", group)
    assert group not in {row["group"] for row in groups.json("list")}
    with pytest.raises(MillraceError, match=r"no group .* see `millrace groups list"):
        groups("describe", group)


def test_a_group_is_moved_to_an_offset_and_to_a_time(
    cluster: TestCluster, client: ClusterClient, groups: Runner
) -> None:
    read_as_streams(cluster, "moved", 1).close()
    time_ms = 1000 + COUNT // 2
    expected = client.list_offsets(TOPIC, time_ms)
    text = "1970-01-01T00:00:01.030+00:00"
    groups("seek", "moved", TOPIC, "--to", text)
    assert GroupClient(client).offsets("moved") == {(TOPIC, p): offset for p, offset in expected.items()}
    groups("seek", "moved", TOPIC, "--to", "3", "--partition", "1")
    assert GroupClient(client).offsets("moved")[TOPIC, 1] == 3
    groups("seek", "moved", TOPIC, "--to", "latest", "--partition", "0")
    assert GroupClient(client).offsets("moved")[TOPIC, 0] == client.list_offsets(TOPIC, LATEST)[0]


@pytest.fixture(scope="module")
def there(cluster: TestCluster) -> None:
    """A group of this name."""
    read_as_streams(cluster, "there", 1).close()


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("seek", "there", TOPIC, "--to", "yesterday"), "neither earliest, latest"),
        (("seek", "there", TOPIC, "--to", "99999999", "--partition", "0"), "99999999 is outside"),
        (("seek", "there", TOPIC, "--to", "earliest", "--partition", "9"), "partitions 0 to 1, not 9"),
        (("seek", "there", "nothing", "--to", "earliest"), "topic 'nothing' does not exist"),
        (("seek", "nobody", TOPIC, "--to", "earliest"), "no group 'nobody'"),
        (("delete", "nobody"), "no such group"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(groups: Runner, arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(MillraceError, match=text) as caught:
        groups(*arguments)
    assert "\n" not in str(caught.value)


def test_consuming_with_a_group_commits(
    cluster: TestCluster, groups: Runner, start: Callable[..., Process]
) -> None:
    arguments = ("--group", "printed", "--from-beginning", "--bootstrap", cluster.bootstrap)
    process = start("consume", TOPIC, *arguments)
    wait_until("everything is printed", lambda: len(process.lines) == 1 + COUNT)  # it says that it waits
    process.signal(signal.SIGINT)
    assert process.wait() == 0
    assert sorted(process.lines[1:], key=int) == [str(number) for number in range(COUNT)]
    assert [row["lag_bytes"] for row in groups.json("describe", "printed")["partitions"]] == [0, 0]


@pytest.mark.usefixtures("there")
def test_the_list_for_people_has_a_line_for_each_group(groups: Runner) -> None:
    assert re.search(r"there\s+streams\s+Empty\s+0", groups("list"))
