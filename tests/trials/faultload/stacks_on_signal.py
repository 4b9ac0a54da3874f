"""Runs in every Python process of a fault load, before everything else: its stacks go to a file on a signal.

STACKS_SIGNAL is the signal; the file has the process id as its name, in the folder STACKS_FOLDER. Knows
nothing of the process it is in. A process without it does not catch the signal and must not get it.
"""

from __future__ import annotations

import faulthandler
import os
from typing import IO

_files: list[IO[bytes]] = []
"""Kept open: whoever handles the signal can open nothing."""


def register() -> None:
    """Open the file of this process and wait for the signal."""
    path = f"{os.environ['STACKS_FOLDER']}/{os.getpid()}"
    _files[:] = [open(path, "ab")]  # noqa: SIM115
    faulthandler.register(int(os.environ["STACKS_SIGNAL"]), _files[0], all_threads=True)


if "STACKS_FOLDER" in os.environ:
    register()
    os.register_at_fork(after_in_child=register)
