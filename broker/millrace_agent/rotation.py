"""Finding the files of a rotated log: the file that was read, whatever its name is now, and the file after
it.

For readers of a file that grows. Rotated files are found by their names, FILE.1 or FILE-20260101; compressed
files are not read. The lines are read by the callers.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_SUFFIX = re.compile(r"[.\-_]\d[\d.\-_T:]*")
"""Suffix that rotation appends to a name: a number or a time."""
_DATE_DIGITS = 6
"""Digits of the shortest date; a suffix of fewer digits counts the files, the newest first."""


def is_replaced(path: Path, file: io.FileIO) -> bool:
    """Return True when the path names another file than the open one.

    Return False while the path names no file: the log is being rotated.
    """
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def open_again(
    path: Path, inode: int | None, offset: int, is_it: Callable[[io.FileIO], bool]
) -> io.FileIO | None:
    """Open the log or rotated file that was read up to an offset. Return None when the file does not exist
    any more.

    `is_it` distinguishes the file from a later file with the same inode. If `inode` is None, the file was
    copied, and `is_it` alone decides. The number of a device may change at a start of the machine.
    """
    for other, seen in _generations(path):
        if inode not in (None, seen.st_ino):
            continue
        with suppress(FileNotFoundError):
            file = other.open("rb", buffering=0)
            state = os.fstat(file.fileno())
            if os.path.samestat(state, seen) and state.st_size >= offset and is_it(file):
                return file
            file.close()
    return None


def open_next(path: Path, file: io.FileIO | None, written_ns: int | None = None) -> io.FileIO | None:
    """Open the file written after `file`; None when there is no file yet.

    Without `file`, open the first file that was written after the time `written_ns`, by default the log.
    Files may be renamed meanwhile, so the file that is opened must be the file that was seen.
    """
    while later := _later(path, file, written_ns):
        with suppress(FileNotFoundError):
            opened = later[0][0].open("rb", buffering=0)
            if os.path.samestat(os.fstat(opened.fileno()), later[0][1]):
                return opened
            opened.close()
    return None


def _later(path: Path, file: io.FileIO | None, written_ns: int | None) -> list[tuple[Path, os.stat_result]]:
    generations = _generations(path)
    if file is not None:
        left = os.fstat(file.fileno())
        for index, (_, state) in enumerate(generations):
            if os.path.samestat(state, left):
                return generations[index + 1 :]
        written_ns = left.st_mtime_ns
    return [  # the file that was read has no name of the log any more: it was deleted or compressed
        (other, state)
        for other, state in generations
        if other == path or (written_ns is not None and state.st_mtime_ns > written_ns)
    ]


def _generations(path: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the rotated files beside a log, oldest first; then the log itself."""
    rotated = []
    for other in path.parent.glob("*"):
        if other.name.startswith(path.name) and _SUFFIX.fullmatch(other.name, len(path.name)):
            with suppress(FileNotFoundError):
                if stat.S_ISREG((state := other.stat()).st_mode):
                    rotated.append((other, state))
    rotated.sort(key=lambda one: (one[1].st_mtime_ns, *_order(one[0].name[len(path.name) :])))
    with suppress(FileNotFoundError):
        rotated.append((path, path.stat()))
    return rotated


def _order(suffix: str) -> tuple[int, str]:
    """Return the sort key of files of the same time, oldest first: .2 before .1, but -20260101 before
    -20260102.
    """
    number = suffix[1:]
    return (-int(number), "") if number.isdigit() and len(number) < _DATE_DIGITS else (0, suffix)
