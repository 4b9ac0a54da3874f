"""Figures out of what the load tools really print."""

from __future__ import annotations

import pytest

from tests.bench.broker import tool_output
from tests.bench.broker.system import Figures
from tests.bench.broker.tool_output import PerfTest, UnreadableOutput

PRODUCER = """\
362341 records sent, 72453.7 records/sec (13.82 MB/sec), 803.4 ms avg latency, 1402.0 ms max latency.
500000 records sent, 90711.175617 records/sec (17.30 MB/sec), 699.80 ms avg latency, 1467.00 ms max latency, \
663 ms 50th, 1346 ms 95th, 1457 ms 99th, 1465 ms 99.9th.
"""
CONSUMER = (
    "[main] WARN something about configuration\n"
    "2026-11-20 14:00:01:123, 2026-11-20 14:00:05:456, 95.3674, 22.0101, 500046, 115407.8, 333, 4000, "
    "23.8419, 125011.5\n"
)
PERF_TEST = """\
id: test-133259-350, time 5.001 s, sent: 14592 msg/s
test stopped (Producer reached message limit)
id: test-133259-350, sending rate avg: 30000 msg/s
id: test-133259-350, receiving rate avg: 0 msg/s
"""


def test_our_own_load_prints_a_line_of_json_behind_whatever_a_library_says() -> None:
    output = 'WARN a library\n{"messages": 10, "seconds": 2.0, "p50_ms": 1.5, "p99_ms": 3, "max_ms": 9}\n'

    assert tool_output.ours(output) == Figures(messages=10, seconds=2.0, p50_ms=1.5, p99_ms=3, max_ms=9)


def test_of_producer_performance_the_summary_counts_not_the_progress() -> None:
    figures = tool_output.producer_performance(PRODUCER)

    assert figures.messages == 500_000
    assert figures.messages / figures.seconds == pytest.approx(90_711, rel=1e-4)
    assert (figures.p50_ms, figures.p99_ms, figures.max_ms) == (663, 1457, 1467)


def test_consumer_performance_is_timed_without_joining_its_group() -> None:
    assert tool_output.consumer_performance(CONSUMER) == Figures(messages=500_046, seconds=4.0)


def test_perf_test_prints_the_rate_of_the_side_that_did_nothing_too() -> None:
    assert PerfTest("sending", 60_000)(PERF_TEST) == Figures(messages=60_000, seconds=2.0)
    with pytest.raises(UnreadableOutput, match="receiving rate"):
        PerfTest("receiving", 60_000)(PERF_TEST)


@pytest.mark.parametrize(
    "parse",
    [
        tool_output.ours,
        tool_output.producer_performance,
        tool_output.consumer_performance,
        PerfTest("sending", 1),
    ],
)
@pytest.mark.parametrize("output", ["", "Exception in thread main, java.lang.OutOfMemoryError, at, line, 1"])
def test_output_without_figures_is_an_error_that_shows_it(parse: object, output: str) -> None:
    assert callable(parse)
    with pytest.raises(UnreadableOutput, match=output.partition(",")[0] or "nothing"):
        parse(output)
