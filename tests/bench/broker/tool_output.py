"""Figures out of what load tools print: ours a line of JSON, the peers' own tools their own lines.

A tool's output that does not hold what is looked for is an error that shows it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from tests.bench.broker.system import Figures

_PRODUCER_PERFORMANCE = re.compile(
    r"^(?P<messages>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?, (?P<max>[\d.]+) ms max latency, "
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th",
    re.MULTILINE,
)
_PERF_TEST = re.compile(r"(?P<side>sending|receiving) rate avg: (?P<rate>\d+) msg/s")


class UnreadableOutput(Exception):
    """A tool did not print its figures."""


def ours(output: str) -> Figures:
    """The last line of a load class or script of ours."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise _unreadable("a line of JSON", output)
    return Figures(**json.loads(lines[-1]))


def producer_performance(output: str) -> Figures:
    """Apache Kafka's ProducerPerformance: its last line; latencies are until the acknowledgement."""
    found = list(_PRODUCER_PERFORMANCE.finditer(output))
    if not found:
        raise _unreadable("ProducerPerformance's summary", output)
    messages, rate = int(found[-1]["messages"]), float(found[-1]["rate"])
    return Figures(
        messages=messages,
        seconds=messages / rate,
        p50_ms=float(found[-1]["p50"]),
        p99_ms=float(found[-1]["p99"]),
        max_ms=float(found[-1]["max"]),
    )


def consumer_performance(output: str) -> Figures:
    """Apache Kafka's ConsumerPerformance without a header; the time to join its group is not counted."""
    for line in reversed(output.splitlines()):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 10:
            return Figures(messages=int(fields[4]), seconds=int(fields[7]) / 1000)
    raise _unreadable("ConsumerPerformance's line", output)


@dataclass(frozen=True, slots=True)
class PerfTest:
    """RabbitMQ's PerfTest: the average rate of one side, which it prints without the number of messages."""

    side: Literal["sending", "receiving"]
    messages: int

    def __call__(self, output: str) -> Figures:
        for found in _PERF_TEST.finditer(output):
            if found["side"] == self.side and int(found["rate"]) > 0:
                return Figures(messages=self.messages, seconds=self.messages / int(found["rate"]))
        raise _unreadable(f"PerfTest's {self.side} rate", output)


def _unreadable(what: str, output: str) -> UnreadableOutput:
    return UnreadableOutput(f"no {what} in: {output.strip()[-500:] or 'nothing'}")
