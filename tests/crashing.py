"""A process that ends itself in the middle of an upkeep of a warehouse, as with SIGKILL."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from tests.published import warehouse

KILLED = 9
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.published"])  # imports take longer than all the rest


def exit_at(wanted: str) -> Callable[[str], None]:
    """A progress that ends the process when a step is done; `deleted:3` is a step's third time."""
    name, _, number = wanted.partition(":")
    left = [int(number or 1)]

    def progress(step: str) -> None:
        if step == name:
            left[0] -= 1
            if not left[0]:
                os._exit(KILLED)  # which nothing can catch

    return progress


def exit_code(work: Callable[..., object], *arguments: object) -> int:
    """Exit code of the work, done in a process of its own, which is no fork of one with threads."""
    process = _PROCESSES.Process(target=work, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, f"{work} goes on"
    return process.exitcode


def cut_off(folder: Path, step: str, verb: str) -> None:
    """Run `compact` or `expire` of `tests.published` in a process of its own that ends itself at a step."""
    assert exit_code(_run, folder, step, verb) == KILLED


def _run(folder: Path, step: str, verb: str) -> None:
    with warehouse(folder) as made:
        getattr(made, verb)(progress=exit_at(step))
