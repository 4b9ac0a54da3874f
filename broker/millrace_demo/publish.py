"""Publishing the demo's events in every datacenter; the result is the acknowledged events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.client.confluent import librdkafka_settings
from millrace_audit import AuditedProducer
from millrace_demo.access_log import read_log
from millrace_demo.events import HOUR_MS, MadeEvent, made_events
from millrace_demo.java_service import JavaService
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


def write_json_schemas(schemas: Path, folder: Path) -> Path:
    """Write the event schemas without the field `header`, which JSON lacks; return their folder."""
    folder.mkdir()
    for topic in TOPICS:
        schema = json.loads((schemas / f"{topic}.avsc").read_text())
        schema["fields"] = [field for field in schema["fields"] if field["name"] != "header"]
        (folder / f"{topic}.avsc").write_text(json.dumps(schema))
    return folder


@dataclass(frozen=True, slots=True)
class Producers:
    """The demo's audited producers: in Python, or Java services if there is a folder of jars."""

    endpoints: Endpoints
    scratch: Path
    jars: Path | None

    def start(self, cluster: str, server: str) -> AbstractContextManager[AuditedProducer | JavaService]:
        """Start the producer of a server in a datacenter."""
        name, bootstrap = f"{cluster}-{server}", self.endpoints.bootstraps[cluster]
        if self.jars is not None:
            return JavaService(self.jars, bootstrap, self.endpoints.registry_url, name, self.scratch)
        client = self.endpoints.client("producer")
        return AuditedProducer(
            bootstrap,
            self.endpoints.registry_url,
            cluster=cluster,
            server=name,
            service="site",
            config={} if client is None else librdkafka_settings(client),
        )


def publish_made_events(
    count: int, span: Span, producers: Producers, console: Console, halfway: Callable[[], None]
) -> list[Published]:
    """Publish `count` generated events of the hours in `span`, from two servers in each datacenter.

    `halfway` is called when half of them are sent.
    """
    start_ms, hours = int(span[0].timestamp() * 1000), (span[1] - span[0]) // timedelta(hours=1)
    events = made_events(count, start_ms=start_ms, hours=hours, seed=count)
    return _publish(_calling(halfway, events, count // 2), count, producers, ("web-1", "web-2"), console)


def publish_access_log(
    log: Path, producers: Producers, console: Console, halfway: Callable[[], None]
) -> list[Published]:
    """Publish the lines of a web server's log in the datacenters in turn; every line must be readable."""
    total = sum(1 for _ in read_log(log))
    events = (MadeEvent("PageView", event.time_ms, event.fields) for event in read_log(log))
    return _publish(_calling(halfway, events, total // 2), total, producers, ("web-1",), console)


def _calling(function: Callable[[], None], events: Iterable[MadeEvent], before: int) -> Iterator[MadeEvent]:
    """Yield the events, and call the function once, before the event at index `before`."""
    for index, event in enumerate(events):
        if index == before:
            function()
        yield event


def _publish(
    events: Iterable[MadeEvent], total: int, producers: Producers, servers: Sequence[str], console: Console
) -> list[Published]:
    with progress_bar(console) as progress, ExitStack() as stack:
        started = [
            stack.enter_context(producers.start(cluster, server))
            for server in servers
            for cluster in producers.endpoints.origins
        ]
        shown = progress.track(events, total, description="          publishing")
        for event, producer in zip(shown, cycle(started), strict=False):
            producer.send(event.topic, event.topic, event.fields, time_ms=event.time_ms)
    return [
        Published(outcome.topic, producer.server, producer.instance, outcome.acknowledged)
        for producer in started
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


def progress_bar(console: Console) -> Progress:
    """Return a progress bar that disappears when it is full.

    It is invisible if the console is no terminal.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
