"""What the audit concludes of one topic's ten minutes: complete, incomplete or unknown. Pure logic.

A window is *final* when nothing more can be said about it: every origin cluster's heartbeat is past its end
plus grace, and every producer instance of the topic has closed it and misses no report. Then

    complete     at every tier each acknowledged sequence is there exactly once, and nothing else
    incomplete   a tier lacks something, or holds something twice or too much
    unknown      not final, or a tier is not read as far as the producers' last report, or never in full

What has an unknown outcome (failed, or sent by a silent instance that an operator accepted) may be there or
not, but in one way: what is at one tier must be at all of them, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from millrace_audit.answer import DOWNSTREAM, Finding, Instance, Verdict, Window, iso, utc
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, WAREHOUSE
from millrace_audit.reports.ranges import SequenceRanges, in_words


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known of one instance in one window."""

    instance: Instance
    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    failed: SequenceRanges = field(default_factory=SequenceRanges)
    reported_at: int = NOTHING
    """When its last report on the window was written."""
    tiers: Mapping[str, SequenceTally] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gap:
    """What was said of events of [since, until) is not known in full, or of a tier what it holds of them."""

    tier: str | None
    """The tier that was not counted in full; None when records of the audit itself are lost."""
    since: int
    until: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """What holds for every window of a topic."""

    topic: str
    announced: bool
    """An audited producer sends it, or has sent it."""
    instances: Mapping[int, Instance]
    """Those that may have something to say yet, or were accepted."""
    origins: Sequence[str]
    """Clusters that are produced to; each must be heard of before anything is final."""
    heartbeats: Mapping[str, int]
    """Tier -> time up to which its cluster is counted, ms. The warehouse has none: loads count themselves."""
    grace_ms: int
    gaps: Sequence[Gap] = ()

    @property
    def final_through(self) -> int:
        """Time (ms) up to which every window is final."""
        if not self.announced:
            return NOTHING
        heard = [self.heartbeats.get(origin, NOTHING) - self.grace_ms for origin in self.origins]
        closed = [
            NOTHING if instance.missing_reports else instance.closed_through
            for instance in self.instances.values()
            if instance.accepted is None
        ]
        return min((*heard, *closed), default=FOR_EVER)


def judge(window: int, evidence: Sequence[Evidence], view: TopicView) -> Window:
    """The verdict on the ten minutes from `window`, given what is known of each instance in it."""
    if not view.announced and not evidence:
        # Messages of producers that are not ours may be there; nobody says how many there should be.
        return unheard(window, f"no audited producer has announced itself for topic {view.topic}")
    end = window + WINDOW_MS
    waiting, visible = _silence(end, evidence, view)
    findings: list[Finding] = []
    gaps = [gap for gap in view.gaps if gap.since < end and window < gap.until]
    # What a tier holds matters for events that are known of; without the reports that is not certain either.
    gaps = [gap for gap in gaps if evidence or gap.tier is None]
    in_doubt = {gap.tier for gap in gaps}
    behind: dict[str, None] = dict.fromkeys(gap.reason for gap in gaps)
    for entry in evidence:
        home = _home(entry.instance, view)
        if home is None and entry.instance.cluster is not None:
            visible.append(_misnamed(entry.instance, view))
        for tier in dict.fromkeys((*([home] if home else view.origins), OFFLINE)):
            if not _is_read(tier, entry, view):
                behind[_behind(tier, view)] = None  # it may hold something twice that is not counted yet
        for finding in _findings(entry, home, end):
            read = finding.tier not in in_doubt and _is_read(finding.tier, entry, view)
            if finding.kind != "missing" or read:
                findings.append(finding)
    return Window(
        start=utc(window),
        end=utc(end),
        verdict=_verdict(waiting, behind, findings),
        revision=0,
        acknowledged=sum(len(entry.acknowledged - entry.failed) for entry in evidence),
        failed=sum(len(entry.failed) for entry in evidence),
        tiers=_totals(evidence, view),
        findings=findings,
        reasons=[*waiting, *behind, *visible],
    )


def _verdict(waiting: Collection[str], behind: Collection[str], findings: Collection[Finding]) -> Verdict:
    if waiting:
        return Verdict.UNKNOWN
    if findings:
        return Verdict.INCOMPLETE
    return Verdict.UNKNOWN if behind else Verdict.COMPLETE


def unheard(window: int, reason: str) -> Window:
    """The verdict on the ten minutes from `window` of a topic of which nothing is known."""
    start, end = utc(window), utc(window + WINDOW_MS)
    return Window(start, end, Verdict.UNKNOWN, 0, 0, 0, {}, [], [reason])


