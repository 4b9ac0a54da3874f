"""Facts about one ten-minute window of a topic: all inputs of its verdict, as plain values.

`judging/topic_facts.py` reads the facts from the database, `reconcile.py` compares sources tier by tier,
`rules.py` judges. A fact is something that was reported or observed, a number computed from that, or
something that is known to be lost. Its comparison with a limit is the rule's.

To add a fact, add a field to `WindowFacts` and read it in one of two places:

- `TopicFacts.of_window`, for every window, with or without events. The value is part of the digest, and a
  changed digest has the window judged again. So a value that changes with time alone, as a watermark does,
  is no fact; the count of a past day is one.
- `_TopicJudge._with_evidence` in `judging/judge.py`, for a fact that takes a query for each window. It is
  read only when the window is judged, after new evidence or with another digest, and never for windows
  without events.

Windows are judged in any order, usually the newest first. So a fact never comes from another window's
verdict (`verdict`, `is_final`, `judged`), only from its evidence. A final window is judged again only after
new evidence of its own, or when it is marked as changed, as by `_doubt_table`: whatever else changes its
facts must mark it.

    origin         cluster that producers send to; an event's home is the origin where it was acknowledged
    tier           place that holds events: a home, `offline`, `warehouse`, or the published `table`
    source         one producer instance at one origin: what it reported, and what each tier holds of it
    unkeyed        without a whole audit header, so compared by number alone
    leg            way of one origin's events into one tier, in exactly one state
    checkpoint     heartbeat of a reader that is kept: everything that was visible at its time is counted
    watermark      time up to which a reader has counted its tier: its newest checkpoint
    closed         when every origin's watermark is past the end of the window plus the grace for clocks
    debt           producer that has not closed the window: it may report more
    gap            knowledge that is lost for good; a late gap began after the window closed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from millrace_audit.answer import DOWNSTREAM, Instance
from millrace_audit.auditor.verdict.evidence import Observed, Reported
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING, TABLE, WAREHOUSE


class Special(StrEnum):
    """Case in which no other fact about a window matters."""

    UNKNOWN_TOPIC = "unknown topic"
    DELETED = "deleted"
    BEING_JUDGED = "being judged"
    IN_THE_FUTURE = "in the future"


class ReaderState(StrEnum):
    """State of a tier's reader, by the auditor's clock."""

    CURRENT = "current"
    STALE = "stale"
    """The watermark is more than a minute old."""
    NEVER_SEEN = "never seen"


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader that the window waits for."""

    tier: str
    state: ReaderState
    watermark: int = NOTHING
    """Watermark of a stale reader; one that moves is no fact about the window."""


class StreamState(StrEnum):
    """State of an origin's reports that are not applied up to the close of the window."""

    APPLYING = "applying"
    STUCK = "stuck"
    """More than a minute behind the origin's reader."""


@dataclass(frozen=True, slots=True)
class ReportStream:
    """Reports from one origin, which the auditor reads from the origin's mirrored `audit` topic."""

    origin: str
    state: StreamState
    applied_through: int = NOTHING
    """Time through which the reports of a stuck stream are applied."""


class LegState(StrEnum):
    """State of a tier's reading of one origin's events of the window."""

    READ = "read"
    """Everything that the tier will receive is counted: what it lacks, it lacks for good."""
    OPEN = "open"
    """The reader's watermark is before the close of the window."""
    NOT_COUNTED = "not counted"
    """The watermark is past the close, but not past the newest report or count of the window."""
    TOPIC_NOT_COUNTED = "topic not counted"
    ORIGIN_NOT_CONFIGURED = "origin not configured"
    UPSTREAM_BLOCKED = "upstream blocked"
    """The home cannot be read any further: what the tier should hold is unknown."""
    BLOCKED = "blocked"
    """The tier itself cannot be read any further."""
    NOT_MIRRORED = "not mirrored"
    """The aggregate cluster holds nothing of the topic from the origin."""
    IN_FLIGHT = "in flight"
    """Counted at the home, and not yet at the aggregate cluster."""
    NOT_LOADED = "not loaded"
    """In the aggregate cluster, and in no counted load."""
    NOT_REACHED = "not reached"
    """The tier before has not read the window, or the table is older than the loads."""


@dataclass(frozen=True, slots=True)
class Leg:
    """Way of one origin's events into one tier; a home's own leg has the home as its tier.

    The warehouse and the table do not know a row's origin: their legs have an empty one.
    """

    origin: str
    tier: str
    state: LegState
    is_surplus_final: bool = False
    """The tier before has counted past everything that this tier holds: more here is a surplus for good."""


class DebtState(StrEnum):
    """State of a producer that has not closed the window."""

    OPEN = "open"
    """More reports may come: the newest one is younger than the patience."""
    SILENT = "silent"
    REPORT_MISSING = "report missing"


@dataclass(frozen=True, slots=True)
class Debt:
    """Producer that has not closed the window."""

    instance: Instance
    state: DebtState


@dataclass(slots=True)
class Source:
    """Producer instance at one origin: its reports, and what each tier holds of its events."""

    instance: Instance
    reported: Reported = field(default_factory=Reported)
    observed: dict[str, Observed] = field(default_factory=dict)
    aborted: Sequence[int] = ()
    """Flat ranges of its events in aborted transactions at the home."""

    @property
    def home(self) -> str:
        return self.instance.cluster


