"""One sync of everything that was written to a file system, by `syncfs`.

Many small logs are on the disk sooner and for less CPU by one `syncfs` than by an `fdatasync` of each. It
counts only where the kernel tells of every error, of files and of the journal: on ext4 and XFS, since Linux
5.17. It also writes what other processes have written: where that takes long, it is left out for a while.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import time
from pathlib import Path

logger = logging.getLogger("millrace.storage.file_system")

MOUNTS = Path("/proc/self/mountinfo")
FILE_SYSTEMS = ("ext4", "xfs")
KERNEL = (5, 17)
"""Since 5.8 `syncfs` returns the errors of files (syncfs(2)), since 5.17 also those of the file system itself
(commit 5679897eb104, "vfs: make sync_filesystem return errors from ->sync_fs")."""
SLOW_S = 0.02
"""Seconds above which a sync counts as slow: others write much to the same file system."""
REST = 5
"""Length of the time without a sync after a slow one, in multiples of its own length. It doubles with each
further slow sync, to MAX_REST, until none was slow for MAX_REST_S: others may write much once, or often."""
MAX_REST = 80
MAX_REST_S = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def syncfs(fd: int) -> None:
    """Bring everything that was written to the file system of `fd` to the disk.

    An error since the last call with this descriptor is raised once, whichever file it was.
    """
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class FileSystem:
    """The file system below a directory."""

    def __init__(self, directory: Path, fd: int) -> None:
        """Take the file system as of the opening of `fd`, any file in it: earlier errors are not noticed."""
        self._directory, self._fd = directory, fd
        self._tells_errors = kernel_release() >= KERNEL and file_system_of(directory) in FILE_SYSTEMS
        self._rests_until, self._rest = 0.0, REST
        self._began: float | None = None
        """Begin of the sync that is running, in monotonic time."""

    @property
    def is_ready(self) -> bool:
        """True if a sync is worth its time now, and none is under way that takes long. From any thread."""
        began, now = self._began, time.monotonic()
        return self._tells_errors and now >= self._rests_until and (began is None or now - began < SLOW_S)

    def sync(self) -> bool:
        """Return True if all bytes that were written before the call are on the disk.

        False if that is not known, and each file needs its own sync. After an error it is False for ever: the
        kernel told of the error once, and it may concern a file that nobody has asked about yet. Call it in
        one thread only.
        """
        if not self._tells_errors:
            return False
        self._began = began = time.monotonic()
        try:
            syncfs(self._fd)
            if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
                # ext4 became read-only after an error; Linux then syncs nothing of it, without an error.
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        except OSError as error:
            logger.error("cannot sync all of %s: %s; each log is synced by itself", self._directory, error)
            self._tells_errors = False
            return False
        finally:
            self._began = None
        took = time.monotonic() - began
        if took > SLOW_S:
            if began - self._rests_until > MAX_REST_S:
                self._rest = REST
            rest = min(self._rest * took, MAX_REST_S)
            self._rests_until, self._rest = began + took + rest, min(2 * self._rest, MAX_REST)
            logger.info("syncfs took %.3f s: each log is synced by itself for %.1f s", took, rest)
        return True


def kernel_release() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's release, as (6, 18); () if it does not begin with them."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return () if numbers is None else tuple(map(int, numbers.groups()))


def file_system_of(directory: Path) -> str:
    """Return the type of the file system that a directory is on, as mountinfo has it; "" if it is not known.

    Source: proc_pid_mountinfo(5).
    """
    try:
        mounts = MOUNTS.read_text(errors="replace")
    except OSError:
        return ""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == number:
            return rest.split()[0]
    return ""
