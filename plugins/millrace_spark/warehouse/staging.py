"""A staging folder: who owns it, where tasks write, and whether it holds what they say.

A folder belongs to the driver that made it for as long as that one lives: it touches the folder again and
again, and only what nobody has touched for STALE_STAGING_S is swept by others.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.layout import STAGING
from millrace_spark.warehouse.manifest import DataFile

HASHED_AT_ONCE = 8
"""Files a driver reads at a time to hash them: neither hashing nor the JVM's reading holds Python's lock."""


BEAT_S = 600.0
"""How often a driver touches its staging folder: many times in STALE_STAGING_S, some may be missed."""


@contextmanager
def staged(fs: Filesystem, table: str) -> Iterator[str]:
    """A new staging folder's name in a table; the folder is kept alive, and what is left of it is deleted."""
    staging = f"{table}/{STAGING}/{uuid.uuid4().hex}"
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(fs, staging, stop), name="staging", daemon=True)
    beat.start()
    try:
        yield staging
    finally:
        stop.set()
        beat.join()
        fs.delete(staging)


def _beat(fs: Filesystem, staging: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        # One that fails is as if it had been missed. After a day of them the publication says what happened.
        with suppress(MillraceError, OSError):
            for folder in (staging, tasks_folder(staging)):
                fs.touch(folder)


def tasks_folder(staging: str) -> str:
    """Where the tasks write whose files are moved into a staging folder: beside it, never published."""
    return f"{staging}.tasks"


def check_files(fs: Filesystem, staging: str, files: Iterable[DataFile]) -> None:
    """MillraceError unless the folder holds exactly these files, with these bytes and hashes."""
    found = dict(fs.files(staging))
    stated = list(files)
    there = [file for file in stated if found.get(file.path) == file.bytes]
    # Once more after their tasks: what counts is what this machine reads, where a folder is shared.
    hashes = dict(zip(there, sha256_of(fs, [f"{staging}/{file.path}" for file in there]), strict=True))
    for file in stated:
        size = found.pop(file.path, None)
        if size != file.bytes or hashes[file] != file.sha256:
            raise MillraceError(
                f"{staging}/{file.path} is not what its task wrote ({size} bytes, written {file.bytes}):"
                " the storage does not keep what is written; run the load again"
            )
    if found:
        raise MillraceError(f"{staging} holds files no task answers for ({min(found)}); run the load again")


def sha256_of(fs: Filesystem, paths: Sequence[str]) -> list[str]:
    """SHA-256 of some files, in order; several are read at a time."""
    with ThreadPoolExecutor(HASHED_AT_ONCE) as threads:
        return list(threads.map(fs.sha256, paths))
