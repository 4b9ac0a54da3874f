"""Counts of every producer's events in one place: sequence numbers by ten-minute window, with repeats.

Shared by the readers that count a cluster's messages and by the load that counts the rows it writes. It reads
no message and no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from millrace_audit.reports.fingerprints import added, joined, split
from millrace_audit.reports.ranges import Range, SequenceRanges, from_deltas, layered, to_deltas

WINDOW_MS = 600_000
"""Windows are ten minutes of event time, aligned to the epoch."""
EARLIEST_MS = WINDOW_MS - (1 << 63)
"""Earliest event time: the window of an earlier event could begin at a number that no audit
record can hold."""
HOUR_MS = 6 * WINDOW_MS
FIRST_EVENT_MS = 946_684_800_000
"""2000-01-01: no AuditedProducer sends an event of an earlier time."""
MOST_AHEAD_MS = 24 * 3600 * 1000
"""Largest time by which an event may be ahead of the clock of AuditedProducer, or of a load
that stores it."""


_LAST_MS = 253_402_300_800_000 - WINDOW_MS  # last window of the year 9999: dates have four-digit years


def window_start(time_ms: int) -> int:
    return time_ms - time_ms % WINDOW_MS


def is_of_this_world(window: int) -> bool:
    """Return True for a window that can exist. The rule depends on no clock, so that all tiers agree."""
    return FIRST_EVENT_MS <= window < _LAST_MS and window % WINDOW_MS == 0


class CountKey(NamedTuple):
    """One producer instance in one window; `window` is its start in ms."""

    server: str
    service: str
    instance: int
    window: int


class SequenceTally:
    """Sequence numbers, and the number of times that each occurs."""

    __slots__ = ("_again", "_layers", "fingerprint")

    def __init__(
        self, ranges: Iterable[Sequence[int]] = (), fingerprint: int = 0, *, less: Iterable[Range] = ()
    ) -> None:
        self._layers = layered(ranges, less) or [SequenceRanges()]
        self._again: list[Range] = []  # repeats not yet sorted into layers: one sweep sorts many
        self.fingerprint = fingerprint
        """Sum over all the messages, repeats included, wrapped; 0 where fingerprints are not computed."""

    def add(self, first: int, last: int) -> None:
        """Count every number of first..last once more."""
        self._again += self._layers[0].add(first, last)

    @property
    def layers(self) -> Sequence[SequenceRanges]:
        """Layer k holds the numbers that occur more than k times."""
        if self._again:
            self._layers[1:] = layered((*chain.from_iterable(self._layers[1:]), *self._again))
            self._again = []
        return self._layers

    def without(self, other: SequenceTally) -> SequenceTally:
        """Return the numbers that occur here more often than in `other`, each as often as the difference."""
        return SequenceTally(self.ranges(), added(self.fingerprint, -other.fingerprint), less=other.ranges())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceTally):
            return NotImplemented
        return (self.layers, self.fingerprint) == (other.layers, other.fingerprint)

    def __repr__(self) -> str:
        return f"SequenceTally({self.pairs()}, {self.fingerprint})"

    @property
    def present(self) -> SequenceRanges:
        return self._layers[0]

    @property
    def repeated(self) -> SequenceRanges:
        return self.layers[1] if len(self.layers) > 1 else SequenceRanges()

    @property
    def total(self) -> int:
        return sum(map(len, self.layers))

    def ranges(self) -> Iterator[Range]:
        """Yield every range, layer after layer: a number that occurs twice is in two ranges."""
        return chain.from_iterable(self.layers)

    def pairs(self) -> list[list[int]]:
        return [[first, last] for first, last in self.ranges()]


@dataclass(slots=True)
class SequenceCounts:
    """An accumulator: for every (server, service, instance, window) the sequence numbers that occur."""

    tallies: dict[CountKey, SequenceTally] = field(default_factory=dict)

    def add(
        self,
        server: str,
        service: str,
        instance: int,
        window: int,
        first: int,
        last: int | None = None,
        fingerprint: int = 0,
    ) -> None:
        """Count the message `first`, or the messages from `first` to `last`, in the window that starts at
        `window` ms.
        """
        key = CountKey(server, service, instance, window)
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = SequenceTally()
        tally.add(first, first if last is None else last)
        if fingerprint:
            tally.fingerprint = added(tally.fingerprint, fingerprint)

    def merge(self, other: SequenceCounts) -> None:
        """Add all counts of `other`; a number in both then occurs twice."""
        for key, tally in other.tallies.items():
            mine = self.tallies.setdefault(key, SequenceTally())
            for first, last in tally.ranges():
                mine.add(first, last)
            mine.fingerprint = added(mine.fingerprint, tally.fingerprint)

    def without(self, other: SequenceCounts) -> SequenceCounts:
        """Return the counts that exceed those of `other`, each number as often as the difference."""
        rest = SequenceCounts()
        for key, tally in self.tallies.items():
            left = tally.without(other.tallies.get(key, SequenceTally()))
            if left.present:
                rest.tallies[key] = left
        return rest

    def without_fingerprints(self) -> SequenceCounts:
        """Return the same sequences with fingerprints of 0."""
        return SequenceCounts({key: SequenceTally(tally.ranges()) for key, tally in self.tallies.items()})

    @property
    def total(self) -> int:
        return sum(tally.total for tally in self.tallies.values())

    @property
    def range_count(self) -> int:
        return sum(layer.range_count for tally in self.tallies.values() for layer in tally.layers)

    def to_json(self) -> list[dict[str, Any]]:
        """Return sorted [{server, service, instance, window, ranges, duplicates}], both lists of [first,
        last].

        `duplicates` lists every repeated number, once for each extra occurrence.
        """
        return [
            {
                **key._asdict(),
                "ranges": tally.present.pairs(),
                "duplicates": [pair for layer in tally.layers[1:] for pair in layer.pairs()],
            }
            for key, tally in sorted(self.tallies.items())
        ]

    @classmethod
    def from_json(cls, entries: Iterable[Mapping[str, Any]]) -> SequenceCounts:
        return cls._of((entry, (*entry["ranges"], *entry["duplicates"])) for entry in entries)

    def to_avro(self) -> list[dict[str, Any]]:
        """Return the `counts` of an AuditCount record: ranges as `to_deltas`.

        A repeated number is in several ranges.
        """
        entries = []
        for key, tally in sorted(self.tallies.items()):
            fast, strong = split(tally.fingerprint)
            ranges = to_deltas(tally.ranges())
            entries.append({**key._asdict(), "ranges": ranges, "fingerprint": fast, "strong": strong})
        return entries

    @classmethod
    def from_avro(cls, entries: Iterable[Mapping[str, Any]]) -> SequenceCounts:
        """Read the output of `to_avro`. Raise ValueError when a list of ranges is broken."""
        return cls._of((entry, from_deltas(entry["ranges"])) for entry in entries)

    @classmethod
    def _of(cls, entries: Iterable[tuple[Mapping[str, Any], Iterable[Sequence[int]]]]) -> SequenceCounts:
        counts = cls()
        for entry, ranges in entries:
            key = CountKey(*(entry[name] for name in CountKey._fields))
            tally = SequenceTally(ranges, joined(entry.get("fingerprint", 0), entry.get("strong")))
            if key in counts.tallies:
                raise ValueError(f"{key} is counted twice")
            if tally.present:
                counts.tallies[key] = tally
        return counts
