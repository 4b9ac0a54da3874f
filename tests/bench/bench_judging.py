"""CPU time of judging when little changes: many settled windows, and windows that wait behind a mirror.

    python -m tests.bench.bench_judging [--topics 200] [--days 30] [--windows 1728] [--rounds 9] [--page]

A round applies the newest heartbeats, five seconds after the previous ones, and judges. Only CPU time of this
process counts: SQLite runs in it, PostgreSQL does not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from sqlalchemy import delete, func, insert, literal, select, update

from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import (
    AuditStore,
    CheckpointRow,
    ProducerRow,
    ProducerTopicRow,
    TierRow,
    WindowRow,
)
from millrace_audit.reports.counts import WINDOW_MS
from tests import postgres
from tests.bench import bench_console
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.unit.audit.story import Story, W, found

NOW = bench_console.END
BEAT_MS = 5000
PRODUCERS = 50
DAY = 144
TEXT = """# Judging

- Run: `python -m tests.bench.bench_judging`, {day}; other processes used {busy:.0%} of all cores
- Machine: {machine}

CPU time of one round: new heartbeats are applied, and all windows that they can change are judged.
{rounds} rounds. *Settled*: {topics} topics with {days} days of windows, of which the two newest wait;
heartbeats of three tiers. *Behind a mirror*: {windows:,} windows that no mirror has copied, {producers}
producers; a heartbeat of their origin. PostgreSQL's own processes are not measured.

| situation | database | level, s | CPU, s, median | least to most |
|---|---|---:|---:|---:|
{rows}
"""


class _Clock:
    """The auditor's clock."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def settled(store: AuditStore, topics: int, days: int, rounds: int) -> list[float]:
    """Measure rounds with many settled windows and two waiting windows of each topic."""
    clock = _Clock(NOW)
    story = Story(store, AuditOptions(origins=("dc1", "dc2"), clock_ms=clock))
    names = [f"Topic{number:03}" for number in range(topics)]
    bench_console.fill(store, names, 1)
    columns = [column for column in WindowRow.__table__.columns if column.name != "window"]
    into = ["window", *(column.name for column in columns)]
    with store.writing() as session:
        for day in range(1, days):
            before = select(WindowRow.window - literal(day * DAY * WINDOW_MS), *columns)
            copied = before.where(WindowRow.window >= NOW - DAY * WINDOW_MS)
            session.execute(insert(WindowRow).from_select(into, copied))
        newest = update(WindowRow).where(WindowRow.window >= NOW - 2 * WINDOW_MS)
        at = {"reported": {"dc1": 1}, "counted": {"dc1": 1}, "origins": {"dc1": 1}}
        session.execute(newest.values(is_final=False, evidence=b"", positions=at))
        for n in range(PRODUCERS):
            row = ProducerRow(origin="dc1", instance=n + 1, names=f"{n}", server=f"web-{n}", service="shop")
            row.announced, row.heard_at, row.closed_through, row.counted = True, NOW, NOW, True
            session.add(row)
            session.flush()
            links = [{"topic": topic, "producer": row.producer} for topic in names[n % 10 :: 10]]
            session.execute(insert(ProducerTopicRow), links)
        session.execute(delete(CheckpointRow))
        session.execute(update(TierRow).values(kept=NOW))
    tiers = ("dc1", "dc2", "offline")
    for at_time in range(NOW - 3_600_000, NOW, BEAT_MS):
        _beat(story, clock, at_time, tiers)
    return [_round(story, clock, tiers) for _ in range(rounds + 1)][1:]


def behind_a_mirror(store: AuditStore, windows: int, rounds: int) -> list[float]:
    """Measure rounds with windows that are counted at their origin but not at the aggregate cluster."""
    clock = _Clock(W)
    story = Story(store, AuditOptions(origins=("dc1",), clock_ms=clock))
    for producer in range(1, PRODUCERS + 1):
        story.hello(producer, time=W)
    story.count("dc1", found((0, 9)))
    story.count("offline", found((0, 9)))
    _beat(story, clock, W, ("dc1", "offline"))
    numbers = dict.fromkeys(range(1, PRODUCERS + 1), 0)
    for at in range(windows):
        window, producer = W + at * WINDOW_MS, at % PRODUCERS + 1
        events = (10 * at, 10 * at + 9)
        end = window + WINDOW_MS
        story.report(numbers[producer], events, instance=producer, window=window, time=end, closed=end)
        numbers[producer] += 1
        story.count("dc1", found(events, instance=producer, window=window))
        _beat(story, clock, end + 120_000, ("dc1",))
    for producer, number in numbers.items():
        story.report(number, instance=producer, closed=clock.now, time=clock.now)
    story.apply()
    took = [_round(story, clock, ("dc1",)) for _ in range(rounds + 1)][1:]
    with store.reading() as session:
        waiting = session.scalar(select(func.count()).where(~WindowRow.is_final)) or 0
    if waiting < windows:
        raise ValueError(f"{waiting} windows wait instead of {windows}")
    return took


def _beat(story: Story, clock: _Clock, now: int, tiers: Sequence[str]) -> None:
    clock.now = now
    for tier in tiers:
        story.beat(tier, now)


def _round(story: Story, clock: _Clock, tiers: Sequence[str]) -> float:
    _beat(story, clock, clock.now + BEAT_MS, tiers)
    began = time.process_time()
    story.apply()
    return time.process_time() - began


@contextmanager
def _databases() -> Iterator[dict[str, tuple[str, str]]]:
    """Yield, for each kind of database, its name -> URLs of two empty databases."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = {"SQLite": (f"sqlite:///{folder}/1.db", f"sqlite:///{folder}/2.db")}
        if postgres.installed():
            one, two = (stack.enter_context(postgres.postgresql()) for _ in range(2))
            found["PostgreSQL"] = one, two
        yield found


def main() -> None:
    """Measure, then print the table or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--windows", type=int, default=1728)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    given = parser.parse_args()
    busy, rows = busy_share(), []
    with _databases() as databases:
        for name, (one, two) in databases.items():
            with closing(AuditStore(one)) as store:
                took = behind_a_mirror(store, given.windows, given.rounds)
            rows.append(_row("behind a mirror", name, 0.05, took))
            with closing(AuditStore(two)) as store:
                took = settled(store, given.topics, given.days, given.rounds)
            rows.append(_row("settled", name, 0.1, took))
    text = TEXT.format(
        day=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        busy=busy,
        machine=in_words(machine()),
        rows="\n".join(rows),
        producers=PRODUCERS,
        **vars(given),
    )
    print(text)
    if given.page:
        write_half(PAGE, "judging", text)


def _row(what: str, database: str, target: float, took: Sequence[float]) -> str:
    figures = f"{statistics.median(took):.3f} | {min(took):.3f} to {max(took):.3f}"
    return f"| {what} | {database} | {target} | {figures} |"


if __name__ == "__main__":
    main()
