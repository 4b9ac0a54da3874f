"""Explanation of a verdict as JSON: the facts, and the outcome of every rule.

`judging` reads the facts and `rules` decides the outcomes. This module derives nothing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from millrace_audit.answer import Instance, iso, to_json
from millrace_audit.auditor.judging.judge import read_facts
from millrace_audit.auditor.judging.topic_facts import topic_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service.answers import heartbeats
from millrace_audit.auditor.store import TopicRow, WindowRow
from millrace_audit.auditor.verdict.evidence import pairs
from millrace_audit.auditor.verdict.facts import Source, Special, WindowFacts
from millrace_audit.auditor.verdict.reconcile import Difference, size
from millrace_audit.auditor.verdict.rules import NOTE, RULES, SPECIAL_RULES, Case, Judged, Rule, judge

_TIMES = {"since", "until", "watermark", "applied_through", "read_at"}
_NAMES = [each.name for each in fields(WindowFacts) if each.name not in ("topic", "start")]
_COMPARED = {"unreported": "sources", "has_read": "legs"}
"""Attribute of a case, or method of the facts -> the fact from which it is computed."""
_COLUMNS = select(
    WindowRow.positions,
    WindowRow.judged,
    WindowRow.verdict,
    WindowRow.is_final,
    WindowRow.last_final,
    WindowRow.revision,
    WindowRow.is_changed,
)


def explain(session: Session, options: AuditOptions, topic: str, start: int, limit: int) -> dict[str, Any]:
    """Return the facts about a window, their verdict, the outcome of every rule, and the stored verdict.

    Lists have at most `limit` entries; `more` counts the entries left out.
    """
    here = (WindowRow.topic == topic, WindowRow.window == start)
    row = session.execute(_COLUMNS.where(*here)).one_or_none()
    facts = _facts(session, options, topic, start, row)
    judged = judge(facts)
    return {
        "topic": topic,
        "start": iso(start),
        "end": iso(facts.end),
        "asked_at": iso(options.clock_ms()),
        "counted_through": {tier: iso(time) for tier, time in sorted(heartbeats(session).items())},
        "verdict": judged.verdict,
        "is_final": judged.is_final,
        "stored": None if row is None else _stored(row, facts, judged),
        **explanation(facts, judged, limit),
    }


def _facts(session: Session, options: AuditOptions, topic: str, start: int, row: Any) -> WindowFacts:
    known = session.get(TopicRow, topic)
    if known is None:
        return WindowFacts(topic=topic, start=start, special=Special.UNKNOWN_TOPIC)
    if row is None and start < known.kept_from:
        return WindowFacts(topic=topic, start=start, special=Special.DELETED)
    progress = Progress(session)
    (of_topic,) = topic_facts(session, options, progress, [topic])
    if row is None:
        return of_topic.of_window(start, None)
    if row.judged is None and start > of_topic.now:
        return WindowFacts(topic=topic, start=start, special=Special.IN_THE_FUTURE)
    return read_facts(session, options, progress, of_topic, start, row.positions)


def _stored(row: Any, facts: WindowFacts, judged: Judged) -> dict[str, Any]:
    """Return the verdict in the database. `note` explains why it differs from the verdict on the facts."""
    note = ""
    if row.verdict != judged.verdict:
        if row.judged is None or row.is_changed:
            note = "new facts have arrived and are not judged yet"
        elif row.is_final:
            note = "it was final before some of these facts were known, and final verdicts stay"
        else:
            note = "the facts have changed since the last turn of judging, and the next turn judges them"
    return {
        "verdict": row.verdict,
        "is_final": row.is_final,
        "last_final": row.last_final,
        "revision": row.revision,
        "has_new_facts": row.is_changed,
        "note": note,
    }


def explanation(facts: WindowFacts, judged: Judged, limit: int) -> dict[str, Any]:
    """Return the facts, their differences, and the outcome of each rule in the order of the table."""
    case, write = Case(facts), _Writer(limit)
    rules = RULES if facts.special is None else SPECIAL_RULES
    different = {each.finding.instance for each in case.differences}
    listed = sorted(facts.sources, key=lambda source: source.instance.instance not in different)
    shown = replace(facts, sources=listed)
    return {
        "facts": {name: write.value(getattr(shown, name), name) for name in _NAMES},
        "differences": write.value(case.differences, "differences"),
        "rules": [_outcome(rule, case, judged, write) for rule in rules],
        "more": write.more,
    }


def _outcome(rule: Rule, case: Case, judged: Judged, write: _Writer) -> dict[str, Any]:
    causes = [
        {"reason": cause.reason, "command": cause.command}
        for cause in judged.causes
        if cause.rule == rule.name
    ]
    return {
        "rule": rule.name,
        "verdict": "note" if rule.verdict is NOTE else rule.verdict,
        "when": rule.when,
        "fired": bool(causes),
        "facts": facts_read(rule, case),
        "causes": write.value(causes, f"causes of {rule.name}"),
        "runbook": rule.runbook,
    }


class _Watch:
    """Proxy of an object that records the names of the attributes that a rule reads."""

    def __init__(self, watched: Any, names: set[str]) -> None:
        self._watched, self._names = watched, names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._watched, name)


def facts_read(rule: Rule, case: Case) -> list[str]:
    """Return the names of the facts that a rule reads, which decide whether it has a hit."""
    names: set[str] = set()
    watched: Any = _Watch(case, names)
    watched.facts = _Watch(case.facts, names)
    for _ in rule.find(watched):
        pass
    names = {_COMPARED.get(name, name) for name in names}
    return [name for name in (*_NAMES, "differences") if name in names]


class _Writer:
    """Writer of facts as JSON with bounded lists.

    Fingerprints are text: numbers of JSON are exact only up to 2^53 in some languages.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.more: dict[str, int] = {}
        """List -> number of entries left out."""

    def value(self, value: Any, name: str) -> Any:
        if isinstance(value, Source):
            return self._source(value)
        if isinstance(value, Difference):
            return self._difference(value)
        if isinstance(value, Instance):
            ranges = self._ranges(value.missing_reports)
            return {**to_json(value), "missing_reports": ranges["ranges"], "name": value.name}
        if is_dataclass(value):
            return {each.name: self.value(getattr(value, each.name), each.name) for each in fields(value)}
        if name == "unkeyed":
            return self._unkeyed(value)
        if isinstance(value, Mapping):
            return {key: self.value(each, name) for key, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.value(each, "") for each in self._first(value, name)]
        return iso(value) if name in _TIMES else value

    def _unkeyed(self, unkeyed: Mapping[str, Mapping[str, Sequence[int]]]) -> Any:
        return {
            origin: {
                tier: {"messages": messages, "fingerprint": str(fingerprint)}
                for tier, (messages, fingerprint) in tiers.items()
            }
            for origin, tiers in unkeyed.items()
        }

    def _first(self, values: Sequence[Any], name: str) -> Iterable[Any]:
        if name and len(values) > self._limit:
            self.more[name] = len(values) - self._limit
        return values[: self._limit]

    def _source(self, source: Source) -> dict[str, Any]:
        reported = source.reported
        return {
            "instance": self.value(source.instance, ""),
            "reported": {
                "acknowledged": self._flat(reported.acknowledged),
                "fingerprint": str(reported.fingerprint),
                "failed": self._flat(reported.failed),
                "failed_fingerprint": str(reported.failed_fingerprint),
                "fingerprinted": reported.fingerprinted,
            },
            "observed": {
                tier: {**self._flat(held.ranges), "fingerprint": str(held.fingerprint)}
                for tier, held in source.observed.items()
            },
            "aborted": self._flat(source.aborted),
        }

    def _difference(self, difference: Difference) -> dict[str, Any]:
        finding = difference.finding
        return {
            "home": difference.home,
            "kind": finding.kind,
            "tier": finding.tier,
            "server": finding.server,
            "service": finding.service,
            "instance": finding.instance,
            "count": finding.count,
            **self._ranges(finding.sequences),
            "gap": None if difference.gap is None else self.value(difference.gap, ""),
            "is_given_up": difference.is_given_up,
        }

    def _flat(self, flat: Sequence[int]) -> dict[str, Any]:
        return {"sequences": size(flat), **self._ranges(pairs(flat[: 2 * self._limit]), len(flat) // 2)}

    def _ranges(self, ranges: Sequence[Sequence[int]], count: int | None = None) -> dict[str, Any]:
        """Write ranges as [first, last]; `more_ranges` counts the ranges left out."""
        more = (len(ranges) if count is None else count) - self._limit
        listed = [[*pair] for pair in ranges[: self._limit]]
        return {"ranges": listed, **({"more_ranges": more} if more > 0 else {})}
