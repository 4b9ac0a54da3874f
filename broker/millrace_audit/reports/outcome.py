"""Outcomes of a producer instance's events that are not reported yet, in portions for its reports.

Shared by both producers, `AuditedProducer` and the agent. It is independent of brokers and of the bytes of a
report.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.fingerprints import wrapped
from millrace_audit.reports.messages import MOST_WINDOWS, ReportedWindow
from millrace_audit.reports.ranges import SequenceRanges

RANGES_PER_REPORT = 20_000
"""Most ranges in one report, well below the largest message. More ranges are reported in portions."""


@dataclass(slots=True)
class Outcome:
    """Sequences of one topic and window whose outcome is certain, and the sums of their fingerprints."""

    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    failed: SequenceRanges = field(default_factory=SequenceRanges)
    fingerprint: int = 0
    failed_fingerprint: int = 0

    def add(self, sequence: int, fingerprint: int, *, failed: bool) -> None:
        if failed:
            self.failed.add(sequence, sequence)
            self.failed_fingerprint += fingerprint
        else:
            self.acknowledged.add(sequence, sequence)
            self.fingerprint += fingerprint

    @property
    def range_count(self) -> int:
        return self.acknowledged.range_count + self.failed.range_count

    @property
    def is_news(self) -> bool:
        """True if there is anything to report."""
        return bool(self.range_count or wrapped(self.fingerprint) or wrapped(self.failed_fingerprint))

    def split(self, most: int) -> tuple[Outcome, Outcome]:
        """Return the first `most` ranges, and the rest.

        The first part has the fingerprints: only their sum counts.
        """
        acknowledged, failed = list(self.acknowledged), list(self.failed)
        left = max(most - len(acknowledged), 0)
        first = Outcome(
            SequenceRanges(acknowledged[:most]),
            SequenceRanges(failed[:left]),
            self.fingerprint,
            self.failed_fingerprint,
        )
        return first, Outcome(SequenceRanges(acknowledged[most:]), SequenceRanges(failed[left:]))


Unreported = dict[tuple[str, int], Outcome]
"""Outcomes not reported yet, by topic and window."""


def portion(unreported: Unreported) -> tuple[Unreported, Unreported]:
    """Return the outcomes for the next report, and the outcomes for later reports."""
    chosen: Unreported = {}
    left = dict(sorted(unreported.items()))
    room = RANGES_PER_REPORT
    for key, outcome in sorted(unreported.items()):
        needed = outcome.range_count
        if len(chosen) == MOST_WINDOWS or (chosen and needed > room):
            break
        if needed > room:
            chosen[key], left[key] = outcome.split(room)
            break
        chosen[key] = left.pop(key)
        room -= needed
    return chosen, left


def closable(closed_through: int, left: Unreported) -> int:
    """Return the time up to which a report may close: before every window that is left for a later report."""
    return min((closed_through, *(window for _, window in left)))


def still_open(windows: Set[tuple[str, int]], closed_through: int) -> set[tuple[str, int]]:
    """Return the windows that end after `closed_through`."""
    return {(topic, window) for topic, window in windows if window + WINDOW_MS > closed_through}


def reported(outcomes: Unreported) -> list[ReportedWindow]:
    return [
        ReportedWindow(
            *key, one.acknowledged, one.failed, wrapped(one.fingerprint), wrapped(one.failed_fingerprint)
        )
        for key, one in outcomes.items()
    ]
