"""One broker as a process: how it starts and refuses to, how it stops, what it says to bad bytes."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kio.index import load_response_schema
from kio.serial import entity_reader

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import ErrorCode, TopicAlreadyExists, UnknownTopicOrPartition
from millrace.records import Message, build_batch, split_batches
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import FindCoordinatorResponse
from millrace.wire.messages import (
    ApiKey,
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
)
from millrace_broker.handlers import all_apis
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import BEGINNING, CONFLUENT
from tests.support import Process, run_millrace, wait_until
from tests.unit.broker.test_every_version import UNKNOWN_TO_KIO
from tests.unit.protocol_page import LISTED

MAX_FRAME = 1 << 20


@pytest.fixture(scope="module")
def broker(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("broker")
    return start_broker(start_for_module, zookeeper, folder, "process", max_frame_bytes=MAX_FRAME)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[ClusterClient]:
    with broker.client() as connected:
        yield connected


class Raw:
    """A socket that speaks frames and nothing else."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.file = self.socket.makefile("rb")

    def send(self, api_key: int, version: int, body: bytes, correlation_id: int = 5) -> None:
        frame = struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test" + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> tuple[int, bytes]:
        size, correlation_id = struct.unpack(">ii", self.file.read(8))
        return correlation_id, self.file.read(size - 4)

    def ask(self, api_key: int, version: int, body: bytes = b"") -> bytes:
        self.send(api_key, version, body)
        correlation_id, answer = self.receive()
        assert correlation_id == 5
        return answer

    def produce(self, topic: str, acks: int, *batches: bytes, version: int = 7, partition: int = 0) -> None:
        name = topic.encode()
        for records in batches:
            body = struct.pack(">hhiih", -1, acks, 30_000, 1, len(name)) + name
            body += struct.pack(">iii", 1, partition, len(records)) + records
            self.send(ApiKey.PRODUCE, version, body if version >= 3 else body[2:])

    def produced(self, topic: str) -> tuple[int, int]:
        """(error, base offset) of the next produce answer, version 7."""
        _, answer = self.receive()
        start = 4 + 2 + len(topic) + 4
        _, error, base_offset = struct.unpack_from(">ihq", answer, start)
        return error, base_offset

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[Raw]:
    connected = Raw(broker.bootstrap)
    yield connected
    connected.close()


def batch(text: str, count: int = 1, timestamp: int = 1000) -> bytes:
    return build_batch([Message(timestamp, None, f"{text} {n}".encode()) for n in range(count)])


# Starting and refusing to start


def refused(config: Path, *options: str) -> str:
    done = run_millrace("broker", str(config), *options, timeout_s=60)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


def test_a_taken_port_is_one_line(broker: RunningBroker, tmp_path: Path) -> None:
    line = refused(broker.config, "--set", f"listen={broker.bootstrap}", "--set", f"log_dir={tmp_path / 'x'}")
    assert f"cannot listen on {broker.bootstrap}" in line


def test_a_locked_log_directory_is_one_line(broker: RunningBroker) -> None:
    assert "is in use by another broker" in refused(broker.config, "--set", "broker_id=2")


def test_a_log_directory_of_another_broker_is_one_line(broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "owner.json").write_text('{"cluster_id": "millrace-other", "broker_id": 1}')
    line = refused(broker.config, "--set", f"log_dir={tmp_path / 'x'}")
    assert "belongs to broker 1 of cluster millrace-other" in line
    assert "restore its data" in line


def test_a_taken_broker_id_is_one_line(broker: RunningBroker, tmp_path: Path) -> None:
    line = refused(broker.config, "--set", f"log_dir={tmp_path / 'x'}", "--set", "session_timeout_ms=500")
    assert "broker id 1 of cluster process is held by a live broker" in line


def test_an_unknown_key_is_one_line(broker: RunningBroker) -> None:
    assert "unknown key 'log_dirs'; did you mean 'log_dir'?" in refused(broker.config, "--set", "log_dirs=x")


# Topics


def test_topics_are_created_described_and_deleted(broker: RunningBroker, client: ClusterClient) -> None:
    client.create_topic("made", 3, {"retention.ms": "-1"})
    made = client.topic("made")
    assert made.partitions == {0: 1, 1: 1, 2: 1}
    assert made == client.topics()["made"]
    logs = Path(broker.config.parent / "process-1")
    assert len(list(logs.glob(f"made-*-{made.topic_id.hex}"))) == 3
    with pytest.raises(TopicAlreadyExists):
        client.create_topic("made", 1)
    client.delete_topic("made")
    with pytest.raises(UnknownTopicOrPartition):
        client.topic("made")
    wait_until("the logs are gone", lambda: not list(logs.glob("made-*")))
    client.create_topic("made", 1)
    assert client.topic("made").topic_id != made.topic_id
    assert client.list_offsets("made", LATEST) == {0: 0}


