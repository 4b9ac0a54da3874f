"""Comparison of the replicas of a partition, file by file, up to the lowest end known to be committed.

It reads files and checkpoints, and opens no log, so it works beside running brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import MillraceError
from millrace_broker.storage.inspection import partition_directories, read_checkpoint
from millrace_broker.storage.segment import segment_paths

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The first byte in which two replicas differ, and its place in the file of each."""

    position: int
    reason: str
    files: tuple[tuple[Path, int], tuple[Path, int]]
    """(file, byte in it) of the first replica and of the other replica."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result for one partition: the positions compared, from the latest start to the lowest committed end."""

    partition: str
    replicas: tuple[Path, ...]
    start: int
    end: int
    difference: Difference | None

    @property
    def compared(self) -> int:
        return max(0, self.end - self.start)


def compare(directories: Sequence[Path]) -> Iterator[Comparison]:
    """Compare every partition that is in two or more of these log directories.

    Raise MillraceError when there is no such partition.
    """
    replicas: dict[str, list[Path]] = {}
    for directory in dict.fromkeys(directory.resolve() for directory in directories):
        for partition in partition_directories(directory):
            replicas.setdefault(partition.name, []).append(partition)
    several = {name: found for name, found in sorted(replicas.items()) if len(found) > 1}
    if not several:
        raise MillraceError("no two of these directories hold the same partition: name replicas' log_dirs")
    for name, found in several.items():
        yield compare_partition(name, found)


def compare_partition(name: str, directories: Sequence[Path]) -> Comparison:
    """Compare replicas byte by byte and file by file.

    Raise MillraceError for a replica without a checkpoint.
    """
    copies = [_Replica(directory) for directory in directories]
    start, end = max(copy.start for copy in copies), min(copy.committed for copy in copies)
    found = (_difference(copies[0], other, start, end) for other in copies[1:])
    differences = [difference for difference in found if difference is not None]
    first = min(differences, key=lambda one: one.position, default=None)
    return Comparison(name, tuple(directories), start, end, first)


class _Replica:
    """The files of one replica, as they were when the comparison began."""

    def __init__(self, directory: Path) -> None:
        checkpoint = read_checkpoint(directory)
        if checkpoint is None:
            raise MillraceError(
                f"{directory} has no readable checkpoint: start its broker once, then compare"
            )
        self.committed = (checkpoint.committed or checkpoint.state).end
        self._paths = segment_paths(directory) or [directory]
        self.bases = [int(path.stem) for path in self._paths] if self._paths != [directory] else [0]
        self.start = max(self.bases[0], checkpoint.start)

    def file_at(self, position: int) -> tuple[Path, int]:
        """Return the file that holds a position, and the index of the byte in it."""
        index = max((i for i, base in enumerate(self.bases) if base <= position), default=0)
        return self._paths[index], position - self.bases[index]

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes of one file from a position on; no bytes where one is missing."""
        path, at = self.file_at(position)
        following = [base for base in self.bases if base > position]
        try:
            with path.open("rb") as file:
                file.seek(at)
                return file.read(min([size, *(base - position for base in following)]))
        except FileNotFoundError:
            raise MillraceError(f"{path} was deleted meanwhile: compare again") from None
        except IsADirectoryError:
            return b""


def _difference(one: _Replica, other: _Replica, start: int, end: int) -> Difference | None:
    """Return the first difference of two replicas between these positions, None if they are equal.

    Each file of one replica must begin where a file of the other begins.
    """

    def difference(position: int, reason: str) -> Difference:
        return Difference(position, reason, (one.file_at(position), other.file_at(position)))

    uneven = {base for base in {*one.bases} ^ {*other.bases} if start < base < end}
    last = min(uneven, default=end)
    position = start
    while position < last:
        left = one.read(position, min(_CHUNK_BYTES, last - position))
        right = other.read(position, len(left) or 1)
        if not left or not right:
            return difference(position, "bytes are missing")
        size = min(len(left), len(right))
        if left[:size] != right[:size]:
            at = next(index for index in range(size) if left[index] != right[index])
            return difference(position + at, "the bytes differ")
        position += size
    return difference(last, "a file begins here in one of them only") if uneven else None
