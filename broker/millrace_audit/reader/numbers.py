"""What a reader says of itself to Prometheus: how far behind it is, what it cannot read, how late events are.

Plain numbers where the work is done; they are read when Prometheus asks, in its own thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.config import parse_address
from millrace.errors import MillraceError
from millrace_audit.reader.counting import Part
from millrace_audit.reader.partition import Partition
from millrace_audit.reports.messages import now_ms

PREFIX = "millrace_audit_reader_"
DELAYS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
"""Upper bounds of the delays, from the next round to a day late."""
_BOUNDS_MS = [int(1000 * bound) for bound in DELAYS_S]


@dataclass(slots=True)
class _Delays:
    cumulative: list[int] = field(default_factory=lambda: [0] * (len(DELAYS_S) + 1))
    total_s: float = 0.0


class ReaderNumbers(Collector):
    """The numbers of one reader, which fills them in from its thread."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self.turn: int | None = None
        self.heartbeat_at: float | None = None
        self.partitions: Iterable[Partition] = ()
        self._delays: dict[str, _Delays] = {}
        self._messages = {"audited": 0, "foreign": 0}

    def counted(self, topic: str, part: Part) -> None:
        """That was counted of a topic, now."""
        times = part.times
        self._messages["audited"] += len(times)
        self._messages["foreign"] += part.messages - len(times)
        delays = self._delays.setdefault(topic, _Delays())
        late = now_ms() - times
        delays.total_s += float(late.sum()) / 1000
        for bucket, bound in enumerate(_BOUNDS_MS):  # a comparison of all costs less than a search for each
            delays.cumulative[bucket] += int(np.count_nonzero(late <= bound))
        delays.cumulative[-1] += len(late)

    def collect(self) -> Iterator[Metric]:
        labels = ["tier"]
        turn = GaugeMetricFamily(
            PREFIX + "turn", "The turn this reader holds; absent while it stands by.", labels=labels
        )
        if self.turn is not None:
            turn.add_metric([self._tier], self.turn)
        yield turn
        age = GaugeMetricFamily(
            PREFIX + "heartbeat_age_seconds",
            "Since the newest heartbeat that this reader published.",
            labels=labels,
        )
        if self.heartbeat_at is not None:
            age.add_metric([self._tier], time.time() - self.heartbeat_at)
        yield age
        messages = CounterMetricFamily(PREFIX + "messages", "Messages counted.", labels=["tier", "kind"])
        for kind, count in self._messages.items():
            messages.add_metric([self._tier, kind], count)
        yield messages
        names = ["tier", "topic", "partition"]
        lag = GaugeMetricFamily(
            PREFIX + "lag", "Offsets of a partition that are visible and not read yet.", labels=names
        )
        stuck = GaugeMetricFamily(
            PREFIX + "unreadable", "1 for a partition that cannot be read on; else absent.", labels=names
        )
        for partition in list(self.partitions):
            label = [self._tier, partition.topic, str(partition.key.partition)]
            lag.add_metric(
                label, partition.high_watermark - partition.cursor.next_offset if partition.behind else 0
            )
            if partition.stuck is not None:
                stuck.add_metric(label, 1)
        yield from (lag, stuck)
        delay = HistogramMetricFamily(
            PREFIX + "delay_seconds",
            "From the time of an event to when it was counted.",
            labels=["tier", "topic"],
        )
        bounds = [*map(str, DELAYS_S), "+Inf"]
        for topic, delays in list(self._delays.items()):
            buckets = list(zip(bounds, delays.cumulative, strict=True))
            delay.add_metric([self._tier, topic], buckets, delays.total_s)
        yield delay


def serve(numbers: ReaderNumbers, listen: str) -> str:
    """Answer `/metrics` in threads of their own; HOST:PORT, where port 0 takes a free one."""
    host, port = parse_address(listen, "--metrics-listen")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(numbers)
    ProcessCollector(registry=registry)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise MillraceError(
            f"cannot listen on {listen}: {error.strerror}; give another --metrics-listen"
        ) from error
    return f"{host}:{server.server_port}"
