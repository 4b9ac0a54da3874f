"""Troubles that an operator, a copy or a clock makes: one clear line each, and nothing served wrongly."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from millrace.client.cluster_client import LATEST
from millrace.errors import ErrorCode
from tests.compat.brokers import RunningBroker, start_broker
from tests.integration.faults.disk import shim_path
from tests.integration.faults.ledger import Ledger, read_all
from tests.integration.faults.traffic import PLAIN, NumberedProducer, run_until_stored
from tests.integration.faults.wire import Wire, batch
from tests.support import Process, run_millrace, wait_until

Start = Callable[..., Process]
DAY_S = 24 * 3600


@pytest.fixture
def broker(start: Start, zookeeper: str, tmp_path: Path) -> RunningBroker:
    """A broker whose clock is wrong by what `clock` says, and that is root without root's rights."""
    (tmp_path / "clock").write_text("0")
    env = {
        "PYTHONPATH": shim_path(tmp_path / "shim"),
        "DISK_CLOCK": str(tmp_path / "clock"),
        "DISK_PACE": "0.2",
        "DISK_PLAIN": "1",
    }
    name = f"start-{uuid4().hex[:6]}"
    return start_broker(functools.partial(start, env=env), zookeeper, tmp_path, name)


def log_dir(broker: RunningBroker) -> Path:
    return broker.config.with_suffix("")


def partition_folder(broker: RunningBroker, topic: str) -> Path:
    (folder,) = log_dir(broker).glob(f"{topic}-0-*")
    return folder


def values(broker: RunningBroker, topic: str) -> list[bytes]:
    with broker.client() as client:
        return list(read_all(client, topic, 0, client.list_offsets(topic, LATEST, [0])[0]).values())


def refused(broker: RunningBroker, *settings: str) -> str:
    """The one line of a start that is refused."""
    options = [part for setting in settings for part in ("--set", setting)]
    shim = {"PYTHONPATH": str(broker.config.parent / "shim"), "DISK_PLAIN": "1"}
    done = run_millrace("broker", str(broker.config), *options, env=shim, timeout_s=30)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
    assert len(said) == 1, done.stderr
    return said[0]


def test_a_clock_that_jumps_back_and_forth_loses_repeats_and_keeps_back_nothing(
    broker: RunningBroker, tmp_path: Path
) -> None:
    def jump(days: float) -> None:
        (tmp_path / "draft").write_text(str(days * DAY_S))
        (tmp_path / "draft").rename(tmp_path / "clock")

    ledger = Ledger(broker.create_topic("timely", 1, segment_bytes=5000))
    producer = NumberedProducer(broker.bootstrap, ledger, PLAIN, 1)
    for days in (0, -1, 3, -400, 30, 0):  # the last one is far beyond retention
        jump(days)
        run_until_stored([producer], 100)
    broker.process.kill()
    jump(-2)
    broker.restart()
    run_until_stored([producer], 100)
    producer.finish()
    with broker.client() as client:
        producer.check(0, ledger.check(client, [0], "after the jumps")[0])
    assert "Traceback" not in broker.process.output


def test_a_checkpoint_that_is_empty_cut_or_gone_costs_time_and_no_message(broker: RunningBroker) -> None:
    def become_folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    spoil: dict[str, Callable[[Path], object]] = {
        "empty": lambda path: path.write_bytes(b""),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
        "gone": Path.unlink,
        "folder": become_folder,
    }
    with contextlib.ExitStack() as stack:
        for name in spoil:
            broker.create_topic(name)
        wire = stack.enter_context(Wire(broker.bootstrap))
        for name in spoil:
            assert wire.produce(name, batch(name, 5))[0] == 0
    assert broker.process.stop() == 0
    for name, how in spoil.items():
        how(partition_folder(broker, name) / "checkpoint")
    broker.restart()
    for name in ("empty", "cut", "gone"):
        assert values(broker, name) == [f"{name} {n}".encode() for n in range(5)]
    lines = [line for line in broker.process.lines if "checkpoint" in line]
    assert len(lines) == 4, lines
    # What cannot even be read is refused alone, and served as soon as it is put right.
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("folder", batch("x"))[0] == ErrorCode.STORAGE_ERROR
        (partition_folder(broker, "folder") / "checkpoint").rmdir()
        wait_until("it is served", lambda: wire.produce("folder", batch("x"))[0] == 0)
    assert values(broker, "folder") == [*(f"folder {n}".encode() for n in range(5)), b"x 0"]


