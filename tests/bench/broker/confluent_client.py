"""One run of confluent-kafka as a process of its own.

python -m tests.bench.broker.confluent_client produce HOST:PORT TOPIC MESSAGES PER_REQUEST
python -m tests.bench.broker.confluent_client consume HOST:PORT TOPIC MESSAGES
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from tests.bench.broker.system import MESSAGE_BYTES

IDLE_TIMEOUT_S = 30
TIMEOUT_S = 600
"""Limit for a whole run that produces."""
Timed = tuple[int, float, float]


def produce(address: str, topic: str, messages: int, per_request: int) -> Timed:
    """(messages sent and acknowledged, seconds, CPU seconds)."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": 1,
            "linger.ms": 0 if per_request == 1 else 5,
            "batch.num.messages": per_request or 10_000,
            "queue.buffering.max.messages": 1_000_000,
            "max.in.flight": 1000,
            "delivery.report.only.error": True,
        }
    )
    body, started, cpu = os.urandom(MESSAGE_BYTES), time.monotonic(), time.process_time()
    send = producer.produce
    for number in range(messages):
        while True:
            try:
                send(topic, body, partition=0)
                break
            except BufferError:  # full: the broker is slower, or waits for its disk
                if time.monotonic() - started > TIMEOUT_S:
                    raise
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if left := producer.flush(IDLE_TIMEOUT_S * 2):
        raise TimeoutError(f"{left} of {messages} messages were not acknowledged")
    return messages, time.monotonic() - started, time.process_time() - cpu


def consume(address: str, topic: str, messages: int) -> Timed:
    """(messages, seconds, CPU seconds) until so many were read from the start of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            # The default stalls it: an emptied queue is filled again only after a second.
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    read, started, cpu = 0, time.monotonic(), time.process_time()
    while read < messages:
        found = consumer.consume(10_000, timeout=IDLE_TIMEOUT_S)
        if not found:
            raise TimeoutError(f"only {read} of {messages} messages came")
        if error := found[0].error():
            raise KafkaException(error)
        read += len(found)
    figures = read, time.monotonic() - started, time.process_time() - cpu
    consumer.close()
    return figures


def main() -> None:
    """Run what the command line names; print a line of JSON."""
    what, address, topic, *numbers = sys.argv[1:]
    work: dict[str, Callable[..., Timed]] = {"produce": produce, "consume": consume}
    done, seconds, cpu = work[what](address, topic, *map(int, numbers))
    print(json.dumps({"messages": done, "seconds": seconds, "cpu_s": cpu}))


if __name__ == "__main__":
    main()
