"""Size that an installation can grow to, from its parts' measured costs: the tables of docs/scale.md.

    python -m tests.bench.scale

Nothing is measured here. Each cost names the command that measured it, and a test compares the tables with
the page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.bench.broker.report import table

US = 1e-6
PRODUCE_S = 0.36 * US
"""A broker's CPU for a message of 200 bytes in, 50 to a request (`make bench-broker`)."""
CONSUME_S = 0.10 * US
"""The same for a message out to one reader (`make bench-broker`)."""
MIRROR_S = 1.15e-9
"""The aggregate cluster's CPU for a byte that its mirror takes, writing included (`make bench-load`)."""
COUNT_S = 0.5 * US
"""The audit reader's for a message (`make bench-audit`)."""
REPORT_S = 1 / 10_000
"""The auditor's for a producer's report (`python -m tests.bench.bench_auditor`)."""
LOAD_S = 1 / 534_000
"""A load's, in a warm session, for a row (`make bench-load`)."""
WATCH_S = 0.25e-3
"""A broker's for a topic of 30 partitions that changed (`python -m tests.bench.bench_watches`)."""
READ_S = 0.03e-3
"""ZooKeeper's for each of these readings (the same command)."""

MESSAGE_BYTES = 200
PEAK = 2.0
"""The busiest minutes, in averages of the day."""
DATACENTERS, BROKERS = 3, 10
"""Brokers of each cluster; the aggregate cluster has as many as one datacenter."""
READERS_HERE, READERS_THERE = 4, 2
"""Readers of everything: in a datacenter the mirror, the audit reader and two groups; in the aggregate
cluster the audit reader and the loads."""
BUSY = 0.7
"""The share of a core beyond which one thread makes others wait."""
INSTANCES, TOPICS_EACH, REPORT_EVERY_S = 3_000, 10, 10
"""Producers in all, topics that each writes to, and how often it reports."""
DAYS = (1e9, 1e10, 1e11, 1e12)
"""Messages a day, all datacenters together."""


@dataclass(frozen=True, slots=True)
class Load:
    """Work of each part in the busiest minutes, in cores."""

    messages_per_s: float

    @property
    def broker(self) -> float:
        """The loop of a datacenter's broker."""
        return self.messages_per_s / DATACENTERS / BROKERS * (PRODUCE_S + READERS_HERE * CONSUME_S)

    @property
    def aggregate_broker(self) -> float:
        return self.messages_per_s / BROKERS * (MESSAGE_BYTES * MIRROR_S + READERS_THERE * CONSUME_S)

    @property
    def reader(self) -> float:
        """A datacenter's audit reader."""
        return self.messages_per_s / DATACENTERS * COUNT_S

    @property
    def aggregate_reader(self) -> float:
        return self.messages_per_s * COUNT_S

    @property
    def loads(self) -> float:
        return self.messages_per_s * LOAD_S


def main() -> None:
    """Print both tables."""
    print(by_volume(), by_death(), sep="\n\n")


def by_volume() -> str:
    """Tabulate the parts' needs at each volume."""
    rows = []
    for messages in DAYS:
        load = Load(messages / 86_400 * PEAK)
        rows.append(
            [
                f"{messages / 1e9:,.0f}",
                f"{load.messages_per_s / 1e6:.2f}",
                *map(_cores, (load.broker, load.aggregate_broker, load.reader, load.aggregate_reader)),
                f"{load.loads:.1f}",
                f"{messages * MESSAGE_BYTES / 1e12:,.1f}",
            ]
        )
    head = ("bn messages a day", "M/s at the peak", "a broker", "an aggregate broker", "a reader")
    return table((*head, "the aggregate reader", "loads", "TB a day"), rows)


def by_death() -> str:
    """Tabulate the cost for all brokers of a cluster to learn of one broker's death, by number of topics."""
    rows = []
    for topics in (100, 1_000, 10_000):
        reading = topics * BROKERS * READ_S
        rows.append([f"{topics:,}", f"{topics * 30:,}", f"{topics * WATCH_S:.1f}", f"{reading:.1f}"])
    return table(("topics", "partitions", "CPU s of each broker", "CPU s of ZooKeeper"), rows)


def _cores(cores: float) -> str:
    text = f"{cores:.2f}"
    return f"**{text}**: {math.ceil(cores / BUSY)}" if cores > BUSY else text


if __name__ == "__main__":
    main()
