"""The page of the broker benchmark, made from figures without any server."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.bench.broker import cells, figures, report
from tests.bench.broker.levels import SENDFILE, levels

MB = 1_000_000


def outcome(rates: dict[str, float], *, seconds: float = 10, **usage: float) -> dict[str, Any]:
    """A cell of ten seconds; what a test does not name is idle."""
    idle = {"wall_s": seconds, "broker_cpu_s": 1.0, "client_cpu_s": 1.0, "broker_rss": 50 * MB}
    threads = {"broker_thread_s": 0.5, "client_thread_s": 0.5}
    latencies = {"p50_ms": 50.0, "p99_ms": 110.0, "max_ms": 150.0}
    return {
        "messages": int(max(rates.values()) * seconds),
        "roles": {
            role: {"messages": int(rate * seconds), "seconds": seconds, **latencies}
            for role, rate in rates.items()
        },
        "usage": idle | threads | usage,
        "overhead_bytes": 9.5,
    }


RESULT: dict[str, Any] = {
    "runs": [{"command": "make bench-broker ONLY=kafka", "date": "2026-01-02 03:04 UTC", "busy": 0.01}],
    "machine": {"cores": "2", "cpu": "some CPU", "memory": "24 GiB", "kernel": "6", "python": "3.11"},
    "raw": [{"name": SENDFILE, "mb_per_s": 2500.0, "cpu_s_per_gb": 0.3}],
    "systems": {
        "millrace": {
            "title": "Millrace",
            "flush": "flushed",
            "missing": None,
            "version": "0.1",
            "idle_rss": 55 * MB,
            "cells": {
                "replay": {
                    "produce-1": outcome({"produce": 620_000}, broker_cpu_s=9.6),
                    "produce-50": outcome({"produce": 4_000_000}, broker_cpu_s=8.0, broker_thread_s=9.9),
                    "produce-large": outcome({"produce": 11_000_000}),
                    "consume": outcome({"consume": 10_000_000}),
                    "cold": outcome({"consume": 5_000_000, "produce": 100_000}),
                },
                "Java": {
                    "produce-50": outcome({"produce": 900_000}, client_thread_s=9.8),
                    "both": outcome({"consume": 800_000, "produce": 810_000}),
                    "latency": outcome({"latency": 10_000}),
                },
            },
        },
        "kafka": {
            "title": "Apache Kafka",
            "flush": "never",
            "missing": None,
            "version": "4",
            "idle_rss": 400 * MB,
            "cells": {"Java": {"produce-50": outcome({"produce": 850_000})}},
        },
        "rabbitmq-streams": {
            "title": "RabbitMQ streams",
            "flush": "never",
            "missing": None,
            "version": "3",
            "idle_rss": 120 * MB,
            "cells": {"stream-client": {"produce-50": outcome({"produce": 1_800_000})}},
        },
    },
}


def lines(text: str, *words: str) -> list[str]:
    """Lines of the page that hold all the words."""
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_each_level_says_what_was_measured_and_whether_that_is_enough() -> None:
    page = report.page(RESULT)

    assert lines(
        page, "- Run: `make bench-broker ONLY=kafka`, 2026-01-02 03:04 UTC; ", " used 1% of all cores"
    )
    assert lines(page, "| replay, 1 per request |", "≥ 600 k", "620 k", "| yes |")
    assert lines(page, "| replay, 50 per request |", "≥ 5 M", "4 M", "| **no** |")
    assert lines(page, "| broker CPU, 50 per request |", "≤ 0.15", "0.2 s/M", "| **no** |")
    assert lines(page, "| resident memory, idle |", "≤ 55 MB", "55 MB", "| yes |")
    assert lines(page, "| consumption, of raw sendfile |", "83.8 %", "| yes |")
    assert lines(page, "- *replay, 50 per request* is 20% below its level.")


def test_a_level_without_its_cell_is_not_met_by_silence() -> None:
    assert {level.met for level in levels({})} == {None}
    assert "not measured" in report.page({"systems": {}})


def test_a_peer_that_is_ahead_of_our_real_clients_is_named() -> None:
    page = report.page(RESULT)

    assert lines(page, "- *One producer, 50 messages", "RabbitMQ streams (stream-client), 2.00 times")
    assert not lines(page, "- *", "Apache Kafka", "times as fast"), "the same client is faster on Millrace"


def test_apache_kafka_is_compared_client_by_client() -> None:
    result = copy.deepcopy(RESULT)
    result["systems"]["kafka"]["cells"]["Java"]["produce-50"] = outcome({"produce": 1_000_000})

    assert lines(report.page(result), "- *One producer, 50 messages", "Apache Kafka (Java), 1.11 times")


def test_with_tls_each_broker_is_compared_with_the_other_s_and_has_levels_of_its_own() -> None:
    result = copy.deepcopy(RESULT)
    for name, rate in (("millrace-tls", 2_000_000), ("kafka-tls", 3_000_000)):
        rates = {"produce-50": outcome({"produce": rate}), "consume": outcome({"consume": 7_000_000})}
        result["systems"][name] = {**result["systems"]["kafka"], "title": name, "cells": {"replay": rates}}
    page = report.page(result)
    assert lines(page, "| replay with TLS, consumption |", "≥ 1.2 GB/s", "1.4 GB/s", "| yes |")
    assert lines(page, "| replay with TLS, 50 per request |", "≥ 2.5 M", "2 M", "| **no** |")
    assert lines(page, "- *replay with TLS, 50 per request* is 20% below its level.")
    assert lines(page, "- *One producer, 50 messages", "kafka-tls (replay), 1.50 times")
    assert not lines(page, "- *", "millrace-tls (replay)")


@pytest.mark.parametrize(
    ("usage", "verdict"),
    [
        ({"broker_thread_s": 9.7, "client_thread_s": 5.0}, "broker ("),
        ({"broker_thread_s": 9.5, "client_thread_s": 9.9}, "client ("),
        ({"broker_cpu_s": 6.0, "client_cpu_s": 13.0}, "all cores, mostly client ("),
        ({"broker_cpu_s": 2.0, "client_cpu_s": 3.0}, "waiting (broker 0.20, client 0.30)"),
    ],
)
def test_the_bottleneck_is_the_side_whose_thread_is_always_busy(
    usage: dict[str, float], verdict: str
) -> None:
    assert figures.bottleneck(outcome({"produce": 1000}, **usage), cores=2).startswith(verdict)


def test_what_is_missing_or_failed_stands_on_the_page_and_in_the_exit_code() -> None:
    result = copy.deepcopy(RESULT)
    result["systems"]["kafka"]["missing"] = "no Maven"
    result["systems"]["millrace"]["cells"]["Java"]["consume"] = {"failed": "exit code 1: why"}

    found = report.problems(result)

    assert found == ["millrace, Java, consume failed: exit code 1: why", "kafka is missing: no Maven"]
    assert all(f"- **{problem}**" in report.page(result) for problem in found)
    assert report.problems(RESULT) == []


def test_both_at_once_shows_both_rates_and_the_cold_reader_its_distance() -> None:
    page = report.page(RESULT)

    assert lines(page, "| Millrace | Java |", "810,000 in, 800,000 out", "162 / 160")
    assert lines(page, "| Millrace | replay | 50,000,000 | 10.0 | 5,000,000 | 1,000 | 100,000 |")
    assert lines(page, "| Millrace | Java | 100,000 | 50.0 | 110.0 | 150.0 |")


def test_every_system_has_counts_and_every_cell_a_title() -> None:
    assert set(report.TITLES) | {"latency", "cold"} == set(cells.CELLS)
    for one, other in (("millrace", "kafka"), ("millrace-tls", "kafka-tls")):
        assert cells.COUNTS[one] == cells.COUNTS[other], "the same counts for what is compared"
