"""Many logs flushed by one sync of their file system: what is on the disk, and whom an error concerns."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.config import LogConfig
from millrace.errors import StorageError
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.flush import MANY, FlushThreads
from millrace_broker.storage import file_system
from millrace_broker.storage.file_system import FileSystem
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.state import LogState
from tests.support import WAIT_S, wait_until
from tests.unit.storage.logs import Clock, appended, batch, open_log


class Disk:
    """Stands before the syncs of logs and of their file system: counts, holds up, and makes them fail."""

    def __init__(self) -> None:
        self.all_synced = 0
        self.own_synced: list[str] = []
        self.fails: set[str] = set()
        """"all", or names of logs."""
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.hangs = ""
        """Name of the log whose own sync waits."""
        self.own_may_go_on = threading.Event()

    def syncfs(self, fd: int) -> None:
        self.all_synced += 1
        assert self.may_go_on.wait(WAIT_S)
        if "all" in self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self, fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().parent.name
        self.own_synced.append(name)
        if name == self.hangs:
            assert self.own_may_go_on.wait(WAIT_S)
        if name in self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(file_system, "syncfs", disk.syncfs)
    monkeypatch.setattr(file_system, "file_system_of", lambda directory: "ext4")
    return disk


class Logs:
    """Some logs of one directory, the threads that flush them, and what they have told."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.mailbox, self.fd = Mailbox(), os.open(directory, os.O_RDONLY)
        self.flushes = FlushThreads(self.mailbox, FileSystem(directory, self.fd))
        self.of = {
            name: PartitionLog(directory / name, LogConfig(), Clock(), disk.sync)
            for name in [f"log{number}" for number in range(2 * MANY)]
        }
        self.told: dict[str, list[LogState | BaseException | None]] = {name: [] for name in self.of}
        disk.own_synced.clear()

    def append_and_submit(self, *names: str) -> None:
        for name in names:
            appended(self.of[name], batch(2))
            self.submit(name)

    def submit(self, name: str) -> None:
        told = self.told[name]
        self.flushes.submit(self.of[name], lambda state, error: told.append(state or error))

    def wait_for(self, outcomes: int) -> None:
        def are_told() -> bool:
            self.mailbox.run()
            return sum(map(len, self.told.values())) >= outcomes

        wait_until("the loop was told", are_told)

    def ends(self, name: str) -> list[int | str]:
        return [told.end if isinstance(told, LogState) else type(told).__name__ for told in self.told[name]]


@pytest.fixture
def logs(tmp_path: Path, disk: Disk) -> Iterator[Logs]:
    logs = Logs(tmp_path, disk)
    yield logs
    disk.may_go_on.set()
    logs.flushes.close()
    for log in logs.of.values():
        log.close()
    os.close(logs.fd)


def test_many_logs_of_one_turn_are_flushed_by_one_sync(logs: Logs, disk: Disk) -> None:
    logs.append_and_submit(*logs.of)
    assert disk.all_synced == 0, "not before the end of the turn"
    logs.flushes.begin_owed()
    logs.wait_for(2 * MANY)
    assert (disk.all_synced, disk.own_synced) == (1, [])
    for name, log in logs.of.items():
        assert logs.ends(name) == [log.end]
        assert log.flushed == log.end
    assert (logs.flushes.done, sum(logs.flushes.seconds.counts)) == (2 * MANY, 2 * MANY)


def test_fewer_logs_are_flushed_by_themselves(logs: Logs, disk: Disk) -> None:
    names = list(logs.of)[: MANY - 1]
    logs.append_and_submit(*names)
    logs.flushes.begin_owed()
    logs.wait_for(MANY - 1)
    assert (disk.all_synced, sorted(disk.own_synced)) == (0, names)


