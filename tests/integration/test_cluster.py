"""The registries in a real ZooKeeper: what one broker writes the others see, and who may hold an id."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.states import Callback

from millrace.errors import (
    ConfigError,
    MillraceError,
    NoLiveBroker,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millrace.records.mirror_position import Origin
from millrace.zookeeper.embedded import ZooKeeper
from millrace.zookeeper.session import OPERATION_SECONDS
from millrace.zookeeper.topic_state import REPLICATING, BrokerAddress, Replicas, TopicState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.new_partitions import OriginRecreated
from millrace_broker.coordination.placement import Load
from tests.lost_answers import lose_one_answer
from tests.support import WAIT_S, wait_until

TOPIC_ID = UUID(int=9)


class Member:
    """A cluster object and a listening port of its own, as a broker would have."""

    def __init__(self, zookeeper: str, name: str, session_timeout_ms: int = 2000) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.cluster = Cluster.connect(zookeeper, name, session_timeout_ms=session_timeout_ms)

    def register(self, broker_id: int, protocol: int = 1) -> None:
        address = BrokerAddress("127.0.0.1", self.port, protocol=protocol)
        self.cluster.register_broker(broker_id, address)

    def close(self) -> None:
        self.cluster.close()
        self.listener.close()


@pytest.fixture
def members(zookeeper: str, request: pytest.FixtureRequest) -> Iterator[list[Member]]:
    """Two members of a cluster that no other test uses; the first is broker 1, the second broker 2."""
    name, session_timeout_ms = f"cluster-{uuid.uuid4().hex[:8]}", getattr(request, "param", 2000)
    found = [Member(zookeeper, name, session_timeout_ms) for _ in range(2)]
    found[0].register(1)
    found[1].register(2)
    yield found
    for member in found:
        member.close()


def test_the_ids_of_topics_are_those_of_now_whatever_a_snapshot_says(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = members
    wait_until("both brokers are known", lambda: len(first.cluster.brokers) == 2)
    same, former, _ = (first.cluster.create_topic(name, 1, {}) for name in ("same", "anew", "gone"))
    wait_until("the other sees them", lambda: len(second.cluster.topics) == 3)
    monkeypatch.setattr(second.cluster, "_refresh", lambda: None)
    first.cluster.delete_topic("gone")
    first.cluster.delete_topic("anew")
    anew = first.cluster.create_topic("anew", 1, {})
    late = first.cluster.create_topic("late", 1, {})
    assert second.cluster.topics["anew"].topic_id == former.topic_id
    ids = second.cluster.topic_ids(["same", "anew", "gone", "late", "never"])
    assert ids == {"same": same.topic_id, "anew": anew.topic_id, "late": late.topic_id}


def test_members_see_each_other_and_a_member_that_leaves_is_gone(members: list[Member]) -> None:
    first, second = members
    both = {1: BrokerAddress("127.0.0.1", first.port), 2: BrokerAddress("127.0.0.1", second.port)}
    wait_until("both see both", lambda: first.cluster.brokers == second.cluster.brokers == both)
    assert first.cluster.cluster_id == second.cluster.cluster_id
    assert first.cluster.cluster_id.startswith("millrace-")
    second.cluster.close()
    wait_until("the second is gone", lambda: list(first.cluster.brokers) == [1])


@pytest.mark.parametrize(("replicas", "assigned"), [(2, ()), (1, [(2,)])])
def test_a_topic_has_replicas_also_on_a_broker_that_is_not_in_the_snapshot_yet(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch, replicas: int, assigned: Sequence[Replicas]
) -> None:
    name = f"cluster-{uuid.uuid4().hex[:8]}"
    first, second = [Member(zookeeper, name) for _ in range(2)]
    first.register(1, REPLICATING)
    wait_until("the first knows itself", lambda: len(first.cluster.brokers) == 1)
    with monkeypatch.context() as patched:
        patched.setattr(first.cluster, "_mark", lambda *paths: None)
        second.register(2, REPLICATING)
        wait_until("the second knows both", lambda: len(second.cluster.brokers) == 2)
    topic = first.cluster.create_topic("wide", 1, {}, replicas=replicas, assigned=assigned)
    assert 2 in topic.partitions[0].replicas
    for member in (first, second):
        member.close()


def test_topics_are_created_once_seen_by_all_and_deleted(members: list[Member]) -> None:
    first, second = members
    wait_until("both brokers are known", lambda: len(first.cluster.brokers) == 2)
    changes = threading.Event()
    second.cluster.on_change(changes.set)
    topic = first.cluster.create_topic("clicks", 4, {"retention.ms": "60000"})
    assert first.cluster.topics["clicks"] == topic, "an own change is in the snapshot at once"
    assert sorted(p.leader for p in topic.partitions.values()) == [1, 1, 2, 2]
    wait_until("the other sees it", lambda: second.cluster.topics.get("clicks") == topic)
    assert changes.wait(WAIT_S)
    with pytest.raises(TopicAlreadyExists):
        second.cluster.create_topic("clicks", 1, {})
    second.cluster.delete_topic("clicks")
    wait_until("it is gone", lambda: "clicks" not in first.cluster.topics)
    with pytest.raises(UnknownTopicOrPartition):
        first.cluster.delete_topic("clicks")
    again = first.cluster.create_topic("clicks", 1, {})
    assert again.topic_id != topic.topic_id
    wait_until("the new one is seen", lambda: second.cluster.topics.get("clicks") == again)


def read_what_has_changed(cluster: Cluster) -> None:
    """Return when the events of all changes before this call were taken, and what they name was read."""
    client, taken = cluster.session.client, threading.Event()
    client.sync(f"/{cluster.name}/topics")  # ZooKeeper sends the events before this answer
    client.handler.dispatch_callback(Callback("watch", taken.set, ()))  # kazoo runs callbacks in turn
    assert taken.wait(WAIT_S)
    cluster._refresh()


@pytest.mark.parametrize("members", [30_000], indirect=True)  # a lost connection has all read again
def test_a_change_of_one_topic_reads_no_other_and_lists_none(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = members[0].cluster, members[1].cluster
    for number in range(20):
        first.create_topic(f"t{number}", 1, {})
    wait_until("the other sees them", lambda: len(second.topics) == 20)
    for cluster in (first, second):
        read_what_has_changed(cluster)
    kept, asked = second.topics["t0"], list[str]()

    def noted(ask: Callable[..., Any], path: str, *more: Any, **by: Any) -> Any:
        asked.append(path)
        return ask(path, *more, **by)

    for cluster in (first, second):
        for name in ("get_async", "get_children_async"):
            client = cluster.session.client
            monkeypatch.setattr(client, name, partial(noted, getattr(client, name)))
    first.create_topic("new", 1, {})
    wait_until("the other sees it", lambda: "new" in second.topics)
    first.change_topic("t7", lambda topic: replace(topic, settings={"retention.ms": "60000"}))
    wait_until("the other sees the change", lambda: second.topics["t7"].settings)
    first.delete_topic("t8")
    wait_until("the other sees that it is gone", lambda: "t8" not in second.topics)
    name = first.name
    read = {path.removeprefix(f"/{name}/topics/") for path in asked}
    assert read == {"new", "t7", "t8", f"/{name}/id", f"/{name}/topics"}
    assert second.topics["t0"] is kept, "it is not decoded again"
    for cluster in (first, second):
        assert cluster.load == Load().changed((), cluster.topics.values())


def test_changes_are_seen_also_after_the_connection_was_lost(members: list[Member]) -> None:
    first, second = members[0].cluster, members[1].cluster
    first.create_topic("before", 1, {})
    second.session.client._connection._socket.shutdown(socket.SHUT_RDWR)
    first.create_topic("meanwhile", 1, {})
    wait_until("what happened meanwhile is seen", lambda: set(second.topics) == {"before", "meanwhile"})
    first.delete_topic("before")
    wait_until("the watch works again", lambda: set(second.topics) == {"meanwhile"})


def test_a_restored_zookeeper_is_believed_though_its_entry_has_the_number_of_the_known_one(
    members: list[Member],
) -> None:
    first, second = members[0].cluster, members[1].cluster
    wait_until("both brokers are known", lambda: len(first.brokers) == 2)
    written = first.create_topic("clicks", 1, {})
    wait_until("the other sees it", lambda: second.topics.get("clicks") == written)
    # As if another change had been lost with the ZooKeeper of before, and this one had come in its place.
    lost = replace(second.topics["clicks"], settings={"retention.ms": "60000"})
    second.topics = {"clicks": lost}
    second.session.client._connection._socket.shutdown(socket.SHUT_RDWR)
    wait_until("what ZooKeeper holds counts", lambda: second.topics["clicks"] == written)


def test_a_topic_needs_a_live_broker(zookeeper: str) -> None:
    with (
        Cluster.connect(zookeeper, f"cluster-{uuid.uuid4().hex[:8]}") as cluster,
        pytest.raises(NoLiveBroker),
    ):
        cluster.create_topic("clicks", 1, {})


def test_racing_members_allocate_each_origin_partition_once(members: list[Member]) -> None:
    wait_until("both see both", lambda: all(len(each.cluster.brokers) == 2 for each in members))
    origins = [Origin("dc1", "clicks", TOPIC_ID, number) for number in range(12)]
    found: dict[tuple[int, Origin], int] = {}

    def allocate(index: int) -> None:
        for origin in origins if index % 2 else reversed(origins):
            found[index, origin] = members[index % 2].cluster.allocate_mirrors("clicks", [origin])[origin]

    threads = [threading.Thread(target=allocate, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 * len(origins)
    for origin in origins:
        assert len({found[index, origin] for index in range(4)}) == 1
    assert sorted(found[0, origin] for origin in origins) == list(range(12))
    leaders = [p.leader for p in members[0].cluster.topics["clicks"].partitions.values()]
    assert (leaders.count(1), leaders.count(2)) == (6, 6)


def test_a_target_that_another_member_allocated_is_in_the_snapshot_on_return(members: list[Member]) -> None:
    first, second = members
    origin = Origin("dc1", "clicks", TOPIC_ID, 0)
    with second.cluster._refreshing:  # what it is told of changes comes late
        target = first.cluster.allocate_mirrors("clicks", [origin])[origin]
        assert second.cluster.allocate_mirrors("clicks", [origin])[origin] == target
        assert second.cluster.topics["clicks"].target_of(origin) == target


def test_a_recreated_origin_needs_a_word_and_never_takes_the_old_partition(members: list[Member]) -> None:
    cluster = members[0].cluster
    cluster.allocate_mirrors("clicks", [Origin("dc1", "clicks", TOPIC_ID, 0)])
    anew = Origin("dc1", "clicks", uuid.uuid4(), 0)
    with pytest.raises(OriginRecreated):
        cluster.allocate_mirrors("clicks", [anew])
    assert cluster.allocate_mirrors("clicks", [anew], recreated=True) == {anew: 1}


def test_an_id_held_by_a_live_broker_is_refused_in_one_line(members: list[Member], zookeeper: str) -> None:
    third = Member(zookeeper, members[0].cluster.name)
    with pytest.raises(MillraceError, match=f"broker id 1 .* live broker at 127.0.0.1:{members[0].port}"):
        third.register(1)
    third.close()
    assert members[0].cluster.brokers[1].port == members[0].port


CRASHER = """
import os, signal, socket, sys
from millrace_broker.coordination.cluster import Cluster
from millrace.zookeeper.topic_state import BrokerAddress
listener = socket.create_server(("127.0.0.1", int(sys.argv[3])))
cluster = Cluster.connect(sys.argv[1], sys.argv[2], session_timeout_ms=30000)
cluster.register_broker(7, BrokerAddress("127.0.0.1", listener.getsockname()[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_restarted_broker_takes_over_what_its_killed_self_left(
    members: list[Member], zookeeper: str
) -> None:
    name = members[0].cluster.name
    subprocess.run([sys.executable, "-c", CRASHER, zookeeper, name, "0"], check=False, timeout=60)
    wait_until("the dead broker is still listed", lambda: 7 in members[0].cluster.brokers)
    restarted = Member(zookeeper, name)
    began = time.monotonic()
    restarted.register(7)
    assert time.monotonic() - began < 25, "its session of 30 s is not waited for"
    expected = BrokerAddress("127.0.0.1", restarted.port)
    wait_until("the new address is seen", lambda: members[0].cluster.brokers.get(7) == expected)
    restarted.close()


def test_a_lost_session_is_replaced_and_the_broker_listed_again(
    members: list[Member], zookeeper: str
) -> None:
    first, second = members
    wait_until("both brokers are known", lambda: len(second.cluster.brokers) == 2)
    gone = threading.Event()

    def note() -> None:
        if 1 not in second.cluster.brokers:
            gone.set()

    second.cluster.on_change(note)
    # Closing a session under its own id and password is how ZooKeeper's own tests make it expire.
    thief = KazooClient(hosts=zookeeper, client_id=first.cluster.session.client.client_id)
    thief.start()
    thief.stop()
    thief.close()
    assert gone.wait(WAIT_S)
    wait_until("it is listed again", lambda: 1 in second.cluster.brokers)
    first.cluster.create_topic("after", 1, {})
    wait_until("watches work again", lambda: "after" in second.cluster.topics)


def test_a_broker_says_what_it_stores_also_after_a_lost_session(
    members: list[Member], operator: KazooClient
) -> None:
    first = members[0].cluster
    path = f"/{first.name}/brokers/ids/1"
    before, stat = operator.get(path)
    assert json.loads(before)["topics"] == {}

    def recorded() -> object:
        return json.loads(operator.get(path)[0])["topics"] if operator.exists(path) else None

    first.store([("clicks", 0), ("clicks", 1)])
    wait_until("it is recorded", lambda: recorded() == {"clicks": "0-1"})
    assert json.loads(operator.get(path)[0]) == json.loads(before) | {
        "topics": {"clicks": "0-1"},
        "partitions": 2,
    }
    thief = KazooClient(hosts=first.session.zookeeper, client_id=first.session.client.client_id)
    thief.start()
    thief.stop()
    thief.close()
    wait_until(
        "it is listed anew", lambda: operator.exists(path) and operator.exists(path).czxid != stat.czxid
    )
    assert recorded() == {"clicks": "0-1"}


def test_members_that_lose_their_sessions_together_go_on_listing_each_other(members: list[Member]) -> None:
    second = members[1].cluster
    seen: list[list[int]] = []
    second.on_change(lambda: seen.append(sorted(second.brokers)))
    before = [member.cluster.session.id for member in members]
    for member in reversed(members):  # while its own session lasts, it believes what it reads
        session = member.cluster.session
        thief = KazooClient(hosts=session.zookeeper, client_id=session.client.client_id)
        thief.start()
        thief.stop()
        thief.close()
    wait_until("both have new ones", lambda: all(m.cluster.session.id not in before for m in members))
    wait_until("both are registered", lambda: len(second._registered) == 2)
    assert sorted(second.brokers) == [1, 2]
    members[0].close()
    wait_until("who leaves then is gone", lambda: sorted(second.brokers) == [2])
    assert all(brokers == [1, 2] for brokers in seen[:-1]), seen


def test_a_topic_is_changed_by_compare_and_set(members: list[Member]) -> None:
    first, second = members[0].cluster, members[1].cluster
    topic = first.create_topic("clicks", 1, {})

    def count_up(cluster: Cluster, name: str) -> None:
        for number in range(20):

            def change(state: TopicState, value: str = str(number)) -> TopicState:
                return replace(state, settings={**state.settings, name: value})

            cluster.change_topic("clicks", change)

    threads = [
        threading.Thread(target=count_up, args=each)
        for each in ((first, "retention.ms"), (second, "retention.bytes"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expected = replace(topic, settings={"retention.ms": "19", "retention.bytes": "19"})
    wait_until("both see all changes", lambda: first.topics["clicks"] == second.topics["clicks"] == expected)
    with pytest.raises(UnknownTopicOrPartition):
        first.change_topic("nope", lambda state: state)


def test_a_change_does_not_replace_a_topic_that_was_recreated_since_it_was_read(
    members: list[Member],
) -> None:
    first, second = members[0].cluster, members[1].cluster
    first.create_topic("clicks", 1, {})
    recreated: list[TopicState] = []

    def change(state: TopicState) -> TopicState:
        if not recreated:  # between the reading and the write, or while the write is repeated
            second.delete_topic("clicks")
            recreated.append(second.create_topic("clicks", 2, {}))
        return replace(state, settings={"retention.ms": "60000"})

    changed = first.change_topic("clicks", change)
    assert changed == replace(recreated[0], settings={"retention.ms": "60000"})


def test_a_deletion_whose_answer_was_lost_is_one_deletion(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = members[0].cluster
    cluster.create_topic("T", 1, {})
    lose_one_answer(TransactionRequest, "commit_async", monkeypatch)
    cluster.delete_topic("T")
    assert "T" not in cluster.topics
    with pytest.raises(UnknownTopicOrPartition):
        cluster.delete_topic("T")


def test_a_deletion_whose_answer_was_lost_leaves_the_recreated_topic_alone(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (member.cluster for member in members[:2])
    first.create_topic("T", 1, {})
    recreated: list[TopicState] = []
    lose_one_answer(
        TransactionRequest,
        "commit_async",
        monkeypatch,
        lambda: recreated.append(second.create_topic("T", 1, {})),
    )
    first.delete_topic("T")
    assert first.topics["T"].topic_id == recreated[0].topic_id


def test_a_topic_is_gone_only_when_zookeeper_says_so(members: list[Member], operator: KazooClient) -> None:
    first, name = members[0].cluster, members[0].cluster.name
    topic = first.create_topic("clicks", 1, {})
    assert not first.is_gone("clicks", topic.topic_id)
    assert first.is_gone("clicks", TOPIC_ID), "it was created anew"
    assert first.is_gone("views", TOPIC_ID)
    operator.set(f"/{name}/topics/clicks", b"unreadable")
    assert not first.is_gone("clicks", TOPIC_ID)
    operator.set(f"/{name}/id", b"millrace-of-another-life")
    with pytest.raises(MillraceError, match="another cluster"):
        first.is_gone("views", TOPIC_ID)


def test_leaving_does_not_wait_for_a_zookeeper_that_is_gone(tmp_path: Path) -> None:
    with ZooKeeper.start(tmp_path) as server:
        member = Member(server.address, "alone")
        member.register(1)
    member.cluster._on_event(SimpleNamespace(path=member.cluster._topics))  # something to read, from nobody
    wait_until("the watcher reads it", member.cluster._dirty.empty)
    began = time.monotonic()
    member.close()
    assert time.monotonic() - began < OPERATION_SECONDS, "as long as a call may take"


@pytest.fixture
def operator(zookeeper: str) -> Iterator[KazooClient]:
    """Somebody who changes ZooKeeper by hand."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def test_a_wiped_zookeeper_is_not_taken_for_deleted_topics(
    members: list[Member], operator: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    first, name = members[0].cluster, members[0].cluster.name
    topic = first.create_topic("clicks", 1, {})
    operator.set(f"/{name}/id", b"millrace-of-another-life")  # as the first client of an empty one would
    operator.delete(f"/{name}/topics/clicks")
    wait_until("it says so", lambda: "holds another cluster" in caplog.text)
    assert first.topics["clicks"] == topic
    with pytest.raises(MillraceError, match="holds another cluster"):
        first.create_topic("views", 1, {})
    assert operator.get_children(f"/{name}/topics") == [], "nothing is written into the other's registries"


def test_registries_that_are_gone_are_not_taken_for_empty_ones(
    members: list[Member], operator: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    first, name = members[0].cluster, members[0].cluster.name
    topic = first.create_topic("clicks", 1, {})
    transaction = operator.transaction()
    transaction.delete(f"/{name}/topics/clicks")
    transaction.delete(f"/{name}/topics")
    assert transaction.commit() == [True, True]
    wait_until("it says so", lambda: f"has lost /{name}/topics" in caplog.text)
    assert first.topics["clicks"] == topic


def test_an_entry_that_became_unreadable_leaves_the_topic_as_it_was(
    members: list[Member], operator: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    first, name = members[0].cluster, members[0].cluster.name
    topic = first.create_topic("clicks", 1, {})
    operator.set(f"/{name}/topics/clicks", b'{"version": 2}')
    wait_until("it says so", lambda: "entry for topic clicks is unreadable" in caplog.text)
    first.create_topic("views", 1, {})
    assert first.topics["clicks"] == topic


def test_an_id_taken_over_by_a_live_broker_is_reported_without_hurry(
    members: list[Member], operator: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = members
    other = {"host": "127.0.0.1", "port": second.port, "machine": "elsewhere", "boot": "another"}
    path = f"/{first.cluster.name}/brokers/ids/1"
    change = operator.transaction()
    change.delete(path)
    change.create(path, json.dumps(other).encode(), ephemeral=True)
    change.commit()

    def said() -> list[float]:
        return [record.created for record in caplog.records if "broker id 1 is held" in record.message]

    wait_until("it says so three times", lambda: len(said()) >= 3)
    assert all(later - earlier > 0.5 for earlier, later in pairwise(said()))


def test_without_zookeeper_there_is_one_line_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.zookeeper.session.CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(MillraceError, match=f"no ZooKeeper answers at {address}: start one"):
        Cluster.connect(address, "nowhere")
    assert time.monotonic() - began < WAIT_S


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:2181/chroot"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        Cluster.connect(address, "nowhere")
