"""kcat on two old librdkafkas: metadata, pipes in and out, offsets from the end and by time, every codec.

One is kcat's own (Debian: 2.0), the other is 1.9.2. Both are also told to ask for no versions and to take
the broker for a Kafka 0.11.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import CODECS, KCAT, assert_reads_exactly, kcat
from tests.compat.programs import old_librdkafka
from tests.support import Process


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    return start_broker(start_for_module, zookeeper, tmp_path_factory.mktemp("broker"), "compat-kcat")


@pytest.fixture(params=["installed", "1.9.2"], autouse=True)
def librdkafka(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The librdkafka that kcat loads in this test."""
    if request.param != "installed":
        monkeypatch.setenv("LD_LIBRARY_PATH", str(old_librdkafka()))
        assert b"librdkafka 1.9.2" in kcat("-V")
    return str(request.param)


def named(broker: RunningBroker, name: str, librdkafka: str, partitions: int = 1, **settings: int) -> str:
    """A topic of this test and this librdkafka."""
    return broker.create_topic(f"{name}-{librdkafka}", partitions, **settings)


def run(broker: RunningBroker, *arguments: str, stdin: str = "") -> str:
    return kcat("-b", broker.bootstrap, *arguments, stdin=stdin.encode()).decode()


def test_metadata_names_brokers_topics_and_leaders(broker: RunningBroker, librdkafka: str) -> None:
    topic = named(broker, "listed", librdkafka, 2)
    listing = run(broker, "-L")
    assert f"broker 1 at {broker.bootstrap}" in listing
    assert f'topic "{topic}" with 2 partitions' in listing
    assert "partition 1, leader 1, replicas: 1, isrs: 1" in listing


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(broker: RunningBroker, codec: str, librdkafka: str) -> None:
    topic = named(broker, f"codec-{codec}", librdkafka, flush_ms=5)
    values = [f"{number} some text".encode() for number in range(300)]
    KCAT.produce(broker.bootstrap, topic, 0, values, codec)
    assert_reads_exactly(KCAT, broker.bootstrap, topic, 0, values)


def test_offsets_from_the_end_count_bytes(broker: RunningBroker, librdkafka: str) -> None:
    topic = named(broker, "tail", librdkafka)
    run(broker, "-P", "-t", topic, "-p", "0", stdin="".join(f"{n}\n" for n in range(100)))
    assert run(broker, "-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q") == "97\n98\n99\n"


def test_a_key_separator_and_timestamps(broker: RunningBroker, librdkafka: str) -> None:
    topic = named(broker, "keys", librdkafka)
    run(broker, "-P", "-t", topic, "-K", ":", stdin="a:1\nb:2\n")
    assert run(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k=%s;") == "a=1;b=2;"
    assert run(broker, "-C", "-t", topic, "-o", "s@1", "-e", "-q", "-f", "%s") == "12"


def test_a_client_that_asks_for_no_versions_is_served_as_one_of_kafka_0_11(
    broker: RunningBroker, librdkafka: str
) -> None:
    topic = named(broker, "blind", librdkafka)
    blind = ("-X", "api.version.request=false", "-X", "broker.version.fallback=0.11.0.0")
    lines = "".join(f"{n}\n" for n in range(100))
    run(broker, *blind, "-P", "-t", topic, "-X", "enable.idempotence=true", "-z", "gzip", stdin=lines)
    assert run(broker, *blind, "-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines
    group = (*blind, "-X", "auto.offset.reset=earliest", "-q", "-e", "-G", f"blind {librdkafka}", topic)
    assert run(broker, *group) == lines
    run(broker, *blind, "-P", "-t", topic, stdin="more\n")
    assert run(broker, *group) == "more\n", "it goes on from what it has committed"


def test_a_wrong_topic_and_a_message_that_is_too_large_are_told(
    broker: RunningBroker, librdkafka: str
) -> None:
    topic = named(broker, "small", librdkafka, max_message_bytes=1000)
    with pytest.raises(AssertionError, match="Message size too large"):
        run(broker, "-P", "-t", topic, stdin="x" * 2000 + "\n")
    with pytest.raises(AssertionError, match="Unknown topic or partition"):
        run(broker, "-C", "-t", f"no-{topic}", "-e", "-q")
