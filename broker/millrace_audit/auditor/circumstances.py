"""Everything beside its own evidence that the verdict on a window rests on, as a value.

How it comes about is said in `topic_view`, what follows from it in `verdict`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from millrace_audit.answer import Finding, Instance, Verdict, iso
from millrace_audit.auditor.beats import Beat
from millrace_audit.reports.messages import NOTHING, OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import in_words

FINAL = (Verdict.INCOMPLETE, Verdict.CARRIED, Verdict.COMPLETE)
"""The verdicts that nothing is awaited for."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Messages of a window that a load set aside."""

    load: int
    messages: int
    keyed: int
    """Messages among them that have an audit header."""
    reason: str
    accepted: str | None
    """Reason for which an operator gives them up; None if no operator does."""


@dataclass(slots=True, kw_only=True)
class Circumstances:
    """What is awaited of one window, how far each tier is with it, and what will never be known of it."""

    waiting: list[tuple[Verdict, str]] = field(default_factory=list)
    """What it is whatever its evidence says, and why: mostly `unknown` or `pending`."""
    past: set[tuple[str, str]] = field(default_factory=set)
    """(origin, tier): what the tier lacks of the origin's events, it lacks for good."""
    ahead: set[tuple[str, str]] = field(default_factory=set)
    """(origin, tier): what the tier has and the tier before has not, that one will never count."""
    unheard: set[str] = field(default_factory=set)
    """Origins whose producers may have said hello, and the auditor has not heard it yet."""
    deaf: dict[str, str] = field(default_factory=dict)
    """Origin -> why its producers may have reported what was counted, and the auditor will never hear it."""
    doubted: set[str] = field(default_factory=set)
    """Tiers that could not be counted in full: what they lack, they may have."""
    lost: dict[str, str] = field(default_factory=dict)
    """Tier -> why it may have had more, long after the window was over, than it counted."""
    lacks: dict[str, str] = field(default_factory=dict)
    """Those of `lost` where the tier may have had what it would be past by."""
    reached: dict[str, Beat] = field(default_factory=dict)
    """Tier -> the beat by which it was past the window."""
    notes: list[str] = field(default_factory=list)
    """What is said beside the verdict."""
    rejected: list[Rejected] = field(default_factory=list)
    set_aside: int = 0
    """Further messages that loads rejected or erasures took, in this window or in others."""
    is_unkeyed_known: bool = True
    """True if loads have reported all the window's rows without a header."""

    def excuse(self, finding: Finding, home: str) -> str | None:
        """Why what seems wrong may be right: a tier may have had what nobody counted there."""
        if finding.kind == "missing":
            return self.lacks.get(finding.tier)
        before = {OFFLINE: home, WAREHOUSE: OFFLINE, TABLE: WAREHOUSE}
        if finding.tier == home and finding.kind == "unexpected":
            return self.deaf.get(home)
        if finding.kind == "altered" or finding.tier == home:
            return None
        return self.lost.get(before[finding.tier])

    @property
    def is_over(self) -> bool:
        """True when nothing is awaited any more."""
        return all(verdict in FINAL for verdict, _ in self.waiting)

    def digest(self) -> str:
        """The same for circumstances of which the same verdict follows."""
        sets = [sorted(some) for some in (self.past, self.ahead)]
        names = [sorted(some) for some in (self.unheard, self.doubted)]
        causes = [sorted(some.items()) for some in (self.deaf, self.lost, self.lacks)]
        said = repr((self.waiting, *sets, *names, *causes, self.notes))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def silent_about(instance: Instance, end: int) -> str | None:
    """Why it may still have something to say about the time before `end`; None when it has not."""
    if instance.missing_reports:
        return f"report {in_words(instance.missing_reports)} of {instance.name} is missing"
    if instance.closed_through >= end or instance.idle:
        return None
    said = "nothing" if instance.closed_through == NOTHING else f"only {iso(instance.closed_through)}"
    return f"{instance.name} has closed {said} and may send more"
