"""`millrace topics`: create, list, describe, alter and delete topics of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click
from rich.table import Table

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.client.topic_admin import (
    add_partitions,
    alter_topic_settings,
    partition_sizes,
    topic_settings,
)
from millrace.commands.help_texts import Group
from millrace.commands.tables import print_table
from millrace.errors import BrokerError, ConfigError, ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.wire.admin_messages import ORIGINS, ConfigSource, DescribeConfigsResourceResult

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
    """Create, list, describe, alter and delete topics.

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
    wanted = _settings(settings)
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        assert client.cluster_id  # a broker answers: only from here on may a failure leave something behind
        try:
            client.create_topic(topic, -1 if partitions is None else partitions, wanted)
        except BrokerError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
            raise _doubt(topic, bootstrap, error) from None
        except MillraceError as error:
            raise _doubt(topic, bootstrap, error) from None
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
    if not found:
        click.echo("no topics")
        return
    table = Table("topic")
    table.add_column("partitions", justify="right")
    for name, topic in sorted(found.items()):
        table.add_row(name, str(len(topic.partitions)))
    print_table(table)


@topics.command()
@click.argument("topic")
@json_option
@bootstrap_option
def describe(topic: str, as_json: bool, bootstrap: str) -> None:
    """Show settings of TOPIC, and leader, offsets and size of each partition.

    Offsets are byte positions, not counts of messages; -1 stands for what nobody tells, because the
    partition's broker is not running. A mirrored topic shows its origins, too.

    Example: millrace topics describe PageView
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, bootstrap):
        found = client.topic(topic)
        served = led(found)
        starts = client.list_offsets(topic, EARLIEST, served)
        ends = client.list_offsets(topic, LATEST, served)
        settings = topic_settings(client, topic)
        sizes = partition_sizes(client, topic, found.partitions)
    origins = _origins(next((item.value for item in settings if item.name == ORIGINS), None))
    rows: list[dict[str, int | str]] = [
        {
            "partition": p, "leader": leader, "start": starts.get(p, -1), "high_watermark": ends.get(p, -1),
            "bytes": sizes.get(p, -1), **({"origin": origins[p]} if p in origins else {}),
        }
        for p, leader in found.partitions.items()
    ]  # fmt: skip
    if as_json:
        told = [
            {"name": item.name, "value": item.value, "source": _source(item.config_source)}
            for item in settings
            if item.name != ORIGINS
        ]
        click.echo(
            json.dumps(
                {"topic": topic, "topic_id": str(found.topic_id), "partitions": rows, "settings": told}
            )
        )
        return
    _print_topic(found, rows, settings)


@topics.command()
@click.argument("topic")
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="Set, e.g. retention.ms=-1.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Leave it to the brokers.")
@click.option("--partitions", type=click.IntRange(1), default=None, help="How many there are to be in all.")
@bootstrap_option
def alter(
    topic: str, settings: Sequence[str], deleted: Sequence[str], partitions: int | None, bootstrap: str
) -> None:
    """Change settings of TOPIC, or give it more partitions, while it is in use.

    Partitions are only ever added, and old messages stay where they are: from then on a key may belong to
    another partition than before. A mirrored topic takes no partitions but those of its origins.

    Example: millrace topics alter PageView --config retention.ms=86400000 --delete-config flush.ms
    """
    changes: dict[str, str | None] = {**_settings(settings)}
    for key in deleted:
        if key in changes:
            raise ConfigError(f"{key} is both set and deleted")
        changes[key] = None
    if not changes and partitions is None:
        raise ConfigError("nothing to change: give --config, --delete-config or --partitions")
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, bootstrap):
        if changes:
            alter_topic_settings(client, topic, changes)
            click.echo(f"changed {', '.join(changes)} of {topic}")
        if partitions is not None:
            add_partitions(client, topic, partitions)
            click.echo(f"{topic} has {partitions} partitions")


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


def led(topic: TopicMetadata) -> list[int]:
    """Those of its partitions that have a leader: of the others nobody tells an offset."""
    return [partition for partition, leader in topic.partitions.items() if leader >= 0]


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--config {text!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def _doubt(topic: str, bootstrap: str, error: MillraceError) -> MillraceError:
    """An outcome nobody knows, and how to find it out."""
    return MillraceError(
        f"topic {topic!r} may or may not have been created: {error}; see `millrace topics describe {topic} "
        f"--bootstrap {bootstrap}`, and create it again if it is not there"
    )


def _origins(text: str | None) -> dict[int, str]:
    """Partition -> the origin's partition it is a copy of."""
    found = {}
    for entry in (text or "").split(","):
        number, equals, origin = entry.partition("=")
        if equals:
            found[int(number)] = origin
    return found


def _source(source: int) -> str:
    """Where a setting comes from, in a word."""
    names: dict[int, str] = {
        ConfigSource.TOPIC: "topic",
        ConfigSource.STATIC_BROKER: "broker",
        ConfigSource.DEFAULT: "default",
    }
    return names.get(source, "cluster")


def _print_topic(
    topic: TopicMetadata,
    rows: Sequence[Mapping[str, int | str]],
    settings: Sequence[DescribeConfigsResourceResult],
) -> None:
    click.echo(f"{topic.name}  id {topic.topic_id}")
    table = Table()
    for column in ("partition", "leader", "start", "high watermark", "bytes"):
        table.add_column(column, justify="right")
    if any("origin" in row for row in rows):
        table.add_column("origin")
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    print_table(table)
    table = Table("setting", "value", "set by")
    for item in settings:
        if item.name != ORIGINS:
            table.add_row(item.name, item.value, _source(item.config_source))
    print_table(table)
