"""A staging folder, from its making to the one rename that publishes it: whose it is, and what it must hold.

A folder belongs to the driver that made it, which touches it again and again as long as it lives. Others
sweep only what nobody has touched for STALE_STAGING_S. Tasks write into a folder beside it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.layout import STAGING
from millrace_spark.warehouse.ledger import record
from millrace_spark.warehouse.manifest import MANIFEST, DataFile, Manifest, encode

BEAT_S = 600.0
"""How often a driver touches its staging folder. Some touches may fail: there are 144 in STALE_STAGING_S."""
STALE_STAGING_S = 24 * 3600
"""How long a staging folder must lie untouched before others may delete it."""
HASHED_AT_ONCE = 8
"""Most files that a driver hashes at a time: neither hashing nor the JVM's reading holds Python's lock."""
SWEPT = ".swept"
TASKS = ".tasks"

Progress = Callable[[str], None]
"""Called with the name of each step when it is done: a progress line, or a test that ends the process."""


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
        # A touch that fails counts as missed. After a day of them the publication says what happened.
        with suppress(MillraceError, OSError):
            for folder in (staging, f"{staging}{TASKS}"):
                fs.touch(folder)


@contextmanager
def tasks_folder(fs: Filesystem, staging: str) -> Iterator[str]:
    """Where the tasks write whose files are moved into a staging folder: beside it, never published."""
    work = f"{staging}{TASKS}"
    try:
        yield work
    finally:
        fs.delete(work)


def check_files(fs: Filesystem, staging: str, files: Iterable[DataFile]) -> None:
    """MillraceError unless the folder holds exactly these files, with these bytes and hashes."""
    sizes = dict(fs.files(staging))
    expected = list(files)
    whole = [file for file in expected if sizes.get(file.path) == file.bytes]
    # The tasks have hashed them already. Where a folder is shared, what counts is what this machine reads.
    hashes = dict(zip(whole, sha256_of(fs, [f"{staging}/{file.path}" for file in whole]), strict=True))
    for file in expected:
        size = sizes.pop(file.path, None)
        if size != file.bytes or hashes[file] != file.sha256:
            raise MillraceError(
                f"{staging}/{file.path} is not what its task wrote ({size} bytes, written {file.bytes}):"
                " the storage does not keep what is written; run the load again"
            )
    if sizes:
        raise MillraceError(f"{staging} holds files no task answers for ({min(sizes)}); run the load again")


def sha256_of(fs: Filesystem, paths: Sequence[str]) -> list[str]:
    """SHA-256 of some files, in order; several are read at a time."""
    with ThreadPoolExecutor(HASHED_AT_ONCE) as threads:
        return list(threads.map(fs.sha256, paths))


def publish(
    fs: Filesystem, table: str, staging: str, folder: str, manifest: Manifest, progress: Progress
) -> bool:
    """Make a staged folder the published one with one exclusive rename; False when another was first.

    The loser's staging is deleted: its rows were published by the winner, under that number. MillraceError
    when the staging was deleted meanwhile.
    """
    try:
        fs.write(f"{staging}/{MANIFEST}", encode(manifest))
        progress("described")
        fs.sync(staging)
        progress("synced")
        moved = fs.move(staging, f"{table}/{folder}")
    except FileNotFoundError:
        raise MillraceError(
            f"{fs.uri(staging)} is gone: this run stood still for more than a day, or somebody deleted it;"
            f" {table}/{folder} was not published by it, run it again"
        ) from None
    if not moved:
        fs.delete(staging)
        return False
    progress("published")
    record(fs, table, folder, manifest)
    progress("recorded")
    return True


def sweep_staging(fs: Filesystem, table: str) -> None:
    """Delete what runs that were killed more than a day ago left behind."""
    for name in fs.names(f"{table}/{STAGING}"):
        folder = f"{table}/{STAGING}/{name}"
        if fs.age_s(folder) <= STALE_STAGING_S:
            continue
        # Out of its driver's reach first: one that only slept could publish a folder that is half deleted.
        swept = folder if name.endswith(SWEPT) else f"{folder}{SWEPT}"
        try:
            if swept != folder and not fs.move(folder, swept):
                continue
        except FileNotFoundError:
            continue  # its driver has published it, or another run sweeps it
        fs.delete(swept)
