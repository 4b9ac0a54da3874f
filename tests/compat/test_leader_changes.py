"""Other people's clients write and read a topic with three replicas while its leaders are killed and moved.

Each client writes numbers all the time and reads them from the beginning. In the end it has read what it has
written: each once, in order, at offsets that rise. None may fail, begin anew, leave out or repeat one.
"""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiokafka
import confluent_kafka
import pytest
from click.testing import CliRunner

from millrace.zookeeper.topic_state import PartitionState
from millrace_broker.coordination.cluster import Cluster
from millrace_commands.topics import topics
from tests.brokers import TestCluster
from tests.compat.clients import Delivered
from tests.peers.kafka import kafka_tool_command
from tests.support import START_S, WAIT_S, Process, start_for_the_test_run, wait_until

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKERS = (1, 2, 3)
PACE_S = 0.005
"""Between two numbers."""
DELIVERED_S = 120.0
"""The longest that a client may try to deliver: what it gives up is an error."""
BETWEEN_S = 1.0
_ROW = re.compile(r"Offset:(\d+)\t(.*)\n")

Values = Iterator[bytes]
Enough = Callable[[int], bool]
"""True when so many records are all there are, or time is up."""


@dataclass(frozen=True)
class Client:
    """`write` sends every value, in order, and raises if one may be lost; `read` reads until it is enough."""

    name: str
    write: Callable[[str, str, Values], None]
    read: Callable[[str, str, Enough], Delivered]


# Clients


def _confluent_write(bootstrap: str, topic: str, values: Values) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(DELIVERED_S * 1000),
            "on_delivery": lambda error, _: errors.append(error) if error else None,
            "log_level": 0,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(DELIVERED_S) == 0
    assert not errors, errors[0]


def _confluent_read(bootstrap: str, topic: str, enough: Enough) -> Delivered:
    kinds = confluent_kafka.KafkaError
    lost = {kinds._TRANSPORT, kinds._ALL_BROKERS_DOWN, kinds._TIMED_OUT}
    settings = {"group.id": "reader", "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    delivered: Delivered = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        while not enough(len(delivered)):
            for message in consumer.consume(500, 0.2):
                error, offset = message.error(), message.offset()
                assert error is None or error.code() in lost, error
                if error is None and offset is not None:
                    delivered.append((offset, message.value() or b""))
    finally:
        consumer.close()
    return delivered


def _kafka_python_write(bootstrap: str, topic: str, values: Values) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        enable_idempotence=True,
        delivery_timeout_ms=int(DELIVERED_S * 1000),
    )
    try:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(DELIVERED_S)
        for future in futures:
            future.get(timeout=DELIVERED_S)
    finally:
        producer.close()


def _kafka_python_read(bootstrap: str, topic: str, enough: Enough) -> Delivered:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, auto_offset_reset="none"
    )
    place = kafka.TopicPartition(topic, 0)
    delivered: Delivered = []
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        while not enough(len(delivered)):
            for records in consumer.poll(timeout_ms=200).values():
                delivered += [(record.offset, record.value) for record in records]
    finally:
        consumer.close()
    return delivered


def _aiokafka_write(bootstrap: str, topic: str, values: Values) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        try:
            futures = []
            while (value := await asyncio.to_thread(next, values, None)) is not None:
                futures.append(await producer.send(topic, value, partition=0))
            await asyncio.wait_for(asyncio.gather(*futures), DELIVERED_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def _aiokafka_read(bootstrap: str, topic: str, enough: Enough) -> Delivered:
    async def run() -> Delivered:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        place = aiokafka.TopicPartition(topic, 0)
        delivered: Delivered = []
        try:
            consumer.assign([place])
            consumer.seek(place, 0)
            while not enough(len(delivered)):
                for records in (await consumer.getmany(place, timeout_ms=200)).values():
                    delivered += [(record.offset, record.value) for record in records]
        finally:
            await consumer.stop()
        return delivered

    return asyncio.run(run())


def _java(name: str, bootstrap: str, topic: str, *arguments: str) -> subprocess.Popen[str]:
    command = kafka_tool_command(name, "--bootstrap-server", bootstrap, "--topic", topic, *arguments)
    pipe = subprocess.PIPE
    return start_for_the_test_run(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _java_write(bootstrap: str, topic: str, values: Values) -> None:
    # The tool's own defaults give up after three tries.
    patience = ("--message-send-max-retries", "1000000", "--request-timeout-ms", "5000")
    with _java("ConsoleProducer", bootstrap, topic, *patience) as producer:
        try:
            assert producer.stdin is not None
            for value in values:
                producer.stdin.write(f"{value.decode()}\n")
                producer.stdin.flush()
            _, words = producer.communicate(timeout=DELIVERED_S)
            assert producer.returncode == 0, words
            assert "ERROR" not in words, words
        finally:
            producer.kill()


def _java_read(bootstrap: str, topic: str, enough: Enough) -> Delivered:
    place = ("--partition", "0", "--offset", "earliest", "--property", "print.offset=true")
    no_reset = ("--consumer-property", "auto.offset.reset=none")
    delivered: Delivered = []
    with _java("ConsoleConsumer", bootstrap, topic, *place, *no_reset) as consumer:

        def collect() -> None:
            assert consumer.stdout is not None
            for line in consumer.stdout:
                row = _ROW.fullmatch(line)
                assert row is not None, line
                delivered.append((int(row[1]), row[2].encode()))

        collecting = threading.Thread(target=collect, daemon=True)
        collecting.start()
        while not enough(len(delivered)):
            assert consumer.poll() is None, consumer.stderr and consumer.stderr.read()
            time.sleep(0.1)
        consumer.kill()
        collecting.join(WAIT_S)
    return delivered


IN_PYTHON = [
    Client("confluent-kafka", _confluent_write, _confluent_read),
    Client("kafka-python", _kafka_python_write, _kafka_python_read),
    Client("aiokafka", _aiokafka_write, _aiokafka_read),
]
JAVA = Client("java", _java_write, _java_read)


def _spark(spark: SparkSession, folder: Path) -> Client:
    """A batch for each write, and one stream that reads all of them; nothing may count as lost."""

    def write(bootstrap: str, topic: str, values: Values) -> None:
        while batch := [(value,) for _, value in zip(range(100), values, strict=False)]:
            frame = spark.createDataFrame(batch, "value binary").coalesce(1)
            frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).save(topic=topic)

    def read(bootstrap: str, topic: str, enough: Enough) -> Delivered:
        delivered: Delivered = []

        def take(frame: DataFrame, _: int) -> None:
            rows = frame.select("offset", "value").collect()
            delivered.extend((row["offset"], bytes(row["value"])) for row in rows)

        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).start()
        try:
            while not enough(len(delivered)):
                assert query.isActive, query.exception()
                time.sleep(0.1)
        finally:
            query.stop()
        return delivered

    return Client("spark", write, read)


