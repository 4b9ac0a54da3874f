"""Groups of the paper's consumer on real brokers: sharing, taking over, committing, seeking, surviving."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from kazoo.client import KazooClient

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import BrokerError, CorruptMessage, InconsistentGroupKind, MillraceError
from millrace.zookeeper.session import Session
from millrace_broker.coordination.groups import (
    ConsumerRegistry,
    GroupKind,
    StreamsMember,
    node_name,
    stream_name,
)
from millrace_consumer import Consumer, MessageStream, NotOwner
from millrace_consumer.assignment import assign
from millrace_consumer.puller import ConsumerPuller
from tests.brokers import TestCluster
from tests.consuming import SESSION_MS, ConsumerProcess, Proxy, Reader
from tests.support import ROUNDS, WAIT_S, wait_until

Start = Callable[..., Any]
KILLS = 6 if ROUNDS > 2 else 3


@pytest.fixture(scope="module")
def cluster(start_for_module: Start, zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> TestCluster:
    """Two brokers that all tests of this module share; each takes topics and groups of its own."""
    folder = tmp_path_factory.mktemp("consumer")
    name = f"consumer-{uuid.uuid4().hex[:8]}"
    return TestCluster(start_for_module, name, folder, zookeeper, "[log]\nflush_ms = 10\n").start_brokers(
        1, 2
    )


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For answers on their way when a consumer is closed, and for partitions that are not given up yet."""
    monkeypatch.setattr("millrace_consumer.puller.FETCH_WAIT_MS", 50)
    monkeypatch.setattr("millrace_consumer.rebalance.RETRY_SECONDS", 0.02)


