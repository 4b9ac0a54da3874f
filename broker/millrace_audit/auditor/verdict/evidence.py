"""Evidence of one window as one value: producers' reports, and the events observed at every tier.

Kept as flat lists of ranges, [first, last, first, last ...], which only grow while records arrive, and become
sets when the window is judged. The packed form is compressed JSON. A tier that holds exactly the acknowledged
events, the usual case, takes three bytes there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.fingerprints import added, is_strong
from millrace_audit.reports.ranges import SequenceRanges, merged

MOST_RANGES_KEPT = 200_000
"""Most ranges of a window, about 4 MB, rewritten with every change. A window with more keeps none."""
_RANGES_OF_STRONG = 5
"""Number of ranges as which a strong sum counts. A window of 10,000 instances keeps all, in 18 MB."""
Flat = list[int]
_FAST, _SMALL = 1, 9  # zlib's levels: while a window changes, and once it is folded


def pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class Reported:
    """A producer's reports on a window."""

    acknowledged: Flat = field(default_factory=list)
    fingerprint: int = 0
    failed: Flat = field(default_factory=list)
    failed_fingerprint: int = 0
    fingerprinted: bool = True
    """False if some report had no fingerprints: the sums are then not those of all the messages."""


@dataclass(slots=True)
class Observed:
    """Events of a producer observed at a tier; a number that occurs twice is in two ranges."""

    ranges: Flat = field(default_factory=list)
    fingerprint: int = 0


