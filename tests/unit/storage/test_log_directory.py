"""The log directory: one broker at a time and for ever, one topic id per log."""

from __future__ import annotations

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.config import LogConfig
from millrace.errors import MillraceError, StorageError
from millrace_broker.storage.log_directory import (
    LogDirectory,
    Owner,
    parse_partition_name,
    partition_name,
    read_owner,
    write_owner,
)
from millrace_broker.storage.partition_log import PartitionLog
from tests.support import WAIT_S, run_python
from tests.unit.storage.logs import Clock, appended, batch, consume, flush, log_files

TOPIC_ID = UUID("0190d3a4-1111-4222-8333-123456789abc")


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory.open(path, LogConfig(), Clock())


@pytest.mark.parametrize("topic", ["PageView", "a-1", "a-1-2", "x.y_z", "-", "a-" + "0" * 32])
def test_a_directorys_name_says_topic_partition_and_topic_id(topic: str) -> None:
    assert parse_partition_name(partition_name(topic, 12, TOPIC_ID)) == (topic, 12, TOPIC_ID)


@pytest.mark.parametrize("name", ["lock", "t-0", "t-0-abc", f"t-0-{TOPIC_ID.hex}.foreign-1"])
def test_other_names_are_no_partitions(name: str) -> None:
    assert parse_partition_name(name) is None


def test_a_second_broker_is_refused_with_the_directorys_name(tmp_path: Path) -> None:
    logs = open_directory(tmp_path)
    script = (
        "import sys, time, pathlib\n"
        "from millrace.config import LogConfig\n"
        "from millrace_broker.storage.log_directory import LogDirectory\n"
        "LogDirectory.open(pathlib.Path(sys.argv[1]), LogConfig(), time.time)\n"
    )
    other = run_python("-c", script, str(tmp_path), timeout_s=30)
    assert other.returncode != 0
    message = other.stderr.strip().splitlines()[-1]
    assert str(tmp_path) in message
    assert "in use by another broker" in message
    logs.close()
    open_directory(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MillraceError, match="cannot create the log directory"):
        open_directory(tmp_path / "file" / "logs")


def test_a_partition_is_opened_once_and_found_again_after_a_restart(tmp_path: Path) -> None:
    logs = open_directory(tmp_path)
    log = logs.partition("t", 0, TOPIC_ID)
    assert logs.partition("t", 0, TOPIC_ID) is log
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [partition_name("t", 0, TOPIC_ID)]
    appended(log, batch(3))
    logs.close()
    logs = open_directory(tmp_path)
    assert len(list(consume(logs.partition("t", 0, TOPIC_ID), 0))) == 1
    logs.close()


def test_a_new_partitions_name_is_on_the_disk_before_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("millrace_broker.storage.partition_log.sync_directory", synced.append)
    logs = open_directory(tmp_path)
    (tmp_path / partition_name("t", 1, TOPIC_ID)).mkdir()  # by a broker that was killed right after
    for number in (0, 1):
        logs.partition("t", number, TOPIC_ID)
    assert synced == [tmp_path, tmp_path]
    logs.close()


def test_a_new_log_directorys_name_is_on_the_disk_before_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("millrace_broker.storage.log_directory.sync_directory", synced.append)
    path = tmp_path / "data" / "broker-1"
    for _ in range(2):
        open_directory(path).close()
    assert synced == [tmp_path, tmp_path / "data"]


def test_a_partition_has_its_topics_settings_or_the_brokers(tmp_path: Path) -> None:
    logs = open_directory(tmp_path)
    assert logs.partition("t", 0, TOPIC_ID, LogConfig(segment_bytes=5)).config.segment_bytes == 5
    assert logs.partition("t", 1, TOPIC_ID).config == logs.config
    logs.close()


@pytest.mark.parametrize("restart", [True, False])
def test_a_recreated_topic_never_serves_the_old_ones_messages(tmp_path: Path, restart: bool) -> None:
    logs = open_directory(tmp_path)
    log = logs.partition("t", 0, TOPIC_ID)
    kept = logs.partition("t-0", 1, TOPIC_ID)
    appended(log, batch(3))
    flush(log)
    if restart:
        logs.close()
        logs = open_directory(tmp_path)
    fresh = logs.partition("t", 0, uuid4())
    assert (fresh.end, fresh.high_watermark, fresh.read(0, 10)) == (0, 0, None)
    aside = [path for path in tmp_path.iterdir() if ".foreign-" in path.name]
    assert [path.name.partition(".")[0] for path in aside] == [partition_name("t", 0, TOPIC_ID)]
    assert log_files(aside[0])[0].stat().st_size > 0, "set aside, not deleted"
    assert kept.directory.exists()
    logs.close()


def test_a_topic_whose_log_a_full_disk_kept_from_being_made_can_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    logs = open_directory(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full_disk)
        with pytest.raises(StorageError):
            logs.partition("t", 0, TOPIC_ID)
    again = logs.partition("t", 0, uuid4())
    appended(again, batch(3))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full_disk)
        with pytest.raises(StorageError, match="set aside"):  # which is tried again
            logs.partition("t", 0, TOPIC_ID)
    assert logs.partition("t", 0, TOPIC_ID).end == 0
    assert [len(log_files(path)) for path in tmp_path.glob("*.foreign-*")] == [1]
    logs.close()


