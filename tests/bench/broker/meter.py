"""CPU, memory and disk of processes: read from /proc and the file system, for whole process trees.

The busiest thread tells which side is the bottleneck: a server with one loop is full at one core, however
many the machine has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(folder / "stat")):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far, with that of children already gone."""
    total = 0
    for pid in pids:
        if fields := _stat(Path(f"/proc/{pid}/stat")):
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory, shared libraries and mapped files included."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return total


def disk_bytes(folders: Iterable[Path]) -> int:
    """Return the space that the files take on the disk, as `du` counts it."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_blocks * _BLOCK
            except FileNotFoundError:  # deleted meanwhile
                continue
    return total


def drop_page_cache(folders: Iterable[Path]) -> int:
    """Bring every file to the disk and advise the kernel to forget its pages; bytes advised."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file():
                continue
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                total += path.stat().st_size
    return total


def _stat(path: Path) -> list[str] | None:
    """Fields of a stat file from the state on; None when the process or thread is gone."""
    try:
        return path.read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


@dataclass(slots=True)
class Sampler:
    """Largest memory and each thread's CPU of some processes, between `start` and the last `sample`."""

    pids: Sequence[int]
    rss: int = 0
    _first: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls, pids: Sequence[int]) -> Sampler:
        """Begin now."""
        sampler = cls(pids)
        sampler._first.update(sampler._threads())
        sampler.sample()
        return sampler

    def sample(self) -> None:
        """Look again."""
        self._last.update(self._threads())
        self.rss = max(self.rss, rss_bytes(self.pids))

    def busiest_thread_s(self) -> float:
        """CPU seconds of the thread that used most."""
        used = (ticks - self._first.get(thread, 0) for thread, ticks in self._last.items())
        return max(used, default=0) / TICKS

    def busiest_share(self) -> float:
        """Return the busiest thread's part of all CPU seen; also right for a thread that ended unseen."""
        used = [ticks - self._first.get(thread, 0) for thread, ticks in self._last.items()]
        return max(used) / sum(used) if sum(used) else 1.0

    def _threads(self) -> Mapping[str, int]:
        found = {}
        for pid in self.pids:
            try:
                threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
            except OSError:
                continue
            for thread in threads:
                if fields := _stat(Path(f"/proc/{pid}/task/{thread}/stat")):
                    found[thread] = int(fields[11]) + int(fields[12])
        return found


def wait_for_quiet(pids: Sequence[int], *, timeout_s: float = 15, share: float = 0.1) -> None:
    """Return once the processes use less than `share` of a core over half a second: a start has settled."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = cpu_seconds(pids)
        time.sleep(0.5)
        if (cpu_seconds(pids) - before) / 0.5 < share:
            return
