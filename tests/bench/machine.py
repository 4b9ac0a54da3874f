"""The machine that figures were taken on, and its other load at that time."""

from __future__ import annotations

import os
import platform
import socket
import time
from pathlib import Path

ROUNDS, CALLS = 5, 20_000


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
        "calls_us": f"{min(_calls_us() for _ in range(ROUNDS)):.1f}",
        "additions_ns": f"{min(_additions_ns() for _ in range(ROUNDS)):.0f}",
    }


def in_words(found: dict[str, str]) -> str:
    """The machine as one line of the page."""
    what = (
        f"{found.get('cores', '?')} cores ({found.get('cpu', '?')}), {found.get('memory', '?')}, "
        f"Linux {found.get('kernel', '?')}, Python {found.get('python', '?')}"
    )
    calls_us, additions_ns = found.get("calls_us", "?"), found.get("additions_ns", "?")
    return (
        f"{what}; a `send` and a `recv` take {calls_us} µs, an addition in a loop of Python {additions_ns} ns"
    )


def _calls_us() -> float:
    """Return the time of a `send` and a `recv`. Virtual machines with the same processor differ by times."""
    ends = socket.socketpair()
    with ends[0], ends[1]:
        began = time.perf_counter()
        for _ in range(CALLS):
            ends[0].send(b"x")
            ends[1].recv(1)
        return (time.perf_counter() - began) / CALLS * 1e6


def _additions_ns() -> float:
    """Return the time of a step of the interpreter."""
    total, began = 0, time.perf_counter()
    for number in range(CALLS):
        total += number
    return (time.perf_counter() - began) / CALLS * 1e9


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
