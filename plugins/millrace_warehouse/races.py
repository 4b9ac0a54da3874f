"""The loop of a run that another run may outrun: look again, decide again, try again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from millrace.errors import MillraceError

T = TypeVar("T")

TRIES = 20
"""Most tries of one run. A failed try has lost to another run, or met a failure."""
LONGEST_PAUSE_S = 2.0


class Conflict(Exception):
    """Another run was faster, or an answer was lost. Read the present state before the next attempt."""


class Outrun(MillraceError):
    """All TRIES tries of a run have failed."""


def retried(attempt: Callable[[], T], what: str, advice: str) -> T:
    """Repeat an attempt while it raises Conflict, with growing pauses between the tries. Return its result.

    After TRIES tries raise Outrun, whose message begins with `what` and ends with `advice`.
    """
    cause: Conflict | None = None
    for turn in range(TRIES):
        if turn:
            time.sleep(random.uniform(0, min(LONGEST_PAUSE_S, 0.01 * 2**turn)))
        try:
            return attempt()
        except Conflict as conflict:
            cause = conflict
    raise Outrun(f"{what}: {TRIES} tries failed, the last one because {cause}; {advice}")
