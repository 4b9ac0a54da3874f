"""Costs of the auditor: records applied a second, bytes a window, and the time of a long answer.

    python -m tests.bench.bench_auditor [--instances 200] [--reports 150] [--topics 3] [--step-s 10]

Each instance reports its topics every few seconds of event time, and each tier counts them; everything is
decoded and applied to a new SQLite file in batches as a fetch brings them, then judged, folded and asked.
"""

from __future__ import annotations

import argparse
import math
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from millrace_audit.auditor.expiry import expire
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.ledger import Entry, Place
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import AuditStore, WindowRow
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    AuditCodec,
    AuditRecord,
    Count,
    Heartbeat,
    Hello,
    HourRows,
    LoadCount,
    LoadEnd,
    LoadNumber,
    Origin,
    Report,
    ReportedWindow,
)
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.seals import seal_of
from tests.unit.audit.test_messages import Ids

START = 1_431_856_800_000
EVENTS = 50
BATCH = 4000


def key(instance: int, number: int) -> bytes:
    return f"{instance}/{number}".encode().ljust(16)[:16]


def said(instances: int, reports: int, topics: list[str], step_ms: int) -> Iterator[AuditRecord]:
    who: dict[str, Any] = {"cluster": "dc1", "service": "shop"}
    for i in range(instances):
        for topic in topics:
            seal = seal_of(key(i, 0))
            yield Hello(
                time=START,
                server=f"web-{i}",
                instance=i + 1,
                topic=topic,
                closed_through=NOTHING,
                seal=seal,
                **who,
            )
    for number in range(reports):
        now = START + number * step_ms
        for i in range(instances):
            window = now - now % WINDOW_MS
            ranges = SequenceRanges([(number * EVENTS, (number + 1) * EVENTS - 1)])
            windows = [ReportedWindow(t, window, ranges, SequenceRanges(), number * 7919 + i) for t in topics]
            closed = FOR_EVER if number == reports - 1 else window
            yield Report(
                time=now,
                server=f"web-{i}",
                instance=i + 1,
                number=number,
                key=key(i, number),
                seal=seal_of(key(i, number + 1)),
                closed_through=closed,
                windows=windows,
                **who,
            )


def counted(
    tier: str, instances: int, reports: int, topics: list[str], step_ms: int
) -> Iterator[AuditRecord]:
    through = None if tier == "offline" else instances * (len(topics) + reports)  # the end of `said`
    for number in range(reports):
        now = START + number * step_ms
        for topic in topics:
            counts = SequenceCounts()
            for i in range(instances):
                first = number * EVENTS
                counts.add(
                    f"web-{i}",
                    "shop",
                    i + 1,
                    now - now % WINDOW_MS,
                    first,
                    first + EVENTS - 1,
                    number * 7919 + i,
                )
            origin = Origin("dc1", f"dc1{topic}", 0, number + 1) if tier == "offline" else None
            yield Count(
                time=now,
                tier=tier,
                topic=topic,
                topic_id=f"{tier}{topic}",
                partition=0,
                start=number,
                end=number + 1,
                origin=origin,
                counts=counts,
            )
        yield Heartbeat(time=now, tier=tier, number=number + 1, reported_through=through)
    end = START + reports * step_ms + WINDOW_MS
    for more in (1, 2):  # the second one says that all reports from before the first one are read
        at = end + more * WINDOW_MS
        yield Heartbeat(time=at, tier=tier, number=reports + more, reported_through=through)


def loads(records: list[AuditRecord]) -> Iterator[AuditRecord]:
    for record in records:
        if isinstance(record, Count):
            counts, rows = SequenceCounts(), Counter[int]()
            for at, tally in record.counts.tallies.items():
                rows[at.window - at.window % HOUR_MS] += tally.total
                for first, last in tally.ranges():
                    counts.add(at.server, at.service, at.instance, at.window, first, last)
            yield LoadCount(
                time=record.time,
                topic=record.topic,
                source=LoadNumber(record.end),
                counts=counts,
                ends=[LoadEnd(record.topic_id, 0, record.end)],
                hours=[HourRows(hour, count) for hour, count in rows.items()],
                unkeyed=[],
            )


