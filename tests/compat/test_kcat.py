"""kcat on an old librdkafka (2.0): metadata, pipes in and out, offsets from the end, every codec."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import CODECS, KCAT, assert_reads_exactly, kcat
from tests.support import Process


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-kcat")


def run(broker: RunningBroker, *arguments: str, stdin: str = "") -> str:
    return kcat("-b", broker.bootstrap, *arguments, stdin=stdin.encode()).decode()


def test_metadata_names_brokers_topics_and_leaders(broker: RunningBroker) -> None:
    broker.create_topic("listed", 2)
    listing = run(broker, "-L")
    assert f"broker 1 at {broker.bootstrap}" in listing
    assert 'topic "listed" with 2 partitions' in listing
    assert "partition 1, leader 1, replicas: 1, isrs: 1" in listing


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(broker: RunningBroker, codec: str) -> None:
    topic = broker.create_topic(f"codec-{codec}", 1, flush_ms=5)
    values = [f"{number} some text".encode() for number in range(300)]
    KCAT.produce(broker.bootstrap, topic, 0, values, codec)
    assert_reads_exactly(KCAT, broker.bootstrap, topic, 0, values)


def test_offsets_from_the_end_count_bytes(broker: RunningBroker) -> None:
    topic = broker.create_topic("tail", 1)
    run(broker, "-P", "-t", topic, "-p", "0", stdin="".join(f"{n}\n" for n in range(100)))
    assert run(broker, "-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q") == "97\n98\n99\n"


def test_a_key_separator_and_timestamps(broker: RunningBroker) -> None:
    topic = broker.create_topic("keys", 1)
    run(broker, "-P", "-t", topic, "-K", ":", stdin="a:1\nb:2\n")
    assert run(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k=%s;") == "a=1;b=2;"
    assert run(broker, "-C", "-t", topic, "-o", "s@1", "-e", "-q", "-f", "%s") == "12"
