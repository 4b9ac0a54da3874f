"""Many histories, the first that breaks, and the same one with as few faults as still break it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.trials.sim.history import History
from tests.trials.sim.log import Violation
from tests.trials.sim.world import World


@dataclass(slots=True)
class Tally:
    """Results of some histories."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)
    """(seed, what does not hold)."""


def violation_of(history: History, counts: Counter[str] | None = None) -> str | None:
    """Run the history; return the violation found, or None. An exception is a violation, too."""
    world = World(history)
    try:
        world.run()
    except Violation as error:
        return str(error)
    except (AssertionError, ValueError, LookupError, TypeError) as error:
        return repr(error)
    finally:
        if counts is not None:
            counts.update(world.counts)
    return None


def run(first: int, last: int) -> Tally:
    """Run the histories of the seeds `first` to `last` - 1."""
    tally = Tally()
    for seed in range(first, last):
        violation = violation_of(History.draw(seed), tally.counts)
        if violation is not None:
            tally.violations.append((seed, violation))
    return tally


def first_violation(histories: int) -> tuple[int, str] | None:
    """The first seed below `histories` that breaks something, and what."""
    found = ((seed, violation_of(History.draw(seed))) for seed in range(histories))
    return next(((seed, what) for seed, what in found if what is not None), None)


def shrink(history: History) -> History:
    """A history with fewer faults that breaks something, too: no fault of it can be left out."""
    size = len(history.faults)
    while size > 0:
        first = 0
        while first < len(history.faults):
            smaller = history.without(first, size)
            if violation_of(smaller) is not None:
                history = smaller
            else:
                first += size
        size //= 2
    return history
