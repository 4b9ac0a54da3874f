"""Publishing the demo's events in every datacenter; the result is the acknowledged events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.client.confluent import librdkafka_settings
from millrace_audit import AuditedProducer
from millrace_demo.access_log import read_log
from millrace_demo.events import HOUR_MS, MadeEvent, made_events
from millrace_demo.proof import Published
from millrace_demo.up import Endpoints
from millrace_registry.client import SchemaRegistryClient

TOPICS = ("PageView", "SearchQuery")
Span = tuple[datetime, datetime]
"""Whole hours, [start, end)."""


def register_schemas(endpoints: Endpoints, schemas: Path) -> None:
    """Register the event schemas, as a CI job would before the first deployment."""
    with SchemaRegistryClient(endpoints.registry_url) as registry:
        for topic in TOPICS:
            registry.register(topic, json.loads((schemas / f"{topic}.avsc").read_text()))


def publish_made_events(
    count: int, span: Span, endpoints: Endpoints, console: Console, halfway: Callable[[], None]
) -> list[Published]:
    """Publish `count` generated events of the hours in `span`, from two servers in each datacenter.

    `halfway` is called when half of them are sent.
    """
    start_ms, hours = int(span[0].timestamp() * 1000), (span[1] - span[0]) // timedelta(hours=1)
    events = made_events(count, start_ms=start_ms, hours=hours, seed=count)
    return _publish(_calling(halfway, events, count // 2), count, endpoints, ("web-1", "web-2"), console)


def publish_access_log(
    log: Path, endpoints: Endpoints, console: Console, halfway: Callable[[], None]
) -> list[Published]:
    """Publish the lines of a web server's log in the datacenters in turn; every line must be readable."""
    total = sum(1 for _ in read_log(log))
    events = (MadeEvent("PageView", event.time_ms, event.fields) for event in read_log(log))
    return _publish(_calling(halfway, events, total // 2), total, endpoints, ("web-1",), console)


def _calling(function: Callable[[], None], events: Iterable[MadeEvent], before: int) -> Iterator[MadeEvent]:
    """Yield the events, and call the function once, before the event at index `before`."""
    for index, event in enumerate(events):
        if index == before:
            function()
        yield event


def _publish(
    events: Iterable[MadeEvent], total: int, endpoints: Endpoints, servers: Sequence[str], console: Console
) -> list[Published]:
    with progress_bar(console) as progress, ExitStack() as stack:
        producers = [
            stack.enter_context(_producer(endpoints, cluster, server))
            for server in servers
            for cluster in endpoints.origins
        ]
        shown = progress.track(events, total, description="          publishing")
        for event, producer in zip(shown, cycle(producers), strict=False):
            producer.send(event.topic, event.topic, event.fields, time_ms=event.time_ms)
    return [
        Published(outcome.topic, producer.server, producer.instance, outcome.acknowledged)
        for producer in producers
        for outcome in producer.delivered()
    ]


def span_of_log(log: Path) -> Span:
    """Return the whole hours that contain the log's events."""
    times = [event.time_ms for event in read_log(log)]
    first, last = min(times) // HOUR_MS, max(times) // HOUR_MS + 1
    return (
        datetime.fromtimestamp(first * HOUR_MS / 1000, UTC),
        datetime.fromtimestamp(last * HOUR_MS / 1000, UTC),
    )


def _producer(endpoints: Endpoints, cluster: str, server: str) -> AuditedProducer:
    client = endpoints.client("producer")
    return AuditedProducer(
        endpoints.bootstraps[cluster],
        endpoints.registry_url,
        cluster=cluster,
        server=f"{cluster}-{server}",
        service="site",
        config={} if client is None else librdkafka_settings(client),
    )


def progress_bar(console: Console) -> Progress:
    """Return a progress bar that disappears when it is full.

    It is invisible if the console is no terminal.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
