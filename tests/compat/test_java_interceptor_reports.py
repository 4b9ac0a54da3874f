"""Reports of the Java interceptor, decoded by the auditor's codec: their limits, and what they close."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest

from millrace.zookeeper.embedded import find_java
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, MOST_OPEN_WINDOWS, AuditCodec, Hello, Report
from millrace_audit.reports.outcome import still_open
from millrace_audit.reports.ranges import SequenceRanges
from millrace_registry.client import SchemaRegistryClient
from tests.compat.java_interceptor import compile_programs
from tests.page_view import START

KEPT_BYTES = 64 << 20
WINDOW_BYTES = 512
SETTLED_AFTER_MS = 180_000
Outcome = Literal["acknowledged", "failed"]
Key = tuple[str, int, Outcome]


@dataclass
class Said:
    """Reports in their order, and their sum."""

    hellos: list[str] = field(default_factory=list)
    """Announced topics."""
    reports: list[Report] = field(default_factory=list)
    outcomes: dict[Key, SequenceRanges] = field(default_factory=dict)
    """Sequences by topic, window and outcome; each is reported once."""
    most_open: int = MOST_OPEN_WINDOWS
    open: set[tuple[str, int]] = field(default_factory=set)
    """Windows that the auditor holds open."""

    def add(self, report: Report) -> None:
        assert report.number == len(self.reports)
        assert len(report.windows) <= 1_000
        count = 0
        for window in report.windows:
            start = window.window
            assert not self.reports or start >= self.reports[-1].closed_through, "it was closed before"
            outcomes: dict[Outcome, SequenceRanges] = {
                "acknowledged": window.acknowledged,
                "failed": window.failed,
            }
            for outcome, ranges in outcomes.items():
                known = self.outcomes.setdefault((window.topic, start, outcome), SequenceRanges())
                for first, last in ranges:
                    assert not known.add(first, last), "it was reported before"
                    count += 1
        assert count <= 20_000
        reported = {(window.topic, window.window) for window in report.windows}
        self.open = still_open(self.open | reported, report.closed_through)
        assert len(self.open) <= self.most_open
        self.reports.append(report)

    def pairs(self, topic: str, window: int, outcome: Outcome) -> list[list[int]]:
        return self.outcomes[topic, window, outcome].pairs()


Run = Callable[..., Said]


@pytest.fixture(scope="module")
def run(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = compile_programs(tmp_path_factory.mktemp("classes"))
    java = [find_java(), "-Xmx512m", "-XX:+UseSerialGC", "-cp", path, "io.millrace.audit.Reports"]

    def said(
        *steps: str,
        client: str = "exact",
        settled_after_ms: int = SETTLED_AFTER_MS,
        most_open: int = MOST_OPEN_WINDOWS,
    ) -> Said:
        words = [*java, client, str(settled_after_ms), f"limit:{most_open}", *steps]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        found = Said(most_open=most_open)
        with SchemaRegistryClient("http://127.0.0.1:1") as registry:  # this framing needs no registry
            codec = AuditCodec(registry)
            for line in done.stdout.split():
                record = codec.decode(bytes.fromhex(line))
                if isinstance(record, Report):
                    found.add(record)
                elif isinstance(record, Hello):
                    found.hellos.append(record.topic)
        return found

    return said


def test_outcomes_that_alternate_are_split_into_reports_that_the_auditor_takes(run: Run) -> None:
    said = run(f"events:t:50000:{START}:0:af", "last")
    assert len(said.reports) == 3
    assert said.pairs("t", START, "acknowledged") == [[n, n] for n in range(0, 50_000, 2)]
    assert said.pairs("t", START, "failed") == [[n, n] for n in range(1, 50_000, 2)]
    assert [report.closed_through for report in said.reports] == [START, START, FOR_EVER]


def test_many_windows_of_two_topics_are_split_into_reports_that_the_auditor_takes(run: Run) -> None:
    events = [f"events:{topic}:1300:{START}:{WINDOW_MS}:a" for topic in ("one", "two")]
    said = run(*events, "last")
    assert len(said.reports) == 3
    for topic in ("one", "two"):
        for n in range(1300):
            assert said.pairs(topic, START + n * WINDOW_MS, "acknowledged") == [[n, n]]
    assert said.reports[-1].closed_through == FOR_EVER


def test_while_audit_refuses_64_mib_of_outcomes_are_kept_and_windows_of_others_stay_open(run: Run) -> None:
    fits = (KEPT_BYTES - WINDOW_BYTES) // 8
    later = START + WINDOW_MS
    said = run(
        *(f"events:t:1:{START - WINDOW_MS}:0:a", "report", "refuse"),
        *(f"events:t:{fits + 1000}:{START}:0:a", "report", "report", "accept", "report"),
        *(f"events:t:10:{later}:0:a", "last"),
    )
    kept = said.pairs("t", START, "acknowledged")
    assert kept[0][0] == 1
    assert len(kept) == 1
    assert fits - 1 <= kept[0][1] <= fits + 1
    assert said.pairs("t", later, "acknowledged") == [[fits + 1001, fits + 1010]], "there is room again"
    assert said.reports[-1].closed_through == START


def test_a_report_that_was_refused_is_sent_again_with_its_number(run: Run) -> None:
    first, second = (f"events:t:10:{START}:0:{outcome}" for outcome in "af")
    said = run(
        f"events:t:1:{START - WINDOW_MS}:0:a",
        "report",
        "refuse",
        first,
        "report",
        second,
        "report",
        "accept",
        "last",
    )
    assert said.pairs("t", START, "acknowledged") == [[1, 10]]
    assert said.pairs("t", START, "failed") == [[11, 20]]
    assert said.reports[-1].closed_through == FOR_EVER


def test_an_event_without_an_outcome_keeps_its_window_open(run: Run) -> None:
    later = START + WINDOW_MS
    said = run(f"events:t:10:{START}:0:a", f"events:t:1:{later}:0:-", f"events:t:5:{later}:0:a", "last")
    assert said.pairs("t", START, "acknowledged") == [[0, 9]]
    assert said.pairs("t", later, "acknowledged") == [[11, 15]]
    assert said.reports[-1].closed_through == later


@pytest.mark.parametrize("client", ["exact", "older"])
def test_an_event_that_would_open_more_windows_than_the_audit_takes_has_no_number(
    run: Run, client: str
) -> None:
    closed = START - 200 * 365 * 144 * WINDOW_MS  # more than a century ago: the clock closes these windows
    said = run(
        f"events:t:3:{closed}:{WINDOW_MS}:a",
        "report",
        *(f"events:{topic}:3:{START}:{WINDOW_MS}:a" for topic in ("t", "other")),
        "report",
        *(f"events:{topic}:3:{START}:{WINDOW_MS}:a" for topic in ("t", "other")),
        "last",
        client=client,
        most_open=5,
    )
    for n in range(3):
        assert said.pairs("t", START + n * WINDOW_MS, "acknowledged") == [[3 + n, 3 + n], [6 + n, 6 + n]]
    for n in range(2):
        assert said.pairs("other", START + n * WINDOW_MS, "acknowledged") == [[n, n], [2 + n, 2 + n]]
    assert len(said.outcomes) == 2 * (3 + 5)
    assert said.reports[-1].closed_through == FOR_EVER


@pytest.mark.parametrize("later", ["report", f"events:t:1:{START}:0:f", f"events:new:1:{START}:0:f"])
def test_nothing_follows_the_last_report(run: Run, later: str) -> None:
    said = run(f"events:t:10:{START}:0:a", "last", later, "report", "last")
    assert said.pairs("t", START, "acknowledged") == [[0, 9]]
    assert [report.closed_through for report in said.reports] == [FOR_EVER]
    assert said.hellos == ["t"]


@pytest.mark.parametrize(("outcomes", "outcome"), [("-a", "acknowledged"), ("-af", "failed")])
def test_an_older_clients_stretch_with_a_lost_outcome_is_settled_by_its_age(
    run: Run, outcomes: str, outcome: Outcome
) -> None:
    events = f"events:t:300:{START}:0:{outcomes}"
    young = run(events, "report", client="older")
    assert not young.outcomes, "the client may still send its events"
    assert young.reports[-1].closed_through < START
    old = run(events, "pause:1100", "last", client="older", settled_after_ms=0)
    assert old.pairs("t", START, outcome) == [[0, 299]]
    assert old.reports[-1].closed_through == FOR_EVER


def test_an_event_that_fails_at_send_and_again_when_its_transaction_is_aborted_counts_once(run: Run) -> None:
    said = run(f"events:t:3:{START}:0:d-a", "last")
    assert said.pairs("t", START, "failed") == [[0, 0]]
    assert said.pairs("t", START, "acknowledged") == [[2, 2]]
    assert said.reports[-1].closed_through == START, "an event has no outcome"


def test_after_a_failure_in_a_transaction_an_older_clients_outcomes_are_not_counted(run: Run) -> None:
    said = run(f"events:t:3:{START}:0:d-a", "last", client="transactional")
    assert said.pairs("t", START, "failed") == [[0, 2]]
    assert not said.pairs("t", START, "acknowledged")
    assert said.reports[-1].closed_through == FOR_EVER


@pytest.mark.parametrize("steps", [["last"], ["patience:0", "pause:1100", "report"]])
def test_an_older_clients_stretch_is_reported_as_failed_while_the_client_may_send_its_events(
    run: Run, steps: list[str]
) -> None:
    said = run(f"events:t:300:{START}:0:-a", *steps, client="older")
    assert said.pairs("t", START, "failed") == [[0, 299]]
    assert not said.pairs("t", START, "acknowledged")