def test_what_comes_during_a_sync_waits_for_the_next_one_and_counts_as_flushed_only_then(
    logs: Logs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "SLOW_S", math.inf)
    disk.may_go_on.clear()
    logs.append_and_submit(*logs.of)
    first_end = logs.of["log0"].end
    logs.flushes.begin_owed()
    wait_until("the sync is under way", lambda: disk.all_synced == 1)
    assert logs.flushes.since is not None
    for _ in range(2):
        logs.append_and_submit("log0")
        logs.flushes.begin_owed()
    disk.may_go_on.set()
    logs.wait_for(2 * MANY + 2)
    assert (disk.all_synced, disk.own_synced) == (2, [])
    assert logs.ends("log0") == [first_end, logs.of["log0"].end, logs.of["log0"].end]
    assert logs.flushes.since is None


def test_after_a_failed_sync_each_log_answers_for_its_own_bytes_and_no_other_sync_is_tried(
    logs: Logs, disk: Disk
) -> None:
    disk.fails = {"all", "log1"}
    for _ in range(2):
        logs.append_and_submit(*[name for name in logs.of if name != "log1" or not logs.told[name]])
        logs.flushes.begin_owed()
        logs.wait_for(2 * MANY)
    logs.wait_for(4 * MANY - 1)
    assert disk.all_synced == 1, "the kernel has told of the error once, and does not tell again"
    assert logs.ends("log1") == ["StorageError"]
    assert logs.of["log1"].flush_refusal is not None
    assert logs.of["log1"].flushed == 0
    for name in logs.of.keys() - {"log1"}:
        assert logs.of[name].flushed == logs.of[name].end == logs.ends(name)[-1]


def test_while_a_sync_takes_long_other_logs_are_flushed_by_themselves(logs: Logs, disk: Disk) -> None:
    disk.may_go_on.clear()
    logs.append_and_submit(*[name for name in logs.of if name != "log0"])
    logs.flushes.begin_owed()
    wait_until("the sync takes long", lambda: disk.all_synced == 1 and not logs.flushes._file_system.is_ready)
    logs.append_and_submit("log0")
    logs.flushes.begin_owed()
    logs.wait_for(1)
    assert logs.ends("log0") == [logs.of["log0"].end]
    disk.may_go_on.set()
    logs.wait_for(2 * MANY)


def test_after_a_failed_sync_no_log_waits_for_the_sync_of_another(logs: Logs, disk: Disk) -> None:
    disk.fails = {"all"}
    disk.own_may_go_on.clear()
    disk.hangs = "log2"
    logs.append_and_submit(*logs.of)
    logs.flushes.begin_owed()
    logs.wait_for(2 * MANY - 1)
    assert logs.told["log2"] == []
    disk.own_may_go_on.set()
    logs.wait_for(2 * MANY)


def test_a_bug_while_many_are_flushed_ends_no_thread(
    logs: Logs, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: PartitionLog) -> bool:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "checkpoint_is_due", property(fail))
        logs.append_and_submit(*logs.of)
        logs.flushes.begin_owed()
        logs.wait_for(2 * MANY)
        wait_until("the bug is logged", lambda: "a bug while flushing" in caplog.text)
    logs.append_and_submit(*logs.of)
    logs.flushes.begin_owed()
    logs.wait_for(4 * MANY)
    assert logs.flushes.since is None


