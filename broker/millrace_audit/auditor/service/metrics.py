"""The auditor's metrics for Prometheus: verdicts, watermarks, lags, rejected records, delays of tiers.

Read from the database on every scrape; the histograms of delays are those of this process.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from millrace.service.exposition import EscapingRegistry
from millrace_audit.answer import Verdict, Window
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.topic_facts import is_listed
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import AuditStore, RejectedRecordRow, WindowRow
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE

if TYPE_CHECKING:
    from millrace_audit.auditor.options import AuditOptions
    from millrace_audit.auditor.verdict.facts import WindowFacts

DELAYS_S = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000)
RECENT = 36
"""Number of windows of a topic from which its hops are shown: six hours."""
REPLAYED_S = 24 * 3600.0
"""Delay of the home from which on a window counts as replayed, and not as delayed."""


class Hop(NamedTuple):
    """Times in seconds that windows took from one tier to the next."""

    source: str
    """Empty for the end of the window."""
    tier: str
    median: float
    slow: float
    """Nine of ten windows took less."""
    windows: int


class AuditNumbers(Collector):
    """Metrics, read on every scrape; `note_final` takes every window that becomes final."""

    def __init__(self, store: AuditStore, options: AuditOptions) -> None:
        self._store, self._options = store, options
        self.unapplied = 0
        """Bytes of the audit topics that are not applied yet."""
        self._lived: defaultdict[str, deque[Mapping[str, float]]] = defaultdict(lambda: deque(maxlen=RECENT))
        """Topic -> delay of each tier for its newest windows, without replayed ones."""
        self._registry = EscapingRegistry()
        self._delays = Histogram(
            "millrace_audit_delay_seconds",
            "From the end of a window until a tier was past it",
            ["topic", "tier"],
            buckets=DELAYS_S,
            registry=self._registry,
        )
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def note_final(self, window: Window, facts: WindowFacts) -> None:
        """Record the delay of each tier for a window that is final for the first time."""
        end = window.end.timestamp()
        home = max((time for tier, time in facts.read_at.items() if tier != OFFLINE), default=None)
        offline, topic = facts.read_at.get(OFFLINE), facts.topic
        delays: dict[str, float] = {}
        for tier, time in (("home", home), (OFFLINE, offline), (WAREHOUSE, self._options.clock_ms())):
            if time is not None:
                delay = max(time / 1000 - end, 0)
                self._delays.labels(topic, tier).observe(delay)
                delays[tier] = delay
        if delays.get("home", 0) < REPLAYED_S:
            self._lived[topic].append(delays)

    def hops(self, topic: str) -> list[Hop]:
        """Return the times of a topic's newest windows from tier to tier, without replays."""
        found: dict[tuple[str, str], list[float]] = {}
        for delays in [*self._lived.get(topic, ())]:  # the auditor may add one meanwhile
            for source, tier in pairwise(("", *delays)):
                found.setdefault((source, tier), []).append(max(delays[tier] - delays.get(source, 0), 0))
        return [
            Hop(source, tier, median(times), sorted(times)[len(times) * 9 // 10], len(times))
            for (source, tier), times in found.items()
        ]

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        now = self._options.clock_ms()
        windows = GaugeMetricFamily(
            "millrace_audit_windows", "Windows by verdict", labels=["topic", "verdict"]
        )
        pending = GaugeMetricFamily(
            "millrace_audit_oldest_pending_seconds", "Age of the oldest pending window", labels=["topic"]
        )
        watermarks = GaugeMetricFamily(
            "millrace_audit_watermark_age_seconds", "How far the watermark is behind", labels=["topic"]
        )
        behind = GaugeMetricFamily(
            "millrace_audit_behind_seconds", "How long ago a tier was last counted", labels=["tier"]
        )
        causes = GaugeMetricFamily(
            "millrace_audit_incidents", "Open incidents", labels=["rule", "verdict", "owner", "acknowledged"]
        )
        oldest = GaugeMetricFamily(
            "millrace_audit_incident_oldest_seconds", "Age of the oldest open incident", labels=["rule"]
        )
        hours = GaugeMetricFamily(
            "millrace_audit_incident_hours", "Hours of topics in open incidents", labels=["rule"]
        )
        with self._store.reading() as session:
            counts = select(WindowRow.topic, WindowRow.verdict, func.count(), func.min(WindowRow.window))
            for topic, verdict, count, first in session.execute(
                counts.where(is_listed(WindowRow.topic)).group_by(WindowRow.topic, WindowRow.verdict)
            ):
                windows.add_metric([topic, verdict], count)
                if verdict == Verdict.PENDING:
                    pending.add_metric([topic], max(now - first - WINDOW_MS, 0) / 1000)
            for known in answers.topics(session, self._options):
                if known.watermark is not None:
                    watermarks.add_metric([known.topic], max(now / 1000 - known.watermark.timestamp(), 0))
            for tier, heartbeat in answers.heartbeats(session).items():
                behind.add_metric([tier], max(now - heartbeat, 0) / 1000)
            still_open = incidents.find(session, self._options, is_open=True)
            rejected_records = session.scalar(select(func.sum(RejectedRecordRow.count))) or 0
        for labels, count in incidents.by_labels(still_open).items():
            causes.add_metric(labels, count)
        for rule in sorted({one.rule for one in still_open}):
            of_rule = [one for one in still_open if one.rule == rule]
            oldest.add_metric([rule], max(one.duration_s for one in of_rule))
            hours.add_metric([rule], sum(len(some) for one in of_rule for some in one.hours.values()))
        yield from (windows, pending, watermarks, behind, causes, oldest, hours)
        yield GaugeMetricFamily(
            "millrace_audit_rejected_records",
            "Rejected records of unknown or unauthorized writers",
            rejected_records,
        )
        yield GaugeMetricFamily(
            "millrace_audit_unapplied_bytes", "Of the audit topics, not applied yet", self.unapplied
        )
