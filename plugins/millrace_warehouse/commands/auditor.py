"""HTTP client of the auditor for the warehouse's commands: verdicts on hours, and the newest counted load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from millrace_audit.answer import Changes, Completeness, NewestLoad, Window, by_hour
from millrace_audit.client import changes, completeness
from millrace_warehouse.history.hours import start_of
from millrace_warehouse.history.manifest import ACCEPTED, HourVerdict
from millrace_warehouse.publish.gate import Auditor, Judgement, NoAuditor
from millrace_warehouse.publish.state import COMPLETE

STALE_AFTER = timedelta(minutes=10)
"""Time after which an auditor that has applied no audit records is stale."""

MOST_REASONS = 20
"""Most reasons that a publication keeps of an hour. A last one counts the others."""


def auditor_at(url: str) -> Auditor:
    """Return the auditor at a URL, or `NoAuditor` for an empty URL."""
    return HttpAuditor(url) if url else NoAuditor()


@dataclass(frozen=True, slots=True)
class HttpAuditor:
    """The auditor at a URL. Its methods raise MillraceError when no auditor answers there."""

    url: str

    def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
        end = start_of(hours[-1]) + timedelta(hours=1)
        answer = completeness(self.url, topic, start_of(hours[0]), end)
        now = datetime.now(UTC)
        windows = {window.start: window for window in by_hour(answer.windows)}
        loads = {judged.start: judged.loads for judged in answer.hours or ()}
        judgements = {}
        for hour in hours:
            window, counted = windows[start_of(hour)], loads.get(start_of(hour), ())
            verdict = _verdict(answer, window, now)
            incident = window.incidents[0] if window.incidents else ""
            judgements[hour] = Judgement(
                verdict=verdict,
                is_carried=verdict.verdict == COMPLETE != window.verdict,
                loads=counted,
                rejected=window.rejected,
                incident=incident,
            )
        return judgements

    def changes(self, topic: str, since: str | None) -> Changes:
        return changes(self.url, topic, since)


def newest_counted(url: str, topic: str) -> NewestLoad | None:
    """Return the newest load of a topic that the auditor at a URL has counted.

    Raise MillraceError when no auditor answers there.
    """
    now = datetime.now(UTC)
    return completeness(url, topic, now - timedelta(hours=1), now).newest_load


def _verdict(answer: Completeness, hour: Window, now: datetime) -> HourVerdict:
    """Return the verdict on one hour of an answer. `hour` combines the hour's windows."""
    reasons = hour.causes
    if len(reasons) > MOST_REASONS:
        more = len(reasons) - MOST_REASONS
        reasons[MOST_REASONS:] = [f"{more} more causes: see `millrace audit {answer.topic} --windows`"]
    is_proven = hour.verdict in (COMPLETE, answer.enough)
    if is_proven and hour.verdict != COMPLETE:
        reasons.insert(0, f"{hour.verdict}{ACCEPTED}")
    verdict = HourVerdict(
        verdict=COMPLETE if is_proven else str(hour.verdict),
        watermark=None if answer.watermark is None else answer.watermark.isoformat(),
        checked=now.isoformat(timespec="seconds"),
        reasons=reasons,
    )
    if is_proven and (why := _reason_without_proof(answer, now)) is not None:
        return replace(verdict, verdict="unknown", reasons=[why, *verdict.reasons])
    return verdict


def _reason_without_proof(answer: Completeness, now: datetime) -> str | None:
    """Return why the answer proves nothing about the present rows, or None if it does prove them."""
    if answer.hours is None:
        return "the auditor is older than this publisher and names no loads that it counted: upgrade it first"
    if answer.applied_at is None or now - answer.applied_at > STALE_AFTER:
        since = f" since {answer.applied_at.isoformat(timespec='seconds')}" if answer.applied_at else ""
        return f"the auditor has applied no audit records{since}: see its log, then publish again"
    return None
