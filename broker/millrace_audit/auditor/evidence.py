"""Everything that is known of one window, as one value: who reported what, and what every tier holds.

Kept as flat lists of ranges, [first, last, first, last ...], which are only added to while records come, and
become sets when the window is judged. Packed it is compressed JSON; a tier that holds just what was
acknowledged, the usual case, takes three bytes. Passes no verdict and knows no database.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.ranges import SequenceRanges, merged
from millrace_audit.reports.seals import wrapped

MOST_RANGES_KEPT = 200_000
"""Ranges of one window: about 4 MB, read and written with every change. Of one with more nothing is kept."""
Flat = list[int]
_FAST, _SMALL = 1, 9  # zlib's levels: while a window changes, and once it is folded


def pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class Said:
    """What a producer reported of a window."""

    acknowledged: Flat = field(default_factory=list)
    fingerprint: int = 0
    failed: Flat = field(default_factory=list)
    failed_fingerprint: int = 0


@dataclass(slots=True)
class Held:
    """What a tier holds of a producer; numbers that are there twice are in two ranges."""

    ranges: Flat = field(default_factory=list)
    fingerprint: int = 0


@dataclass(slots=True)
class Evidence:
    """Producers by the number of their row, clusters and tiers by name."""

    said: dict[int, Said] = field(default_factory=dict)
    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    """Tier -> producer -> what is there."""
    foreign: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Origin -> tier -> [messages, fingerprint] of those without an audit header."""
    unkeyed: dict[str, list[int]] = field(default_factory=dict)
    """Rows without a whole audit header: `warehouse` -> [all, of these in an hour's partition], `table` ->
    [those in an hour's partition]; no entry where no reader has reported it."""
    is_too_much: bool = False
    """More was said of the window than is kept: of what was, nothing is."""

    def report(
        self, producer: int, ranges: SequenceRanges, fingerprint: int, failed: SequenceRanges, failed_sum: int
    ) -> None:
        said = self.said.setdefault(producer, Said())
        said.acknowledged = _joined(said.acknowledged, ranges)
        said.fingerprint = wrapped(said.fingerprint + fingerprint)
        said.failed = _joined(said.failed, failed)
        said.failed_fingerprint = wrapped(said.failed_fingerprint + failed_sum)

    def count(self, tier: str, producer: int, tally: SequenceTally) -> None:
        held = self.held.setdefault(tier, {}).setdefault(producer, Held())
        new = list(tally.ranges())
        ranges = held.ranges
        if ranges and len(new) == 1 and new[0][0] == ranges[-1] + 1:
            ranges[-1] = new[0][1]  # it goes on, as it usually does
        else:
            whole = SequenceTally((*pairs(ranges), *new))
            held.ranges = [*chain.from_iterable(whole.ranges())]
        held.fingerprint = wrapped(held.fingerprint + tally.fingerprint)

    def remove(self, tier: str, producer: int, tally: SequenceTally) -> None:
        held = self.held.get(tier, {}).get(producer)
        if held is not None:
            rest = SequenceTally(pairs(held.ranges)).without(tally)
            held.ranges = [*chain.from_iterable(rest.ranges())]

    def count_foreign(self, origin: str, tier: str, messages: int, fingerprint: int) -> None:
        here = self.foreign.setdefault(origin, {}).setdefault(tier, [0, 0])
        here[0] += messages
        here[1] = wrapped(here[1] + fingerprint)

    def count_unkeyed(self, tier: str, *rows: int) -> None:
        before = self.unkeyed.get(tier, [0] * len(rows))
        self.unkeyed[tier] = [a + b for a, b in zip(before, rows, strict=True)]

    def bound(self) -> Evidence:
        told = chain.from_iterable((said.acknowledged, said.failed) for said in self.said.values())
        held = (held.ranges for producers in self.held.values() for held in producers.values())
        numbers = sum(map(len, chain(told, held)))
        return Evidence(is_too_much=True) if self.is_too_much or numbers > 2 * MOST_RANGES_KEPT else self

    def producers(self) -> set[int]:
        return set(chain(self.said, *self.held.values()))

    def pack(self, *, fold: bool = False) -> bytes:
        """The evidence as bytes; `fold` leaves out the fingerprints, equal where all is complete."""
        said = {
            str(producer): [s.acknowledged, s.fingerprint, s.failed, s.failed_fingerprint]
            for producer, s in self.said.items()
        }
        held = {
            tier: {
                str(producer): 1 if self._as_said(producer, h) else [h.ranges, h.fingerprint]
                for producer, h in producers.items()
            }
            for tier, producers in self.held.items()
        }
        if fold:
            for entry in chain(said.values(), *(producers.values() for producers in held.values())):
                if isinstance(entry, list):
                    entry[1::2] = [0] * len(entry[1::2])
        value: list[Any] = [said, held, self.foreign, self.is_too_much]
        if self.unkeyed:
            value.append(self.unkeyed)
        return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), _SMALL if fold else _FAST)

    def _as_said(self, producer: int, held: Held) -> bool:
        said = self.said.get(producer)
        return said is not None and said.acknowledged == held.ranges and said.fingerprint == held.fingerprint

    @classmethod
    def unpack(cls, packed: bytes) -> Evidence:
        if not packed:
            return cls()
        said, held, foreign, is_too_much, *unkeyed = json.loads(zlib.decompress(packed))
        reported = {int(producer): Said(*entry) for producer, entry in said.items()}

        def there(producer: int, entry: Any) -> Held:
            if entry == 1:
                same = reported[producer]
                return Held(same.acknowledged.copy(), same.fingerprint)
            return Held(*entry)

        return cls(
            reported,
            {
                tier: {int(producer): there(int(producer), entry) for producer, entry in producers.items()}
                for tier, producers in held.items()
            },
            foreign,
            unkeyed[0] if unkeyed else {},
            is_too_much,
        )


def _joined(flat: Flat, more: SequenceRanges) -> Flat:
    """The union, as a flat list."""
    if not more:
        return flat
    if flat and more.range_count == 1 and (first := next(iter(more)))[0] == flat[-1] + 1:
        flat[-1] = first[1]
        return flat
    return flatten(merged((*pairs(flat), *more)))


def flatten(ranges: Iterable[Sequence[int]]) -> Flat:
    return [*chain.from_iterable(ranges)]
