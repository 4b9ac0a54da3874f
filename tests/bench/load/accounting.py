"""CPU and memory of a whole tree of processes, by what each was doing.

Every process of the tree is read from /proc, several times a second: its own CPU time, and for a JVM that of
its threads. What a process used after it was last seen is missing, a tenth of a second at most; what it used
before is kept when it has ended, so nothing depends on who has waited for whom (Spark's Python daemon ignores
its children's ends, and the kernel then adds their time to nobody's).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.broker.meter import TICKS, rss_bytes, tree

EVERY_S = 0.1
TASKS, COMPILER, COLLECTOR, REST = "JVM tasks", "JVM compiler", "JVM collector", "JVM rest"
WORKERS, PYTHON, OTHER = "Python workers", "Python driver and command", "other"
DAEMONS = ("pyspark.daemon", "millrace_spark.jobs.daemon", "millrace_spark.jobs.here")
"""Modules of the parents of Python workers."""
GROUPS = (TASKS, COMPILER, COLLECTOR, REST, WORKERS, PYTHON, OTHER)


def kind_of(arguments: list[str]) -> str:
    """`jvm`, or the group that all of the process's CPU belongs to."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    if program == "java":
        return "jvm"
    if not program.startswith("python"):
        return OTHER
    return WORKERS if any(each in DAEMONS for each in arguments) else PYTHON


def group_of_thread(name: str) -> str:
    """Return a JVM thread's group, from the first 15 characters of its name, all that the kernel keeps."""
    if name.startswith(("Executor task", "stdout writer", "Writer Monitor", "Python")):
        return TASKS
    if name.startswith(("C1 Compiler", "C2 Compiler", "Sweeper")):
        return COMPILER
    if name.startswith(("GC Thread", "G1 ", "VM Thread", "ParGC")):
        return COLLECTOR
    return REST


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Resources that a tree used between two moments."""

    wall_s: float
    groups: Mapping[str, float]
    """CPU seconds by group."""
    peak_rss: int
    """Largest sum of resident sizes; a page that processes share counts in each."""

    @property
    def cpu_s(self) -> float:
        """All groups together."""
        return sum(self.groups.values())


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process, or a thread of a JVM: its group and the ticks it had used when last seen."""

    group: str
    ticks: int


class TreeMeter:
    """Watches a process and its descendants from a thread of its own; a context."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._threads: dict[tuple[int, str], dict[str, _Seen]] = {}
        self._kinds: dict[tuple[int, str], str] = {}
        self._peak = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree meter", daemon=True)
        self._mark, self._marked = time.monotonic(), dict[str, int]()

    def __enter__(self) -> TreeMeter:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self) -> None:
        """Count from here on."""
        self._look()
        with self._lock:
            self._mark, self._marked, self._peak = time.monotonic(), self._totals(), 0

    def used(self) -> Used:
        """Return the resources used since the mark, or since the beginning."""
        self._look()
        with self._lock:
            groups = {
                group: (ticks - self._marked.get(group, 0)) / TICKS for group, ticks in self._totals().items()
            }
            return Used(wall_s=time.monotonic() - self._mark, groups=groups, peak_rss=self._peak)

    def _totals(self) -> dict[str, int]:
        totals: dict[str, int] = defaultdict(int)
        for seen in self._seen.values():
            totals[seen.group] += seen.ticks
        for threads in self._threads.values():
            for seen in threads.values():
                totals[seen.group] += seen.ticks
        return dict(totals)

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        pids = tree(self._root)
        resident = rss_bytes(pids)
        with self._lock:
            self._peak = max(self._peak, resident)
            for pid in pids:
                self._look_at(pid)

    def _look_at(self, pid: int) -> None:
        """Add what it has used; a process number that is given out again begins at another time."""
        found = _process(Path(f"/proc/{pid}"))
        if found is None:
            return
        ticks, started = found
        kind = self._kind(pid, started)
        if kind != "jvm":
            self._seen[pid, started] = _Seen(kind, ticks)
            return
        for thread, group, used in _threads(pid):
            self._threads.setdefault((pid, started), {})[thread] = _Seen(group, used)
        threads = self._threads.get((pid, started), {})
        # Threads that came and went unseen are in the process's own figure alone.
        unseen = ticks - sum(seen.ticks for seen in threads.values())
        self._seen[pid, started] = _Seen(REST, max(unseen, 0))

    def _kind(self, pid: int, started: str) -> str:
        """Return the kind of process; ask again while it is still the shell or launcher it was started as."""
        known = self._kinds.get((pid, started))
        if known in ("jvm", WORKERS):
            return known
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            line = ""
        if line:  # one that has ended, and waits for its parent, has none any more
            self._kinds[pid, started] = kind_of(line.split("\0"))
        return self._kinds.get((pid, started), OTHER)


def _process(folder: Path) -> tuple[int, str] | None:
    """(ticks of its own, when it began) of a process or a thread; None when it is gone."""
    try:
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12]), fields[19]
    except (OSError, IndexError):
        return None


def _threads(pid: int) -> list[tuple[str, str, int]]:
    """(what identifies it, its group, its ticks) of every thread."""
    found = []
    try:
        folders = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    for folder in folders:
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            found.append(
                (f"{folder.name} {fields[19]}", group_of_thread(name), int(fields[11]) + int(fields[12]))
            )
        except (OSError, IndexError):
            continue
    return found
