"""A broker whose disk is damaged, full or failing: it stays up, says so, and serves whatever is whole.

Full is really full: a small file system in memory that the test mounts, so it runs as root. A failing disk is
the broker's own calls failing from inside its process (faults/disk_shim.py).
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.errors import ErrorCode
from tests.compat.brokers import RunningBroker, start_broker
from tests.compat.clients import BEGINNING, CONFLUENT
from tests.integration.faults.disk import Disk, shim_path
from tests.integration.faults.ledger import Ledger, read_all
from tests.integration.faults.small_disk import empty, fill_bytes, fill_inodes, small_disk
from tests.integration.faults.traffic import PLAIN, NumberedProducer, run, run_until_stored
from tests.integration.faults.wire import Wire, batch
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]
FULL_BYTES = 3 << 20
FULL_INODES = 60


def partition_folder(broker: RunningBroker, topic: str) -> Path:
    (folder,) = broker.config.with_suffix("").glob(f"{topic}-0-*")
    return folder


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def values(broker: RunningBroker, topic: str) -> list[bytes]:
    return [value for _, value in CONFLUENT.read(broker.bootstrap, topic, 0, BEGINNING)]


# Damage


def test_flipped_bits_are_cut_above_the_checkpoint_and_answered_as_corrupt_below_it(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, f"damage-{uuid4().hex[:6]}")
    broker.create_topic("hurt")
    broker.create_topic("torn")
    with Wire(broker.bootstrap) as wire:
        bases = [wire.produce("hurt", batch(f"old {n}", 5))[1] for n in range(6)]
        wire.produce("torn", batch("kept"))
    assert broker.process.stop() == 0  # everything so far is below the checkpoint
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        newer = [wire.produce("hurt", batch(f"new {n}", 5))[1] for n in range(4)]
    broker.process.kill()
    (hurt,) = partition_folder(broker, "hurt").glob("*.log")
    (torn,) = partition_folder(broker, "torn").glob("*.log")
    flip(hurt, bases[2] + 70)
    flip(hurt, newer[2] + 70)
    with torn.open("ab") as file:
        file.write(batch("half a batch")[:50])
    broker.restart()

    with Wire(broker.bootstrap) as wire:
        for base in bases:
            error, records = wire.fetch("hurt", base, max_bytes=1)
            assert error == (ErrorCode.CORRUPT_MESSAGE if base == bases[2] else 0), base
            assert bool(records) == (base != bases[2])
        # Inside the damaged batch, too; the batches around it are served.
        assert wire.fetch("hurt", bases[2] + 3)[0] == ErrorCode.CORRUPT_MESSAGE
        assert wire.fetch("hurt", newer[1])[0] == 0
        # What follows the flipped bit above the checkpoint was cut, and its place is taken by the next.
        assert wire.produce("hurt", batch("next"))[1] == newer[2]
    assert values(broker, "torn") == [b"kept 0"]
    assert f"position {bases[2]}" in broker.process.output
    assert "Traceback" not in broker.process.output
    assert "no valid batch" in broker.process.output

    folder = str(partition_folder(broker, "hurt"))
    named = run_millrace("log", "verify", folder)
    assert named.returncode == 1
    assert f"{hurt}, position {bases[2]}, " in named.stdout
    assert "wrong CRC" in named.stdout
    assert broker.process.stop() == 0
    assert run_millrace("log", "repair", folder).returncode == 0
    broker.restart()
    whole = [b"old %d %d" % (n, m) for n in range(6) for m in range(5) if n != 2]
    whole += [b"new %d %d" % (n, m) for n in range(2) for m in range(5)]
    assert values(broker, "hurt") == [*whole, b"next 0"]


# A full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB and 60 files."""
    with small_disk(tmp_path / "small", FULL_BYTES, FULL_INODES) as path:
        yield path


@pytest.fixture
def cramped(start: Start, zookeeper: str, tmp_path: Path, small: Path) -> RunningBroker:
    """A broker whose log directory is on the small disk."""
    name = f"full-{uuid4().hex[:6]}"
    env = {"PYTHONPATH": shim_path(tmp_path / "shim"), "DISK_PACE": "0.5"}
    hasty = functools.partial(start, env=env)
    return start_broker(hasty, zookeeper, tmp_path, name, log_dir=str(small / "logs"))