@pytest.mark.long
def test_a_right_that_is_missing_is_one_line_and_concerns_only_what_it_is_about(
    broker: RunningBroker, tmp_path: Path
) -> None:
    for topic in ("mine", "theirs"):
        broker.create_topic(topic)
        with Wire(broker.bootstrap) as wire:
            assert wire.produce(topic, batch(topic))[0] == 0
    assert broker.process.stop() == 0
    theirs = partition_folder(broker, "theirs")
    theirs.chmod(0o000)
    broker.restart()
    assert values(broker, "mine") == [b"mine 0"]
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("theirs", batch("x"))[0] == ErrorCode.STORAGE_ERROR
        lines = [line for line in broker.process.lines if "Permission denied" in line]
        assert len(lines) == 1, lines
        theirs.chmod(0o755)
        wait_until("it is served", lambda: wire.produce("theirs", batch("x"))[0] == 0)
    assert values(broker, "theirs") == [b"theirs 0", b"x 0"]
    assert broker.process.stop() == 0
    for path in (log_dir(broker), log_dir(broker) / "lock", log_dir(broker) / "owner.json"):
        path.chmod(0o000)
        assert "Permission denied" in refused(broker)
        path.chmod(0o755)
    sealed = tmp_path / "sealed"
    sealed.mkdir(0o500)
    assert "Permission denied" in refused(broker, f"log_dir={sealed}")
    assert "Permission denied" in refused(broker, f"log_dir={sealed / 'below'}")


@pytest.mark.long
def test_a_copied_a_shared_and_a_linked_log_directory(broker: RunningBroker, tmp_path: Path) -> None:
    broker.create_topic("linked")
    broker.create_topic("moved")
    with Wire(broker.bootstrap) as wire:
        assert wire.produce("linked", batch("linked"))[0] == 0
        assert wire.produce("moved", batch("moved"))[0] == 0
    own = log_dir(broker)
    (tmp_path / "link").symlink_to(own)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "far")
    (tmp_path / "file").write_text("")
    assert "is in use by another broker" in refused(broker, f"log_dir={tmp_path / 'link'}", "broker_id=2")
    shutil.copytree(own, tmp_path / "copy")
    assert "belongs to broker 1 of" in refused(
        broker, f"log_dir={tmp_path / 'copy'}", f"cluster=other-{uuid4().hex[:6]}"
    )
    for name in ("nowhere", "file"):
        assert f"the log directory {tmp_path / name}" in refused(broker, f"log_dir={tmp_path / name}")
    assert broker.process.stop() == 0

    # A partition moved to another disk with a link in its place, below a log directory that is a link itself.
    moved = partition_folder(broker, "moved")
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    (own / "owner.json").rename(tmp_path / "owner.json")
    (own / "owner.json").write_text("{")
    assert "owner.json is unreadable" in refused(broker)
    (tmp_path / "owner.json").rename(own / "owner.json")
    own.rename(tmp_path / "real")
    own.symlink_to(tmp_path / "real")
    broker.restart()
    assert values(broker, "linked") == [b"linked 0"]
    assert values(broker, "moved") == [b"moved 0"]
    with broker.client() as client:
        client.delete_topic("moved")
    wait_until("the partition is gone", lambda: not list(own.glob("moved-*")))
    assert broker.process.stop() == 0
    broker.restart()
    assert values(broker, "linked") == [b"linked 0"]
    assert "Traceback" not in broker.process.output
