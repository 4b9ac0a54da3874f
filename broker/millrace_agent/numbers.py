"""The agent's metrics for Prometheus, read at each scrape; names and units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.service.exposition import EscapingRegistry
from millrace_agent.carrier import Carrier
from millrace_agent.follow import FollowedFile
from millrace_agent.spool import Spool

PREFIX = "millrace_agent_"


@dataclass(slots=True)
class Taken:
    """Numbers of events and requests over HTTP."""

    events: int = 0
    refused: int = 0
    """Requests answered with 4xx."""
    put_off: int = 0
    """Requests answered with 503: none of their events was taken, and the client may send them again."""


class AgentNumbers(Collector):
    """Collector of the metrics of an agent's parts."""

    def __init__(self, spool: Spool, carrier: Carrier, taken: Taken, files: Sequence[FollowedFile]) -> None:
        self._spool, self._carrier, self._taken, self._files = spool, carrier, taken, files
        self._registry = EscapingRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (
            ("spool_events", "Events on the disk that the brokers have not acknowledged", self._spool.events),
            ("spool_bytes", "Bytes of these events", self._spool.bytes),
            ("spool_limit_bytes", "Most bytes that they may take: --spool-bytes", self._spool.limit_bytes),
            ("troubles", "Reasons why events do not reach the brokers", len(self._carrier.troubles)),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value)
        for name, text, value in (
            ("taken_events", "Events taken over HTTP", self._taken.events),
            ("refused_requests", "Requests that were refused with 4xx", self._taken.refused),
            ("put_off_requests", "Requests that were answered with 503", self._taken.put_off),
            ("acknowledged_events", "Events that the brokers acknowledged", self._carrier.acknowledged),
            (
                "failed_events",
                "Events that the brokers refused and that are sent again",
                self._carrier.failed,
            ),
            ("reports", "Hellos and reports on the audit topic", self._carrier.reports),
            ("commits", "Transactions of the spool, one fsync each", self._spool.committed_groups),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value)
        unread = GaugeMetricFamily(
            PREFIX + "file_unread_bytes", "Bytes of a followed file not taken yet", labels=["topic", "path"]
        )
        refused = CounterMetricFamily(
            PREFIX + "file_refused_lines",
            "Lines of a followed file that are no events",
            labels=["topic", "path"],
        )
        for file in self._files:
            unread.add_metric([file.topic, str(file.path)], file.unread_bytes)
            refused.add_metric([file.topic, str(file.path)], file.refused)
        yield from (unread, refused)
