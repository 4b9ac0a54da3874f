"""Limits of the machine without any broker: the ceilings for reading the brokers' figures."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import replay
from tests.bench.replay import MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One ceiling: 10^6 bytes a second, and the CPU of everyone involved for 10^9 bytes."""

    name: str
    mb_per_s: float
    cpu_s_per_gb: float


def measure(folder: Path, data_bytes: int, *, best_of: int = 3) -> list[dict[str, object]]:
    """Every limit, the best of some runs: another process can only make it lower."""
    works: dict[str, Callable[[], replay.Raw]] = {
        "loopback copy (TCP, 1 MiB sends)": lambda: replay.loopback_copy(data_bytes),
        "page-cache write (1 MiB writes)": lambda: replay.page_cache_write(folder, data_bytes),
        "sendfile of cached file to loopback TCP": lambda: replay.sendfile(folder, data_bytes),
        "write and fdatasync (1 MiB each)": lambda: flushed_write(folder, data_bytes // 8),
        "read of an uncached file": lambda: cold_read(folder, data_bytes),
    }
    limits = []
    for name, work in works.items():
        best = max((work() for _ in range(best_of)), key=lambda run: run.mb_per_s)
        cpu = best.cpu_s / best.data_bytes * 1e9
        limits.append(asdict(Limit(name=name, mb_per_s=best.mb_per_s, cpu_s_per_gb=cpu)))
    return limits


def flushed_write(folder: Path, data_bytes: int) -> replay.Raw:
    """Append 1 MiB and bring it to the disk, again and again."""
    chunk = os.urandom(MB)
    with tempfile.NamedTemporaryFile(dir=folder) as file:

        def work() -> None:
            for _ in range(data_bytes // MB):
                os.write(file.fileno(), chunk)
                os.fdatasync(file.fileno())

        return _timed(data_bytes // MB * MB, work)


def cold_read(folder: Path, data_bytes: int) -> replay.Raw:
    """Read a file that the page cache was told to forget, from its start to its end."""
    buffer = bytearray(MB)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        chunk = os.urandom(MB)
        for _ in range(data_bytes // MB):
            os.write(file.fileno(), chunk)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file.fileno(), 0, os.SEEK_SET)

        def work() -> None:
            while os.readv(file.fileno(), [buffer]):
                pass

        return _timed(data_bytes // MB * MB, work)


def _timed(data_bytes: int, work: Callable[[], None]) -> replay.Raw:
    started, cpu = time.monotonic(), time.process_time()
    work()
    return replay.Raw(
        data_bytes=data_bytes, seconds=time.monotonic() - started, cpu_s=time.process_time() - cpu
    )


def touch_memory(folder: Path) -> int:
    """Fill the page cache once and free it; bytes. The first touch of a virtual machine's memory is slow."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    free_disk = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    data_bytes = max(0, min(available - (4 << 30), free_disk // 2))
    replay.warm_up(folder, data_bytes)
    return data_bytes
