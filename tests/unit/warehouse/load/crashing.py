"""A process that ends itself in the middle of a load or a re-load, and one that runs it again; for a test.

`python -m tests.unit.warehouse.load.crashing FOLDER`: for every step there are two children. The first calls
os._exit at the step, which nothing can catch, as with SIGKILL. The second runs the same again to its end.
Forked before anything is loaded, because importing pyarrow takes longer than all the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.without_pandas import keep_pandas_out
from tests.support import child
from tests.unit.warehouse.memory_log import TOPIC, filled_log, load_run

LOAD_STEPS = ("planned", "written", "prepared", "committed", "recorded")
RELOAD_STEPS = ("written", "prepared", "committed", "recorded")
KILLED = 9


def exit_at(wanted: str) -> Callable[[str], None]:
    """A progress callback that ends the process at a step."""

    def progress(step: str) -> None:
        if step == wanted:
            os._exit(KILLED)

    return progress


def crash_load(warehouse: Path, step: str) -> None:
    """Kill a load at a step, then run it again."""
    log = filled_log()

    def load(killed_at: str) -> None:
        load_topic(load_run(log, warehouse, progress=exit_at(killed_at)), TOPIC)

    assert child(lambda: load(step)) == KILLED, step
    assert child(lambda: load("")) == 0, step


def crash_reload(warehouse: Path, step: str) -> None:
    """Load, kill a re-load at a step, then run it again."""
    log = filled_log()
    assert child(lambda: load_topic(load_run(log, warehouse), TOPIC)) == 0

    def reload(killed_at: str) -> None:
        run = load_run(log, warehouse, "again", progress=exit_at(killed_at))
        reload_topic(ReloadRun(context=run.context, reason="a test"), TOPIC, [1])

    assert child(lambda: reload(step)) == KILLED, step
    assert child(lambda: reload("")) == 0, step


if __name__ == "__main__":
    keep_pandas_out()  # or every process that is forked imports it
    folder = Path(sys.argv[1])
    for verb, steps, crash in (("load", LOAD_STEPS, crash_load), ("reload", RELOAD_STEPS, crash_reload)):
        for name in steps:
            (folder / verb / name).mkdir(parents=True)
            crash(folder / verb / name, name)
