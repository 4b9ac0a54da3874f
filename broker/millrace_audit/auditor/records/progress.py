"""Progress of the tiers' counts: checkpoints, partition positions, and conclusions from them without clocks.

A *checkpoint* is a heartbeat that is kept, one per five seconds of a tier's own time, after an hour
one per ten minutes. *Ends* are the positions of a topic's partitions at a checkpoint. The home has read a
window at the first checkpoint after the close, the newest report and the newest count of the window. Later
tiers have read the window when they reach the ends at that checkpoint. The tiers' order does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, delete, func, select
from sqlalchemy.orm import Session

from millrace_audit.auditor.store import (
    CheckpointRow,
    CoverageRow,
    EndsRow,
    TierRow,
    UnreadableRow,
    VerifiedRow,
)
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, WAREHOUSE
from millrace_audit.reports.mirrors import NO_ID

APART_MS = 5000
ALL_KEPT_MS = 3_600_000
Ends = Mapping[str, Sequence[Any]]
"""Partition -> [end] or [end, origin cluster, origin partition, origin end]."""


class Checkpoint(NamedTuple):
    """Checkpoint: a heartbeat that is kept."""

    serial: int
    time: int
    reported_through: int | None


def bucket(time: int) -> int:
    return time // WINDOW_MS


def name(row: Any) -> str:
    """Return the name of a partition in ends."""
    return f"{row.topic_id}-{row.partition}"


class Checkpoints(list[Checkpoint]):
    """Checkpoints of a tier, in the order of their log positions."""

    def __init__(self, checkpoints: Iterable[Checkpoint] = ()) -> None:
        super().__init__(checkpoints)
        self._serials = [checkpoint.serial for checkpoint in self]
        # Largest values up to each checkpoint: clocks may be set back.
        self._latest = [*accumulate((checkpoint.time for checkpoint in self), max)]
        self._through = [*accumulate((checkpoint.reported_through or 0 for checkpoint in self), max)]

    def first(
        self, time: int = NOTHING, reported_at: int = NOTHING, serial: int = NOTHING
    ) -> Checkpoint | None:
        """Return the first checkpoint after `serial`, with at least this time and `reported_through`."""
        begin = max(
            bisect_right(self._serials, serial),
            bisect_left(self._latest, time),
            bisect_left(self._through, reported_at),
        )
        for index in range(begin, len(self)):
            checkpoint = self[index]
            if checkpoint.time >= time and (checkpoint.reported_through or 0) >= reported_at:
                return checkpoint
        return None

    @property
    def restarted(self) -> bool:
        """True if the audit topic has become shorter: its log was lost, and a new log began."""
        through = self[-1].reported_through if self else None
        return through is not None and through < self._through[-1]

    def time_before(self, at: int) -> tuple[int, bool]:
        """Return the time of the newest checkpoint with an audit topic up to `at`; True if it is known."""
        if self and self[0].reported_through is None:
            return NOTHING, False
        index = bisect_right(self._through, at)
        return (self[index - 1].time if index else NOTHING), index < len(self)


def time_at(session: Session, row: CoverageRow, end: int) -> int:
    """Return the time of the newest checkpoint with a partition counted to at most `end`, or NOTHING."""
    ends_by_serial = select(EndsRow.serial, EndsRow.ends).where(
        EndsRow.tier == row.tier, EndsRow.topic == row.topic
    )
    before = FOR_EVER
    for serial, ends in session.execute(ends_by_serial.order_by(EndsRow.serial.desc())):
        if name(row) not in ends or ends[name(row)][0] <= end:
            kept = select(CheckpointRow.time).where(
                CheckpointRow.tier == row.tier, CheckpointRow.serial < before
            )
            time = session.scalar(kept.order_by(CheckpointRow.serial.desc()).limit(1))
            return NOTHING if time is None else time
        before = serial
    return NOTHING


def thin(session: Session, tier: str, before: int, now: int) -> None:
    """Keep one per ten minutes of the checkpoints that have become an hour old since `before`."""
    hour = ALL_KEPT_MS // WINDOW_MS
    checkpoints = (
        select(CheckpointRow.serial, CheckpointRow.time)
        .where(CheckpointRow.tier == tier)
        .order_by(CheckpointRow.serial)
    )
    # Group consecutive checkpoints only: a clock that was set back repeats the same minutes.
    for at, some in groupby(
        session.execute(checkpoints).all(), key=lambda checkpoint: bucket(checkpoint.time)
    ):
        if not bucket(before) - hour <= at < bucket(now) - hour:
            continue
        kept, *others = (serial for serial, _ in some)
        if not others:
            continue
        session.execute(
            delete(CheckpointRow).where(CheckpointRow.tier == tier, CheckpointRow.serial.in_(others))
        )
        # The next kept checkpoint uses the newest ends before it.
        _keep_newest_ends(session, EndsRow.tier == tier, EndsRow.serial > kept, EndsRow.serial <= others[-1])


def _keep_newest_ends(session: Session, *among: ColumnElement[bool]) -> None:
    newest = select(EndsRow.topic, func.max(EndsRow.serial)).where(*among).group_by(EndsRow.topic)
    for topic, last in session.execute(newest).all():
        session.execute(delete(EndsRow).where(*among, EndsRow.topic == topic, EndsRow.serial < last))


def forget(session: Session, before: int) -> None:
    """Delete the checkpoints before a time, and the ends that no later checkpoint needs."""
    for tier in session.scalars(select(TierRow.tier)).all():
        last = session.scalar(
            select(func.max(CheckpointRow.serial)).where(
                CheckpointRow.tier == tier, CheckpointRow.time < before
            )
        )
        if last is None:
            continue
        session.execute(delete(CheckpointRow).where(CheckpointRow.tier == tier, CheckpointRow.serial < last))
        _keep_newest_ends(session, EndsRow.tier == tier, EndsRow.serial <= last)


_COVERAGE = select(*CoverageRow.__table__.columns).order_by(
    CoverageRow.topic, CoverageRow.tier, CoverageRow.partition
)
# Built once, from tables instead of classes: building a query takes longer than executing it.
_CHECKPOINTS = select(*CheckpointRow.__table__.columns).order_by(CheckpointRow.tier, CheckpointRow.serial)
_ends = EndsRow.__table__.c
_ENDS = (
    select(_ends.serial, _ends.ends)
    .where(_ends.tier == bindparam("tier"), _ends.topic == bindparam("topic"))
    .order_by(_ends.serial)
)


class _Covered:
    """Coverage of a topic's partitions at a tier."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    @cached_property
    def counted_since(self) -> int | None:
        return min((row.counted_since for row in self.rows), default=None)

    @cached_property
    def names(self) -> Set[str]:
        """Names of the partitions that are not deleted."""
        return {name(row) for row in self.rows if not row.gone}

    @cached_property
    def copied_from(self) -> Set[str]:
        """Clusters of which the partitions are mirrors."""
        return {row.origin[0] for row in self.rows if row.origin}

    @cached_property
    def names_by_number(self) -> Mapping[str, str]:
        return names_by_number(self.rows)

    @cached_property
    def ends(self) -> Mapping[str, int]:
        return {name(row): row.end for row in self.rows}

    @cached_property
    def counted(self) -> Mapping[str, int]:
        """Partition -> end of the counted part; a deleted partition is counted in full."""
        return {name(row): FOR_EVER if row.gone else row.end for row in self.rows}


