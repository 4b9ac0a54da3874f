"""A process that ends itself in the middle of an upkeep of a warehouse. Started by a test.

`python -m tests.crashing FOLDER STEP VERB`: runs `compact` or `expire` of `tests.published` and calls
os._exit when the step is done, which nothing can catch, as with SIGKILL. `deleted:3` is a step's third time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.published import warehouse
from tests.support import REPOSITORY

KILLED = 9


def exit_at(wanted: str) -> Callable[[str], None]:
    """A progress that ends the process at a step."""
    name, _, number = wanted.partition(":")
    left = [int(number or 1)]

    def progress(step: str) -> None:
        if step == name:
            left[0] -= 1
            if not left[0]:
                os._exit(KILLED)

    return progress


def cut_off(folder: Path, step: str, verb: str) -> None:
    """Run a verb in a process of its own that ends itself at a step."""
    command = [sys.executable, "-m", "tests.crashing", str(folder), step, verb]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == KILLED, done.stderr


if __name__ == "__main__":
    with warehouse(Path(sys.argv[1])) as made:
        getattr(made, sys.argv[3])(progress=exit_at(sys.argv[2]))
