"""Kafka Connect and MirrorMaker 2 as clients of Millrace: what docs/protocol.md says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.brokers import read_topic
from tests.compat.brokers import start_broker
from tests.peers.connect import Connect
from tests.peers.kafka import KafkaBroker
from tests.peers.mirrormaker import MirrorMaker, properties_of
from tests.support import Process, wait_until

Start = Callable[..., Process]
LINES = 1000
SETTLE_S = 120.0


def test_a_standalone_worker_of_connect_brings_files_in_and_out_and_goes_on_after_a_kill(
    needs_maven: None, start: Start, zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "connect")
    broker.create_topic("lines", flush_ms=5)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{number}\n" for number in range(LINES)))
    connectors = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": "lines"},
        "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": "lines"},
    }

    def out() -> list[int]:
        return [int(line) for line in sink.read_text().split()] if sink.exists() else []

    with Connect(tmp_path / "worker", broker.bootstrap, connectors) as connect:
        wait_until("every line is out", lambda: out() == [*range(LINES)], timeout_s=SETTLE_S)
        connect.kill()
        with source.open("a") as more:
            more.writelines(f"{number}\n" for number in range(LINES, 2 * LINES))
        connect.start()
        # At least once: what was not committed before the kill comes again.
        wait_until("the other lines are out", lambda: {*out()} == {*range(2 * LINES)}, timeout_s=SETTLE_S)


def test_mirrormaker_copies_a_topic_of_millrace_when_its_offset_syncs_lie_at_the_target(
    needs_maven: None, start: Start, zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "origin")
    broker.create_topic("lines", flush_ms=5)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(LINES):
        producer.produce("lines", str(number))
    assert producer.flush(30) == 0
    with KafkaBroker(tmp_path / "target") as target:
        properties = properties_of({"dc1": broker.bootstrap}, target.address, "lines")
        assert properties["offset-syncs.topic.location"] == "target"
        with MirrorMaker(tmp_path / "mm2", "offline", properties), target.client() as client:

            def copied() -> list[bytes | None]:
                if "dc1.lines" not in client.topics():
                    return []
                return [value for one in read_topic(client, "dc1.lines").values() for value in one.values]

            expected = [str(number).encode() for number in range(LINES)]
            wait_until("every line is copied", lambda: copied() == expected, timeout_s=SETTLE_S)
