"""Positions of the audited partitions at every tier, and their lags behind the tier before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace_audit.auditor.records.progress import Progress, names_by_number
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE
from millrace_audit.reports.mirrors import NO_ID


@dataclass(slots=True)
class PartitionLine:
    """A partition at a tier: the offset up to which it is counted, and its lag behind its source."""

    topic: str
    tier: str
    partition: int
    end: int
    source: str = ""
    lag: int | None = None
    """Offsets of the source that this tier lacks; None if unknown."""


def partitions_of(progress: Progress) -> Iterator[PartitionLine]:
    """Yield every partition at every tier that counts it, with its lag behind its source."""
    rows = [row for row in progress.coverage if not row.gone]
    ends = {(row.tier, f"{row.topic_id}-{row.partition}"): row.end for row in rows}
    of_topic: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        of_topic[row.tier, row.topic].append(row)
    for row in rows:
        line = PartitionLine(row.topic, row.tier, row.partition, row.end)
        if row.origin is not None:
            cluster, name, at = row.origin
            line.source = f"{cluster}-{name.rpartition('-')[2]}"
            if name.startswith(NO_ID.hex):
                name = names_by_number(of_topic[cluster, row.topic]).get(name, name)
            there = ends.get((cluster, name))
            if there is not None and (at is not None or not there):  # no position before the first append
                line.lag = max(there - (at or 0), 0)
        elif row.tier == WAREHOUSE:
            there = ends.get((OFFLINE, f"{row.topic_id}-{row.partition}"))
            line.source, line.lag = OFFLINE, None if there is None else max(there - row.end, 0)
        yield line


@dataclass(frozen=True, slots=True)
class MirrorLine:
    """Mirrored partitions of an origin, all topics together."""

    origin: str
    partitions: int
    lag: int
    behind: int
    """Partitions that lag behind their origin."""
    unknown: int
    """Partitions with an unknown lag."""


def mirrors_of(partitions: Sequence[PartitionLine]) -> list[MirrorLine]:
    """Return the lag of each mirrored origin."""
    by_origin: defaultdict[str, list[PartitionLine]] = defaultdict(list)
    for line in partitions:
        if line.tier == OFFLINE and line.source:
            by_origin[line.source.rpartition("-")[0]].append(line)
    return [
        MirrorLine(
            origin,
            len(lines),
            sum(line.lag or 0 for line in lines),
            sum(bool(line.lag) for line in lines),
            sum(line.lag is None for line in lines),
        )
        for origin, lines in sorted(by_origin.items())
    ]
