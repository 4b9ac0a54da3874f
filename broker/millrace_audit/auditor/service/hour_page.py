"""Content of the console's page of an hour: the tier that lacks events, their sequences, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from millrace_audit.answer import Finding, Incident, Verdict, Window, tiers_of, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.service.way import homes_of, steps_of
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE


@dataclass(frozen=True, slots=True)
class Cell:
    """Number of events of a window at a tier."""

    count: int
    lacks: int
    is_awaited: bool
    """True if events of the tier before have not arrived."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command for the operator, and the reason for it."""

    command: str
    why: str
    runbook: str


class HourPage:
    """The page's values, read from one state of the database."""

    def __init__(self, session: Session, options: AuditOptions, topic: str, hour: int) -> None:
        self._session, self._options = session, options
        self._topic, self._hour = topic, hour
        self._now = options.clock_ms()

    def values(self) -> dict[str, Any]:
        """Return the values of the template."""
        topic, first, last = self._topic, self._hour, self._hour + HOUR_MS
        answer = answers.completeness(self._session, self._options, topic, first, last)
        homes = homes_of(self._options.origins, answer.windows)
        keys = {key for window in answer.windows for key in window.incidents}
        found = incidents.find(self._session, self._options, is_open=True, topic=topic) if keys else []
        causes = [one for one in found if one.key in keys]
        at_homes = [tier for tier in tiers_of(answer.windows) if tier in homes]
        tiers = [*at_homes, OFFLINE, WAREHOUSE, TABLE]
        return {
            "now": utc(self._now),
            "topic": topic,
            "answer": answer,
            "state": {Verdict.INCOMPLETE: "bad", Verdict.UNKNOWN: "unknown"}.get(
                Verdict(answer.verdict), "good"
            ),
            "hour": utc(first),
            "before": utc(first - HOUR_MS),
            "after": utc(last),
            "acknowledged": sum(window.acknowledged for window in answer.windows),
            "failed": sum(window.failed for window in answer.windows),
            "unreported": sum(window.carried for window in answer.windows),
            "rejected": sum(window.rejected for window in answer.windows),
            "revised": any(window.revision for window in answer.windows),
            "steps": steps_of(homes, answer.windows),
            "tiers": tiers,
            "rows": [(window, _cells(window, homes, tiers)) for window in answer.windows],
            "wrong": _summary(answer.windows),
            "findings": [(window.start, one) for window in answer.windows for one in window.findings],
            "causes": causes,
            "next_steps": _next_steps(causes, answer.windows),
            "reasons": [*dict.fromkeys(text for window in answer.windows for text in window.reasons)],
            "history": answers.history(self._session, topic, first, last),
        }


def _cells(window: Window, homes: Sequence[str], tiers: Sequence[str]) -> list[Cell]:
    """Return what each tier holds of a window; a home is expected to hold only its own events."""
    steps = {tier: step for step in steps_of(homes, [window]) for tier in step.tiers}
    cells = []
    for tier in tiers:
        step = steps[tier]
        if tier in homes:
            lacks = sum(one.count for one in window.findings if one.kind == "missing" and one.tier == tier)
        else:
            lacks = step.lacks if step.state == "miss" else 0
        is_awaited = tier not in homes and step.count == 0 and step.state == "wait"
        cells.append(Cell(window.tiers.get(tier, 0), lacks, is_awaited))
    return cells


def _summary(windows: Sequence[Window]) -> list[tuple[int, str, str]]:
    """Return the number of wrong events by kind and tier, the largest first."""
    sums: dict[tuple[str, str], int] = {}
    for finding in (one for window in windows for one in window.findings):
        sums[finding.kind, finding.tier] = sums.get((finding.kind, finding.tier), 0) + finding.count
    return sorted(((count, kind, tier) for (kind, tier), count in sums.items()), reverse=True)


def _next_steps(causes: Sequence[Incident], windows: Sequence[Window]) -> list[NextStep]:
    """Return the commands of the hour's incidents and findings, each once."""
    steps = {one.command: NextStep(one.command, one.what, one.runbook) for one in reversed(causes)}
    findings: list[Finding] = [one for window in windows for one in window.findings]
    for one in findings:
        steps.setdefault(one.command, NextStep(one.command, f"{one.kind} at {one.tier}", ""))
    steps.pop("", None)
    return [*steps.values()]
