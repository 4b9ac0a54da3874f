"""Result of a command for a topic, as a file for the textfile collector of Prometheus' node_exporter.

A job ends before Prometheus can scrape it. A topic that failed keeps the file of its last success, which
shows its age.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prometheus_client import Gauge, write_to_textfile

from millrace.errors import MillraceError
from millrace.service.exposition import EscapingRegistry
from millrace_warehouse.history.hours import start_of

METRICS: Mapping[str, Mapping[str, tuple[str, str, Callable[[Any], float | Mapping[str, float]]]]] = {
    "load": {
        "rows": ("millrace_load_rows", "Rows of the last load.", float),
        "tombstones": ("millrace_load_tombstones", "Messages without a value that it took.", float),
        "rejected_by_kind": (
            "millrace_load_rejected_rows",
            "Records that it could not decode, by kind.",
            lambda kinds: kinds,
        ),
        "left_bytes": ("millrace_load_left_bytes", "Bytes of the log that it left for the next one.", float),
    },
    "publish": {
        "rows": ("millrace_table_rows", "Rows of the table.", float),
        "created": (
            "millrace_table_committed_seconds",
            "When the table's newest publication was committed, in Unix time.",
            lambda text: datetime.fromisoformat(text).timestamp(),
        ),
        "complete_until": (
            "millrace_table_complete_until_seconds",
            "Until when every hour of the table is complete, in Unix time.",
            lambda hour: start_of(hour).timestamp(),
        ),
        "waiting": ("millrace_table_waiting_hours", "Loaded hours that are not published.", len),
    },
}
"""Command -> field of its answer -> (metric, help, value). A metric with one value for each kind has the
label `kind`.
"""
SUCCESS = "millrace_job_success_seconds"


def write_metrics(folder: Path, command: str, answer: Mapping[str, Any], now: float) -> None:
    """Replace the file of a command and a topic. Raise MillraceError when the folder cannot be written."""
    registry = EscapingRegistry()
    topic = answer["topic"]
    Gauge(
        SUCCESS,
        "When the command last did a topic's work, in Unix time.",
        ["command", "topic"],
        registry=registry,
    ).labels(command, topic).set(now)
    for field, (name, text, value) in METRICS[command].items():
        if answer.get(field) is None:
            continue
        found = value(answer[field])
        if isinstance(found, Mapping):
            gauge = Gauge(name, text, ["topic", "kind"], registry=registry)
            for kind, number in found.items():
                gauge.labels(topic, kind).set(number)
        else:
            Gauge(name, text, ["topic"], registry=registry).labels(topic).set(found)
    try:
        write_to_textfile(str(folder / f"millrace_{command}_{topic}.prom"), registry)
    except OSError as error:
        raise MillraceError(
            f"--metrics-dir {folder} cannot be written: {os.strerror(error.errno or 0)}"
        ) from error
