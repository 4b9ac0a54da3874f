"""A reader's metrics and health: its lag, the events' delays, and its problems.

The reader's thread updates plain numbers; requests read them in a thread of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.service.monitoring import serve_metrics
from millrace_audit.reader.counting import Part
from millrace_audit.reader.partition import Partition
from millrace_audit.reports.messages import now_ms

PREFIX = "millrace_audit_reader_"
DELAYS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
"""Upper bounds of the delays, from the next round to a day late."""
BEHIND_S = 60.0
"""Age of its newest heartbeat above which a reader that holds its turn is unhealthy."""
_BOUNDS_MS = [int(1000 * bound) for bound in DELAYS_S]


@dataclass(slots=True)
class _Delays:
    cumulative: list[int] = field(default_factory=lambda: [0] * (len(DELAYS_S) + 1))
    total_s: float = 0.0


class TierNumbers(Collector):
    """The numbers of any reader. The reader's thread sets them."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self.turn: int | None = None
        self.heartbeat_at: float | None = None
        self.trouble: str | None = None
        """Cause of the last round's failure; None when the round did not fail."""

    def troubles(self) -> list[str]:
        """Return the problems that keep the reader from counting all messages now.

        The list is empty while the reader stands by.
        """
        found = [] if self.trouble is None else [self.trouble]
        if self.turn is not None and self.heartbeat_at is not None:
            age_s = time.time() - self.heartbeat_at
            if age_s > BEHIND_S:
                found.append(f"no heartbeat was published for {age_s:.0f} s")
        return found

    def collect(self) -> Iterator[Metric]:
        labels = ["tier"]
        turn = GaugeMetricFamily(
            PREFIX + "turn", "Turn that this reader holds; absent while it stands by.", labels=labels
        )
        if self.turn is not None:
            turn.add_metric([self.tier], self.turn)
        yield turn
        age = GaugeMetricFamily(
            PREFIX + "heartbeat_age_seconds",
            "Time since the newest heartbeat that this reader published.",
            labels=labels,
        )
        if self.heartbeat_at is not None:
            age.add_metric([self.tier], time.time() - self.heartbeat_at)
        yield age


class ReaderNumbers(TierNumbers):
    """The numbers of a cluster's reader."""

    def __init__(self, tier: str) -> None:
        super().__init__(tier)
        self.partitions: Iterable[Partition] = ()
        self._delays: dict[str, _Delays] = {}
        self._messages = {"audited": 0, "foreign": 0}

    def counted(self, topic: str, part: Part) -> None:
        times = part.times
        self._messages["audited"] += len(times)
        self._messages["foreign"] += part.messages - len(times)
        delays = self._delays.setdefault(topic, _Delays())
        late = now_ms() - times
        delays.total_s += float(late.sum()) / 1000
        for bucket, bound in enumerate(_BOUNDS_MS):  # a comparison of all costs less than a search for each
            delays.cumulative[bucket] += int(np.count_nonzero(late <= bound))
        delays.cumulative[-1] += len(late)

    def troubles(self) -> list[str]:
        stuck = [(partition, partition.trouble) for partition in list(self.partitions)]
        return [
            *super().troubles(),
            *(f"{p.topic}-{p.key.partition} is not counted: {why.cause}" for p, why in stuck if why),
        ]

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        messages = CounterMetricFamily(PREFIX + "messages", "Messages counted.", labels=["tier", "kind"])
        for kind, count in self._messages.items():
            messages.add_metric([self.tier, kind], count)
        yield messages
        names = ["tier", "topic", "partition"]
        lag = GaugeMetricFamily(
            PREFIX + "lag", "Offsets of a partition that are visible and not read yet.", labels=names
        )
        stuck = GaugeMetricFamily(
            PREFIX + "unreadable",
            "1 for a partition that cannot be read any further; else absent.",
            labels=names,
        )
        for partition in list(self.partitions):
            label = [self.tier, partition.topic, str(partition.key.partition)]
            lag.add_metric(
                label, partition.high_watermark - partition.cursor.next_offset if partition.behind else 0
            )
            if partition.trouble is not None:
                stuck.add_metric(label, 1)
        yield from (lag, stuck)
        delay = HistogramMetricFamily(
            PREFIX + "delay_seconds",
            "Time from an event's timestamp until the event is counted.",
            labels=["tier", "topic"],
        )
        bounds = [*map(str, DELAYS_S), "+Inf"]
        for topic, delays in list(self._delays.items()):
            buckets = list(zip(bounds, delays.cumulative, strict=True))
            delay.add_metric([self.tier, topic], buckets, delays.total_s)
        yield delay


def serve(
    numbers: TierNumbers, listen: str, access_file: str = "", certificate: str = "", key: str = ""
) -> str:
    """Serve `/metrics` and `/healthz` in threads of their own; return their URL. Port 0 takes a free port.

    With an empty `listen` nothing is served. Raise ConfigError if other options are given in that case.
    """

    def health() -> tuple[bool, Mapping[str, Any]]:
        troubles = numbers.troubles()
        return not troubles, {"tier": numbers.tier, "turn": numbers.turn, "troubles": troubles}

    return serve_metrics(numbers, health, listen, access_file, certificate, key)