def test_a_topic_that_is_not_there_is_not_created_by_asking(client: ClusterClient, raw: Raw) -> None:
    raw.ask(ApiKey.METADATA, 4, struct.pack(">ih", 1, 7) + b"nowhere" + b"\x01")  # "you may create it"
    assert "nowhere" not in client.topics()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"retention.ms": "soon"}, "not a number"),
        ({"retention.bytes": "-2"}, "at least"),
        ({"no": "1"}, "unknown"),
    ],
)
def test_a_wrong_topic_setting_is_refused_by_name(
    client: ClusterClient, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        client.create_topic("wrong", 1, settings)
    assert "wrong" not in client.topics()


def test_clients_may_have_topics_created_where_the_broker_allows_it(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "auto", auto_create_topics=True, default_partitions=2)
    CONFLUENT.produce(broker.bootstrap, "sudden", 1, [b"here"], "none")
    with broker.client() as client:
        assert len(client.topic("sudden").partitions) == 2
    assert [value for _, value in CONFLUENT.read(broker.bootstrap, "sudden", 1, BEGINNING)] == [b"here"]


# Produce and fetch, byte by byte


def test_offsets_are_byte_positions_and_the_high_watermark_is_the_last_record_plus_one(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("positions")
    first, second = batch("a", 3), batch("b", 2)
    raw.produce("positions", -1, first, second)
    assert raw.produced("positions") == (0, 0)
    assert raw.produced("positions") == (0, len(first))
    assert client.list_offsets("positions", LATEST) == {0: len(first) + 2}
    assert client.list_offsets("positions", EARLIEST) == {0: 0}
    fetched = client.fetch("positions", {0: 1}, max_bytes=1 << 20, max_wait_ms=0)[0]
    assert [header.base_offset for header, _ in split_batches(fetched.records)] == [0, len(first)]
    gap = client.fetch("positions", {0: 3}, max_bytes=1 << 20, max_wait_ms=0)[0]
    assert [header.base_offset for header, _ in split_batches(gap.records)] == [len(first)]


def test_a_fetch_between_high_watermark_and_end_is_empty_and_past_the_end_an_error(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("edges")
    raw.produce("edges", -1, batch("a"))
    raw.produced("edges")
    for offset, error in ((1, 0), (len(batch("a")), 0), (len(batch("a")) + 1, 1), (1 << 50, 1)):
        fetched = client.fetch("edges", {0: offset}, max_bytes=1000, max_wait_ms=0)[0]
        assert (fetched.error, bytes(fetched.records)) == (error, b""), offset


def test_a_fetch_waits_for_records_and_wakes_at_once(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("waiting")
    with broker.client() as other:
        started = time.monotonic()
        assert not other.fetch("waiting", {0: 0}, max_bytes=1000, max_wait_ms=300)[0].records
        assert time.monotonic() - started >= 0.29
    name = b"waiting"
    request = struct.pack(">iiiib", -1, 20_000, 1, 1 << 20, 0) + struct.pack(">ih", 1, len(name)) + name
    raw.send(ApiKey.FETCH, 4, request + struct.pack(">iiqi", 1, 0, 0, 1 << 20), correlation_id=1)
    raw.send(ApiKey.API_VERSIONS, 0, b"", correlation_id=2)
    producer = Raw(broker.bootstrap)
    started = time.monotonic()
    producer.produce("waiting", -1, batch("now"))
    assert producer.produced("waiting") == (0, 0)
    producer.close()
    assert raw.receive()[0] == 1
    assert time.monotonic() - started < 10
    assert raw.receive()[0] == 2


def test_min_bytes_and_max_bytes_are_kept(broker: RunningBroker, client: ClusterClient, raw: Raw) -> None:
    broker.create_topic("limits", 2)
    for partition in (0, 1):
        raw.produce("limits", -1, batch("x" * 1000), partition=partition)
        raw.produced("limits")
    size = len(batch("x" * 1000))
    one = client.fetch("limits", {0: 0, 1: 0}, max_bytes=10, max_wait_ms=0)
    assert sorted(len(part.records) for part in one.values()) == [0, size], "one whole batch, and only one"
    both = client.fetch("limits", {0: 0, 1: 0}, max_bytes=2 * size, max_wait_ms=0)
    assert [len(part.records) for part in both.values()] == [size, size]
    started = time.monotonic()
    few = client.fetch("limits", {0: 0}, max_bytes=1 << 20, max_wait_ms=400, min_bytes=size + 1)
    assert len(few[0].records) == size
    assert time.monotonic() - started >= 0.39


def test_a_partition_gives_as_many_bytes_as_were_asked_of_it(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("asked", 2)
    for partition in (0, 1):
        for _ in range(20):
            raw.produce("asked", -1, batch("x" * 1000), partition=partition)
            raw.produced("asked")
    for wanted in (3000, 10_000):
        found = client.fetch(
            "asked", {0: 0, 1: 0}, max_bytes=1 << 20, partition_max_bytes=wanted, max_wait_ms=0
        )
        assert [len(part.records) for part in found.values()] == [wanted, wanted]


def resident_bytes(pid: int) -> int:
    """Memory of the process's own, without files that it maps."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024


def test_what_was_stored_and_read_is_not_in_the_brokers_memory(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("stored", 1)
    records = batch("x" * 900_000)

    def pass_through(count: int) -> None:
        for _ in range(count):
            raw.produce("stored", -1, records)
            raw.produced("stored")
        offset = client.list_offsets("stored", EARLIEST)[0]
        for _ in range(count):
            found = client.fetch("stored", {0: offset}, max_bytes=1 << 20, max_wait_ms=0)[0]
            offset += len(records)
            assert found.records[: len(records)][61:] == records[61:]

    pass_through(5)
    before = resident_bytes(broker.process.pid)
    pass_through(100)
    assert resident_bytes(broker.process.pid) - before < 30 << 20, "90 MB were written and read"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_twelve_thousand_messages_cost_less_than_a_second_of_one_core(
    broker: RunningBroker, raw: Raw
) -> None:
    broker.create_topic("rate", 1)
    records = batch("x" * 190)
    before = cpu_seconds(broker.process.pid)
    for _ in range(120):
        raw.produce("rate", 1, *[records] * 100)
        for _ in range(100):
            assert raw.produced("rate")[0] == 0
    assert cpu_seconds(broker.process.pid) - before < 1, "each in a request of its own"


def test_answers_keep_their_order_whatever_the_acks(broker: RunningBroker, raw: Raw) -> None:
    broker.create_topic("order")
    for number in range(200):
        acks = (-1, 1, 0)[number % 3]
        raw.produce("order", acks, batch(f"n{number}"))
    answers = [raw.produced("order") for number in range(200) if number % 3 != 2]
    bases = [base for _, base in answers]
    assert bases == sorted(bases)
    assert {error for error, _ in answers} == {0}


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (batch("x")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch("x")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch("x") + batch("y"), ErrorCode.CORRUPT_MESSAGE),
        (b"\0" * 16 + b"\x01" + batch("x")[17:], ErrorCode.CORRUPT_MESSAGE),
        (build_batch([Message(1, None, b"x")], attributes=0x20), ErrorCode.INVALID_RECORD),
        (build_batch([Message(1, None, b"x")], attributes=0x10), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_bad_batch_is_refused_and_the_connection_goes_on(
    broker: RunningBroker, client: ClusterClient, raw: Raw, records: bytes, error: ErrorCode
) -> None:
    if "bad" not in client.topics():
        broker.create_topic("bad")
    before = client.list_offsets("bad", LATEST)
    raw.produce("bad", -1, records)
    assert raw.produced("bad") == (error, -1)
    assert client.list_offsets("bad", LATEST) == before
    raw.produce("bad", -1, batch("good"))
    assert raw.produced("bad")[0] == 0


def test_produce_is_refused_by_the_protocols_own_codes(broker: RunningBroker, raw: Raw) -> None:
    broker.create_topic("codes", 1, max_message_bytes=1000)
    raw.produce("codes", 7, batch("x"))
    assert raw.produced("codes")[0] == ErrorCode.INVALID_REQUIRED_ACKS
    raw.produce("codes", 1, batch("x" * 2000))
    assert raw.produced("codes")[0] == ErrorCode.MESSAGE_TOO_LARGE
    raw.produce("codes", 1, batch("x"), partition=9)
    assert raw.produced("codes")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raw.produce("codes", 1, batch("x"), version=2)
    assert raw.produced("codes")[0] == ErrorCode.UNSUPPORTED_VERSION


def test_a_refused_batch_without_acks_closes_the_connection(broker: RunningBroker, raw: Raw) -> None:
    raw.produce("not-there", 0, batch("x"))
    assert raw.file.read(1) == b""


def test_timestamps_find_the_first_batch_that_reaches_them(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("times")
    sizes = [len(batch("t", 1, timestamp)) for timestamp in (1000, 2000, 3000)]
    raw.produce("times", -1, *[batch("t", 1, timestamp) for timestamp in (1000, 2000, 3000)])
    for _ in sizes:
        raw.produced("times")
    found = {ts: client.list_offsets("times", ts)[0] for ts in (0, 1000, 1001, 3000, 3001)}
    end = sizes[0] + sizes[1] + 1
    assert found == {0: 0, 1000: 0, 1001: sizes[0], 3000: sizes[0] + sizes[1], 3001: end}


# Bad bytes, and APIs that are not there


@pytest.mark.parametrize("size", [-1, 0, 5, MAX_FRAME + 1, 0x7FFFFFFF])
def test_a_frame_that_cannot_be_closes_its_connection(broker: RunningBroker, raw: Raw, size: int) -> None:
    raw.socket.sendall(struct.pack(">i", size) + b"\0" * 16)
    assert raw.file.read(1) == b""


def test_a_frame_just_below_the_limit_is_served(broker: RunningBroker, raw: Raw) -> None:
    broker.create_topic("large", 1, max_message_bytes=MAX_FRAME)
    raw.produce("large", -1, batch("x" * (MAX_FRAME - 300)))
    assert raw.produced("large") == (0, 0)


@pytest.mark.parametrize(
    ("api_key", "version"), [(999, 3), (60, 3), (1, 0), (1, 3), (1, 19), (2, 0), (3, 14)]
)
def test_what_is_not_offered_closes_the_connection_and_the_log_says_so(
    broker: RunningBroker, raw: Raw, api_key: int, version: int
) -> None:
    raw.socket.sendall(struct.pack(">ihhih", 14, api_key, version, 1, -1) + b"\0" * 4)
    assert raw.file.read(1) == b""
    api = ApiKey(api_key).name if api_key in set(ApiKey) else f"API {api_key}"
    line = f"{api} v{version} of client '', principal 'User:ANONYMOUS': ApiVersions does not offer it"
    wait_until("a line", lambda: line in broker.process.output)


def test_versions_of_api_versions_that_are_not_served_are_answered(raw: Raw) -> None:
    supported = decode(ApiVersionsResponse, ApiKey.API_VERSIONS, 0, raw.ask(ApiKey.API_VERSIONS, 9))
    assert supported.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = {api.api_key: (api.min_version, api.max_version) for api in supported.api_keys}
    assert ranges == {api_key: (versions[0], versions[-1]) for api_key, versions in LISTED.items()}


MALFORMED = b"\x7f\xff\xff"


@pytest.mark.parametrize(("api_key", "version"), [(1, 11), (9, 5), (10, 2), (22, 1)])
def test_a_body_that_does_not_fit_is_answered_and_the_connection_goes_on(
    raw: Raw, api_key: int, version: int
) -> None:
    raw.ask(api_key, version, MALFORMED)
    assert raw.ask(ApiKey.API_VERSIONS, 0)


@pytest.mark.parametrize(("api_key", "version"), [(0, 7), (2, 5), (3, 8), (3, 9), (19, 4), (20, 3)])
def test_a_body_that_does_not_fit_closes_the_connection_where_no_response_could_say_so(
    broker: RunningBroker, raw: Raw, api_key: int, version: int
) -> None:
    raw.send(api_key, version, MALFORMED)
    assert raw.file.read(1) == b""
    name = f"{ApiKey(api_key).name} v{version} of client"

    def is_said() -> bool:
        lines = broker.process.output.splitlines()
        return any(name in line and "refused with INVALID_REQUEST" in line for line in lines)

    wait_until("a line", is_said)


@pytest.mark.parametrize("version", range(14))
def test_metadata_as_the_first_request_of_a_connection_names_the_broker(
    broker: RunningBroker, raw: Raw, version: int
) -> None:
    header = b"\0" if version >= ApiKey.METADATA.flexible_since else b""
    answer = raw.ask(
        ApiKey.METADATA, version, header + encode(MetadataRequest(topics=()), ApiKey.METADATA, version)
    )
    told = decode(MetadataResponse, ApiKey.METADATA, version, answer[len(header) :])
    assert [(one.node_id, f"{one.host}:{one.port}") for one in told.brokers] == [(1, broker.bootstrap)]


def test_a_body_that_does_not_fit_gets_a_whole_answer_or_none_in_every_version(broker: RunningBroker) -> None:
    for api in all_apis():
        for version in api.versions:
            if (api.key, version) in UNKNOWN_TO_KIO:
                continue
            raw, flexible = Raw(broker.bootstrap), version >= api.key.flexible_since
            raw.send(api.key, version, b"\0" * flexible + MALFORMED)
            size = raw.file.read(4)
            answer = raw.file.read(int.from_bytes(size)) if size else b""
            raw.close()
            if answer:
                start = 4 + (flexible and api.key != ApiKey.API_VERSIONS)
                _, read = entity_reader(load_response_schema(api.key, version))(answer[start:], 0)
                assert read == len(answer) - start, (api.key, version, answer)


def test_transactions_are_refused_clearly(raw: Raw) -> None:
    refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer = raw.ask(ApiKey.INIT_PRODUCER_ID, 1, b"\0\x02tx" + struct.pack(">i", 1000))
    assert decode(InitProducerIdResponse, ApiKey.INIT_PRODUCER_ID, 1, answer).error_code == refusal
    answer = raw.ask(ApiKey.FIND_COORDINATOR, 2, b"\0\x02tx\x01")
    assert decode(FindCoordinatorResponse, ApiKey.FIND_COORDINATOR, 2, answer).error_code == refusal


def test_producer_ids_are_never_the_same(raw: Raw) -> None:
    ids = set()
    for _ in range(50):
        answer = raw.ask(ApiKey.INIT_PRODUCER_ID, 1, b"\xff\xff" + struct.pack(">i", 1000))
        ids.add(decode(InitProducerIdResponse, ApiKey.INIT_PRODUCER_ID, 1, answer).producer_id)
    assert len(ids) == 50
    assert max(ids) > 1 << 56


def test_metadata_follows_the_cluster(client: ClusterClient, raw: Raw, broker: RunningBroker) -> None:
    everything = b"\xff\xff\xff\xff"
    assert b"new-one" not in raw.ask(ApiKey.METADATA, 1, everything)
    broker.create_topic("new-one")
    assert b"new-one" in raw.ask(ApiKey.METADATA, 1, everything)
    client.delete_topic("new-one")
    assert b"new-one" not in raw.ask(ApiKey.METADATA, 1, everything)


# Stopping


def test_sigterm_brings_unflushed_records_to_the_disk(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, "stopping")
    broker.create_topic("slow", 1, flush_ms=600_000, flush_messages=1_000_000)
    raw = Raw(broker.bootstrap)
    raw.produce("slow", 1, batch("kept"))
    assert raw.produced("slow") == (0, 0)
    with broker.client() as client:
        assert client.list_offsets("slow", LATEST) == {0: 0}, "not visible before it is flushed"
    assert broker.process.stop() == 0
    raw.close()
    broker.restart()
    assert [value for _, value in CONFLUENT.read(broker.bootstrap, "slow", 0, BEGINNING)] == [b"kept 0"]
    assert broker.process.stop() == 0


def test_retention_deletes_old_segments_while_the_broker_serves(
    broker: RunningBroker, client: ClusterClient, raw: Raw
) -> None:
    broker.create_topic("short", 1, segment_bytes=2000, retention_bytes=4000)
    for number in range(20):
        raw.produce("short", -1, batch("x" * 900))
        assert raw.produced("short")[0] == 0, number
    start = wait_until("retention", lambda: client.list_offsets("short", EARLIEST)[0])
    assert client.fetch("short", {0: start}, max_bytes=1 << 20, max_wait_ms=0)[0].records
    assert (
        client.fetch("short", {0: 0}, max_bytes=1 << 20, max_wait_ms=0)[0].error
        == ErrorCode.OFFSET_OUT_OF_RANGE
    )


def test_the_brokers_record_names_its_log_directory(broker: RunningBroker, zookeeper: str) -> None:
    registry = KazooClient(hosts=zookeeper)
    registry.start()
    try:
        record = json.loads(registry.get("/process/brokers/ids/1")[0])
    finally:
        registry.stop()
        registry.close()
    log_dir = tomllib.loads(Path(broker.config).read_text())["log_dir"]
    assert record["directory"] == json.loads((Path(log_dir) / "owner.json").read_text())["directory"]