def entries_of(record: AuditRecord) -> int:
    if isinstance(record, Report):
        return len(record.windows)
    return len(record.counts.tallies) if isinstance(record, Count | LoadCount) else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--reports", type=int, default=150)
    parser.add_argument("--step-s", type=int, default=10)
    parser.add_argument("--topics", type=int, default=3)
    given = parser.parse_args()
    topics = [f"Topic{n}" for n in range(given.topics)]
    end = START + given.reports * given.step_s * 1000
    options = AuditOptions(origins=("dc1",), clock_ms=lambda: end + 3 * WINDOW_MS)
    size = given.instances, given.reports, topics, given.step_s * 1000
    offline = list(counted("offline", *size))
    codec = AuditCodec(Ids())
    streams = {
        Place("audit", "a", 0, "dc1", (Hello, Report)): list(said(*size)),
        Place("audit-counts", "c", 0, "dc1", (Count, Heartbeat)): list(counted("dc1", *size)),
        Place("audit-offline", "o", 0, "offline", (Count, Heartbeat, LoadCount)): [*offline, *loads(offline)],
    }
    with tempfile.TemporaryDirectory() as folder:
        store = AuditStore(f"sqlite:///{folder}/audit.db")
        for place, records in streams.items():
            values = [codec.encode(record) for record in records]
            entries = sum(map(entries_of, records))
            began, wall = time.process_time(), time.monotonic()
            batch = BATCH if Hello in place.takes else 50
            for index in range(0, len(values), batch):
                heard = [
                    Entry(codec.decode(value), index + n, value, index + n + 1, 1, codec.kind(value))
                    for n, value in enumerate(values[index : index + batch])
                ]
                with store.writing() as session:
                    ledger.apply(session, place, heard, options.clock_ms())
            cpu, wall = time.process_time() - began, time.monotonic() - wall
            rates = f"{len(values) / cpu:,.0f} records and {entries / cpu:,.0f} entries a second of CPU"
            print(f"{place.topic}: {len(values):,} records, {entries:,} entries: {rates}; {wall:.1f} s")
        began = time.process_time()
        judged = Judging(store, options).turn(math.inf)
        cpu = time.process_time() - began
        print(f"judged {judged:,} windows of {given.instances} instances in {cpu:.2f} s of CPU")
        began = time.process_time()
        Judging(store, options).turn(math.inf)
        print(f"judged again: {time.process_time() - began:.3f} s")
        before = sum(file.stat().st_size for file in Path(folder).iterdir())
        later = replace(options, clock_ms=lambda: options.clock_ms() + 30 * 3_600_000)
        with store.writing() as session:
            expire(session, later)
        with store.reading() as session:
            count, packed = session.execute(
                select(func.count(), func.sum(func.length(WindowRow.evidence)))
            ).one()
        store.close()
        with closing(sqlite3.connect(f"{folder}/audit.db")) as database:
            database.execute("VACUUM")
        after = Path(folder, "audit.db").stat().st_size
        store = AuditStore(f"sqlite:///{folder}/audit.db")
        sizes = f"{packed / count:,.0f} bytes of evidence a window, {after / count:,.0f} in all"
        print(f"{before / 1e6:.1f} MB while it changes, {after / 1e6:.1f} MB folded: {sizes}")
        began = time.monotonic()
        with store.reading() as session:
            answer = answers.completeness(session, options, topics[0], START, START + 1000 * WINDOW_MS)
        took = time.monotonic() - began
        print(f"an answer of 1,000 windows: {took:.2f} s, the first one is {answer.windows[0].verdict}")
        store.close()


if __name__ == "__main__":
    main()
