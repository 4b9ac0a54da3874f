"""A million windows that two instances hold open, in the database of a running auditor.

The windows are put into the database: to report them would take minutes. To judge them takes half an hour.
What counts is that the auditor goes on meanwhile: operators are answered, memory and CPU time are bounded.
"""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from pathlib import Path

import httpx
from sqlalchemy import text

from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.messages import NOTHING, ReportedWindow, now_ms
from millrace_audit.reports.ranges import SequenceRanges
from tests.bench.replay import cpu_seconds, rss_bytes
from tests.trials.attack.run import MORE_MEMORY_BYTES, Outcome
from tests.trials.attack.services import Service, auditor
from tests.unit.audit.story import Story

WINDOWS = 1_000_000
TOPICS = ("Clicks", "Orders")
DECISIONS = 8
ANSWERED_WITHIN_S = 10.0
"""Time within which an operator is answered on a machine that does other things; usually it is a second."""
MOST_CPU = 0.9
"""Part of a core that judging may take, in turns of its own and before it answers operators: usually half."""
_COPIES = """
    WITH RECURSIVE back(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM back WHERE n + 1 < :end)
    INSERT INTO windows (topic, "window", revision, verdict, events, is_final, is_changed, facts_digest,
        changed_at, folded, positions, evidence)
    SELECT topic, "window" - n * :width, revision, verdict, events, is_final, is_changed, facts_digest,
        changed_at, folded, positions, evidence
    FROM windows, back WHERE "window" = :newest
"""


def report(database: str, newest: int) -> None:
    """Have each instance report its newest window."""
    with closing(AuditStore(database)) as store:
        story = Story(store, AuditOptions(origins=("dc1",)))
        for instance, topic in enumerate(TOPICS, 1):
            told = ReportedWindow(topic, newest, SequenceRanges([(0, 9)]), SequenceRanges(), 1, 0)
            story.hello(instance, topic=topic, time=now_ms())
            story.report(0, instance=instance, closed=NOTHING, windows=[told], time=now_ms())
        story.apply_only()


def copy(database: str, newest: int, windows: int) -> None:
    """Put copies of each instance's newest window behind it."""
    with closing(AuditStore(database)) as store:
        each, step = windows // len(TOPICS), 20_000
        for first in range(1, each, step):
            span = {"first": first, "end": min(first + step, each), "width": WINDOW_MS, "newest": newest}
            with store.writing() as session:
                session.execute(text(_COPIES), span)


def attack_with_open_windows(folder: Path, windows: int = WINDOWS) -> Outcome:
    """Fill the database of an auditor, and see what that costs it and its operators."""
    outcome = Outcome()
    with auditor(folder) as service:
        database, newest = f"sqlite:///{folder}/audit.db", window_start(now_ms()) - WINDOW_MS
        report(database, newest)
        for number in range(DECISIONS):  # what the first decisions load is no leak
            if failure := decide(service, number % len(TOPICS) + 1, 200):
                outcome.failures.append(failure)
        resident = rss_bytes(service.process.pid)
        copy(database, newest, windows)
        cpu, began, worst = cpu_seconds(service.process.pid), time.monotonic(), 0.0
        for number in range(DECISIONS):
            time.sleep(2)
            asked = time.monotonic()
            if failure := decide(service, number % len(TOPICS) + 1, 200):
                outcome.failures.append(failure)
            worst = max(worst, time.monotonic() - asked)
        took = (cpu_seconds(service.process.pid) - cpu) / (time.monotonic() - began)
        more = rss_bytes(service.process.pid) - resident
        outcome.requests += DECISIONS
        print(f"auditor, {windows:,} open windows: an operator waits for {worst:.1f} s at most;", end=" ")
        print(f"{took:.2f} of a core; {more / 1e6:+.1f} MB", flush=True)
        if worst > ANSWERED_WITHIN_S:
            outcome.failures.append(f"auditor, open windows: an operator was answered after {worst:.1f} s")
        if took > MOST_CPU:
            outcome.failures.append(f"auditor, open windows: {took:.2f} of a core")
        if more > MORE_MEMORY_BYTES:
            outcome.failures.append(f"auditor, open windows: {more / 1e6:.0f} MB more than before")
    return outcome


def decide(service: Service, instance: int, expected: int) -> str:
    """Accept an instance as an operator does; return what was answered instead of `expected`."""
    url = f"https://{service.address}/v1/instances/{instance}/accept"
    tls = ssl.create_default_context(cafile=service.ca)
    shown = {"authorization": f"Bearer {service.honest}"}
    try:
        answer = httpx.post(url, headers=shown, json={"reason": "nobody"}, verify=tls, timeout=120)
    except httpx.HTTPError as error:
        return f"auditor, open windows: {error!r}"
    said = f"auditor, open windows: {answer.status_code} {answer.text}"
    return "" if answer.status_code == expected else said


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else WINDOWS
        sys.exit("\n".join(attack_with_open_windows(Path(name), count).failures) or None)
