"""The Java client of Apache Kafka 4 through its console tools: codecs, seeks, times, admin calls, errors."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from millrace.records import split_batches
from millrace.records.compression import Codec
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import (
    CLIENTS,
    CODECS,
    CONFLUENT,
    KafkaClient,
    assert_reads_exactly,
    assert_seeks_are_exact,
)
from tests.compat.java_console import JAVA, tool
from tests.peers.kafka import kafka_tool, kafka_tool_command
from tests.support import Process, wait_until


@pytest.fixture(scope="module")
def broker(
    needs_maven: None,
    start_for_module: Callable[..., Process],
    zookeeper: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-java")


@pytest.fixture(scope="module")
def written(broker: RunningBroker) -> list[bytes]:
    """Have Java and librdkafka write in turn with every codec, to the one partition of `everything`."""
    broker.create_topic("everything", 1, flush_ms=5)
    expected = []
    for codec in CODECS:
        for client in (JAVA, CONFLUENT):
            values = [f"{client.name} {codec} {number} ".encode() + b"." * 50 for number in range(300)]
            client.produce(broker.bootstrap, "everything", 0, values, codec)
            expected += values
    return expected


def test_java_writes_with_every_codec(broker: RunningBroker, written: list[bytes]) -> None:
    with broker.client() as client:
        fetched = client.fetch(
            "everything", {0: 0}, max_bytes=1 << 24, max_wait_ms=0, partition_max_bytes=1 << 24
        )
    # Java's producers are idempotent, librdkafka's here too: by their ids one knows who sent what.
    by_producer: dict[int, set[Codec]] = {}
    for header, _ in split_batches(fetched[0].records):
        by_producer.setdefault(header.producer_id, set()).add(header.codec)
    assert len(by_producer) == 10
    assert sorted(codec for codecs in by_producer.values() for codec in codecs) == sorted([*Codec] * 2)


@pytest.mark.parametrize("client", [*CLIENTS, JAVA], ids=lambda client: client.name)
def test_each_client_reads_what_java_wrote(
    broker: RunningBroker, written: list[bytes], client: KafkaClient
) -> None:
    assert_reads_exactly(client, broker.bootstrap, "everything", 0, written)


def test_java_may_start_inside_a_batch_in_a_gap_and_at_the_end(
    broker: RunningBroker, written: list[bytes]
) -> None:
    delivered = assert_reads_exactly(CONFLUENT, broker.bootstrap, "everything", 0, written)
    offsets = [offset for offset, _ in delivered]
    before, after = next((a, b) for a, b in itertools.pairwise(offsets[len(offsets) // 2 :]) if b > a + 2)
    wanted = [after + 1, before + 2, offsets[-1] + 1]
    assert_seeks_are_exact(JAVA, broker.bootstrap, "everything", 0, delivered, wanted)


def test_java_reads_batches_with_more_records_than_bytes_once(broker: RunningBroker) -> None:
    broker.create_topic("crowded", 1, flush_ms=5)
    expected = []
    for number in range(2):
        for values in ([b"plain %d" % number], [b"x"] * 30_000):
            CONFLUENT.produce(broker.bootstrap, "crowded", 0, values, "zstd")
            expected += values
    assert_reads_exactly(JAVA, broker.bootstrap, "crowded", 0, expected)


def test_java_looks_up_offsets_by_time(broker: RunningBroker) -> None:
    topic = broker.create_topic("times", 1, flush_ms=5)
    JAVA.produce(broker.bootstrap, topic, 0, [b"early"], "none")
    between = int(time.time() * 1000) + 1
    wait_until("a millisecond has passed", lambda: time.time() * 1000 > between + 1)
    JAVA.produce(broker.bootstrap, topic, 0, [b"late"], "none")
    (_, (late, _)) = JAVA.read(broker.bootstrap, topic, 0, 0)

    def offset(at: int) -> str:
        return tool(broker.bootstrap, "GetOffsetShell", "--topic", topic, "--time", str(at)).strip()

    assert offset(-2) == f"{topic}:0:0"
    assert offset(-1) == f"{topic}:0:{late + 1}"
    assert offset(between) == f"{topic}:0:{late}"


def test_topics_and_their_settings_are_changed_with_java_s_tools(broker: RunningBroker) -> None:
    def topics(*arguments: str) -> str:
        return tool(broker.bootstrap, "TopicCommand", *arguments)

    def configs(*arguments: str) -> str:
        return tool(broker.bootstrap, "ConfigCommand", "--topic", "tools", *arguments)

    assert "Created" in topics("--create", "--topic", "tools", "--partitions", "2", "--config", "flush.ms=7")
    assert "tools" in topics("--list").splitlines()
    described = topics("--describe", "--topic", "tools")
    assert "PartitionCount: 2\tReplicationFactor: 1" in described
    assert "Partition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    topics("--alter", "--topic", "tools", "--partitions", "3")
    assert "PartitionCount: 3" in topics("--describe", "--topic", "tools")
    configs("--alter", "--add-config", "retention.ms=5000000", "--delete-config", "flush.ms")
    found = configs("--describe")
    assert "retention.ms=5000000" in found
    assert "flush.ms" not in found
    topics("--delete", "--topic", "tools")
    assert "tools" not in topics("--list").splitlines()


def test_what_is_not_there_is_refused_in_java_s_own_words(broker: RunningBroker) -> None:
    topic = broker.create_topic("refusals", 1, flush_ms=5)
    JAVA.produce(broker.bootstrap, topic, 0, [b"x"], "none")
    transactional = kafka_tool(
        "ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        "1",
        "--record-size",
        "1",
        "--throughput",
        "-1",
        "--transactional-id",
        "t",
        "--producer-props",
        f"bootstrap.servers={broker.bootstrap}",
    )
    assert transactional.returncode == 1
    assert b"Transactional Id authorization failed" in transactional.stderr
    newer = tool(
        broker.bootstrap,
        "ConsoleConsumer",
        "--topic",
        topic,
        "--group",
        "kip-848",
        "--timeout-ms",
        "5000",
        "--consumer-property",
        "group.protocol=consumer",
    )
    assert "Set group.protocol=classic" in newer


def test_java_deletes_records_and_reads_from_the_new_start(broker: RunningBroker) -> None:
    topic = broker.create_topic("deleted-from", 1, flush_ms=5)
    JAVA.produce(broker.bootstrap, topic, 0, [b"a", b"b", b"c"], "none")
    with broker.client() as client:
        _, end = client.bounds(topic, 0)
    asked = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": end - 1}]}
    deleted = tool(
        broker.bootstrap,
        "DeleteRecordsCommand",
        "--offset-json-file",
        "/dev/stdin",
        stdin=json.dumps(asked).encode(),
    )
    assert f"low_watermark: {end - 1}" in deleted
    start = tool(broker.bootstrap, "GetOffsetShell", "--topic", topic, "--time", "earliest")
    assert start.strip() == f"{topic}:0:{end - 1}"


def test_lines_sent_while_the_broker_is_killed_arrive_once_and_in_order(broker: RunningBroker) -> None:
    topic = broker.create_topic("killed", 1, flush_ms=5)
    command = kafka_tool_command(
        "ConsoleProducer",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--producer-property",
        "linger.ms=1",
    )
    lines = [b"line %d" % number for number in range(400)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as java:
        assert java.stdin is not None
        for number, line in enumerate(lines):
            java.stdin.write(line + b"\n")
            java.stdin.flush()
            time.sleep(0.005)
            if number == 200:
                broker.process.kill()
            elif number == 300:
                broker.restart()
        java.stdin.close()
        assert java.wait(60) == 0
        assert java.stdout is not None
        assert not re.search(rb"ERROR", java.stdout.read())
    assert_reads_exactly(CONFLUENT, broker.bootstrap, topic, 0, lines)
