"""Answer times of the console with 216,000 windows: 50 topics, 30 days, a window every ten minutes.

    python -m tests.bench.bench_console [--topics 50] [--days 30] [--page]

Says for each span how long the service took to answer, the best and the worst of ten, its CPU time and how
many bytes: after a change of the database, also without the rows of earlier pages, and without a change.
`--page` puts that into docs/benchmarks.md. Then how long a Chromium took, where it and playwright are
installed, from the question until the page was painted.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import random
import shutil
import socket
import tempfile
import threading
import time
from statistics import median

import httpx
import uvicorn
from sqlalchemy import insert

from millrace_audit.answer import to_json
from millrace_audit.auditor.judging.judge import window_of
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.service import charts
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.service.overview import hour_cells, strip
from millrace_audit.auditor.store import (
    AuditStore,
    CheckpointRow,
    CoverageRow,
    LoadRow,
    TierRow,
    TopicRow,
    WindowRow,
)
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.auditor.verdict.rules import judge
from millrace_audit.reports.counts import WINDOW_MS
from tests.bench.halves import PAGE, write_half
from tests.bench.machine import busy_share, in_words, machine
from tests.unit.audit.test_app import Worker

END = 1_431_907_200_000
EVIDENCE = random.Random(1).randbytes(1500)
"""As large as that of a window of 200 instances, folded."""
ROUNDS = 10
TEXT = """# The auditor's page

- Run: `python -m tests.bench.bench_console`, {day}; other processes used {busy:.0%} of all cores
- Machine: {machine}

{topics} topics, {windows:,} windows of ten minutes, SQLite. Each span is requested ten times after a write to
the database, ten times after a write and without the rows that earlier pages left in memory (*cold*), and ten
times without a change. The level is 100 ms of CPU and, on a quiet machine, 300 ms until the answer. The CPU
time is of one process with the auditor and its client.

| span | CPU, ms, median | answered in, ms | CPU cold, ms, median | CPU without a change, ms, median | bytes |
|---|---:|---:|---:|---:|---:|
{rows}
"""


def fill(store: AuditStore, topics: list[str], days: int) -> None:
    """Mostly complete; one window in a hundred has one of the other verdicts."""
    dice = random.Random(7)
    verdicts = ["incomplete", "unknown", "pending", "carried"]
    facts = WindowFacts(topic="", start=END)
    judged = to_json(window_of(facts, judge(facts)))
    with store.writing() as session:
        for tier in ("dc1", "dc2", "offline"):
            session.add(TierRow(tier=tier, heartbeat=END, applied_through=1))
            session.add(CheckpointRow(tier=tier, serial=1, time=END - 60_000, reported_through=1))
            session.add(CheckpointRow(tier=tier, serial=2, time=END, reported_through=1))
        for topic in topics:
            session.add(TopicRow(topic=topic))
            for tier, cluster in (("dc1", None), ("dc2", None), ("offline", "dc1"), ("warehouse", None)):
                for partition in range(8):
                    at = "offline" if tier == "warehouse" else tier
                    origin = [cluster, f"{cluster}{topic}-{partition}", 999] if cluster else None
                    row = CoverageRow(
                        tier=tier,
                        topic_id=f"{at}{topic}",
                        partition=partition,
                        topic=topic,
                        end=1000,
                        origin=origin,
                    )
                    session.add(row)
            session.add(LoadRow(topic=topic, load=1, edition=1, counted=1, parts=1, sha256=""))
            starts = range(END - days * 144 * WINDOW_MS, END, WINDOW_MS)
            rows = [
                {
                    "topic": topic,
                    "window": start,
                    "revision": 0,
                    "events": 1_000,
                    "verdict": dice.choice(verdicts) if dice.random() < 0.01 else "complete",
                    "is_final": True,
                    "last_final": "complete",
                    "is_changed": False,
                    "facts_digest": "",
                    "changed_at": start,
                    "folded": True,
                    "positions": {"counted": {"offline": 1, "warehouse": 1}},
                    "evidence": EVIDENCE,
                    "judged": judged,
                }
                for start in starts
            ]
            session.execute(insert(WindowRow), rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = AuditStore(f"sqlite:///{folder}/audit.db")
        fill(store, [f"Topic{number:02}" for number in range(given.topics)], given.days)
        options = AuditOptions(origins=("dc1", "dc2"), clock_ms=lambda: END)
        app = build_app(store, options, Worker(AuditNumbers(store, options)))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/console"
        gc.freeze()  # as `millrace auditor` does
        try:
            busy = busy_share()
            text = TEXT.format(
                topics=given.topics,
                windows=given.topics * given.days * 144,
                day=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                busy=busy,
                machine=in_words(machine()),
                rows="\n".join(ask(store, f"{url}?days={days}", f"{days} days") for days in (2, 7, 30)),
            )
            print(text, flush=True)
            if given.page:
                write_half(PAGE, "console", text)
            if not importlib.util.find_spec("playwright"):
                return
            if executable := shutil.which("chromium-headless-shell") or shutil.which("chromium"):
                paint(url, executable)
        finally:
            server.should_exit = True
            thread.join()
            store.close()


def ask(store: AuditStore, url: str, what: str) -> str:
    """A row of the table. The CPU time is this process's: the auditor's, and a client's few milliseconds."""
    took, cpu, cold, again = list[float](), list[float](), list[float](), list[float]()
    client = httpx.Client(timeout=60)  # kept: to read the system's certificates takes 20 ms
    client.get(url)
    for _ in range(ROUNDS):
        for costs in (cold, cpu, again):
            if costs is not again:
                write(store)
            if costs is cold:
                for drawn in (hour_cells, strip, charts.spark):
                    drawn.cache_clear()
            began, cpu_began = time.monotonic(), time.process_time()
            answer = client.get(url).raise_for_status()
            costs.append((time.process_time() - cpu_began) * 1000)
            if costs is cpu:
                took.append((time.monotonic() - began) * 1000)
    client.close()
    wall = f"{min(took):,.0f} to {max(took):,.0f}"
    least = f"{median(cpu):.0f} ({min(cpu):.0f} at least)"
    others = f"{median(cold):.0f} | {median(again):.0f}"
    return f"| {what} | {least} | {wall} | {others} | {len(answer.content):,} |"


def write(store: AuditStore) -> None:
    with store.writing() as session:
        session.add(CheckpointRow(tier="dc1", serial=time.time_ns(), time=END, reported_through=1))


def paint(url: str, executable: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for days in (2, 7, 30):
            took = []
            for _ in range(ROUNDS):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.goto(f"{url}?days={days}")
                entry = "performance.getEntriesByType('navigation')[0].loadEventEnd"
                took.append(page.evaluate(entry))
                page.close()
            print(f"{days} days in Chromium: loaded in {min(took):.0f} to {max(took):.0f} ms", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