class Site:
    """One test's topic, and the consumers it makes."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster, self.topic = cluster, f"topic-{uuid.uuid4().hex[:8]}"
        self.client: ClusterClient = cluster.client()
        self.session = Session.connect(cluster.zookeeper)
        self.registry = ConsumerRegistry(self.session, cluster.name)
        self.sent: list[bytes] = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2, "log_level": 0})
        self._consumers: list[Consumer] = []

    def create(self, partitions: int, **configs: str) -> None:
        self.client.create_topic(self.topic, partitions, configs)
        self.partitions = partitions

    def produce(self, count: int, *, size: int = 0, partition: int | None = None, time_ms: int = 1) -> None:
        """`count` messages with values never sent before, spread over all partitions unless one is named."""
        values = [b"%d %s" % (len(self.sent) + number, b"x" * size) for number in range(count)]
        chosen = range(self.partitions) if partition is None else [partition]
        for each in chosen:
            mine = values[chosen.index(each) :: len(chosen)]
            for value in mine:
                self._producer.produce(self.topic, value, partition=each, timestamp=time_ms)
        assert self._producer.flush(WAIT_S) == 0
        self.sent += values

    def consumer(self, group: str = "g", **options: Any) -> Consumer:
        options = {"session_timeout_ms": SESSION_MS, "commit_interval_ms": 200, **options}
        zookeeper = options.pop("zookeeper", self.cluster.zookeeper)
        consumer = Consumer(zookeeper, self.cluster.name, self.group(group), **options)
        self._consumers.append(consumer)
        return consumer

    def group(self, name: str) -> str:
        return f"{name} of {self.topic}"

    def reader(self, group: str = "g", streams: int = 1, **options: Any) -> Reader:
        return Reader.start(self.consumer(group, **options), {self.topic: streams})

    def stream(self, consumer: Consumer) -> MessageStream:
        return consumer.create_message_streams({self.topic: 1})[self.topic][0]

    def forget(self, consumer: Consumer) -> None:
        """End a consumer that ZooKeeper cannot be told of."""
        for stream in consumer._each_stream():
            stream.close()
        consumer._rebalancer.stopping.set()  # type: ignore[union-attr]
        consumer._pullers.close()
        consumer._cluster.close()
        self._consumers.remove(consumer)

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        self.client.close()
        self.session.close()


@pytest.fixture
def site(cluster: TestCluster) -> Iterator[Site]:
    found = Site(cluster)
    yield found
    found.close()


def shared_out(readers: list[Reader], partitions: int) -> bool:
    """Every partition has one owner and nobody has two more than another."""
    owned = [reader.consumer.owned for reader in readers]
    sizes = [len(each) for each in owned]
    everything = sorted(number for each in owned for _, number in each)
    return everything == list(range(partitions)) and max(sizes) - min(sizes) <= 1


def read_by(readers: list[Reader]) -> list[int]:
    """The partitions that they read, each as often as it is read."""
    return sorted(number for reader in readers for _, number in reader.consumer.owned)


def led_by(site: Site, broker_id: int) -> list[int]:
    """The partitions of the topic that a broker leads."""
    leaders = site.client.topic(site.topic).partitions
    return sorted(number for number, leader in leaders.items() if leader == broker_id)


def settled(site: Site, readers: list[Reader], partitions: int) -> bool:
    """The owners are those that Algorithm 1 makes of the registered streams, and they read just that."""
    group, registry = site.group("g"), site.registry
    members = registry.members(group)
    streams = [stream_name(name, n) for name, each in members.items() for n in range(each.topics[site.topic])]
    shares = assign(range(partitions), streams)
    expected = {(site.topic, number): stream for stream, share in shares.items() for number in share}
    everyone = len(members) == len(readers) and read_by(readers) == list(range(partitions))
    return everyone and registry.owners(group) == expected


def in_order(reader: Reader) -> bool:
    last: dict[int, int] = {}
    for message in reader.messages:
        if message.offset <= last.get(message.partition, -1):
            return False
        last[message.partition] = message.offset
    return True


def test_consumers_that_come_and_go_get_every_message_once(site: Site) -> None:
    site.create(6)
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.01):
            site.produce(30)

    producer = threading.Thread(target=produce)
    producer.start()
    gone: list[Reader] = []
    readers: list[Reader] = []
    try:
        for size in (1, 3, 8, 2):
            while len(readers) < size:
                readers.append(site.reader(streams=1 + len(readers) % 2, session_timeout_ms=30_000))
            while len(readers) > size:
                gone.append(readers.pop(0))
                gone[-1].close()
            wait_until(f"{size} share", lambda: settled(site, readers, 6))
            count = len(site.sent) + 1
            wait_until("messages flow", lambda: sum(len(r.messages) for r in gone + readers) >= count)  # noqa: B023
    finally:
        stop.set()
        producer.join()
    everyone = gone + readers
    wait_until("all is read", lambda: sum(len(each.messages) for each in everyone) >= len(site.sent))
    got = Counter(value for each in everyone for value in each.values)
    assert got == Counter(site.sent), "each of them once: nobody died"
    assert all(in_order(each) for each in everyone)


def test_streams_of_one_consumer_share_its_partitions(site: Site) -> None:
    site.create(4)
    site.produce(400)
    consumer = site.consumer()
    streams = consumer.create_message_streams({site.topic: 4})[site.topic]

    def read(stream: MessageStream) -> set[int]:
        found = {next(stream).partition for _ in range(100)}
        consumer.commit()  # else closing waits for what this thread has in hand
        return found

    pool = ThreadPoolExecutor(4)
    try:
        found = [future.result(WAIT_S) for future in [pool.submit(read, stream) for stream in streams]]
        assert sorted(found, key=min) == [{0}, {1}, {2}, {3}]
    finally:
        consumer.close()  # ends the streams, and with them whoever waits for a message
        pool.shutdown()
    with pytest.raises(MillraceError, match="has its streams already"):
        consumer.create_message_streams({site.topic: 1})


def test_more_streams_than_partitions_leave_some_idle_until_others_leave(site: Site) -> None:
    site.create(2)
    readers = [site.reader() for _ in range(3)]
    wait_until("two read", lambda: shared_out(readers, 2))
    idle = next(reader for reader in readers if not reader.consumer.owned)
    for reader in readers:
        if reader is not idle:
            reader.close()
    wait_until("the third has taken over", lambda: len(idle.consumer.owned) == 2)
    site.produce(10)
    wait_until("it reads", lambda: len(idle.messages) == 10)


def test_groups_are_independent_and_one_group_is_a_queue(site: Site) -> None:
    site.create(4)
    queue = [site.reader("queue"), site.reader("queue")]
    alone = site.reader("alone")
    wait_until("the two share", lambda: shared_out(queue, 4))
    site.produce(200)
    wait_until(
        "all is read by both", lambda: len(alone.messages) == sum(len(r.messages) for r in queue) == 200
    )
    assert min(len(reader.messages) for reader in queue) > 0
    assert Counter(queue[0].values + queue[1].values) == Counter(alone.values) == Counter(site.sent)


def test_a_consumer_goes_on_where_its_group_was(site: Site) -> None:
    site.create(2)
    site.produce(100)
    first = site.reader()
    wait_until("all is read", lambda: len(first.messages) == 100)
    first.close()
    site.produce(100)
    second = site.reader()
    wait_until("the rest is read", lambda: len(second.messages) == 100)
    assert Counter(first.values + second.values) == Counter(site.sent)


def test_a_new_group_starts_at_the_largest_offset_if_it_says_so(site: Site) -> None:
    site.create(2)
    site.produce(50)
    reader = site.reader(start="largest")
    ends = {(site.topic, number): end for number, end in site.client.list_offsets(site.topic, LATEST).items()}

    def committed() -> dict[tuple[str, int], int]:
        return {place: each.offset for place, each in site.registry.offsets(site.group("g")).items()}

    wait_until("where it began is committed", lambda: committed() == ends)
    site.produce(50)
    wait_until("the new ones are read", lambda: len(reader.messages) == 50)
    assert Counter(reader.values) == Counter(site.sent[50:])


def test_who_takes_over_from_one_that_asked_for_nothing_reads_what_came_since_the_group_began(
    site: Site,
) -> None:
    site.create(2)
    site.produce(50)
    with site.consumer(start="largest", commit_interval_ms=60_000) as consumer:
        site.stream(consumer)
        ends = site.client.list_offsets(site.topic, LATEST)
        wait_until(
            "it has found its beginning",
            lambda: (
                sorted(each.pull_offset or 0 for each in consumer._rebalancer.owned.values())  # type: ignore[union-attr]
                == sorted(ends.values())
            ),
        )
        site.produce(50)
    reader = site.reader(start="largest")
    wait_until("the new ones are read", lambda: len(reader.messages) == 50)
    assert Counter(reader.values) == Counter(site.sent[50:])


def test_only_what_was_taken_is_committed_not_what_was_pulled_ahead(site: Site) -> None:
    site.create(1)
    site.produce(100)
    with site.consumer() as consumer:
        stream = site.stream(consumer)
        taken = [next(stream).value for _ in range(10)]
    rest = site.reader()
    wait_until("the rest is read", lambda: len(rest.messages) == 90)
    assert taken + rest.values == site.sent


def test_what_was_in_hand_when_an_exception_came_is_delivered_again(site: Site) -> None:
    site.create(1)
    site.produce(10)
    with pytest.raises(ZeroDivisionError), site.consumer() as consumer:  # noqa: PT012
        stream = site.stream(consumer)
        assert [next(stream).value for _ in range(3)] == site.sent[:3]
        raise ZeroDivisionError
    with site.consumer() as consumer:
        assert next(site.stream(consumer)).value == site.sent[2]


def test_offsets_committed_by_hand_are_where_the_next_one_begins(site: Site) -> None:
    site.create(1)
    site.produce(20)
    with site.consumer(auto_commit=False) as consumer:
        stream = site.stream(consumer)
        messages = [next(stream) for _ in range(10)]
        consumer.commit({(site.topic, 0): messages[4].offset})  # the smallest that is not stored yet
        with pytest.raises(NotOwner, match=f"{site.topic}-7"):
            consumer.commit({(site.topic, 0): 9, (site.topic, 7): 9})
        list(zip(range(5), stream, strict=False))
    with site.consumer(auto_commit=False) as consumer:
        stream = site.stream(consumer)
        assert [next(stream).value for _ in range(3)] == site.sent[4:7]
        consumer.commit()
    with site.consumer() as consumer:
        assert next(site.stream(consumer)).value == site.sent[7]
        with pytest.raises(MillraceError, match="auto_commit=False"):
            consumer.commit({(site.topic, 0): 0})


def test_a_running_consumer_rewinds_by_offset_and_by_time(site: Site) -> None:
    site.create(2)
    for number in range(10):
        site.produce(10, partition=0, time_ms=1000 + number)
    with site.consumer() as consumer:
        stream = site.stream(consumer)
        messages = [next(stream) for _ in range(100)]
        assert [message.value for message in messages] == site.sent
        consumer.seek(site.topic, 0, messages[37].offset)
        assert [next(stream).value for _ in range(63)] == site.sent[37:]
        assert consumer.seek_to_time(site.topic, 0, 1005) == messages[50].offset
        assert next(stream).value == site.sent[50]
        consumer.seek_to_time(site.topic, 0, 5000)
        site.produce(1, partition=0)
        assert next(stream).value == site.sent[100]
        with pytest.raises(NotOwner):
            consumer.seek(site.topic, 5, 0)


def test_what_is_done_is_committed_from_time_to_time(site: Site) -> None:
    site.create(1)
    site.produce(10)
    stream = site.stream(site.consumer())
    messages = [next(stream) for _ in range(4)]

    def committed() -> int | None:
        offset = site.registry.offsets(site.group("g")).get((site.topic, 0))
        return None if offset is None else offset.offset

    wait_until("three of four are committed", lambda: committed() == messages[2].offset + 1)
    next(stream)
    wait_until("the fourth, too", lambda: committed() == messages[3].offset + 1)


@pytest.mark.parametrize("patience", [5.0, 0.2])
def test_a_partition_is_handed_over_when_the_message_in_hand_is_done_or_patience_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr("millrace_consumer.rebalance.HAND_OVER_SECONDS", patience)
    names = iter("zyx")  # the first in the alphabet reads the only partition: whoever came last
    monkeypatch.setattr("millrace_consumer.registration.secrets.token_hex", lambda _: next(names))
    site.create(1)
    site.produce(3)
    consumer = site.consumer()
    stream = site.stream(consumer)
    assert [next(stream).value for _ in range(2)] == site.sent[:2]
    other = site.reader()
    if patience > 1:
        (held,) = consumer._rebalancer.owned.values()  # type: ignore[union-attr]
        wait_until("it is being given up", lambda: held.stopped)
        assert other.messages == []
        threading.Thread(target=lambda: next(stream, None), daemon=True).start()
    expected = site.sent[2:] if patience > 1 else site.sent[1:]
    wait_until("the other has the rest", lambda: other.values == expected)


def test_a_partition_that_another_still_owns_is_tried_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.create(2)
    site.produce(10)
    site.consumer()
    registry = site.registry
    held = registry.register(site.group("g"), "elsewhere", StreamsMember(topics={}, host="elsewhere"))
    assert registry.own(site.group("g"), {(site.topic, 1): "elsewhere-0"}, held)
    reader = site.reader()
    wait_until("it says so", lambda: "other consumers still own partitions" in caplog.text)
    assert reader.consumer.owned == []
    assert registry.owners(site.group("g")) == {(site.topic, 1): "elsewhere-0"}, "it has released all"
    registry.disown(site.group("g"), [(site.topic, 1)], held)
    wait_until("it has both", lambda: len(reader.messages) == 10)


def test_a_seek_while_the_partition_is_given_up_is_refused_not_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter("zy")  # the second takes the only partition over
    monkeypatch.setattr("millrace_consumer.registration.secrets.token_hex", lambda _: next(names))
    site.create(1)
    site.produce(3)
    consumer = site.consumer()
    stream = site.stream(consumer)
    first = next(stream)
    pool, disown, sought = ThreadPoolExecutor(1), ConsumerRegistry.disown, list[Future[None]]()

    def give_up(*arguments: Any) -> None:
        if not sought:
            sought.append(pool.submit(consumer.seek, site.topic, 0, first.offset))
            wait(sought, timeout=0.1)  # it does not end before the partition is given up
        disown(*arguments)

    monkeypatch.setattr(ConsumerRegistry, "disown", give_up)
    consumer.commit()
    site.reader()
    wait_until("it is given up", lambda: sought)
    assert isinstance(sought[0].exception(10), NotOwner)
    pool.shutdown()


def test_partitions_that_were_claimed_before_a_failure_are_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_consumer.rebalance.MAX_RETRY_SECONDS", 0.05)
    names = iter("ab")
    monkeypatch.setattr("millrace_consumer.registration.secrets.token_hex", lambda _: next(names))
    site.create(4)
    consumer = site.consumer()
    offsets = ConsumerRegistry.offsets
    others: list[Reader] = []

    def fail(*arguments: Any) -> Any:
        monkeypatch.setattr(ConsumerRegistry, "offsets", offsets)
        assert len(site.registry.owners(site.group("g"))) == 4
        others.append(site.reader())
        raise BrokerError("ZooKeeper does not answer")

    monkeypatch.setattr(ConsumerRegistry, "offsets", fail)
    site.stream(consumer)
    wait_until("both read", lambda: others and len(others[0].consumer.owned) == len(consumer.owned) == 2)


@pytest.mark.parametrize("applied", [True, False])
def test_a_registration_that_was_not_answered_is_tried_again_under_its_id(
    site: Site, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    monkeypatch.setattr("millrace_consumer.rebalance.MAX_RETRY_SECONDS", 0.05)
    site.create(1)
    site.produce(1)
    consumer = site.consumer()
    registry, register = site.registry, ConsumerRegistry.register
    stream = site.stream(consumer)
    next(stream)
    consumer.commit()  # else what is in hand is waited for

    def fail(*arguments: Any) -> Any:
        monkeypatch.setattr(ConsumerRegistry, "register", register)
        if applied:
            register(*arguments)
        raise BrokerError("ZooKeeper does not answer")

    monkeypatch.setattr(ConsumerRegistry, "register", fail)
    (former,) = registry.members(site.group("g"))
    group_node = f"/{site.cluster.name}/consumers/{node_name(site.group('g'))}"
    site.session.client.delete(f"{group_node}/ids/{former}")

    def reads_alone() -> bool:
        members, owners = registry.members(site.group("g")), registry.owners(site.group("g"))
        return former not in members and [{(site.topic, 0): f"{now}-0"} for now in members] == [owners]

    wait_until("there is no second one, which nobody reads for", reads_alone)


@pytest.mark.long
def test_a_zookeeper_that_is_away_for_a_while_is_waited_for(site: Site, zookeeper: str) -> None:
    site.create(1)
    site.produce(10)
    way = Proxy(zookeeper)
    reader = site.reader(zookeeper=way.address)
    wait_until("it reads", lambda: len(reader.messages) == 10)
    way.cut()
    time.sleep(SESSION_MS / 1000)
    way.mend()
    site.produce(10)
    wait_until("it goes on", lambda: set(reader.values) == set(site.sent))
    reader.close()
    way.close()


def test_a_slow_application_keeps_pulling_ahead_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    idle: set[int] = set()
    sleep = ConsumerPuller.sleep

    def noted(puller: ConsumerPuller, seconds: float | None) -> None:
        idle.add(id(puller))
        sleep(puller, seconds)

    monkeypatch.setattr(ConsumerPuller, "sleep", noted)
    site.create(2)
    for _ in range(40):
        site.produce(100, size=1000)  # 4 MB
    consumer = site.consumer(fetch_bytes=50_000, queued_bytes=200_000)
    stream = site.stream(consumer)
    first = next(stream)
    wait_until("the queue is full", lambda: stream.room <= 0)
    idle.clear()
    wait_until("both brokers' pullers have found nothing to ask for", lambda: len(idle) == 2)
    assert stream.room > -200_000, "one more pull by each of two brokers, and a batch"
    values = [first.value, *(next(stream).value for _ in range(len(site.sent) - 1))]
    assert Counter(values) == Counter(site.sent)


def test_a_group_of_the_other_kind_is_refused(site: Site) -> None:
    site.create(1)
    consumer = site.consumer()
    site.registry.claim(site.group("g"), GroupKind.CLASSIC)
    with pytest.raises(InconsistentGroupKind):
        consumer.create_message_streams({site.topic: 1})


def test_a_cluster_that_is_not_there_is_refused_and_not_created(site: Site, zookeeper: str) -> None:
    with pytest.raises(MillraceError, match="no cluster 'nowhere' in ZooKeeper at"):
        Consumer(zookeeper, "nowhere", "g")
    for options in ({"start": "middle"}, {"queued_bytes": 0}, {"session_timeout_ms": 90_000}):
        with pytest.raises(MillraceError, match=next(iter(options))):
            Consumer(zookeeper, site.cluster.name, "g", **options)


def test_new_topics_and_partitions_appear_and_a_topic_created_anew_begins_anew(site: Site) -> None:
    reader = site.reader()
    settled_topics = reader.consumer._rebalancer._settled  # type: ignore[union-attr]
    wait_until("it has found no such topic", lambda: site.topic in settled_topics)
    site.create(2)
    site.produce(20)
    wait_until("it is read", lambda: len(reader.messages) == 20)
    admin = AdminClient({"bootstrap.servers": site.cluster.bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(site.topic, 3)])[site.topic].result(WAIT_S)
    wait_until("the third partition is read", lambda: len(reader.consumer.owned) == 3)
    site.client.delete_topic(site.topic)
    wait_until("its partitions are given up", lambda: reader.consumer.owned == [])
    site.create(1)
    site.produce(5)
    wait_until("the new one is read from its start", lambda: len(reader.messages) == 25)
    assert reader.values[20:] == site.sent[20:]


def test_a_gap_that_retention_left_is_named_and_passed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.create(1)
    site.produce(5)
    with site.consumer() as consumer:
        stream = site.stream(consumer)
        end = site.client.list_offsets(site.topic, LATEST)[0]
        assert next(stream).value == site.sent[0]
        consumer.seek(site.topic, 0, end + 10_000)
        with caplog.at_level(logging.WARNING):
            assert next(stream).value == site.sent[0], "start is `smallest`"
        earliest = site.client.list_offsets(site.topic, EARLIEST)[0]
        assert f"offset {end + 10_000} of {site.topic}-0 was deleted" in caplog.text
        assert f"the log has the offsets {earliest} to {end}. Continuing at {earliest}" in caplog.text


def test_a_batch_damaged_on_the_disk_is_not_delivered(site: Site) -> None:
    site.create(1)
    site.produce(3, size=50)
    site.produce(1, size=50)  # several may come in several batches
    leader = site.client.topic(site.topic).partitions[0]
    folder = site.cluster.directory(leader)
    (segment,) = [path for path in folder.rglob("*.log") if site.topic in str(path.parent)]
    second = site.client.list_offsets(site.topic, LATEST)[0]  # behind the damaged batch
    data = bytearray(segment.read_bytes())
    data[-10] ^= 1
    with segment.open("r+b") as file:
        file.write(data)
    consumer = site.consumer()
    stream = site.stream(consumer)
    assert [next(stream).value for _ in range(3)] == site.sent[:3]
    with pytest.raises(CorruptMessage, match=f"{site.topic}-0 is damaged at offset"):
        next(stream)
    consumer.seek(site.topic, 0, second)
    site.produce(1)
    assert next(stream).value == site.sent[4]


def test_brokers_that_die_and_come_back_are_waited_for(site: Site) -> None:
    site.create(4)
    site.produce(40)
    readers = [site.reader(), site.reader()]
    wait_until("all is read", lambda: sum(len(each.messages) for each in readers) == 40)
    wait_until("they share", lambda: shared_out(readers, 4))
    left = led_by(site, 1)
    site.cluster.brokers[2].kill()
    wait_until("its partitions are gone", lambda: read_by(readers) == left)
    site.cluster.restart(2)
    wait_until("its partitions are back", lambda: shared_out(readers, 4))
    site.produce(40)
    wait_until("all is read", lambda: sum(len(each.messages) for each in readers) >= 80)
    assert Counter(readers[0].values + readers[1].values) == Counter(site.sent)


def test_a_consumer_that_never_commits_watches_the_brokers_and_the_consumers(site: Site) -> None:
    site.create(4)
    readers = [site.reader(auto_commit=False)]  # nothing wakes it from time to time
    wait_until("it reads all", lambda: shared_out(readers, 4))
    left = led_by(site, 1)
    site.cluster.brokers[2].kill()
    wait_until("those of the dead broker are gone", lambda: read_by(readers) == left)
    site.cluster.restart(2)
    wait_until("they are back", lambda: shared_out(readers, 4))
    readers.append(site.reader(auto_commit=False))
    wait_until("another has its share", lambda: shared_out(readers, 4))
    readers.pop().close()
    wait_until("the first has all again", lambda: shared_out(readers, 4))


def test_of_a_group_with_two_topics_only_the_readers_of_a_topic_share_it(site: Site) -> None:
    site.create(4)
    other = f"{site.topic}-other"
    site.client.create_topic(other, 4)
    both = Reader.start(site.consumer(), {site.topic: 1, other: 1})
    one = Reader.start(site.consumer(), {other: 1})

    def owned(reader: Reader, topic: str) -> list[int]:
        return [number for name, number in reader.consumer.owned if name == topic]

    wait_until(
        "the topic that both read is shared", lambda: len(owned(both, other)) == len(owned(one, other)) == 2
    )
    assert sorted(owned(both, other) + owned(one, other)) == [0, 1, 2, 3]
    wait_until("the other topic has one reader", lambda: owned(both, site.topic) == [0, 1, 2, 3])
    assert owned(one, site.topic) == []


def lose_session(zookeeper: str, consumer: Consumer) -> None:
    """Have the server end a consumer's session, as if it had expired."""
    thief = KazooClient(hosts=zookeeper, client_id=consumer._cluster.session.client.client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_a_consumer_that_lost_its_session_registers_anew_and_goes_on(site: Site, zookeeper: str) -> None:
    site.create(4)
    site.produce(100)
    readers = [site.reader(), site.reader()]
    wait_until("all is read", lambda: sum(len(each.messages) for each in readers) == 100)
    wait_until("they share", lambda: shared_out(readers, 4))
    registry, group = site.registry, site.group("g")
    before = set(registry.members(group))
    lose_session(zookeeper, readers[0].consumer)
    wait_until(
        "it is back", lambda: len(registry.members(group)) == 2 and set(registry.members(group)) != before
    )
    wait_until("they share again", lambda: shared_out(readers, 4))
    site.produce(100)
    wait_until("all is read", lambda: set(site.sent) <= {v for each in readers for v in each.values})


def test_a_consumer_that_is_cut_off_hands_out_nothing_once_another_may_own_its_partitions(
    site: Site, zookeeper: str
) -> None:
    site.create(1)
    site.produce(300, size=100)
    way = Proxy(zookeeper)
    cut_off = site.consumer(zookeeper=way.address, session_timeout_ms=3000)
    stream = site.stream(cut_off)
    got: list[float] = []

    def take() -> None:
        for _ in stream:
            got.append(time.monotonic())
            time.sleep(0.02)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    wait_until("it reads", lambda: got)
    way.cut()
    began = time.monotonic()
    other = site.reader()
    wait_until("another has it", lambda: other.consumer.owned)
    since = time.monotonic()
    wait_until("the rest is read there", lambda: len(other.messages) >= 300 - len(got))
    assert began < got[-1] < since, "it goes on while it can prove that it may, and no longer"
    threading.Timer(0.1, way.close).start()
    site.forget(cut_off)
    thread.join(5)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("round_", range(max(1, ROUNDS // 5)))
def test_what_killed_consumers_had_not_committed_is_repeated_and_nothing_else(
    site: Site, tmp_path: Path, round_: int
) -> None:
    site.create(6)
    chance = random.Random(round_)
    started: list[ConsumerProcess] = []
    killed: list[ConsumerProcess] = []

    def start() -> ConsumerProcess:
        consumer = ConsumerProcess(
            site.cluster.zookeeper,
            site.cluster.name,
            site.group("g"),
            site.topic,
            1 + len(started) % 3,
            tmp_path / f"{len(started)}",
        )
        started.append(consumer)
        return consumer

    live = [start(), start()]
    try:
        for _ in range(KILLS):
            site.produce(900)
            victim = live.pop(chance.randrange(len(live)))
            before = len(victim.messages)
            # Some commits later, and before it has handled all that it has pulled.
            wait_until("it works", lambda: len(victim.messages) >= before + 100)  # noqa: B023
            victim.kill()
            killed.append(victim)
            live.append(start())
        site.produce(60)
        sent = {value.decode() for value in site.sent}
        wait_until(
            "every message is handled", lambda: {v for each in started for *_, v in each.messages} == sent
        )
        for consumer in live:
            consumer.stop()
    finally:
        for consumer in started:
            consumer.kill()
    handled_by: dict[str, list[ConsumerProcess]] = {}
    for consumer in started:
        last: dict[int, int] = {}
        for partition, offset, value in consumer.messages:
            assert offset > last.get(partition, -1), "in the order of its partition, and once"
            last[partition] = offset
            handled_by.setdefault(value, []).append(consumer)
    for value, consumers in handled_by.items():
        assert sum(consumer not in killed for consumer in consumers) <= 1, f"{value} again, and nobody died"
    left = site.reader()
    wait_until("it owns all", lambda: len(left.consumer.owned) == 6)
    site.produce(6)
    wait_until("new ones come", lambda: len(left.messages) >= 6)
    assert Counter(left.values) == Counter(site.sent[-6:]), "what was handled stays so"