@dataclass(slots=True)
class Evidence:
    """Evidence of one window: producers by the number of their row, clusters and tiers by name."""

    reported: dict[int, Reported] = field(default_factory=dict)
    observed: dict[str, dict[int, Observed]] = field(default_factory=dict)
    """Tier -> producer -> observed events."""
    aborted: dict[int, Flat] = field(default_factory=dict)
    """Producer -> sequences of its events in aborted transactions at its home."""
    unkeyed: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Origin -> tier -> [messages, fingerprint] of the messages without an audit header."""
    unkeyed_rows: dict[str, list[int]] = field(default_factory=dict)
    """Rows without a whole audit header: `warehouse` -> [all, of these in an hour's partition], `table` ->
    [those in an hour's partition]; no entry if not reported."""
    is_too_much: bool = False
    """True if the window had more ranges than may be kept; then none is kept."""

    def report(
        self,
        producer: int,
        ranges: SequenceRanges,
        fingerprint: int,
        failed: SequenceRanges,
        failed_sum: int,
        *,
        fingerprinted: bool = True,
    ) -> None:
        reported = self.reported.setdefault(producer, Reported())
        reported.acknowledged = _joined(reported.acknowledged, ranges)
        reported.fingerprint = added(reported.fingerprint, fingerprint)
        reported.failed = _joined(reported.failed, failed)
        reported.failed_fingerprint = added(reported.failed_fingerprint, failed_sum)
        reported.fingerprinted &= fingerprinted

    def count(self, tier: str, producer: int, tally: SequenceTally) -> None:
        observed = self.observed.setdefault(tier, {}).setdefault(producer, Observed())
        new = list(tally.ranges())
        ranges = observed.ranges
        if ranges and len(new) == 1 and new[0][0] == ranges[-1] + 1:
            ranges[-1] = new[0][1]  # the usual case: the new range continues the last one
        else:
            whole = SequenceTally((*pairs(ranges), *new))
            observed.ranges = [*chain.from_iterable(whole.ranges())]
        observed.fingerprint = added(observed.fingerprint, tally.fingerprint)

    def abort(self, producer: int, ranges: SequenceRanges) -> None:
        self.aborted[producer] = _joined(self.aborted.get(producer, []), ranges)

    def remove(self, tier: str, producer: int, tally: SequenceTally) -> None:
        observed = self.observed.get(tier, {}).get(producer)
        if observed is not None:
            rest = SequenceTally(pairs(observed.ranges)).without(tally)
            observed.ranges = [*chain.from_iterable(rest.ranges())]

    def move(self, producer: int, to: int) -> None:
        """Count the observed and aborted events of one producer for another."""
        for tier, held in self.observed.items():
            if (observed := held.pop(producer, None)) is not None:
                self.count(tier, to, SequenceTally(pairs(observed.ranges), observed.fingerprint))
        if (aborted := self.aborted.pop(producer, None)) is not None:
            self.abort(to, SequenceRanges(pairs(aborted)))

    def count_unkeyed(self, origin: str, tier: str, messages: int, fingerprint: int) -> None:
        here = self.unkeyed.setdefault(origin, {}).setdefault(tier, [0, 0])
        here[0] += messages
        here[1] = added(here[1], fingerprint)

    def count_unkeyed_rows(self, tier: str, *rows: int) -> None:
        before = self.unkeyed_rows.get(tier, [0] * len(rows))
        self.unkeyed_rows[tier] = [a + b for a, b in zip(before, rows, strict=True)]

    def bound(self) -> Evidence:
        observed = [each for producers in self.observed.values() for each in producers.values()]
        flats = [*(each.ranges for each in observed), *self.aborted.values()]
        sums = [each.fingerprint for each in observed]
        for reported in self.reported.values():
            flats += reported.acknowledged, reported.failed
            sums += reported.fingerprint, reported.failed_fingerprint
        ranges = sum(map(len, flats)) // 2 + _RANGES_OF_STRONG * sum(map(is_strong, sums))
        return Evidence(is_too_much=True) if self.is_too_much or ranges > MOST_RANGES_KEPT else self

    def producers(self) -> set[int]:
        return set(chain(self.reported, self.aborted, *self.observed.values()))

    def pack(self, *, fold: bool = False) -> bytes:
        """Return the evidence as bytes; `fold` drops the fingerprints, which agree in a complete window."""
        reported = {
            str(producer): [
                *(s.acknowledged, s.fingerprint, s.failed, s.failed_fingerprint),
                *([] if s.fingerprinted else [False]),
            ]
            for producer, s in self.reported.items()
        }
        observed = {
            tier: {
                str(producer): 1 if self._as_reported(producer, h) else [h.ranges, h.fingerprint]
                for producer, h in producers.items()
            }
            for tier, producers in self.observed.items()
        }
        if fold:
            for entry in chain(reported.values(), *(producers.values() for producers in observed.values())):
                if isinstance(entry, list):
                    entry[1::2] = [0] * len(entry[1::2])
        value: list[Any] = [reported, observed, self.unkeyed, self.is_too_much]
        if self.unkeyed_rows or self.aborted:
            value.append(self.unkeyed_rows)
        if self.aborted:
            value.append(self.aborted)
        return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), _SMALL if fold else _FAST)

    def _as_reported(self, producer: int, observed: Observed) -> bool:
        same = self.reported.get(producer)
        if same is None:
            return False
        return (same.acknowledged, same.fingerprint) == (observed.ranges, observed.fingerprint)

    @classmethod
    def unpack(cls, packed: bytes) -> Evidence:
        if not packed:
            return cls()
        value = json.loads(zlib.decompress(packed))
        reports, counts, unkeyed, is_too_much, unkeyed_rows, aborted = [*value, {}, {}][:6]
        reported = {int(producer): Reported(*entry) for producer, entry in reports.items()}

        def there(producer: int, entry: Any) -> Observed:
            if entry == 1:
                same = reported[producer]
                return Observed(same.acknowledged.copy(), same.fingerprint)
            return Observed(*entry)

        return cls(
            reported,
            observed={
                tier: {int(producer): there(int(producer), entry) for producer, entry in producers.items()}
                for tier, producers in counts.items()
            },
            aborted={int(producer): flat for producer, flat in aborted.items()},
            unkeyed=unkeyed,
            unkeyed_rows=unkeyed_rows,
            is_too_much=is_too_much,
        )


def _joined(flat: Flat, more: SequenceRanges) -> Flat:
    """Return the union as a flat list."""
    if not more:
        return flat
    if flat and more.range_count == 1 and (first := next(iter(more)))[0] == flat[-1] + 1:
        flat[-1] = first[1]
        return flat
    return flatten(merged((*pairs(flat), *more)))


def flatten(ranges: Iterable[Sequence[int]]) -> Flat:
    return [*chain.from_iterable(ranges)]
