"""A process that ends itself in the middle of a load, and one that runs it again. Started by a test.

`python -m tests.unit.warehouse.load.crashing FOLDER`: for every step of a load and of an hourly run there are
two children. The first calls os._exit at the step, which nothing can catch, as with SIGKILL. The second runs
the same again to its end. Forked before anything is loaded, because importing pyarrow takes longer than all
the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from millrace_warehouse.table.publish import publish_hours

from millrace_warehouse.load.load import load_topic
from tests.unit.warehouse.memory_log import TOPIC, filled_log, hourly_run, load_run

LOAD_STEPS = ("planned", "written", "verified", "described", "synced", "published", "recorded", "counted")
HOUR_STEPS = ("written", "verified", "described", "synced", "published", "recorded")
HOURS = ("2015-05-17T10", "2015-05-17T11", "2015-05-17T12")
KILLED = 9


def exit_at(wanted: str) -> Callable[[str], None]:
    """A progress callback that ends the process at a step; one of many hours comes with its name."""

    def progress(step: str) -> None:
        if step.split()[-1] == wanted:
            os._exit(KILLED)

    return progress


def child(work: Callable[[], None]) -> int:
    """Exit code of the work, done in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash_load(warehouse: Path, step: str) -> None:
    """Kill a load at a step, then run it again; the counts it published go to a file."""
    log, counts = filled_log(), warehouse / "counts"

    def load(killed_at: str) -> None:
        run = load_run(
            log, warehouse, progress=exit_at(killed_at), publish_counts=lambda m: append(counts, m[0].load)
        )
        load_topic(run, TOPIC)

    assert child(lambda: load(step)) == KILLED, step
    assert child(lambda: load("")) == 0, step


def append(path: Path, number: int) -> None:
    """Write down that the counts of a load were published."""
    with path.open("a") as file:
        file.write(f"{number}\n")


def crash_hours(warehouse: Path, step: str) -> None:
    """Kill an hourly run at a step, then run it again."""

    def publish(killed_at: str) -> None:
        publish_hours(hourly_run(warehouse, progress=exit_at(killed_at)), TOPIC, HOURS)

    log = filled_log()
    assert child(lambda: print(load_topic(load_run(log, warehouse), TOPIC), file=sys.stderr)) == 0
    assert child(lambda: publish(step)) == KILLED, step
    assert child(lambda: publish("")) == 0, step


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in LOAD_STEPS:
        (folder / "load" / name).mkdir(parents=True)
        crash_load(folder / "load" / name, name)
    for name in HOUR_STEPS:
        crash_hours(folder / "hourly" / name, name)