# Leaders


class World:
    """Three brokers, and what becomes of those that lead."""

    def __init__(self, start: Callable[..., Process], zookeeper: str, folder: Path) -> None:
        name = f"leaders-{folder.name}"
        settings = "default_replicas = 3\nreplica_lag_ms = 2000\n"
        self.brokers = TestCluster(start, name, folder, zookeeper, settings).start_brokers(*BROKERS)
        self.cluster = Cluster.connect(zookeeper, name, create=False)

    def state(self, topic: str) -> PartitionState:
        return self.cluster.topics[topic].partitions[0]

    def until_in_sync(self, topic: str) -> None:
        wait_until(
            "all replicas are in sync",
            lambda: len(self.state(topic).isr) == len(BROKERS) and self.state(topic).leader > 0,
        )

    def change_leaders(self, topic: str) -> None:
        """Kill the leader, have the first one lead again, kill that for a moment only, stop the next."""
        for change in (self._kill, self._move_back, self._kill_for_a_moment, self._stop):
            change(topic, self.state(topic).leader)
            self.until_in_sync(topic)
            time.sleep(BETWEEN_S)

    def _until_others_lead(self, topic: str, leader: int) -> None:
        wait_until("another one leads", lambda: self.state(topic).leader not in (leader, -1))
        time.sleep(BETWEEN_S)
        self.brokers.restart(leader)

    def _kill(self, topic: str, leader: int) -> None:
        self.brokers.brokers[leader].kill()
        self._until_others_lead(topic, leader)

    def _move_back(self, topic: str, _: int) -> None:
        CliRunner().invoke(topics, ["elect", f"{topic}-0", "--bootstrap", self.brokers.bootstrap])
        wait_until("the first leads", lambda: self.state(topic).leader == self.state(topic).replicas[0])

    def _kill_for_a_moment(self, topic: str, leader: int) -> None:
        epoch = self.state(topic).leader_epoch
        self.brokers.brokers[leader].kill()
        self.brokers.restart(leader)
        wait_until("there is a new epoch", lambda: self.state(topic).leader_epoch > epoch)

    def _stop(self, topic: str, leader: int) -> None:
        self.brokers.brokers[leader].process.stop()
        self._until_others_lead(topic, leader)


@pytest.fixture(scope="module")
def world(
    zookeeper: str, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    made = World(start_for_module, zookeeper, tmp_path_factory.mktemp("leaders"))
    yield made
    made.cluster.close()


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """kafka-python leaves sockets that nobody answered to the collector, which would warn of them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def goes_on_while_leaders_change(world: World, client: Client) -> None:
    topic = f"of-{client.name}"
    with world.brokers.client() as creating:
        creating.create_topic(topic, 1, {"segment.bytes": "100000"})
    ended, given_up = threading.Event(), threading.Event()
    written: list[bytes] = []

    def numbers() -> Values:
        while not ended.wait(PACE_S):
            written.append(b"%d" % len(written))
            yield written[-1]

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        stack.callback(given_up.set)
        writing = pool.submit(client.write, world.brokers.bootstrap, topic, numbers())

        def enough(count: int) -> bool:
            return given_up.is_set() or (writing.done() and count >= len(written))

        reading = pool.submit(client.read, world.brokers.bootstrap, topic, enough)
        wait_until("it writes", lambda: len(written) > 100 or writing.done(), timeout_s=START_S)
        epoch = world.state(topic).leader_epoch
        world.change_leaders(topic)
        assert world.state(topic).leader_epoch >= epoch + 4
        ended.set()
        writing.result(DELIVERED_S)
        wait([reading], 2 * WAIT_S)
        given_up.set()  # what is missing then does not come
        delivered = reading.result(WAIT_S)
    assert [value for _, value in delivered] == written
    offsets = [offset for offset, _ in delivered]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("client", IN_PYTHON, ids=lambda client: client.name)
def test_a_client_reads_each_message_once_while_leaders_are_killed_and_moved(
    world: World, client: Client
) -> None:
    goes_on_while_leaders_change(world, client)


def test_java_reads_each_message_once_while_leaders_are_killed_and_moved(
    needs_maven: None, world: World
) -> None:
    goes_on_while_leaders_change(world, JAVA)


def test_spark_reads_each_message_once_while_leaders_are_killed_and_moved(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    goes_on_while_leaders_change(world, _spark(spark, tmp_path))
