"""Runs inside a process under test, before everything else: Python imports it by the name `sitecustomize`.

Tells the test what is certain to be on the disk, and fails or stops where the test says. Owns nothing but
the calls of `os` that reach the disk. Settings come by environment, because nothing else is there yet:

    DISK_RECORD   file; one JSON line per finished sync: {"file": inode, "size"} or {"folder": inode, "names"}
    DISK_ROOT     folder; what lies elsewhere is not recorded
    DISK_KEPT     folder; a hard link of every file that was ever synced or named by a synced folder
    DISK_RULES    file; JSON [{"call", "path", "errno"}]: calls on matching paths fail while it is there
    DISK_DIE_AT   the process ends at this many syncs (1: the first) instead of carrying one out
    DISK_PLAIN    without root's right to ignore permissions
    DISK_PACE     a broker's seconds between checkpoints, and between rounds of retention; every second broker
                  syncs the whole file system at each flush
    DISK_CLOCK    file; seconds by which the process's clock is wrong
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_held: dict[int, int] = {}
"""Descriptor of each folder, by inode; open as long as the process."""
_syncs = itertools.count(1)
_describing = threading.Lock()
_descriptions = itertools.count()
_recorded: dict[int, int] = {}
"""Number of the description last recorded for each file or folder, by inode."""


def _path(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _refuse(call: str, fd: int) -> None:
    """Raise OSError when a rule says that this call fails."""
    try:
        with open(os.environ["DISK_RULES"]) as file:
            rules = json.load(file)
    except (FileNotFoundError, ValueError):
        return
    for rule in rules:
        if rule["call"] == call and rule["path"] in _path(fd):
            raise OSError(rule["errno"], os.strerror(rule["errno"]))


def _keep(path: str) -> None:
    """Give the file a second name, so that neither its bytes nor its inode's number go with the first."""
    folder = Path(os.environ["DISK_KEPT"])
    draft = folder / f"draft-{os.getpid()}-{threading.get_ident()}"
    try:
        draft.hardlink_to(path)
        draft.rename(folder / str(draft.stat().st_ino))
        draft.unlink(missing_ok=True)  # rename does nothing between two names of one file
    except FileNotFoundError:
        pass  # it went while we looked


def _describe(fd: int) -> dict[str, Any]:
    status = os.fstat(fd)
    path = _path(fd)
    if not stat.S_ISDIR(status.st_mode):
        _keep(path)
        return {"file": status.st_ino, "size": status.st_size}
    names = {}
    with os.scandir(path) as entries:
        for entry in entries:
            names[entry.name] = [entry.inode(), entry.is_dir(follow_symlinks=False)]
            if not names[entry.name][1]:
                _keep(entry.path)
    if status.st_ino not in _held:
        _held[status.st_ino] = os.open(path, os.O_RDONLY)  # while it is open its inode is no other folder's
    return {"folder": status.st_ino, "names": names}


def _is_below_root(fd: int) -> bool:
    return Path(_path(fd)).is_relative_to(os.environ["DISK_ROOT"])


def recording(real: Any, record: int) -> Any:
    def sync(fd: int) -> None:
        with _describing:
            number = next(_descriptions)
            before = _describe(fd) if _is_below_root(fd) else None  # what comes meanwhile is not certain
        if next(_syncs) == int(os.environ.get("DISK_DIE_AT", "0")):
            os._exit(9)
        _refuse("sync", fd)
        real(fd)
        if before is not None:
            _note(record, number, before)

    return sync


def recording_all(real: Any, record: int) -> Any:
    """Stand before `syncfs`: afterwards every file and folder below the root is on the disk."""

    def syncfs(fd: int) -> None:
        with _describing:
            before = []
            root = Path(os.environ["DISK_ROOT"])
            for path in [root, *root.rglob("*")]:
                with suppress(FileNotFoundError):  # it went while we looked
                    one = os.open(path, os.O_RDONLY)
                    before.append((next(_descriptions), _describe(one)))
                    os.close(one)
        if next(_syncs) == int(os.environ.get("DISK_DIE_AT", "0")):
            os._exit(9)
        _refuse("sync", fd)
        real(fd)
        for number, described in before:
            _note(record, number, described)

    return syncfs


def _note(record: int, number: int, before: dict[str, Any]) -> None:
    with _describing:
        # A sync that began before another and ends after it takes nothing back.
        inode = before["file"] if "file" in before else before["folder"]
        if number > _recorded.get(inode, -1):
            _recorded[inode] = number
            os.write(record, json.dumps(before).encode() + b"\n")


def _failing(call: str, real: Callable[..., Any], position: int) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        _refuse(call, arguments[position])
        return real(*arguments)

    return run


def _become_plain() -> None:
    """Start anew without the capabilities that let root ignore permissions."""
    del os.environ["DISK_PLAIN"]
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "cannot give up root's right to ignore permissions")
    os.execv(sys.executable, sys.orig_argv)


def _record() -> None:
    from millrace_broker.storage import file_system

    record = os.open(os.environ["DISK_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.fsync = recording(os.fsync, record)
    os.fdatasync = recording(os.fdatasync, record)
    file_system.syncfs = recording_all(file_system.syncfs, record)
    file_system.file_system_of = lambda directory: "ext4"
    file_system.SLOW_S = float("inf")
    os.pread = _failing("read", os.pread, 0)
    os.sendfile = _failing("send", os.sendfile, 1)


def _set_clock() -> None:
    path, real = Path(os.environ["DISK_CLOCK"]), time.time
    time.time = lambda: real() + float(path.read_text())


def _set_pace() -> None:
    import millrace_broker.partitions.broker
    from millrace_broker.partitions import flush
    from millrace_broker.storage import partition_log

    flush.MANY = random.choice((1, flush.MANY))
    pace = float(os.environ["DISK_PACE"])
    partition_log.CHECKPOINT_INTERVAL_S = millrace_broker.partitions.broker.RETENTION_INTERVAL_S = pace


if "DISK_PLAIN" in os.environ and os.geteuid() == 0:
    _become_plain()
if "DISK_RECORD" in os.environ:
    _record()
if "DISK_CLOCK" in os.environ:
    _set_clock()
if "DISK_PACE" in os.environ:
    _set_pace()
