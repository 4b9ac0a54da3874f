"""HTTP client of the auditor for the warehouse's commands: verdicts on hours, and the newest load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from millrace_audit.answer import Changes, Completeness, NewestLoad
from millrace_audit.client import changes, completeness
from millrace_warehouse.history.hours import start_of
from millrace_warehouse.history.manifest import Verdict
from millrace_warehouse.publish.gate import Auditor, Judgement, Nobody
from millrace_warehouse.publish.state import COMPLETE

STALE_AFTER = timedelta(minutes=10)
"""Time without applied records after which an auditor's answer speaks for the past only."""


def auditor_at(url: str) -> Auditor:
    """The auditor at a URL; `Nobody` for an empty one."""
    return HttpAuditor(url) if url else Nobody()


@dataclass(frozen=True, slots=True)
class HttpAuditor:
    """The auditor at a URL. Raises MillraceError when none answers there."""

    url: str

    def judge(self, topic: str, hour: str) -> Judgement:
        start = start_of(hour)
        answer = completeness(self.url, topic, start, start + timedelta(hours=1))
        now = datetime.now(UTC)
        reasons = [*chain.from_iterable(window.reasons for window in answer.windows)]
        if answer.proven and answer.verdict != COMPLETE:
            reasons.insert(0, f"{answer.verdict}, which is proof enough for this topic")
        verdict = Verdict(
            verdict=COMPLETE if answer.proven else answer.verdict,
            watermark=None if answer.watermark is None else answer.watermark.isoformat(),
            checked=now.isoformat(timespec="seconds"),
            reasons=list(dict.fromkeys(reasons)),
        )
        if verdict.verdict == COMPLETE and (why := _why_it_cannot_speak(answer, now)) is not None:
            verdict = replace(verdict, verdict="unknown", reasons=[why, *verdict.reasons])
        return Judgement(
            verdict=verdict,
            loads=[*chain.from_iterable(each.loads for each in answer.hours or ())],
            rejected=sum(window.rejected for window in answer.windows),
        )

    def changes(self, topic: str, since: str | None) -> Changes:
        return changes(self.url, topic, since)


def newest_counted(url: str, topic: str) -> NewestLoad | None:
    """The newest load of a topic that the auditor at a URL has counted.

    MillraceError when no auditor answers there.
    """
    now = datetime.now(UTC)
    return completeness(url, topic, now - timedelta(hours=1), now).newest_load


def _why_it_cannot_speak(answer: Completeness, now: datetime) -> str | None:
    """Reason for which the answer proves nothing about the rows that are there now; None when it may."""
    if answer.hours is None:
        return "the auditor is older than this publisher and names no loads that it counted: upgrade it first"
    if answer.applied_at is None or now - answer.applied_at > STALE_AFTER:
        since = f" since {answer.applied_at.isoformat(timespec='seconds')}" if answer.applied_at else ""
        return f"the auditor has applied no audit records{since}: see its log, then publish again"
    return None
