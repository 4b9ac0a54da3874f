"""A disk that is really full: a small file system in memory, which takes root to mount."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(path: Path, size: int, inodes: int) -> Iterator[Path]:
    """A file system of that many bytes and files at `path`, which is made."""
    path.mkdir(parents=True)
    options = f"size={size},nr_inodes={inodes},mode=755"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "millrace-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert mounted.returncode == 0, (
        "the tests of a full disk mount a small tmpfs, and this machine does not permit it: run them as root "
        f"with CAP_SYS_ADMIN ({mounted.stderr.strip()})"
    )
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def no_space_left() -> Iterator[None]:
    """Part of a test that must end because the file system is full."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    else:
        raise AssertionError("the small disk never got full")


def fill_bytes(path: Path) -> Path:
    """Take every free byte of the file system; the file to delete for room again."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with no_space_left():
                while True:
                    file.write(bytes(size))
    return ballast


def fill_inodes(path: Path, inodes: int) -> Path:
    """Take every free inode; the folder to delete for new files again."""
    ballast = path / "files"
    ballast.mkdir()
    with no_space_left():
        for number in range(inodes):
            (ballast / str(number)).touch()
    return ballast


def empty(ballast: Path) -> None:
    """Delete what `fill_bytes` or `fill_inodes` has made."""
    if ballast.is_dir():
        for path in ballast.iterdir():
            path.unlink()
    else:
        ballast.unlink()
