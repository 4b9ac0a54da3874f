"""The auditor's answers about topics, windows and instances, as values and as JSON.

The service writes the JSON and the client reads it. This module neither uses HTTP nor decides a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any

from millrace.config import parse_time
from millrace_audit.reports.messages import NOTHING, OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import in_words

DOWNSTREAM = (OFFLINE, WAREHOUSE)
"""The tiers after the cluster to which an event was produced, in the order in which the event reaches them.
For a published hour, TABLE follows."""
LAST_MS = 253_402_300_799_999
"""The last time that Python and ISO 8601 can write, in 9999. In answers, the window around this time ends at
it."""
_FIRST_MS = -62_135_596_800_000


class Verdict(StrEnum):
    """The five verdicts, the worst first. `unknown` and `pending` never prove anything."""

    INCOMPLETE = "incomplete"
    UNKNOWN = "unknown"
    PENDING = "pending"
    """Nothing is wrong so far, but the window is not over, or some messages are not read yet."""
    CARRIED = "carried"
    """All messages of the first cluster are at every tier, but their producers did not report all of them."""
    COMPLETE = "complete"


_WORST_FIRST = tuple(Verdict)


def overall(verdicts: Iterable[str]) -> Verdict:
    """Return the worst of several verdicts; `complete` for none."""
    return min(map(Verdict, verdicts), key=_WORST_FIRST.index, default=Verdict.COMPLETE)


def iso(time_ms: int) -> str:
    """Return the time in ISO 8601, UTC; `for ever` or `nothing` for a time that ISO 8601 cannot write."""
    if not _FIRST_MS <= time_ms <= LAST_MS:
        return "for ever" if time_ms > 0 else "nothing"
    return _text(utc(time_ms))


def utc(time_ms: int) -> datetime:
    """Return the time as a datetime, or the nearest time that a datetime can hold."""
    seconds, ms = divmod(min(max(time_ms, _FIRST_MS), LAST_MS), 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)


def epoch_ms(text: str, name: str) -> int:
    """Convert a time in ISO 8601 to ms since the epoch. Raise ConfigError if it is no time."""
    return (parse_time(text.strip(), name) - utc(0)) // timedelta(milliseconds=1)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Finding:
    """Sequences of one producer instance that are wrong at a tier, which is the first tier where they are
    wrong.

    `kind` is `missing`, `duplicate`, `unexpected` (counted, but neither reported nor in the tier before) or
    `altered` (the same sequences with other content). Messages without an audit header have no sequences,
    server "", service "messages without a header" and instance 0.
    """

    kind: str
    tier: str
    server: str
    service: str
    instance: int
    sequences: Sequence[Sequence[int]]
    """[first, last] ranges."""
    count: int
    command: str = ""
    """Next command for the operator."""

    @property
    def text(self) -> str:
        """The finding in words, as every command prints it."""
        who = f"server {self.server}, service {self.service}, instance {self.instance}"
        if not self.server and not self.service:
            who = f"instance {self.instance} (no hello)"
        what = f"{who}, sequences {in_words(self.sequences)}" if self.sequences else self.service
        return f"{self.count} {self.kind} at tier {self.tier}: {what}"


@dataclass(frozen=True, slots=True)
class Window:
    """The audit's knowledge of the event time [start, end), usually ten minutes."""

    start: datetime
    end: datetime
    verdict: str
    revision: int
    """Raised when something changes after the window's verdict was final."""
    acknowledged: int
    failed: int
    tiers: Mapping[str, int]
    """Number of messages counted at each tier, repeats included."""
    findings: Sequence[Finding]
    reasons: Sequence[str]
    """Causes of an unknown or pending verdict, and the silent instances that an operator has accepted."""
    carried: int = 0
    """Messages that no producer reported: counted from the first cluster on."""
    foreign: Mapping[str, int] = field(default_factory=dict)
    """Unreported messages without an audit header, at each tier."""
    rejected: int = 0
    """Messages that loads set aside because they could not decode them."""
    incidents: Sequence[str] = ()
    """Keys of the incidents that contain the window, worst first."""

    @property
    def causes(self) -> list[str]:
        """The findings in words, then the reasons, each once."""
        return list(dict.fromkeys([*(finding.text for finding in self.findings), *self.reasons]))


