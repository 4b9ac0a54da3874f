"""The clients of Kafka's protocol, the same for Millrace and Apache Kafka.

Batches: 1 and 50 messages per request, or as large as each client sends them fastest. Every producer asks for
acks=1 and no retries by sequence, so that all wait for the same thing.
"""

from __future__ import annotations

import sys

from tests.bench.broker import java, tool_output
from tests.bench.broker.system import LARGE, MESSAGE_BYTES, Client, Command
from tests.peers import maven

# Bytes of a batch of 50 messages of 200 bytes: the header and 8 or 9 bytes around each message.
FIFTY_BYTES = 61 + 50 * (MESSAGE_BYTES + 9)
LARGE_BYTES = 1 << 20


def clients(address: str) -> list[Client]:
    """Our replay client, which needs next to no CPU, and the two fastest real ones; Java's needs Maven."""
    java_client: list[Client] = [Java(address)] if maven.available() else []
    return [Replay(address), *java_client, Confluent(address)]


def _script(name: str, *arguments: object, client_file: str = "") -> Command:
    module = [sys.executable, "-m", f"tests.bench.broker.{name}"]
    environment = {"MILLRACE_CLIENT": client_file} if client_file else {}
    return Command(arguments=[*module, *map(str, arguments)], parse=tool_output.ours, environment=environment)


class Replay:
    """Requests encoded beforehand; answers only counted."""

    name = "replay"
    holds_rate = False

    def __init__(self, address: str, client_file: str = "") -> None:
        """With a client file that says so it uses TLS."""
        self._address, self._client_file = address, client_file

    def _run(self, *arguments: object) -> Command:
        return _script("replay_client", *arguments, client_file=self._client_file)

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command:
        """Batches of 4,500 (945 KB) where large ones are asked for; it cannot hold a rate."""
        return self._run("produce", self._address, place, messages, per_request or 4500)

    def consume(self, place: str, messages: int) -> Command:
        """Follow the log, looking at nothing but batch headers."""
        return self._run("consume", self._address, place, messages)

    def latency(self, place: str, rate: int, seconds: int) -> None:
        """It keeps no clock: the Java client does."""


class Java:
    """Apache Kafka's own load tools, and a class of ours for the latency, on Kafka's Java client."""

    name = "Java"
    holds_rate = True

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command:
        """ProducerPerformance."""
        size = {1: 0, 50: FIFTY_BYTES, LARGE: LARGE_BYTES}[per_request]
        # More batches of one message than this fill the heap with what stands around them.
        buffer = (8 if per_request == 1 else 128) << 20
        arguments = java.kafka_tool(
            "ProducerPerformance",
            "--topic",
            place,
            "--num-records",
            str(messages),
            "--record-size",
            str(MESSAGE_BYTES),
            "--throughput",
            str(rate or -1),
            "--producer-props",
            f"bootstrap.servers={self._address}",
            "acks=1",
            "enable.idempotence=false",
            f"batch.size={size}",
            f"linger.ms={0 if per_request == 1 else 10}",
            f"buffer.memory={buffer}",
            "max.in.flight.requests.per.connection=100",
            f"max.request.size={LARGE_BYTES * 2}",
        )
        return Command(arguments=arguments, parse=tool_output.producer_performance)

    def consume(self, place: str, messages: int) -> Command:
        """ConsumerPerformance."""
        arguments = java.kafka_tool(
            "ConsumerPerformance",
            "--bootstrap-server",
            self._address,
            "--topic",
            place,
            "--messages",
            str(messages),
            "--hide-header",
            "--timeout",
            "30000",
            "--fetch-size",
            str(LARGE_BYTES),
        )
        return Command(arguments=arguments, parse=tool_output.consumer_performance)

    def latency(self, place: str, rate: int, seconds: int) -> Command:
        """Sends without lingering and polls in another thread."""
        return java.load_class(
            "KafkaLatency", bootstrap=self._address, topic=place, rate=rate, seconds=seconds
        )


class Confluent:
    """confluent-kafka, that is librdkafka behind Python."""

    name = "confluent-kafka"
    holds_rate = False

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command:
        """`batch.num.messages` sets the batch; it cannot hold a rate."""
        return _script("confluent_client", "produce", self._address, place, messages, per_request)

    def consume(self, place: str, messages: int) -> Command:
        """Up to 10,000 messages a call."""
        return _script("confluent_client", "consume", self._address, place, messages)

    def latency(self, place: str, rate: int, seconds: int) -> None:
        """The Java client stands for the real ones."""
