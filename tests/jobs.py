"""A load in this process; killing a Spark job for good: the command, its JVM, its driver and its workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.errors import MillraceError
from tests.support import START_S, Process, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace_warehouse.commands.loads import TopicFailure
    from millrace_warehouse.load.load import LoadResult
    from millrace_warehouse.requests import Load


def load_topics(spark: SparkSession, request: Load) -> list[LoadResult]:
    """Load topics as `millrace load` does; raise MillraceError with every failure after trying all topics."""
    from millrace_spark.jobs import load

    return without_failures(load.load_topics(spark.sparkContext, request))


def without_failures(results: Sequence[LoadResult | TopicFailure]) -> list[LoadResult]:
    """Return the loads; raise MillraceError with every failure."""
    from millrace_warehouse.commands.loads import TopicFailure

    if failures := [result.error for result in results if isinstance(result, TopicFailure)]:
        raise MillraceError("; ".join(failures))
    return [result for result in results if not isinstance(result, TopicFailure)]


def descendants(pid: int) -> list[int]:
    """Every process below a process, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may hold spaces.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, index = list(children.get(pid, [])), 0
    while index < len(found):
        found += children.get(found[index], [])
        index += 1
    return found


def kill_at_a_step(process: Process, *, steps: int, pause_s: float, timeout_s: float = START_S) -> None:
    """SIGKILL to a command and all it started, `pause_s` after its job has reported that many steps."""
    wait_until(
        f"{steps} steps of {process.arguments}",
        lambda: not process.running or sum("step: " in line for line in list(process.lines)) >= steps,
        timeout_s=timeout_s,
    )
    time.sleep(pause_s)
    for pid in [process.pid, *descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
