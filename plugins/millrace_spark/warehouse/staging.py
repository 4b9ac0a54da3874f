"""A staging folder: where tasks write, and whether it holds what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.warehouse.manifest import DataFile

HASHED_AT_ONCE = 8
"""Files a driver reads at a time to hash them: neither hashing nor the JVM's reading holds Python's lock."""


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