def refused_until_full(wire: Wire, topic: str, text: str) -> int:
    """Produce until the broker refuses; the number of batches that it took."""
    for number in range(200):
        error, _ = wire.produce(topic, batch(f"{text} {number} {'.' * 50_000}"))
        if error:
            assert error == ErrorCode.STORAGE_ERROR
            return number
    raise AssertionError("the small disk never got full")


def test_a_full_disk_refuses_what_it_cannot_take_and_goes_on_when_there_is_room(
    cramped: RunningBroker, small: Path
) -> None:
    for topic in ("full", "other"):
        cramped.create_topic(topic, 1, segment_bytes=400_000)
    ledger = Ledger(cramped.create_topic("waiting"))
    producer = NumberedProducer(cramped.bootstrap, ledger, PLAIN, 1)
    run_until_stored([producer], 20)
    with Wire(cramped.bootstrap) as wire:
        taken = refused_until_full(wire, "full", "x")
        assert taken > 20
        with cramped.client() as client:
            end = client.list_offsets("full", LATEST, [0])[0]
            assert len(read_all(client, "full", 0, end)) == taken, "reads go on, of all that was acknowledged"
        ballast = fill_bytes(small)
        run([producer], 1.0)  # its client tries again and again

        def is_stuck() -> bool:
            before = producer.stored_count
            run([producer], 0.3)
            return producer.stored_count == before

        wait_until("nothing more is stored", is_stuck)
        verified = run_millrace("log", "verify", str(small / "logs"))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert "(above the checkpoint" not in verified.stdout, "half-written batches are cut"
        assert wire.produce("other", batch("." * 50_000))[0] == ErrorCode.STORAGE_ERROR
        with cramped.client() as client:
            client.delete_topic("full")
        empty(ballast)
        wait_until("room again", lambda: wire.produce("other", batch("." * 50_000))[0] == 0)
    producer.finish()
    with cramped.client() as client:
        producer.check(0, ledger.check(client, [0], "with room again")[0])
    assert "Traceback" not in cramped.process.output
    lines = [line for line in cramped.process.lines if "No space left" in line]
    assert 1 <= len(lines) <= 20, f"{len(lines)} lines about one full disk"


def test_retention_makes_room_on_a_full_disk(cramped: RunningBroker, small: Path) -> None:
    cramped.create_topic("kept", 1, segment_bytes=200_000)
    cramped.create_topic("short", 1, segment_bytes=200_000, retention_bytes=600_000)
    with Wire(cramped.bootstrap) as wire:
        for number in range(30):
            assert wire.produce("short", batch(f"{number} {'.' * 50_000}"))[0] == 0
        taken = refused_until_full(wire, "kept", "kept")
        with cramped.client() as client:
            wait_until("retention", lambda: client.list_offsets("short", EARLIEST, [0])[0] > 0)
            # The start moves before the files are gone; no restart is needed.
            wait_until("room", lambda: wire.produce("kept", batch("." * 50_000))[0] == 0)
            end = client.list_offsets("kept", LATEST, [0])[0]
            assert len(read_all(client, "kept", 0, end)) == taken + 1


def test_no_room_for_a_new_segment_or_a_new_topic_is_retriable_and_passes_without_a_restart(
    cramped: RunningBroker, small: Path
) -> None:
    cramped.create_topic("rolls", 1, segment_bytes=100_000)
    with Wire(cramped.bootstrap) as wire:
        ballast = fill_inodes(small, FULL_INODES)
        taken = refused_until_full(wire, "rolls", "x")
        assert taken <= 2, "the segment was full, and no other could be made"
        # The topic is made, because that is ZooKeeper's business; its log is not, for now.
        with cramped.client() as client:
            client.create_topic("late", 1)
        assert wire.produce("late", batch("a"))[0] == ErrorCode.STORAGE_ERROR
        empty(ballast)
        assert wire.produce("rolls", batch("." * 50_000))[0] == 0
        wait_until("the new topic is served", lambda: wire.produce("late", batch("a"))[0] == 0)
    assert "Traceback" not in cramped.process.output


