"""Loads whose every task is tried twice, the first time by a process that stops half-way. Started by a test.

`python -m tests.unit.warehouse.load.zombie FOLDER`: the first attempt of each task is a process of its own
that stops itself (SIGSTOP) at one of PAUSES; the second attempt, another process, finishes and counts; the
stopped ones wake up, some just before the load's manifest is there and some after it, and go on to their end.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.task import CutResult, CutTask, write_cut
from millrace_warehouse.storage.local import LocalStorage
from millrace_warehouse.without_pandas import keep_pandas_out
from tests.unit.warehouse.memory_log import TOPIC, filled_log, load_run

PAUSES = (
    "before reading",
    "before the first file",
    "with a file open",
    "before a file is closed",
    "before a file is stored",
    "when done",
)


def stop_here() -> None:
    """Stop this process until somebody continues it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def once(real: Any, *, after: bool) -> Any:
    """The function, which stops the process at its first call: before it or after it."""
    called: list[int] = []

    def call(*arguments: Any, **options: Any) -> Any:
        first = not called
        called.append(1)
        if first and not after:
            stop_here()
        result = real(*arguments, **options)
        if first and after:
            stop_here()
        return result

    return call


def first_attempt(task: CutTask, pause_at: str) -> None:
    """Write the cut, stopped in the middle."""
    writer: Any = pq.ParquetWriter
    if pause_at == "before reading":
        stop_here()
    elif pause_at == "before the first file":
        writer.__init__ = once(writer.__init__, after=False)
    elif pause_at == "with a file open":
        writer.__init__ = once(writer.__init__, after=True)
    elif pause_at == "before a file is closed":
        writer.close = once(writer.close, after=False)
    elif pause_at == "before a file is stored":
        LocalStorage.put = once(LocalStorage.put, after=False)  # type: ignore[method-assign]
    write_cut(task)
    if pause_at == "when done":
        stop_here()


def child(work: Any) -> int:
    """The pid of a process that does the work and ends: with 1 when it fails."""
    if (pid := os.fork()) == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def in_a_process(task: CutTask) -> CutResult:
    """The task's result, from a process of its own."""
    read, write = os.pipe()

    def work() -> None:
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(write_cut(task), pipe)

    pid = child(work)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result: CutResult = pickle.load(pipe)
    os.waitpid(pid, 0)
    return result


def load_with_zombies(folder: Path, pause_at: str) -> None:
    """One load with zombies, published; every one of them goes on to its end."""
    log, zombies = filled_log(), list[int]()

    def run_twice(function: Any, tasks: Sequence[CutTask]) -> list[CutResult]:
        for task in tasks:
            pid = child(partial(first_attempt, task, pause_at))
            os.waitpid(pid, os.WUNTRACED)
            zombies.append(pid)
        return [in_a_process(task) for task in tasks]

    def wake_up(step: str) -> None:
        for pid in {"prepared": zombies[::2], "committed": zombies[1::2]}.get(step, []):
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)

    try:
        result = load_topic(
            load_run(log, folder, run_tasks=run_twice, progress=wake_up, cut_bytes=1_000), TOPIC
        )
    finally:
        for pid in zombies:  # those nobody woke up, if the load failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert result.published
    assert len(zombies) > 4


if __name__ == "__main__":
    keep_pandas_out()  # or every process that is forked imports it
    for each in PAUSES:
        load_with_zombies(Path(sys.argv[1], each), each)
