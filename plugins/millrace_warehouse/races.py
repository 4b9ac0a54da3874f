"""The one loop for "another run was faster": look again, decide again, try again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from millrace.errors import MillraceError

T = TypeVar("T")

TRIES = 20
"""Most tries of one run; each that fails has lost to another run, or met a fault."""
LONGEST_PAUSE_S = 2.0


class Conflict(Exception):
    """Another run was faster, or an answer was lost: what counts now must be read before the next try."""


class Outrun(MillraceError):
    """A run has lost TRIES times."""


def retried(attempt: Callable[[], T], what: str, advice: str) -> T:
    """Return what an attempt returns, which is repeated while it meets a Conflict, after ever longer pauses.

    Outrun, which begins with `what` and ends with `advice`, after TRIES attempts.
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