class GapKind(StrEnum):
    """Cause for which something will never be known."""

    REPORTS_LOST = "reports lost"
    TOO_MANY_PRODUCERS = "too many producers"
    MESSAGES_NOT_COUNTED = "messages not counted"
    COUNTS_LOST = "counts lost"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Knowledge about the events of [since, until) that is lost for good."""

    kind: GapKind
    tier: str = ""
    """Tier whose counts have the hole; empty when reports have it."""
    origin: str = ""
    """Origin whose reports have the hole."""
    since: int
    until: int
    is_of_all: bool = False
    """True if the gap concerns windows without events, too."""
    serial: int = NOTHING
    """Number of the tier's record that first named the gap."""
    partition: int = 0
    start: int = 0
    """First offset that is not counted."""
    end: int = 0
    cause: str = ""
    is_late: bool = False
    """True if the gap began after the window closed: only events that came late can be in it."""
    hides_missing: bool = False
    """A late gap in which events may lie that seem to be missing."""
    recounted_after: int = FOR_EVER
    """Number of the record after which the offsets are counted again: their log was cut back."""
    is_recounted: bool = False
    """True if the tier counted events of the window after its log was cut back, perhaps for a second time."""

    @property
    def is_ongoing(self) -> bool:
        return self.until == FOR_EVER

    def is_after(self, serial: int) -> bool:
        """True if these lost counts were written after the record at log position `serial`."""
        # Records of a log that was cut back had been applied from `start` on.
        return serial < self.serial + self.end - self.start


@dataclass(frozen=True, slots=True)
class Rejected:
    """Messages that a load set aside because it could not decode them."""

    load: int
    messages: int
    keyed: int
    """Messages among them that have an audit header."""
    reason: str
    accepted: str | None
    """Operator's reason for giving them up; None if no operator does."""
    is_span: bool = False
    """Their windows are not known: they are of this one or of others around it."""

    @property
    def is_accepted(self) -> bool:
        return self.accepted is not None


@dataclass(frozen=True, slots=True)
class LostLoad:
    """Load that was counted and that the warehouse has no longer."""

    load: int
    rows: int | None
    """Rows of the load in the hour; None when the hours of the load are not known."""
    newest: int
    """Newest load in the warehouse."""

    @property
    def is_hour_known(self) -> bool:
        return self.rows is not None


@dataclass(frozen=True, slots=True)
class UncountedRows:
    """Rows without a header, perhaps of the window, whose files were deleted before they were counted."""

    load: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableTrouble:
    """Cause for which a published table cannot be counted."""

    since: int
    why: str


@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """Line of `millrace verify`."""

    text: str
    is_of_topic: bool
    """True if it concerns no particular hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """Everything that is known of [start, start + 10 minutes) of a topic."""

    topic: str
    start: int
    special: Special | None = None
    is_announced: bool = True
    """True if an audited producer has announced the topic."""
    is_counted: bool = True
    """True if a reader counts the topic, or has counted events of the window."""
    has_events: bool = True
    origins: Sequence[str] = ()
    """Configured origins."""
    readers: Sequence[Reader] = ()
    """Readers that the window waits for."""
    streams: Sequence[ReportStream] = ()
    debts: Sequence[Debt] = ()
    """Debts that hold the window open the longest."""
    more_debts: Mapping[DebtState, int] = field(default_factory=dict)
    accepted: Sequence[Instance] = ()
    """Producers in debt that an operator has accepted."""
    more_accepted: int = 0
    gaps: Sequence[Gap] = ()
    legs: Sequence[Leg] = ()
    read_at: Mapping[str, int] = field(default_factory=dict)
    """Tier -> time of the checkpoint by which it had read the window."""
    pending_reports: Sequence[str] = ()
    """Origins where reports from before that checkpoint are not applied: producers may be new in them."""
    problems: Sequence[VerifyProblem] = ()
    lost_loads: Sequence[LostLoad] = ()
    has_other_editions: bool = False
    """The warehouse has other editions of the hour's loads than were counted."""
    table_troubles: Sequence[TableTrouble] = ()
    """At most one, of a published hour."""
    lost_reports: Sequence[Gap] = ()
    """At most one: the newest loss of records of the warehouse's reader since it counted the hour's table."""
    are_unkeyed_rows_known: bool = True
    """Loads have reported all the window's rows without a header."""
    rejected: Sequence[Rejected] = ()

    # Evidence of the window itself, read when it is judged.
    has_too_many_ranges: bool = False
    sources: Sequence[Source] = ()
    unkeyed: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """Origin -> cluster -> [messages, fingerprint] of the messages without a header."""
    unkeyed_rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """`warehouse` -> [all, of these in an hour's partition], `table` -> [those in an hour's partition]."""
    erased: int = 0
    """Rows without a header that were erased from the hour, or from no hour."""
    uncounted: Sequence[UncountedRows] = ()

    @property
    def end(self) -> int:
        return self.start + WINDOW_MS

    @property
    def holds_events(self) -> bool:
        """True if some tier holds an event of the window that a consumer sees."""
        return any(source.observed for source in self.sources) or bool(self.unkeyed or self.unkeyed_rows)

    @property
    def hour(self) -> int:
        return self.start - self.start % HOUR_MS

    def leg(self, origin: str, tier: str) -> Leg:
        """Return the leg of an origin into a tier; NOT_REACHED if nothing is known about the leg."""
        origin = "" if tier in (WAREHOUSE, TABLE) else origin
        found = (leg for leg in self.legs if leg.tier == tier and leg.origin == origin)
        return next(found, None) or Leg(origin, tier, LegState.NOT_REACHED)

    def has_read(self, origin: str, tier: str) -> bool:
        return self.leg(origin, tier).state == LegState.READ

    @property
    def is_table_compared(self) -> bool:
        """The published table holds everything that was loaded."""
        return self.has_read("", TABLE)

    @property
    def tiers_behind(self) -> tuple[str, ...]:
        """Tiers after the home, in the order in which events reach them."""
        return (*DOWNSTREAM, TABLE) if self.is_table_compared else DOWNSTREAM
