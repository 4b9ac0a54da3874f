"""One member of a consumer group as a process of its own, so that a test can kill it.

    python -m tests.compat.group_member '{"client": "aiokafka", "bootstrap": ..., "topic": ..., "group": ...}'

Reads, reports, commits, in this order, until SIGTERM. Every line it prints is a JSON list: what happened,
when on the machine's monotonic clock, and what it is about.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HEARTBEAT_MS = 300
BATCH = 50


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a member; `assignor` is named as in Kafka's own settings."""

    client: str
    bootstrap: str
    topic: str
    group: str
    assignor: str = "range"
    instance: str | None = None
    session_ms: int = 3000
    rebalance_ms: int = 10_000
    pause_s: float = 0.0
    """Between what it reads and its commit: the window in which a kill leaves something to be read twice."""


stopping = False


def report(what: str, value: object = None) -> None:
    """Print one event."""
    print(json.dumps([what, time.monotonic(), value]), flush=True)


def report_partitions(what: str) -> Callable[[Iterable[Any]], None]:
    """A callback that reports partitions."""
    return lambda partitions: report(what, sorted(each.partition for each in partitions))


def next_offsets(records: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Partition -> the offset behind the last of these (partition, offset)."""
    found: dict[int, int] = {}
    for partition, offset in records:
        found[partition] = max(found.get(partition, 0), offset + 1)
    return found


def run_confluent(options: Options) -> None:
    """confluent-kafka."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "max.poll.interval.ms": options.rebalance_ms,
        "partition.assignment.strategy": options.assignor,
        "fetch.wait.max.ms": 50,
        "reconnect.backoff.max.ms": 500,
    }
    if options.instance is not None:
        settings["group.instance.id"] = options.instance
    consumer = Consumer(settings)
    consumer.subscribe(
        [options.topic],
        on_assign=lambda _, partitions: report_partitions("assigned")(partitions),
        on_revoke=lambda _, partitions: report_partitions("revoked")(partitions),
        on_lost=lambda _, partitions: report_partitions("revoked")(partitions),
    )
    while not stopping:
        messages = consumer.consume(BATCH, timeout=0.1)
        for message in messages:
            if (error := message.error()) is not None:
                report("error", error.str())
                if error.fatal():
                    return
        records = [
            (message.partition() or 0, message.offset() or 0, (message.value() or b"").decode())
            for message in messages
            if message.error() is None
        ]
        if not records:
            continue
        report("got", records)
        time.sleep(options.pause_s)
        offsets = next_offsets((partition, offset) for partition, offset, _ in records)
        try:
            consumer.commit(
                offsets=[TopicPartition(options.topic, p, offset) for p, offset in offsets.items()],
                asynchronous=False,
            )
            report("committed", offsets)
        except KafkaException as error:
            report("refused", str(error))
    consumer.close()


def run_kafka_python(options: Options) -> None:
    """kafka-python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
        from kafka.errors import KafkaError

    module, _, name = {
        "range": "range.RangePartitionAssignor",
        "roundrobin": "roundrobin.RoundRobinPartitionAssignor",
        "sticky": "sticky.sticky_assignor.StickyPartitionAssignor",
        "cooperative-sticky": "cooperative_sticky.CooperativeStickyAssignor",
    }[options.assignor].rpartition(".")
    strategy = getattr(importlib.import_module(f"kafka.coordinator.assignors.{module}"), name)

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        on_partitions_assigned = staticmethod(report_partitions("assigned"))
        on_partitions_revoked = staticmethod(report_partitions("revoked"))

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","),
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_interval_ms=options.rebalance_ms,
        partition_assignment_strategy=[strategy],
        fetch_max_wait_ms=50,
        reconnect_backoff_max_ms=500,
        metadata_max_age_ms=5000,
    )
    consumer.subscribe([options.topic], listener=Listener())
    while not stopping:
        polled = consumer.poll(timeout_ms=100, max_records=BATCH)
        records = [(r.partition, r.offset, r.value.decode()) for each in polled.values() for r in each]
        if not records:
            continue
        report("got", records)
        time.sleep(options.pause_s)
        offsets = next_offsets((partition, offset) for partition, offset, _ in records)
        try:
            consumer.commit(
                {
                    kafka.TopicPartition(options.topic, p): kafka.OffsetAndMetadata(offset, "", -1)
                    for p, offset in offsets.items()
                }
            )
            report("committed", offsets)
        except KafkaError as error:
            report("refused", str(error))
    consumer.close()


async def aiokafka_loop(options: Options) -> None:
    """aiokafka; a lock keeps it from rebalancing between what it reads and its commit."""
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    strategies = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    lock = asyncio.Lock()

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            async with lock:
                report_partitions("revoked")(revoked)

        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            report_partitions("assigned")(assigned)

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_interval_ms=options.rebalance_ms,
        rebalance_timeout_ms=options.rebalance_ms,
        fetch_max_wait_ms=50,
        metadata_max_age_ms=5000,
        partition_assignment_strategy=[strategies[options.assignor]],
    )
    consumer.subscribe([options.topic], listener=Listener())
    await consumer.start()
    while not stopping:
        # Not under the lock: during a rebalance this waits for its end, which waits for the listener.
        polled = await consumer.getmany(timeout_ms=50, max_records=BATCH)
        records = [(r.partition, r.offset, r.value.decode()) for each in polled.values() for r in each]
        if not records:
            continue
        async with lock:
            report("got", records)
            await asyncio.sleep(options.pause_s)
            offsets = next_offsets((partition, offset) for partition, offset, _ in records)
            try:
                await consumer.commit(
                    {aiokafka.TopicPartition(options.topic, p): offset for p, offset in offsets.items()}
                )
                report("committed", offsets)
            except KafkaError as error:
                report("refused", str(error))
    await consumer.stop()


RUNS: Mapping[str, Callable[[Options], None]] = {
    "confluent-kafka": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": lambda options: asyncio.run(aiokafka_loop(options)),
}


def main(text: str) -> None:
    """Run until SIGTERM."""

    def stop(*_: object) -> None:
        global stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    options = Options(**json.loads(text))
    RUNS[options.client](options)
    report("closed")


if __name__ == "__main__":
    main(sys.argv[1])
