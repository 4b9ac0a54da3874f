"""Publishing an access log: once, or continuously while it grows.

Formats of lines and rotation are handled elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.errors import MillraceError
from millrace.signals import stop_on_signals
from millrace_audit import AuditedProducer
from millrace_audit.reports.messages import now_ms
from millrace_audit.reports.ranges import size
from millrace_demo.access_log import Part, RefusedLines, events_of
from millrace_demo.log_format import LogFormat
from millrace_demo.log_lines import STDIN, Chunk, Follower, Position, read_lines

SUBJECT = "PageView"
LATENESS_MS = 300_000
"""Largest expected age of a line when it is written. An older line is published, too, and opens its window
again."""
SETTLE_S = 5.0
"""Interval at which following waits for the acknowledgements and saves the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Topic and cluster of the events, and the server and service that sent them."""

    topic: str
    cluster: str
    bootstrap: str
    registry: str
    server: str
    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The file, the part of it to read, the format, and the files for refused lines and the position."""

    file: Path
    part: Part
    log_format: LogFormat
    refused: RefusedLines
    follow: bool
    position: Path | None

    def chunks(self) -> Iterator[Chunk]:
        if not self.follow:
            return read_lines(self.file)
        start = None if self.position is None else Position.load(self.position)
        return Follower(self.file, start).chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Outcome of publishing a log."""

    topic: str
    cluster: str
    instance: int
    acknowledged: int
    refused: RefusedLines

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "cluster": self.cluster,
            "instance": self.instance,
            "acknowledged": self.acknowledged,
            "refused": self.refused.count,
        }

    def __str__(self) -> str:
        count, refused = f"{self.acknowledged:,} events", self.refused
        words = f"published: {count} to {self.topic} in {self.cluster}, instance {self.instance}"
        return f"{words}; {refused.count:,} lines refused, see {refused.path}" if refused.count else words


def send_log(reading: Reading, target: Target) -> Sent:
    """Publish every event of the log.

    Raise MillraceError when events may be missing, or no line is an event.
    """
    producer = AuditedProducer(
        target.bootstrap,
        target.registry,
        cluster=target.cluster,
        server=target.server,
        service=target.service,
    )
    try:
        if reading.follow:
            _follow(reading, producer, target.topic)
        else:
            _send_once(reading, producer, target)
    except MillraceError as error:
        if count := _acknowledged(producer):
            raise MillraceError(f"{error}; {count:,} events were published before that") from error
        raise
    finally:
        reading.refused.close()
    sent = Sent(
        topic=target.topic,
        cluster=target.cluster,
        instance=producer.instance,
        acknowledged=_acknowledged(producer),
        refused=reading.refused,
    )
    if sent.refused.count and not sent.acknowledged and not reading.follow:
        raise MillraceError(
            f"no line of {reading.file} is in a known format: give the server's own with --format"
            f" ({sent.refused.count:,} lines are in {sent.refused.path}, with the reason)"
        )
    return sent


def _acknowledged(producer: AuditedProducer) -> int:
    return sum(size(outcome.acknowledged) for outcome in producer.delivered())


def _send_once(reading: Reading, producer: AuditedProducer, target: Target) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    total = reading.file.stat().st_size if reading.file != STDIN and reading.file.is_file() else None
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        producer,
    ):
        task = progress.add_task(f"{target.topic} to {target.cluster}", total=total)
        for chunk in reading.chunks():
            _send(chunk, reading, producer, target.topic)
            progress.update(task, completed=chunk.read)


def _follow(reading: Reading, producer: AuditedProducer, topic: str) -> None:
    """Publish until a signal comes. Every event before the saved position is acknowledged."""
    stopped = threading.Event()
    stop_on_signals(stopped.set)
    reached, due = None, time.monotonic() + SETTLE_S
    with producer:
        for chunk in reading.chunks():
            _send(chunk, reading, producer, topic)
            reached = chunk.position or reached
            if chunk.caught_up:
                producer.closed_through(now_ms() - LATENESS_MS)
            if reading.position is not None and reached is not None and time.monotonic() >= due:
                producer.flush()
                reached.save(reading.position)
                reached, due = None, time.monotonic() + SETTLE_S
            if stopped.is_set():
                break
    if reading.position is not None and reached is not None:
        reached.save(reading.position)


def _send(chunk: Chunk, reading: Reading, producer: AuditedProducer, topic: str) -> None:
    subject = None if topic == SUBJECT else SUBJECT
    for event in events_of(chunk.lines, reading.part, reading.log_format, reading.refused):
        producer.send(topic, subject, event.fields, time_ms=event.time_ms)
