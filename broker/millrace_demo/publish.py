"""Publishes the demo's events in every datacenter and says what was acknowledged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace_audit import AuditedProducer
from millrace_demo.access_log import check_log, read_log
from millrace_demo.events import HOUR_MS, made_events
from millrace_demo.proof import Published
from millrace_demo.up import Endpoints
from millrace_registry.client import SchemaRegistryClient

TOPICS = ("PageView", "SearchQuery")
SERVERS_PER_DATACENTER = 2
_PUBLISHING = "          publishing"
Span = tuple[datetime, datetime]
"""Whole hours, [start, end)."""


def register_schemas(endpoints: Endpoints, schemas: Path) -> None:
    """Register the event schemas, as a CI job would before the first deployment."""
    registry = SchemaRegistryClient(endpoints.registry_url)
    for topic in TOPICS:
        registry.register(topic, json.loads((schemas / f"{topic}.avsc").read_text()))
    registry.close()


def publish_made_events(count: int, span: Span, endpoints: Endpoints, console: Console) -> list[Published]:
    """`count` made events of the hours in `span`, spread over two servers in each datacenter."""
    start_ms, hours = int(span[0].timestamp() * 1000), (span[1] - span[0]) // timedelta(hours=1)
    with progress_bar(console) as progress, ExitStack() as stack:
        producers = [
            stack.enter_context(_producer(endpoints, cluster, f"web-{number}"))
            for number in range(1, SERVERS_PER_DATACENTER + 1)
            for cluster in endpoints.origins
        ]
        events = made_events(count, start_ms=start_ms, hours=hours, seed=count)
        in_turn = cycle(producers)
        for event in progress.track(events, count, description=_PUBLISHING):
            next(in_turn).send(event.topic, event.topic, event.fields, time_ms=event.time_ms)
    return [entry for producer in producers for entry in _published(producer)]


def publish_access_log(log: Path, endpoints: Endpoints, console: Console) -> list[Published]:
    """The lines of a web server's log, dealt out to the datacenters in turn; every line must be readable."""
    total, _ = check_log(log)
    with progress_bar(console) as progress, ExitStack() as stack:
        producers = [
            stack.enter_context(_producer(endpoints, cluster, "web-1")) for cluster in endpoints.origins
        ]
        for event in progress.track(read_log(log), total, description=_PUBLISHING):
            producer = producers[(event.line - 1) % len(producers)]
            producer.send("PageView", "PageView", event.fields, time_ms=event.time_ms)
    return [entry for producer in producers for entry in _published(producer)]


def span_of_log(log: Path) -> Span:
    """The whole hours that the log's events lie in."""
    times = [event.time_ms for event in read_log(log)]
    first, last = min(times) // HOUR_MS, max(times) // HOUR_MS + 1
    return (
        datetime.fromtimestamp(first * HOUR_MS / 1000, UTC),
        datetime.fromtimestamp(last * HOUR_MS / 1000, UTC),
    )


def _producer(endpoints: Endpoints, cluster: str, server: str) -> AuditedProducer:
    return AuditedProducer(
        endpoints.bootstraps[cluster],
        endpoints.registry_url,
        cluster=cluster,
        server=f"{cluster}-{server}",
        service="site",
    )


def _published(producer: AuditedProducer) -> Sequence[Published]:
    return [
        Published(outcome.topic, producer.server, producer.instance, outcome.acknowledged)
        for outcome in producer.delivered()
    ]


def progress_bar(console: Console) -> Progress:
    """A bar that is gone when it is full; none where the console is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
