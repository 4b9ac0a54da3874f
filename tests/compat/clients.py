"""Four real Kafka clients behind two functions each: send values, and read a partition to its end.

Every reader ends by its own client's notion of the end (the end-of-partition event, the position against the
end offset, kcat's -e), never by counting: a wrong high watermark shows as a hang, which the time limit turns
into a failure. Nothing is skipped or sorted: what a client delivers is what is returned.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiokafka
import confluent_kafka

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

BEGINNING = -2
TIMEOUT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Delivered = list[tuple[int, bytes]]
"""(offset, value) of every record, in the order the client gave them."""


@dataclass(frozen=True)
class KafkaClient:
    """`produce(bootstrap, topic, partition, values, codec)`, `read(bootstrap, topic, partition, offset)`."""

    name: str
    produce: Callable[[str, str, int, Sequence[bytes], str], None]
    read: Callable[[str, str, int, int], Delivered]


def _confluent_produce(
    bootstrap: str, topic: str, partition: int, values: Sequence[bytes], codec: str
) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 20,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "on_delivery": lambda error, _: errors.append(error) if error else None,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors, errors[0]


def _confluent_read(bootstrap: str, topic: str, partition: int, offset: int) -> Delivered:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
        }
    )
    delivered: Delivered = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                position, value = message.offset(), message.value()
                assert position is not None
                assert value is not None
                delivered.append((position, value))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return delivered
            else:
                raise AssertionError(f"confluent-kafka: {error}")
        raise AssertionError(f"confluent-kafka saw no end of {topic}-{partition} in {TIMEOUT_S} s")
    finally:
        consumer.close()


def _kafka_python_produce(
    bootstrap: str, topic: str, partition: int, values: Sequence[bytes], codec: str
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    try:
        futures = [producer.send(topic, value, partition=partition) for value in values]
        producer.flush(TIMEOUT_S)
        for future in futures:
            future.get(timeout=TIMEOUT_S)
    finally:
        producer.close()


def _kafka_python_read(bootstrap: str, topic: str, partition: int, offset: int) -> Delivered:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
    )
    place = kafka.TopicPartition(topic, partition)
    delivered: Delivered = []
    try:
        consumer.assign([place])
        if offset == BEGINNING:
            consumer.seek_to_beginning(place)
        else:
            consumer.seek(place, offset)
        end = consumer.end_offsets([place])[place]
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.position(place) < end:
            assert time.monotonic() < deadline, f"kafka-python never reached {end}"
            for records in consumer.poll(timeout_ms=500).values():
                delivered += [(record.offset, record.value) for record in records]
        assert consumer.position(place) == end, "the position must end on the end offset"
    finally:
        consumer.close()
    return delivered


def _aiokafka_produce(
    bootstrap: str, topic: str, partition: int, values: Sequence[bytes], codec: str
) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            futures = [await producer.send(topic, value, partition=partition) for value in values]
            await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def _aiokafka_read(bootstrap: str, topic: str, partition: int, offset: int) -> Delivered:
    async def run() -> Delivered:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        place = aiokafka.TopicPartition(topic, partition)
        delivered: Delivered = []
        try:
            consumer.assign([place])
            if offset == BEGINNING:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)
            end = (await consumer.end_offsets([place]))[place]
            deadline = time.monotonic() + TIMEOUT_S
            while (await consumer.position(place)) < end:
                assert time.monotonic() < deadline, f"aiokafka never reached {end}"
                for records in (await consumer.getmany(place, timeout_ms=500)).values():
                    delivered += [(record.offset, record.value) for record in records]
            assert (await consumer.position(place)) == end, "the position must end on the end offset"
        finally:
            await consumer.stop()
        return delivered

    return asyncio.run(run())


def kcat(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Return kcat's output; fail with kcat's own words, or with how to get it."""
    assert shutil.which("kcat"), "kcat is not installed: `make compat` installs it, or your package manager"
    done = subprocess.run(
        ["kcat", *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"kcat {arguments}: {done.stderr.decode()}"
    return done.stdout


def _kcat_produce(bootstrap: str, topic: str, partition: int, values: Sequence[bytes], codec: str) -> None:
    lines = b"".join(value + b"\n" for value in values)
    kcat("-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-z", codec, "-q", stdin=lines)


def _kcat_read(bootstrap: str, topic: str, partition: int, offset: int) -> Delivered:
    start = "beginning" if offset == BEGINNING else str(offset)
    output = kcat(
        "-C",
        "-b",
        bootstrap,
        "-t",
        topic,
        "-p",
        str(partition),
        "-o",
        start,
        "-e",
        "-q",
        "-X",
        "fetch.wait.max.ms=20",
        "-f",
        "%o %s\\n",
    )
    rows = [line.split(b" ", 1) for line in output.splitlines()]
    return [(int(number), value) for number, value in rows]


CONFLUENT = KafkaClient("confluent-kafka", _confluent_produce, _confluent_read)
KAFKA_PYTHON = KafkaClient("kafka-python", _kafka_python_produce, _kafka_python_read)
AIOKAFKA = KafkaClient("aiokafka", _aiokafka_produce, _aiokafka_read)
KCAT = KafkaClient("kcat", _kcat_produce, _kcat_read)

CLIENTS = [CONFLUENT, KAFKA_PYTHON, AIOKAFKA, *([KCAT] if shutil.which("kcat") else [])]
"""kcat is no Python package: it takes part where it is installed."""


def assert_reads_exactly(
    client: KafkaClient, bootstrap: str, topic: str, partition: int, values: Sequence[bytes]
) -> Delivered:
    """Read the partition from its beginning to its end: these values, in order, none twice, none missing.

    Works on ordinary and on mirrored partitions. Returns what was delivered.
    """
    delivered = client.read(bootstrap, topic, partition, BEGINNING)
    got = [value for _, value in delivered]
    if got != list(values):
        missing, extra = len(set(values) - set(got)), len(got) - len(set(got))
        raise AssertionError(
            f"{client.name} read {len(got)} of {len(values)} records of {topic}-{partition}: "
            f"{missing} missing, {extra} repeated; or their order is wrong"
        )
    offsets = [offset for offset, _ in delivered]
    assert offsets == sorted(set(offsets)), f"{client.name}: offsets do not rise"
    return delivered


def assert_seeks_are_exact(
    client: KafkaClient,
    bootstrap: str,
    topic: str,
    partition: int,
    delivered: Delivered,
    wanted: Sequence[int],
) -> None:
    """Start at each wanted offset: exactly the records at or after it come, in gaps as within batches."""
    for offset in wanted:
        expected = [record for record in delivered if record[0] >= offset]
        got = client.read(bootstrap, topic, partition, offset)
        assert got == expected, f"{client.name} from {offset}: {got[:2]}... instead of {expected[:2]}..."