def _silence(end: int, evidence: Sequence[Evidence], view: TopicView) -> tuple[list[str], list[str]]:
    """Why the window is not final, and which silent instances were accepted."""
    waiting: list[str] = []
    visible: list[str] = []
    for origin in view.origins:
        heartbeat = view.heartbeats.get(origin)
        if heartbeat is None:
            waiting.append(f"{origin} has sent no heartbeat")
        elif heartbeat < end + view.grace_ms:
            waiting.append(
                f"{origin} is counted through {iso(heartbeat)}, not yet {view.grace_ms // 1000} s past the"
                " window's end"
            )
    everyone = {entry.instance.instance: entry.instance for entry in evidence} | {**view.instances}
    for instance in everyone.values():
        silent = _silent_about(instance, end)
        if silent is None or (instance.cluster is None and instance.accepted is None):
            continue  # of a stranger nothing is awaited: what it sent is unexpected
        if instance.accepted is None:
            waiting.append(silent)
        else:
            visible.append(f"{silent}; accepted: {instance.accepted}")
    return waiting, visible


def _silent_about(instance: Instance, end: int) -> str | None:
    """Why it may still have something to say about the time before `end`; None when it has not."""
    if instance.cluster is None:
        return f"{instance.name} was never announced"
    if instance.missing_reports:
        return f"report {in_words(instance.missing_reports)} of {instance.name} is missing"
    if instance.closed_through >= end:
        return None
    said = "nothing" if instance.closed_through == NOTHING else f"only {iso(instance.closed_through)}"
    return f"{instance.name} has closed {said} and may send more"


def _home(instance: Instance, view: TopicView) -> str | None:
    """The cluster it produces to; None when it has not said so, or names one that there is not."""
    return instance.cluster if instance.cluster in (*view.origins, OFFLINE) else None


def _misnamed(instance: Instance, view: TopicView) -> str:
    return (
        f"{instance.name} names a cluster that is none of {', '.join(view.origins)}: mend the name it is"
        " given, or the auditor's --origins"
    )


def _findings(entry: Evidence, home: str | None, end: int) -> list[Finding]:
    """What is wrong with one instance at each tier."""
    instance = entry.instance
    required = {**({home: None} if home else {}), **dict.fromkeys(DOWNSTREAM)}
    # The usual case, decided without set operations: every tier holds just what was acknowledged.
    if (
        home
        and not entry.failed
        and entry.tiers.keys() == required.keys()
        and all(tally.layers == [entry.acknowledged] for tally in entry.tiers.values())
    ):
        return []
    expected, allowed = _expected_and_allowed(entry, silent=_silent_about(instance, end) is not None)
    findings = []
    for tier in {**required, **dict.fromkeys(entry.tiers)}:
        tally = entry.tiers.get(tier, SequenceTally())
        # With nobody to say where it was produced, any cluster's own tier may be its origin.
        foreign_tier = home is not None and tier not in required
        problems = {
            "missing": SequenceRanges() if foreign_tier else expected - tally.present,
            "duplicate": tally.repeated,
            "unexpected": tally.present if foreign_tier else tally.present - allowed,
        }
        who = (instance.server, instance.service, instance.instance)
        findings += [
            Finding(kind, tier, *who, sequences.pairs(), len(sequences))
            for kind, sequences in problems.items()
            if sequences
        ]
    return findings


def _expected_and_allowed(entry: Evidence, *, silent: bool) -> tuple[SequenceRanges, SequenceRanges]:
    """The sequences that must be at every tier, and those that may be there."""
    anywhere = SequenceRanges()
    for tally in entry.tiers.values():
        anywhere = anywhere | tally.present
    acknowledged = entry.acknowledged - entry.failed  # a failure after the fact takes the word back
    uncertain = entry.failed
    if silent and entry.instance.accepted is not None:
        uncertain = uncertain | (anywhere - acknowledged)
    allowed = acknowledged | uncertain
    if silent and entry.instance.accepted is None and entry.instance.cluster is not None:
        allowed = allowed | anywhere  # it has not told everything yet
    return acknowledged | (uncertain & anywhere), allowed


def _is_read(tier: str, entry: Evidence, view: TopicView) -> bool:
    """True if the tier has been counted since the instance reported: what it lacks now, it lacks."""
    return tier == WAREHOUSE or view.heartbeats.get(tier, NOTHING) >= entry.reported_at


def _behind(tier: str, view: TopicView) -> str:
    heartbeat = view.heartbeats.get(tier)
    if heartbeat is None:
        return f"tier {tier} is not counted: no audit reader has been heard of"
    return f"tier {tier} is counted through {iso(heartbeat)}, before the producers' last report"


def _totals(evidence: Sequence[Evidence], view: TopicView) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for entry in evidence:
        if home := _home(entry.instance, view):
            totals[home] += 0
        for tier, tally in entry.tiers.items():
            totals[tier] += tally.total
    return {**totals, **{tier: totals[tier] for tier in DOWNSTREAM}}
