"""Events that each tier holds and lacks of a window, for the console's pages of a topic and of an hour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace_audit.answer import DOWNSTREAM, Window
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE

HOME = "home"
"""Name of the datacenters together, when there are several."""


@dataclass(frozen=True, slots=True)
class Step:
    """A tier, or all homes together, on the way of one window's events or of several windows'."""

    name: str
    tiers: Sequence[str]
    count: int
    """Number of counted events, repeats included."""
    lost: int
    """Number of events that are missing there first."""
    lacks: int
    """Number of events that are missing there or at a tier before."""
    expected: int

    @property
    def state(self) -> str:
        """`miss` if events are missing, `wait` if some have not arrived, `ok`, or empty without events."""
        if self.lost or (self.lacks and self.count):
            return "miss"
        if self.count < self.expected:
            return "wait"
        return "ok" if self.count else ""


def steps_of(homes: Sequence[str], windows: Iterable[Window]) -> list[Step]:
    """Return the steps of the windows together, from the homes to the table."""
    windows = list(windows)
    expected = sum(window.acknowledged + window.carried for window in windows)
    steps, lacks = list[Step](), 0
    name = homes[0] if len(homes) == 1 else HOME
    for step, tiers in ((name, homes), *((tier, (tier,)) for tier in (OFFLINE, WAREHOUSE, TABLE))):
        missing = (one for window in windows for one in window.findings if one.kind == "missing")
        lost = sum(one.count for one in missing if one.tier in tiers)
        lacks += lost
        count = sum(window.tiers.get(tier, 0) for window in windows for tier in tiers)
        steps.append(Step(step, tiers, count, lost, lacks, expected))
    return steps


def homes_of(origins: Sequence[str], windows: Iterable[Window]) -> list[str]:
    """Return the auditor's origins, and other clusters with events in the windows."""
    found = {tier for window in windows for tier in window.tiers}
    return [*dict.fromkeys((*origins, *sorted(found.difference((*DOWNSTREAM, TABLE)))))]
