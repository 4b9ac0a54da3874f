"""Four real clients produce to and read from a real broker, with every codec, to the end of the partition."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from millrace.records import split_batches
from millrace.records.compression import Codec
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import (
    AIOKAFKA,
    BEGINNING,
    CLIENTS,
    CODECS,
    CONFLUENT,
    KAFKA_PYTHON,
    KafkaClient,
    assert_reads_exactly,
    assert_seeks_are_exact,
)
from tests.support import Process


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "clients")


def values(tag: str, count: int) -> list[bytes]:
    return [f"{tag} {number} ".encode() + b"." * (number % 50) for number in range(count)]


@pytest.fixture(scope="module")
def written(broker: RunningBroker) -> list[bytes]:
    """Have every client write with every codec, one after the other, to the one partition of `everything`."""
    broker.create_topic("everything", 1, flush_ms=5)
    expected = []
    for client in CLIENTS:
        for codec in CODECS:
            batch = values(f"{client.name}-{codec}", 150)
            client.produce(broker.bootstrap, "everything", 0, batch, codec)
            expected += batch
    return expected


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_client_reads_what_all_clients_wrote_with_every_codec(
    broker: RunningBroker, written: list[bytes], client: KafkaClient
) -> None:
    assert_reads_exactly(client, broker.bootstrap, "everything", 0, written)


def test_every_codec_was_really_used(broker: RunningBroker, written: list[bytes]) -> None:
    with broker.client() as client:
        fetched = client.fetch(
            "everything", {0: 0}, max_bytes=1 << 24, max_wait_ms=0, partition_max_bytes=1 << 24
        )
    assert {header.codec for header, _ in split_batches(fetched[0].records)} == set(Codec)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_reader_may_start_anywhere(
    broker: RunningBroker, written: list[bytes], client: KafkaClient
) -> None:
    delivered = assert_reads_exactly(client, broker.bootstrap, "everything", 0, written)
    offsets = [offset for offset, _ in delivered]
    first_of_batches = [b for a, b in itertools.pairwise(offsets) if b > a + 1]
    middle = first_of_batches[len(first_of_batches) // 2]
    gap = offsets[offsets.index(middle) - 1] + 2
    wanted = [0, middle, middle + 1, gap, offsets[-1], offsets[-1] + 1]
    assert_seeks_are_exact(client, broker.bootstrap, "everything", 0, delivered, wanted)


@pytest.fixture(scope="module")
def crowded(broker: RunningBroker) -> int:
    """Batches with more records than bytes between ordinary ones, the last one at the log's end."""
    broker.create_topic("crowded", 1, flush_ms=5)
    for round_number in range(3):
        CONFLUENT.produce(broker.bootstrap, "crowded", 0, values(f"plain {round_number}", 20), "none")
        CONFLUENT.produce(broker.bootstrap, "crowded", 0, [b""] * 40_000, "zstd")
    return 3 * (20 + 40_000)


@pytest.mark.parametrize("client", [CONFLUENT, AIOKAFKA, KAFKA_PYTHON], ids=lambda client: client.name)
def test_batches_with_more_records_than_bytes_are_read_once_each(
    broker: RunningBroker, crowded: int, client: KafkaClient
) -> None:
    with broker.client() as cluster:
        fetched = cluster.fetch("crowded", {0: 0}, max_bytes=1 << 20, max_wait_ms=0)[0]
    headers = [header for header, _ in split_batches(fetched.records)]
    assert any(header.records_count > header.size for header in headers), "the case must be there"
    assert any(header.is_control for header in headers), "a filler follows it"
    delivered = client.read(broker.bootstrap, "crowded", 0, BEGINNING)
    offsets = [offset for offset, _ in delivered]
    assert len(delivered) == crowded
    assert offsets == sorted(set(offsets)), "offsets must rise"
    plain = [value for _, value in delivered if value]
    assert plain == [value for number in range(3) for value in values(f"plain {number}", 20)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_an_empty_partition_ends_at_once(broker: RunningBroker, client: KafkaClient) -> None:
    topic = f"empty-{client.name}"
    broker.create_topic(topic)
    assert client.read(broker.bootstrap, topic, 0, BEGINNING) == []
