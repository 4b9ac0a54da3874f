"""A histogram of durations in buckets: one thread counts, and any thread may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

_UNDER_A_SECOND = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
DURATIONS_S = (*_UNDER_A_SECOND, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds, from an answer from memory to a hanging disk."""


class Histogram:
    """Counts of values by upper bound. A reader may see a value counted that is not in `total` yet."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATIONS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return pairs (upper bound, number of values up to it). The last bound is infinity."""
        return list(zip((*self.bounds, float("inf")), accumulate(list(self.counts)), strict=True))