class Progress:
    """Progress of every tier, read once for many windows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        tiers = session.scalars(select(TierRow)).all()
        self.heartbeats = {row.tier: row.heartbeat for row in tiers}
        self._applied_through = {row.tier: row.applied_through for row in tiers}
        self.checkpoints: defaultdict[str, Checkpoints] = defaultdict(Checkpoints)
        for tier, rows in groupby(session.execute(_CHECKPOINTS), key=itemgetter(0)):
            self.checkpoints[tier] = Checkpoints(Checkpoint(*row[1:]) for row in rows)
        self.applied_times = {
            tier: next((each.time for each in reversed(checkpoints) if self.has_applied(tier, each)), NOTHING)
            for tier, checkpoints in self.checkpoints.items()
        }
        """Tier -> time of its newest checkpoint with all earlier reports of its producers applied."""
        self.coverage = session.execute(_COVERAGE).all()
        self._coverage: defaultdict[tuple[str, str], _Covered] = defaultdict(_Covered)
        for row in self.coverage:
            self._coverage[row.tier, row.topic].rows.append(row)
        self.unreadable: defaultdict[str, list[UnreadableRow]] = defaultdict(list)
        for bad in session.scalars(select(UnreadableRow)):
            self.unreadable[bad.topic].append(bad)
        self.verified: defaultdict[str, list[VerifiedRow]] = defaultdict(list)
        for problem in session.scalars(select(VerifiedRow).order_by(VerifiedRow.topic, VerifiedRow.number)):
            self.verified[problem.topic].append(problem)
        self._ends: dict[tuple[str, str], tuple[list[int], list[Ends]]] = {}
        self._mirrored: dict[tuple[str, str], Mapping[str, int]] = {}
        self._ahead_until: dict[tuple[str, str], int] = {}

    def _ends_of(self, tier: str, topic: str) -> tuple[list[int], list[Ends]]:
        if (tier, topic) not in self._ends:
            rows = self._session.execute(_ENDS, {"tier": tier, "topic": topic}).all()
            self._ends[tier, topic] = [row.serial for row in rows], [row.ends for row in rows]
        return self._ends[tier, topic]

    def has_applied(self, tier: str, checkpoint: Checkpoint) -> bool:
        """True if all reports that producers had sent before a checkpoint are applied."""
        # The next checkpoint's position in the audit topic was read after the counting.
        later = self.checkpoints[tier].first(serial=checkpoint.serial)
        applied = self._applied_through.get(tier, 0)
        if later is None or (later.reported_through or 0) > applied:
            return False
        # The applied reports may be those of the log before the new one.
        return not self.checkpoints[tier].restarted or applied <= (
            self.checkpoints[tier][-1].reported_through or 0
        )

    def ends_at(self, tier: str, topic: str, checkpoint: Checkpoint) -> Ends:
        """Return the topic's positions at a checkpoint, without partitions deleted since."""
        serials, ends = self._ends_of(tier, topic)
        index = bisect_right(serials, checkpoint.serial) - 1
        return self._there(tier, topic, ends[index]) if index >= 0 else {}

    def _there(self, tier: str, topic: str, ends: Ends) -> Ends:
        there = self._coverage[tier, topic].names
        if ends.keys() <= there:
            return ends
        return {partition: end for partition, end in ends.items() if partition in there}

    def counted_since(self, tier: str, topic: str) -> int | None:
        """Return the log position after which a tier's reader counts a topic; None if it does not."""
        return self._coverage[tier, topic].counted_since

    def is_mirrored(self, topic: str, origin: str, ends: Ends) -> bool:
        """True if the aggregate cluster is counted up to the given ends of an origin."""
        return _covers(self._mirrored_ends(topic, origin), ends)

    def _mirrored_ends(self, topic: str, origin: str) -> Mapping[str, int]:
        """Return origin partition -> next origin offset after the counted part of its copy."""
        if (topic, origin) not in self._mirrored:
            rows = self._coverage[OFFLINE, topic].rows
            ends = [[row.end, *(row.origin or ())] for row in rows if not row.gone]
            self._mirrored[topic, origin] = self._origin_ends(topic, ends, origin)
        return self._mirrored[topic, origin]

    def _origin_ends(self, topic: str, ends: Any, origin: str) -> dict[str, int]:
        """Return origin partition -> next origin offset, for the partitions that are mirrored."""
        names = self._coverage[origin, topic].names_by_number
        return {
            names.get(end[2], end[2]): end[3]
            for end in ends
            if len(end) > 1 and end[1] == origin and end[3] is not None
        }

    def first_mirrored(
        self, topic: str, needed: Mapping[str, Ends], serial: int
    ) -> tuple[Checkpoint, Ends] | None:
        """Return the first checkpoint of `offline` after `serial` that covers `needed`, and its ends."""
        checkpoints = self.checkpoints[OFFLINE]
        serials, ends_by_serial = self._ends_of(OFFLINE, topic)
        first = checkpoints.first(serial=serial)
        if first is None:
            return None
        for index in range(max(bisect_right(serials, first.serial) - 1, 0), len(serials)):
            if all(
                _covers(self._origin_ends(topic, ends_by_serial[index].values(), o), ends)
                for o, ends in needed.items()
            ):
                checkpoint = checkpoints.first(serial=max(serials[index], first.serial) - 1)
                if checkpoint is None:
                    return None
                return checkpoint, self._there(OFFLINE, topic, ends_by_serial[index])
        return None

    def is_loaded(self, topic: str, ends: Ends) -> bool:
        """True if counted loads contain everything before the given ends of the aggregate cluster."""
        loaded = self._coverage[WAREHOUSE, topic].ends
        return bool(loaded) and _covers(loaded, ends)

    def is_ahead(self, topic: str, origin: str, serial: int) -> bool:
        """True if the origin's reader has counted all events of the copies that were counted by `serial`."""
        if (topic, origin) not in self._ahead_until:
            counted = self._coverage[origin, topic].counted
            ends = {key: [end] for key, end in self._mirrored_ends(topic, origin).items()}
            unplaced = [  # positions of the first copies whose origin offset is not known yet
                row.unplaced
                for row in self._coverage[OFFLINE, topic].rows
                if row.origin and row.origin[0] == origin and not row.gone
            ]
            until = min(unplaced, default=FOR_EVER) if _covers(counted, ends) else NOTHING
            self._ahead_until[topic, origin] = until
        return serial < self._ahead_until[topic, origin]

    def is_ahead_of_loads(self, topic: str) -> bool:
        loaded = {key: [end] for key, end in self._coverage[WAREHOUSE, topic].ends.items()}
        return _covers(self._coverage[OFFLINE, topic].counted, loaded)

    def holds_mirror(self, topic: str, origin: str) -> bool:
        return origin in self._coverage[OFFLINE, topic].copied_from


def names_by_number(rows: Iterable[Any]) -> dict[str, str]:
    """Return partition name without topic id, as some copies give it -> name, for a topic at an origin."""
    return {f"{NO_ID.hex}-{row.partition}": name(row) for row in rows if not row.gone}


def _covers(have: Mapping[str, int], needed: Ends) -> bool:
    return all(have.get(partition, -1) >= end[0] for partition, end in needed.items())