def test_a_deleted_partition_leaves_no_file(tmp_path: Path) -> None:
    logs = open_directory(tmp_path)
    appended(logs.partition("t", 0, TOPIC_ID), batch(3))
    logs.delete("t", 0)
    logs.delete("t", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    logs.close()


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    doomed = tmp_path / f"{partition_name('t', 0, TOPIC_ID)}.deleted"
    doomed.mkdir()
    (doomed / "00000000000000000000.log").write_bytes(b"x")
    open_directory(tmp_path).close()
    assert not doomed.exists()


def test_one_partition_that_cannot_be_recovered_does_not_keep_the_others(tmp_path: Path) -> None:
    logs = open_directory(tmp_path)
    for number in (0, 1):
        appended(logs.partition("t", number, TOPIC_ID), batch(3))
    logs.close()
    log_files(tmp_path / partition_name("t", 0, TOPIC_ID))[0].unlink()
    logs = open_directory(tmp_path)
    with pytest.raises(MillraceError, match="lost the bytes"):
        logs.partition("t", 0, TOPIC_ID)
    assert len(list(consume(logs.partition("t", 1, TOPIC_ID), 0))) == 1
    logs.close()


def test_what_was_set_aside_is_kept_as_long_as_its_messages_would_have_been(tmp_path: Path) -> None:
    clock = Clock()
    logs = LogDirectory.open(tmp_path, LogConfig(retention_ms=60_000), clock)
    appended(logs.partition("t", 0, TOPIC_ID), batch(3))
    logs.close()
    logs = LogDirectory.open(tmp_path, LogConfig(retention_ms=60_000), clock)
    assert logs.on_disk == [("t", 0, TOPIC_ID)]
    logs.set_aside("t", 0, TOPIC_ID)
    (aside,) = tmp_path.glob("*.foreign-*")
    assert (logs.on_disk, len(log_files(aside))) == ([], 1)
    clock.now += 59
    logs.delete_expired()
    logs.close()
    logs = LogDirectory.open(tmp_path, LogConfig(retention_ms=60_000), clock)
    logs.delete_expired()
    assert aside.exists()
    clock.now += 2
    logs.delete_expired()
    assert not aside.exists()
    logs.close()


def test_what_cannot_be_deleted_is_told_and_stays_due_what_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    logs = LogDirectory.open(tmp_path, LogConfig(retention_ms=1), clock)
    logs.partition("t", 0, TOPIC_ID)
    logs.partition("t", 0, uuid4())
    clock.now += 1

    def refuses(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("millrace_broker.storage.log_directory.remove_directory", refuses)
        logs.delete_expired()
    (aside,) = tmp_path.glob("*.foreign-*")
    assert f"cannot delete {aside}: Permission denied" in [line.message for line in caplog.records]
    logs.delete_expired()
    assert not aside.exists()
    logs.close()


def test_where_nothing_expires_what_was_set_aside_stays(tmp_path: Path) -> None:
    clock = Clock()
    logs = LogDirectory.open(tmp_path, LogConfig(retention_ms=None), clock)
    logs.partition("t", 0, TOPIC_ID)
    logs.partition("t", 0, uuid4())
    clock.now += 1e9
    logs.delete_expired()
    assert len(list(tmp_path.glob("*.foreign-*"))) == 1
    logs.close()


def test_several_threads_open_logs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_directory(tmp_path)
    opening, one_by_one = threading.Barrier(3), PartitionLog

    def open_together(*arguments: Any, **more: Any) -> PartitionLog:
        opening.wait(WAIT_S)
        return one_by_one(*arguments, **more)

    monkeypatch.setattr("millrace_broker.storage.log_directory.PartitionLog", open_together)
    with ThreadPoolExecutor(3) as threads:
        opened = list(threads.map(lambda number: logs.partition("t", number, TOPIC_ID), range(3)))
    assert [logs.partition("t", number, TOPIC_ID) for number in range(3)] == opened
    logs.close()


def test_logs_are_closed_side_by_side_and_one_that_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_directory(tmp_path)
    for number in range(3):
        logs.partition("t", number, TOPIC_ID)
    closing, closed = threading.Barrier(3), []

    def close_together(log: PartitionLog) -> None:
        closing.wait(WAIT_S)
        closed.append(log)
        if len(closed) == 1:
            raise OSError("the disk")

    monkeypatch.setattr(PartitionLog, "close", close_together)
    with pytest.raises(OSError, match="the disk"):
        logs.close()
    assert len(closed) == 3
    open_directory(tmp_path).close()  # the lock is given up all the same


def test_a_directory_has_no_owner_first_and_then_the_one_that_is_written(tmp_path: Path) -> None:
    assert read_owner(tmp_path, "millrace-1", 1) is None
    owner = Owner("millrace-1", 1, "0123456789abcdef", 7)
    write_owner(tmp_path, owner)
    assert read_owner(tmp_path, "millrace-1", 1) == owner
    with pytest.raises(MillraceError, match="belongs to broker 1 of cluster millrace-1, this is broker 2 of"):
        read_owner(tmp_path, "millrace-1", 2)
    with pytest.raises(MillraceError, match="ZooKeeper was wiped"):
        read_owner(tmp_path, "millrace-2", 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster_id": 1}'])
def test_an_owner_nobody_can_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "owner.json").write_text(text)
    with pytest.raises(MillraceError, match=r"owner\.json is unreadable"):
        read_owner(tmp_path, "millrace-1", 1)


@pytest.mark.parametrize("directory", ["", "0123456789abcdef"])
def test_an_owner_of_a_version_without_ids_or_generations_is_read(tmp_path: Path, directory: str) -> None:
    fields = {"cluster_id": "millrace-1", "broker_id": 1} | ({"directory": directory} if directory else {})
    (tmp_path / "owner.json").write_text(json.dumps(fields))
    assert read_owner(tmp_path, "millrace-1", 1) == Owner("millrace-1", 1, directory, 0)