def test_a_broker_starts_on_a_full_disk_and_serves_reads(cramped: RunningBroker, small: Path) -> None:
    cramped.create_topic("there", 1, segment_bytes=400_000)
    with Wire(cramped.bootstrap) as wire:
        for number in range(10):
            assert wire.produce("there", batch(f"there {number}"))[0] == 0
    cramped.process.kill()
    ballast = fill_bytes(small)
    cramped.restart()
    assert values(cramped, "there") == [b"there %d 0" % n for n in range(10)]
    with Wire(cramped.bootstrap) as wire:
        assert wire.produce("there", batch("." * 50_000))[0] == ErrorCode.STORAGE_ERROR
        empty(ballast)
        assert wire.produce("there", batch("there 10"))[0] == 0
    assert cramped.process.stop() == 0
    assert "Traceback" not in cramped.process.output


@pytest.mark.long
def test_a_first_start_without_room_is_one_line(
    start: Start, zookeeper: str, tmp_path: Path, small: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, f"first-{uuid4().hex[:6]}")
    broker.process.stop()
    for name, fill in (("bytes", fill_bytes), ("inodes", partial(fill_inodes, inodes=FULL_INODES))):
        ballast = fill(small)
        log_dir = small / name
        done = run_millrace("broker", str(broker.config), "--set", f"log_dir={log_dir}", timeout_s=30)
        assert done.returncode == 1
        said = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
        assert len(said) == 1, done.stderr
        assert "No space left on device" in said[0]
        assert "Traceback" not in done.stderr
        empty(ballast)


# A failing disk


@pytest.fixture
def failing(start: Start, zookeeper: str, tmp_path: Path) -> tuple[RunningBroker, Disk]:
    """A broker whose disk fails when the test says so."""
    name = f"failing-{uuid4().hex[:6]}"
    disk = Disk(tmp_path / "disk", tmp_path / f"{name}-1", Random(1))
    return start_broker(functools.partial(start, env=disk.env), zookeeper, tmp_path, name), disk


def test_after_a_failed_fdatasync_a_log_takes_nothing_more_until_a_restart_and_shows_nothing_unsure(
    failing: tuple[RunningBroker, Disk],
) -> None:
    broker, disk = failing
    for topic in ("broken", "whole"):
        broker.create_topic(topic)
    with Wire(broker.bootstrap) as wire, broker.client() as client:
        assert wire.produce("broken", batch("before"))[0] == 0
        mark = client.list_offsets("broken", LATEST)[0]
        disk.fail("sync", "broken-0", errno.EIO)
        assert wire.produce("broken", batch("unsure"))[0] == ErrorCode.STORAGE_ERROR
        disk.heal()
        assert wire.produce("broken", batch("later"))[0] == ErrorCode.STORAGE_ERROR
        assert wire.produce("broken", batch("later"), acks=1)[0] == ErrorCode.STORAGE_ERROR
        assert client.list_offsets("broken", LATEST)[0] == mark
        assert values(broker, "broken") == [b"before 0"]
        assert wire.produce("whole", batch("whole"))[0] == 0
    broker.process.kill()
    disk.cut_power()
    broker.restart()
    assert values(broker, "broken")[:1] == [b"before 0"]
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("broken", batch("after"))[0] == 0
    assert values(broker, "whole") == [b"whole 0"]


def test_a_disk_that_cannot_be_read_fails_that_partition_only_and_only_as_long(
    failing: tuple[RunningBroker, Disk],
) -> None:
    broker, disk = failing
    for topic in ("unreadable", "whole"):
        broker.create_topic(topic)
    with Wire(broker.bootstrap) as wire:
        bases = [wire.produce("unreadable", batch(f"n {n}"))[1] for n in range(3)]
        assert wire.produce("whole", batch("whole"))[0] == 0
        disk.fail("read", "unreadable-0", errno.EIO)
        assert wire.fetch("unreadable", bases[1])[0] == ErrorCode.STORAGE_ERROR
        assert wire.fetch("whole", 0)[0] == 0
        disk.heal()
        # The headers can be read and the rest cannot: the answer is cut off, and the log says why.
        disk.fail("send", "unreadable-0", errno.EIO)
        with pytest.raises(ConnectionError):
            wire.fetch("unreadable", bases[1])
    with Wire(broker.bootstrap) as wire:
        assert wire.fetch("whole", 0)[0] == 0
        disk.heal()
        assert wire.fetch("unreadable", bases[1])[0] == 0
    assert values(broker, "unreadable") == [b"n %d 0" % n for n in range(3)]
    assert broker.process.output.count("Input/output error") >= 2
    assert "Traceback" not in broker.process.output
