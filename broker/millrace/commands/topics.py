"""`millrace topics`: create, list, describe and delete topics of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click
from rich.table import Table

from millrace.commands.help_texts import Group
from millrace.commands.tables import print_table
from millrace.errors import ConfigError, MillraceError, UnknownTopicOrPartition
from millrace.wire.client import EARLIEST, LATEST, ClusterClient, TopicMetadata

TIMEOUT_S = 10.0

bootstrap_option = click.option(
    "--bootstrap",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Any brokers of the cluster, separated by commas.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.group(cls=Group)
def topics() -> None:
    """Create, list, describe and delete topics.

    Example: millrace topics list --bootstrap 127.0.0.1:9092
    """


@topics.command()
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), default=None, help="Default: as the broker is set.")
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="For example retention.ms=-1.")
@bootstrap_option
def create(topic: str, partitions: int | None, settings: Sequence[str], bootstrap: str) -> None:
    """Create TOPIC; its partitions are spread over the live brokers.

    Example: millrace topics create PageView --partitions 8 --config retention.ms=86400000
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        client.create_topic(topic, -1 if partitions is None else partitions, _settings(settings))
        click.echo(f"created {topic} with {len(client.topic(topic).partitions)} partitions")


@topics.command("list")
@json_option
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List every topic with its number of partitions.

    Example: millrace topics list --json
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        found = client.topics()
    if as_json:
        rows = [{"topic": name, "partitions": len(topic.partitions)} for name, topic in found.items()]
        click.echo(json.dumps(rows))
        return
    for name, topic in sorted(found.items()):
        click.echo(f"{name}\t{len(topic.partitions)}")


@topics.command()
@click.argument("topic")
@json_option
@bootstrap_option
def describe(topic: str, as_json: bool, bootstrap: str) -> None:
    """Show the leader and the offsets of each partition of TOPIC.

    Offsets are byte positions: their difference is the size of what is stored, not a count of messages.

    Example: millrace topics describe PageView
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, bootstrap):
        found = client.topic(topic)
        starts, ends = client.list_offsets(topic, EARLIEST), client.list_offsets(topic, LATEST)
    rows = [
        {"partition": p, "leader": leader, "start": starts.get(p, -1), "high_watermark": ends.get(p, -1)}
        for p, leader in found.partitions.items()
    ]
    if as_json:
        description = {"topic": topic, "topic_id": str(found.topic_id), "partitions": rows}
        click.echo(json.dumps(description))
        return
    _print_partitions(found, rows)


@topics.command()
@click.argument("topic")
@bootstrap_option
def delete(topic: str, bootstrap: str) -> None:
    """Delete TOPIC and every message in it.

    Example: millrace topics delete PageView
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, bootstrap):
        client.delete_topic(topic)
    click.echo(f"deleted {topic}")


@contextmanager
def naming_the_remedy(topic: str, bootstrap: str) -> Iterator[None]:
    """Turns the protocol's word for an unknown topic into what to do about it."""
    try:
        yield
    except UnknownTopicOrPartition:
        raise MillraceError(
            f"no topic {topic!r} on {bootstrap}: see `millrace topics list --bootstrap {bootstrap}`, or"
            f" create it with `millrace topics create {topic} --bootstrap {bootstrap}`"
        ) from None


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--config {text!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def _print_partitions(topic: TopicMetadata, rows: Sequence[Mapping[str, int]]) -> None:
    click.echo(f"{topic.name}  id {topic.topic_id}")
    table = Table()
    for column in ("partition", "leader", "start", "high watermark"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    print_table(table)
