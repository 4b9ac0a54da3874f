"""The cells of the broker benchmark are the paper's: tried on a system of files, loaded by real processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.records import BatchHeader, iter_records, split_batches
from tests.bench import bench_hot_path, replay
from tests.bench.broker import __main__ as benchmark
from tests.bench.broker import activemq, cells, report, run
from tests.bench.broker.encrypted import EncryptedMillrace
from tests.bench.broker.kafka_clients import Replay
from tests.bench.broker.millrace import Millrace
from tests.bench.broker.system import LARGE, MESSAGE_BYTES, Client, Command, Figures
from tests.unit.bench.test_broker_report import RESULT

OVERHEAD = 9


class Appender:
    """A client whose processes append messages to a file and read it, as a benchmark's would a broker's."""

    name, holds_rate = "appender", False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.asked: list[str] = []

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command:
        if place != "-":
            self.asked.append(f"produce {per_request}")
        code = f"open({str(self._path)!r}, 'ab').write(bytes({messages * (MESSAGE_BYTES + OVERHEAD)}))"
        return self._command(code, messages)

    def consume(self, place: str, messages: int) -> Command:
        self.asked.append("consume")
        return self._command(f"open({str(self._path)!r}, 'rb').read()", messages)

    def latency(self, place: str, rate: int, seconds: int) -> None:
        return None

    def _command(self, code: str, messages: int) -> Command:
        return Command(
            arguments=[sys.executable, "-c", code],
            parse=lambda output: Figures(messages=messages, seconds=1.0),
        )


class Files:
    """A system without any process."""

    name = title = "millrace"
    version = flush = "-"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client = Appender(folder / "messages")
        self.clients: Sequence[Client] = [self.client]

    def install(self) -> None: ...

    def start(self, folder: Path) -> None: ...

    def pids(self) -> list[int]:
        return []

    def create(self, place: str) -> None: ...

    def delete(self, place: str) -> None: ...

    def files(self, place: str) -> list[Path]:
        return [self._folder]

    def stop(self) -> None: ...


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_messages_of_200_bytes_go_1_and_50_to_a_request() -> None:
    asked = [Replay("h:1").produce("t", cells.PER_REQUEST[cell], 100) for cell in ("produce-1", "produce-50")]
    assert [command.arguments[-1] for command in asked] == ["1", "50"]
    for count in (1, 50):
        batch = replay.batch_of(count)
        header = BatchHeader.parse(batch)
        assert header is not None
        assert [len(record.value or b"") for record in iter_records(header, batch)] == [200] * count


def test_the_bytes_that_a_message_takes_beside_its_payload_are_those_of_the_files(files: Files) -> None:
    measured = cells.measure(files, files.client, "produce-50", quick=True)
    assert measured.overhead_bytes == pytest.approx(OVERHEAD, abs=0.1)
    assert files.client.asked == ["produce 50"]


def test_a_consumer_is_measured_alone_on_messages_that_were_there_before(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    runs = run.run

    def counted(commands: Sequence[Command], pids: Sequence[int]) -> object:
        measured.append(len(commands))
        return runs(commands, pids)

    monkeypatch.setattr(cells, "run", counted)
    outcome = cells.measure(files, files.client, "consume", quick=True)
    assert files.client.asked == [f"produce {LARGE}", "consume"]
    assert measured == [1, 1], "one after the other"
    assert list(outcome.roles) == ["consume"]


def test_idempotent_connections_are_producers_with_ids_and_sequences(tmp_path: Path) -> None:
    with bench_hot_path.broker(tmp_path) as (address, _), ClusterClient(address) as client:
        client.create_topic("t", 2)
        replay.produce(
            address, "t", per_request=3, requests=4, acks=-1, connections=2, partitions=2, idempotent=True
        )
        fetched = client.fetch("t", {0: 0, 1: 0}, max_bytes=1 << 20, max_wait_ms=1000)
    headers = [header for number in (0, 1) for header, _ in split_batches(fetched[number].records)]
    ids = {header.producer_id for header in headers}
    assert len(ids - {-1}) == 2
    sequences = sorted((header.producer_id, header.base_sequence) for header in headers)
    assert sequences == [(number, sequence) for number in sorted(ids) for sequence in (0, 0, 3, 3)]


def test_millrace_stands_beside_activemq_and_rabbitmq_that_flush_in_the_background() -> None:
    systems = {name: make() for name, make in benchmark.SYSTEMS.items()}
    assert systems.keys() >= {"millrace", "activemq", "rabbitmq-classic"}
    assert "flushed every 100 ms" in systems["activemq"].flush
    assert 'journalDiskSyncStrategy="periodic" journalDiskSyncInterval="100"' in activemq.STORE
    assert "no client waits for the disk" in systems["rabbitmq-classic"].flush


def test_one_broker_is_measured_and_the_page_says_on_what_machine(tmp_path: Path) -> None:
    system = Millrace()
    try:
        system.start(tmp_path)
        system.create("t")
        assert len(system.pids()) == 1
        with ClusterClient(system.address) as client:
            assert (client.broker_ids(), list(client.topic("t").partitions)) == ([1], [0])
    finally:
        system.stop()
    assert "- Machine: 2 cores (some CPU), 24 GiB" in report.page(RESULT)


def test_replay_loads_and_reads_a_broker_through_tls(tmp_path: Path) -> None:
    system = EncryptedMillrace()
    try:
        system.start(tmp_path)
        system.create("t")
        (client,) = system.clients
        for command in (client.produce("t", 50, 20_000), client.produce("t", LARGE, 9_000)):
            assert command is not None
            run.run([command], system.pids())
        command = client.consume("t", 29_000)
        assert command is not None
        ([figures], _) = run.run([command], system.pids())
        assert figures.messages == 29_000
    finally:
        system.stop()
