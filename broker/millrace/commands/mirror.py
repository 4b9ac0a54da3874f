"""`millrace mirror`: how far the mirrors are, and how to let one go on that has stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from millrace.commands.help_texts import Group
from millrace.commands.mirror_translate import translate
from millrace.commands.tables import print_table
from millrace.config import BrokerConfig, load
from millrace.coordination.cluster import Cluster
from millrace.errors import ConfigError, MillraceError
from millrace.mirror.status import MirrorRow, MirrorStatus, summaries
from millrace.records import Cursor
from millrace.records.mirror_position import Origin
from millrace.wire.mirror_append import MirrorAppend, MirrorMode

_CONFIG = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=Group)
def mirror() -> None:
    """See and repair how this cluster copies others.

    CONFIG is the file of any broker of the aggregate cluster: it names the cluster, its ZooKeeper and its
    origins.

    Example: millrace mirror status offline-1.toml
    """


mirror.add_command(translate)


@mirror.command()
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object for each partition.")
def status(config: Path, as_json: bool) -> None:
    """Show position, lag, latency and state of every mirrored partition, and of each origin together.

    Positions are offsets of the origin, and lag counts those that are not copied yet: bytes of a Millrace
    cluster's log, messages of Apache Kafka. Latency is that of what was copied last, from its timestamp to
    when consumers saw it here; `replay` stands for messages that were a day old and more.

    Example: millrace mirror status offline-1.toml --json
    """
    with _connected(config) as (settings, found):
        rows = found.rows()
    if as_json:
        click.echo(json.dumps([_as_json(row) for row in rows], indent=2))
        return
    if not rows:
        click.echo(
            f"cluster {settings.cluster} mirrors nothing: its brokers' files name no topic that is there"
        )
        return
    table = Table(
        "topic", "origin", "partition", "leader", "position\n(offset)", "origin's end\n(offset)",
        "lag\n(offsets)", "latency", "state",
    )  # fmt: skip
    for row in rows:
        position = row.position.cursor.next_offset if row.position is not None else None
        table.add_row(
            row.topic, f"{row.origin.cluster} {row.origin.partition}", str(row.partition), str(row.leader),
            _text(position), _text(row.origin_high_watermark), _text(row.lag), latency_text(row.latency_ms),
            f"{row.state}: {row.detail}" if row.detail else row.state,
        )  # fmt: skip
    print_table(table)
    origins = Table("origin", "partitions", "lag (offsets)", "latency", "states")
    for each in summaries(rows):
        states = ", ".join(f"{count} {state}" for state, count in sorted(each.states.items()))
        origins.add_row(
            each.cluster, str(each.partitions), _text(each.lag), latency_text(each.latency_ms), states
        )  # fmt: skip
    print_table(origins)


@mirror.command()
@_CONFIG
@click.option("--origin", required=True, metavar="NAME", help="The origin cluster, as in [mirror.NAME].")
@click.option("--topic", required=True, help="The mirrored topic.")
@click.option("--partition", type=int, help="The origin's partition; all that are stopped without it.")
@click.option(
    "--at", type=click.IntRange(min=0), metavar="OFFSET", help="Go on at this offset of the origin instead."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(config: Path, origin: str, topic: str, partition: int | None, at: int | None, yes: bool) -> None:
    """Let stopped partitions go on with what their origin has now.

    A partition whose offsets have expired goes on at the first that is left. One whose origin is shorter than
    what was copied goes on at its end: if its log was begun anew on an empty disk, say --at 0, or what was
    produced since is left out. One whose topic was deleted and created anew gets a new target partition; the
    old one keeps what was copied.

    Example: millrace mirror reset offline-1.toml --origin dc1 --topic PageView --partition 0
    """
    with _connected(config) as (settings, found):
        if origin not in settings.mirror:
            known = ", ".join(settings.mirror) or "none"
            raise ConfigError(f"{config} has no [mirror.{origin}]; origins: {known}")
        if at is not None and partition is None:
            raise ConfigError("--at needs --partition: an offset belongs to one partition")
        metadata = found.reader(origin, topic).describe()
        if partition is not None and partition not in metadata.partitions:
            raise MillraceError(f"{origin} has no partition {topic}-{partition}")
        stopped = 0
        for number in metadata.partitions if partition is None else [partition]:
            stopped += _reset_one(found, Origin(origin, topic, metadata.topic_id, number), at, yes)
    if not stopped:
        click.echo("nothing to reset: no partition is stopped")


def _reset_one(found: MirrorStatus, origin: Origin, at: int | None, yes: bool) -> bool:
    """Reset one partition if that is wanted; False when it needs none."""
    name = f"{origin.cluster} {origin.topic}-{origin.partition}"
    former = found.former(origin)
    if former is not None:
        question = f"{name} was deleted and created anew: begin to copy the new one?"
        if not yes and not click.confirm(question):
            return True
        answer = found.ask(origin.topic, MirrorAppend(mode=MirrorMode.RESET, origin=origin))
        click.echo(f"{name}: the new topic is copied into partition {answer.partition} from its beginning")
        return True
    recorded = found.ask(origin.topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)).position
    changed = found.reader(origin.cluster, origin.topic).examine(recorded) if recorded is not None else None
    if recorded is None or changed is None:
        return False
    resume = changed.resume if at is None else Cursor(at)
    question = f"{name}: {changed}. Go on at offset {resume.next_offset}?"
    if not yes and not click.confirm(question):
        return True
    expected = recorded.cursor.next_offset
    request = MirrorAppend(
        mode=MirrorMode.RESET, origin=origin, expected=expected, cursor=resume
    )  # fmt: skip
    found.ask(origin.topic, request)
    click.echo(f"{name}: goes on at offset {resume.next_offset}, it was at {expected}")
    return True


@contextmanager
def _connected(config: Path) -> Iterator[tuple[BrokerConfig, MirrorStatus]]:
    settings = load(BrokerConfig, config)
    with (
        Cluster.connect(settings.zookeeper, settings.cluster) as cluster,
        closing(MirrorStatus(cluster, settings.mirror)) as found,
    ):
        yield settings, found


def _text(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def latency_text(milliseconds: int | None) -> str:
    """In seconds or hours; from a day on it is the age of messages that are replayed, and no latency."""
    if milliseconds is None:
        return "?"
    hours = milliseconds / 3_600_000
    if hours >= 24:
        return "replay"
    return f"{hours:.1f} h" if hours >= 2 else f"{milliseconds / 1000:,.1f} s"


def _as_json(row: MirrorRow) -> dict[str, Any]:
    position = row.position
    return {
        "topic": row.topic,
        "partition": row.partition,
        "origin": {
            "cluster": row.origin.cluster, "topic": row.origin.topic,
            "topic_id": str(row.origin.topic_id), "partition": row.origin.partition,
        },
        "leader": row.leader,
        "start": position.start if position else None,
        "next_offset": position.cursor.next_offset if position else None,
        "batches": position.batches if position else 0,
        "records": position.records if position else 0,
        "dropped": position.dropped if position else 0,
        "origin_high_watermark": row.origin_high_watermark,
        "lag": row.lag,
        "latency_ms": row.latency_ms,
        "state": row.state,
        "detail": row.detail,
    }  # fmt: skip