def test_a_file_system_that_has_become_read_only_has_synced_nothing(
    logs: Logs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = type("Status", (), {"f_flag": os.ST_RDONLY})
    monkeypatch.setattr(os, "fstatvfs", lambda fd: read_only)
    logs.append_and_submit(*logs.of)
    logs.flushes.begin_owed()
    logs.wait_for(2 * MANY)
    assert sorted(disk.own_synced) == sorted(logs.of)


def test_a_log_that_refuses_and_one_that_is_owed_twice_hold_up_no_other(logs: Logs, disk: Disk) -> None:
    logs.append_and_submit(*logs.of)
    logs.submit("log2")
    logs.of["log0"].flush_refusal = "the disk is gone"
    logs.flushes.begin_owed()
    logs.wait_for(2 * MANY + 1)
    assert logs.ends("log0") == ["StorageError"]
    assert isinstance(logs.told["log0"][0], StorageError)
    assert logs.ends("log2") == [logs.of["log2"].end] * 2
    assert logs.ends("log3") == [logs.of["log3"].end]


def test_a_slow_sync_is_not_repeated_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = [100.0], 0.0

    def syncfs(fd: int) -> None:
        now[0] += took

    def rest() -> float:
        """Time until a sync is worth its time again, in multiples of its length."""
        ended = now[0]
        while not one.is_ready:
            now[0] += took / 10
        return round((now[0] - ended) / took)

    monkeypatch.setattr(file_system, "syncfs", syncfs)
    monkeypatch.setattr(file_system, "file_system_of", lambda directory: "xfs")
    monkeypatch.setattr("millrace_broker.storage.file_system.time", SimpleNamespace(monotonic=lambda: now[0]))
    fd = os.open(tmp_path, os.O_RDONLY)
    one = FileSystem(tmp_path, fd)
    took = file_system.SLOW_S / 2
    assert one.sync()
    assert rest() == 0
    took = 2 * file_system.SLOW_S
    rests = []
    for _ in range(6):
        assert one.sync(), "slow, but done"
        rests.append(rest())
    assert rests == [5, 10, 20, 40, 80, 80]
    took = file_system.SLOW_S / 2
    assert one.sync()
    took = 4 * file_system.SLOW_S
    assert one.sync()
    assert rest() == 80, "slow now and then"
    now[0] += file_system.MAX_REST_S + took
    assert one.sync()
    assert rest() == 5, "none was slow for a minute"
    took = 100.0
    assert one.sync()
    now[0] += file_system.MAX_REST_S
    assert one.is_ready
    os.close(fd)


@pytest.mark.parametrize(
    ("release", "kind", "is_ready"),
    [
        ("5.17.0-63-generic", "ext4", True),
        ("6.18.44", "xfs", True),
        ("6.8+", "xfs", True),
        ("5.16.20", "ext4", False),
        ("of our own", "ext4", False),
        ("4.18.0-553.el8_10.x86_64", "xfs", False),
        ("6.1.0", "btrfs", False),
        ("6.1.0", "", False),
    ],
)
def test_only_a_kernel_and_a_file_system_that_tell_of_errors_are_synced_as_a_whole(
    release: str, kind: str, is_ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", release, "", "")))
    monkeypatch.setattr(file_system, "file_system_of", lambda directory: kind)
    fd = os.open(tmp_path, os.O_RDONLY)
    one = FileSystem(tmp_path, fd)
    assert one.is_ready is is_ready
    assert one.sync() is is_ready
    os.close(fd)


def test_the_type_of_a_file_system_is_read_from_the_mounts() -> None:
    assert file_system.file_system_of(Path("/proc/self")) == "proc"


def test_the_path_of_a_mount_may_be_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    lines = (
        b"21 1 0:19 / /caf\xe9 rw - tmpfs none rw\n"
        b"22 1 %d:%d / /here rw,relatime shared:1 - xfs /dev/vda rw\n" % (os.major(device), os.minor(device))
    )
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(lines)
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    assert file_system.file_system_of(tmp_path) == "xfs"
    mounts.unlink()
    assert file_system.file_system_of(tmp_path) == ""


def test_a_log_that_was_flushed_with_others_is_whole_after_a_restart(tmp_path: Path) -> None:
    flushed = open_log(tmp_path)
    appended(flushed, batch(3))
    state = flushed.end_flush(flushed.begin_flush(), synced=True)
    flushed.publish(state)
    assert flushed.high_watermark == state.high_watermark > 0
    flushed.close()
    reopened = open_log(tmp_path)
    assert reopened.high_watermark == state.high_watermark
    reopened.close()