def _hours_to_json(hours: Mapping[str, Sequence[datetime]]) -> dict[str, list[str]]:
    return {topic: [*map(_text, some)] for topic, some in hours.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Windows that one cause keeps from being proven: a rule, and the object that the rule found."""

    key: str
    rule: str
    verdict: str
    what: str
    """Condition of the rule."""
    title: str
    """Reason of the newest affected window."""
    first_seen: datetime
    last_seen: datetime
    """Time of the answer for an open incident, of its resolution for a resolved one."""
    resolved: datetime | None
    """Time at which the last window lost the cause; None for an open incident."""
    duration_s: float
    topics: Sequence[str]
    first_hour: datetime
    last_hour: datetime
    hours: Mapping[str, Sequence[datetime]] = field(metadata={"write": _hours_to_json})
    """Topic -> affected hours; empty once resolved."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Topic -> number of events that are missing, repeated, unexpected or altered; empty once resolved."""
    services: Sequence[str]
    servers: Sequence[str]
    owner: str
    """Owners of the topics in the auditor's file of topics, separated by commas; empty for none."""
    command: str
    """Next command for the operator; empty if there is none."""
    runbook: str
    """Section of the documentation; empty for none."""
    acknowledged_by: str
    note: str

    @property
    def extent(self) -> str:
        """The affected hours in words."""
        hours = sum(map(len, self.hours.values()))
        topics = self.topics[0] if len(self.topics) == 1 else f"{len(self.topics)} topics"
        if self.resolved is not None:
            return f"resolved; {topics}"
        return f"{hours} {'hour' if hours == 1 else 'hours'} of {topics}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Incident:
        """Read the output of `to_json`. Raise KeyError, TypeError or ValueError for any other value."""
        times = {name: _time(value[name]) for name in ("first_seen", "last_seen", "resolved")}
        times |= {name: _time(value[name]) for name in ("first_hour", "last_hour")}
        hours = {topic: [*map(datetime.fromisoformat, some)] for topic, some in value["hours"].items()}
        return cls(**{**value, **times, "hours": hours})


@dataclass(frozen=True, slots=True)
class LoadHour:
    """Rows of one hour in the newest counted edition of a load.

    Only loads with rows in the hour have a LoadHour.
    """

    load: int
    edition: int
    sha256: str
    """SHA-256 of the edition's manifest."""
    rows: int
    """Rows with and without an audit header, as the warehouse's reader found them in the files."""
    rejected: int = 0
    """Messages of the hour that the edition set aside."""


@dataclass(frozen=True, slots=True)
class JudgedHour:
    """An hour and the loads whose rows decide the verdicts on its windows, in the order of their numbers."""

    start: datetime = field(metadata={"name": "hour"})
    loads: Sequence[LoadHour]


@dataclass(frozen=True, slots=True)
class NewestLoad:
    """The newest load of a topic that the auditor has counted."""

    load: int
    sha256: str
    """SHA-256 of its first edition's manifest."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Hours of a topic whose final verdict has changed since a cursor was issued."""

    cursor: str
    """Cursor to pass as `since` next time."""
    hours: Sequence[datetime]
    more: bool = False
    """True if this answer does not hold all the hours: ask again with the cursor."""

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Changes:
        """Read the output of `to_json`. Raise KeyError, TypeError or ValueError when it is something else."""
        hours = [datetime.fromisoformat(hour) for hour in answer["hours"]]
        return cls(str(answer["cursor"]), hours, bool(answer["more"]))


@dataclass(frozen=True, slots=True)
class Bad:
    """A window that is not complete, and its topic."""

    topic: str
    window: Window


@dataclass(frozen=True, slots=True)
class Completeness:
    """The verdict on [start, end): the verdict of its worst window."""

    topic: str
    start: datetime = field(metadata={"name": "from"})
    end: datetime = field(metadata={"name": "to"})
    verdict: str
    watermark: datetime | None
    """Time before which every window is complete or carried; None when the first window is not."""
    held_by: str | None = field(default=None, kw_only=True)
    """Reason why the watermark is not later."""
    foreign: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Messages without an audit header at each tier."""
    enough: str = field(default=Verdict.COMPLETE, kw_only=True)
    """Verdict that proves the topic, by the auditor's options: `complete` or `carried`."""
    owner: str = field(default="", kw_only=True)
    """Owner of the topic in the auditor's file of topics; empty for none."""
    applied_at: datetime | None = field(default=None, kw_only=True)
    """Time when the auditor last had applied every audit record; None if that has not happened yet."""
    newest_load: NewestLoad | None = field(default=None, kw_only=True)
    """The newest counted load of the topic; None while there is none."""
    hours: Sequence[JudgedHour] | None = field(default=None, kw_only=True)
    """Every requested hour, ascending; None from an auditor that is too old to list them."""
    live_through: datetime | None = field(default=None, kw_only=True)
    """Time before which every row that reached the warehouse is in branch `live` of the table, also if it is
    not proven; None if no such branch was reported."""
    windows: Sequence[Window]

    @property
    def proven(self) -> bool:
        """True if the verdict is the proof that the topic needs, or a better one."""
        return self.verdict in (Verdict.COMPLETE, self.enough)

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Completeness:
        """Read the output of `to_json`. Raise KeyError, TypeError or ValueError when it is something else."""
        topic, newest, hours = answer["topic"], answer.get("newest_load"), answer.get("hours")
        return cls(
            topic=topic,
            start=datetime.fromisoformat(answer["from"]),
            end=datetime.fromisoformat(answer["to"]),
            verdict=answer["verdict"],
            watermark=_time(answer["watermark"]),
            held_by=answer.get("held_by"),
            foreign=answer.get("foreign", {}),
            enough=answer.get("enough", Verdict.COMPLETE),
            owner=answer.get("owner", ""),
            applied_at=_time(answer.get("applied_at")),
            newest_load=None if newest is None else NewestLoad(**newest),
            hours=None if hours is None else [_hour_from_json(hour) for hour in hours],
            live_through=_time(answer.get("live_through")),
            windows=[window_from_json(window) for window in answer["windows"]],
        )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _hour_from_json(value: Mapping[str, Any]) -> JudgedHour:
    loads = [LoadHour(**load) for load in value["loads"]]
    return JudgedHour(datetime.fromisoformat(value["hour"]), loads)


def sender(server: str, service: str) -> str:
    """Return a producer's names in words. Only its hello has them if its events have record headers."""
    return f"{service} on {server}" if server or service else "no hello"


def window_from_json(value: Mapping[str, Any]) -> Window:
    times = {key: datetime.fromisoformat(value[key]) for key in ("start", "end")}
    findings = [Finding(**finding) for finding in value["findings"]]
    return Window(**{**value, **times, "findings": findings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A producer instance: its names, and the messages that the auditor has received from it."""

    instance: int
    server: str
    service: str
    cluster: str
    """Cluster to which the instance produces."""
    announced: bool = True
    """True if its hello has arrived. Without a hello the auditor does not know which events the instance
    sent."""
    heard_at: int = field(default=NOTHING, metadata={"write": iso})
    closed_through: int = field(default=NOTHING, metadata={"write": iso})
    missing_reports: Sequence[Sequence[int]] = ()
    first_report: int = 0
    """Number of the first report that was received: earlier reports are not known."""
    idle: bool = False
    """True if it has been silent since its hello for so long that no report is awaited."""
    accepted: str | None = None
    """Operator's reason for accepting the instance without its missing reports."""

    @property
    def disowned(self) -> bool:
        """True if its reports do not count: an operator accepted the instance, and it has no hello."""
        return self.accepted is not None and not self.announced

    @property
    def name(self) -> str:
        return f"instance {self.instance} ({sender(self.server, self.service)} in {self.cluster})"


@dataclass(frozen=True, slots=True)
class Topic:
    """The time up to which a topic is proven, and the instances that may still report on it."""

    topic: str
    watermark: datetime | None
    held_by: str | None
    instances: Sequence[Instance]
    owner: str
    """As in `Completeness`."""
    live_through: datetime | None
    """As in `Completeness`."""


def to_json(value: Any) -> Any:
    """Convert as `dataclasses.asdict` does, but without copies and with times as text."""
    if is_dataclass(value):
        written = {}
        for column in fields(value):
            write: Callable[[Any], Any] = column.metadata.get("write", to_json)
            written[column.metadata.get("name", column.name)] = write(getattr(value, column.name))
        return written
    if isinstance(value, datetime):
        return _text(value)
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def by_hour(windows: Iterable[Window]) -> list[Window]:
    """Return the windows of each hour as one: counts added, the worst verdict, the highest revision."""
    hours: dict[datetime, list[Window]] = {}
    for window in windows:
        hours.setdefault(window.start.replace(minute=0), []).append(window)
    return [_merged(start, parts) for start, parts in hours.items()]


def _merged(start: datetime, windows: Sequence[Window]) -> Window:
    tiers: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    for window in windows:
        tiers.update(window.tiers)
        foreign.update(window.foreign)
    worst_first = sorted(windows, key=lambda window: _WORST_FIRST.index(Verdict(window.verdict)))
    return Window(
        start=start,
        end=windows[-1].end,
        verdict=overall(window.verdict for window in windows),
        revision=max(window.revision for window in windows),
        acknowledged=sum(window.acknowledged for window in windows),
        failed=sum(window.failed for window in windows),
        tiers=tiers,
        findings=[*chain.from_iterable(window.findings for window in worst_first)],
        reasons=[*chain.from_iterable(window.reasons for window in worst_first)],
        carried=sum(window.carried for window in windows),
        foreign=foreign,
        rejected=sum(window.rejected for window in windows),
        incidents=[*dict.fromkeys(chain.from_iterable(window.incidents for window in worst_first))],
    )


def tiers_of(windows: Iterable[Window]) -> list[str]:
    """Return the tiers in the windows, in their order."""
    return in_order({tier for window in windows for tier in window.tiers})


def in_order(tiers: Collection[str]) -> list[str]:
    """Sort tiers: clusters by name, then the tiers after them in the order of DOWNSTREAM."""
    behind = (*DOWNSTREAM, TABLE)
    return [*sorted(set(tiers).difference(behind)), *(tier for tier in behind if tier in tiers)]
