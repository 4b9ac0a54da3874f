"""Sets of sequence numbers, kept as closed ranges.

The numbers have no meaning here. An event stream in order takes one range, whatever its length; a set with n
holes takes n + 1 ranges. A union or a difference is one sweep over both operands.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_BOUND = 1 << 63
Range = tuple[int, int]
"""The first and the last number of a range, both included."""


@dataclass(init=False, slots=True)
class SequenceRanges:
    """A set of integers as sorted ranges that neither overlap nor touch."""

    _firsts: list[int]
    _lasts: list[int]

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._firsts, self._lasts = [], []
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> Sequence[Range]:
        """Add first..last; return the parts of this range that were in the set before."""
        firsts, lasts = self._firsts, self._lasts
        if first > last:
            raise ValueError(f"a range from {first} to {last} is empty")
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return ()
        if first == lasts[-1] + 1:
            lasts[-1] = last
            return ()
        begin = bisect_left(lasts, first - 1)  # the ranges in begin..end-1 overlap or touch the new one
        end = bisect_right(firsts, last + 1)
        if begin == end:
            firsts.insert(begin, first)
            lasts.insert(begin, last)
            return ()
        present = [
            (max(low, first), min(high, last))
            for low, high in zip(firsts[begin:end], lasts[begin:end], strict=True)
            if low <= last and high >= first
        ]
        firsts[begin:end] = [min(first, firsts[begin])]
        lasts[begin:end] = [max(last, lasts[end - 1])]
        return present

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        # Python allows no larger length. A set of sequences, which have 63 bits, exceeds it by one at most.
        return min(sum(self._lasts) - sum(self._firsts) + len(self._firsts), sys.maxsize)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __repr__(self) -> str:
        return f"SequenceRanges({self.pairs()})"

    @property
    def range_count(self) -> int:
        return len(self._firsts)

    @property
    def last(self) -> int:
        """The largest number. Raise IndexError when the set is empty."""
        return self._lasts[-1]

    def pairs(self) -> list[list[int]]:
        return [[first, last] for first, last in self]

    def __or__(self, other: SequenceRanges) -> SequenceRanges:
        return merged((*self, *other))

    def __and__(self, other: SequenceRanges) -> SequenceRanges:
        return self - (self - other)

    def __sub__(self, other: SequenceRanges) -> SequenceRanges:
        firsts: list[int] = []
        lasts: list[int] = []
        b = bisect_left(other._lasts, self._firsts[0]) if self else 0
        for first, last in self:
            while b < len(other._firsts) and other._lasts[b] < first:
                b += 1
            start, hole = first, b
            while hole < len(other._firsts) and other._firsts[hole] <= last:
                if other._firsts[hole] > start:
                    firsts.append(start)
                    lasts.append(other._firsts[hole] - 1)
                start = other._lasts[hole] + 1
                hole += 1
            if start <= last:
                firsts.append(start)
                lasts.append(last)
        return _built(firsts, lasts)


def _built(firsts: list[int], lasts: list[int]) -> SequenceRanges:
    """Return a set from lists that are already sorted and disjoint."""
    ranges = SequenceRanges()
    ranges._firsts, ranges._lasts = firsts, lasts
    return ranges


def merged(ranges: Iterable[Sequence[int]]) -> SequenceRanges:
    """Return the union of ranges in any order, overlapping or not."""
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted((first, last) for first, last in ranges):
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return _built(firsts, lasts)


def layered(ranges: Iterable[Sequence[int]], less: Iterable[Sequence[int]] = ()) -> list[SequenceRanges]:
    """Return the sets of the numbers in more than 0, 1, 2... ranges, by one sweep.

    A range of `less` subtracts one.
    """
    changes: defaultdict[int, int] = defaultdict(int)
    for sign, some in ((1, ranges), (-1, less)):
        for first, last in some:
            changes[first] += sign
            changes[last + 1] -= sign
    layers: list[SequenceRanges] = []
    opened: list[int] = []  # starts of the layers' open ranges: never more than there are ranges
    depth = 0
    for at in sorted(changes):
        depth += changes[at]
        while len(opened) < depth:
            if len(opened) == len(layers):
                layers.append(SequenceRanges())
            opened.append(at)
        while len(opened) > max(depth, 0):
            first = opened.pop()
            layers[len(opened)].add(first, at - 1)
    return layers


# On the wire a list of ranges is flat: for each one the distance of its first number from the last number
# of the range before (from 0 at the start), then how many more numbers follow. Avro's zigzag varints make
# that two bytes per range in the usual case, where absolute numbers take eight.
def to_deltas(ranges: Iterable[Sequence[int]]) -> list[int]:
    """Return the flat wire form of ranges, in the order given."""
    flat: list[int] = []
    previous = 0
    for first, last in ranges:
        flat += (first - previous, last - first)
        previous = last
    return flat


def from_deltas(flat: Sequence[int]) -> list[Range]:
    """Return the ranges of the wire form. Raise ValueError when the form is broken."""
    if len(flat) % 2:
        raise ValueError("a list of ranges has an odd number of values")
    ranges: list[Range] = []
    previous = 0
    for index in range(0, len(flat), 2):
        first = previous + flat[index]
        previous = first + flat[index + 1]
        if first < -_BOUND or previous >= _BOUND:
            raise ValueError(f"a range from {first} to {previous} takes more than 64 bits")
        if previous < first:
            raise ValueError(f"a range starts at {first} and ends at {previous}")
        ranges.append((first, previous))
    return ranges


def size(ranges: Iterable[Sequence[int]]) -> int:
    """Return the number of integers in disjoint ranges."""
    return sum(last - first + 1 for first, last in ranges)


def in_words(ranges: Iterable[Sequence[int]], most: int = 5) -> str:
    """Return ranges for people: `4, 7-9 and 12 more ranges`."""
    listed = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    rest = len(listed) - most
    more = f" and {rest} more range{'s' * (rest > 1)}" if rest > 0 else ""
    return ", ".join(listed[:most]) + more
