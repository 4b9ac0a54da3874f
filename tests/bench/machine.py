"""The machine that figures were taken on, and its other load at that time."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def machine() -> dict[str, str]:
    """Describe the machine that the figures were taken on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cores": str(os.cpu_count()),
        "cpu": cpu,
        "memory": f"{memory / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def in_words(found: dict[str, str]) -> str:
    """The machine as one line of the page."""
    return (
        f"{found.get('cores', '?')} cores ({found.get('cpu', '?')}), {found.get('memory', '?')}, "
        f"Linux {found.get('kernel', '?')}, Python {found.get('python', '?')}"
    )


def busy_share(seconds: float = 2.0) -> float:
    """Return the share of all cores that other processes use now: they take it from every figure."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    before = ticks()
    time.sleep(seconds)
    busy, total = (now - then for now, then in zip(ticks(), before, strict=True))
    return busy / max(total, 1)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
