"""The step that follows from the audit's verdict on some hours, and its explanation.

Plain functions for the sensor and its trigger. None of them waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from millrace.errors import MillraceError
from millrace.escaping import escaped
from millrace_audit.answer import Completeness, Finding, Window
from millrace_audit.client import completeness, incidents

DUPLICATE = "duplicate"
SHOWN = 5
"""Most findings and reasons that a message lists. The rest are counted."""


class Step(StrEnum):
    """Steps that follow from a verdict."""

    GO_ON = "go on"
    WAIT = "wait"
    GIVE_UP = "give up"
    TIME_IS_UP = "time is up"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step and its reason in one line."""

    step: Step
    reason: str


def ask(
    auditor: str, topic: str, start: datetime, end: datetime, until: datetime, unknown_until: datetime | None
) -> Decision:
    """Ask the auditor once, and decide. While the auditor does not answer, wait until `until`."""
    now = datetime.now(UTC)
    try:
        answer = completeness(auditor, topic, start, end)
    except MillraceError as error:
        return Decision(Step.TIME_IS_UP if now >= until else Step.WAIT, escaped(str(error)))
    decision = judge(answer, now=now, until=until, unknown_until=unknown_until)
    if decision.step is Step.GO_ON:
        return decision
    return replace(decision, reason=f"{decision.reason}{_worst_incident(auditor, answer)}")


def _worst_incident(auditor: str, answer: Completeness) -> str:
    """Return the worst incident of the answer's windows, with its next command, or an empty text."""
    keys = {key for window in answer.windows for key in window.incidents}
    if not keys:
        return ""
    try:
        found = [one for one in incidents(auditor, topic=answer.topic) if one.key in keys]
    except MillraceError as error:
        return escaped(f"; its incidents are not known: {error}")
    if not found:  # resolved since
        return ""
    one = found[0]
    command = f": {one.command}" if one.command else ""
    return escaped(f"; worst incident: {one.title} ({one.extent}) [{one.key}]{command}")


def judge(
    answer: Completeness, *, now: datetime, until: datetime, unknown_until: datetime | None = None
) -> Decision:
    """Return the step at `now` of a wait until `until`. From `unknown_until` on, unknown and carried hours
    pass.

    Missing messages can still arrive, and a silent producer can still report, so both are waited for. A
    duplicate cannot disappear from a log or a load, so it ends the wait at once.
    """
    reason = describe(answer)
    if answer.proven:
        return Decision(Step.GO_ON, reason)
    if any(finding.kind == DUPLICATE for window in answer.windows for finding in window.findings):
        return Decision(Step.GIVE_UP, reason)
    if answer.verdict in ("unknown", "carried") and unknown_until is not None and now >= unknown_until:
        return Decision(Step.GO_ON, reason)
    return Decision(Step.TIME_IS_UP if now >= until else Step.WAIT, reason)


def describe(answer: Completeness) -> str:
    """Return one line: the verdict and, unless `complete`, the findings and reasons."""
    start, end = answer.start.isoformat(), answer.end.isoformat()
    line = f"{answer.topic} [{start}, {end}): {answer.verdict}"
    if rejected := sum(window.rejected for window in answer.windows):
        line = f"{line}, {rejected:,} messages rejected by loads"
    findings = [(window, finding) for window in answer.windows for finding in window.findings]
    findings.sort(key=lambda pair: pair[1].kind != DUPLICATE)  # the finding that ends the wait comes first
    details = [_finding(window, finding) for window, finding in findings]
    details += _reasons(answer.windows)
    if not details and not answer.proven:
        details = ["the audit gives no reason"]
    if len(details) > SHOWN:
        details = [*details[:SHOWN], f"and {len(details) - SHOWN} more"]
    return escaped(f"{line}: {'; '.join(details)}" if details else line)


def _finding(window: Window, finding: Finding) -> str:
    ranges = [f"{a}" if a == b else f"{a}-{b}" for a, b in finding.sequences]
    more = f" and {len(ranges) - SHOWN} more ranges" if len(ranges) > SHOWN else ""
    where = f"{finding.count} {finding.kind} at tier {finding.tier}, window {window.start.isoformat()}:"
    if not finding.server:
        return f"{where} {finding.service}"
    return (
        f"{where} server {finding.server}, service {finding.service}, instance {finding.instance},"
        f" sequences {', '.join(ranges[:SHOWN])}{more}"
    )


def _reasons(windows: Sequence[Window]) -> list[str]:
    """Return the distinct reasons, each with its number of windows."""
    counts = Counter(reason for window in windows for reason in window.reasons)
    return [reason if count == 1 else f"{reason} ({count} windows)" for reason, count in counts.items()]
