"""`millrace groups`: list, describe, move and delete consumer groups, of both kinds.

All requests go to the brokers, as in every other command. Brokers answer for groups of Kafka's classic
protocol and, from the registries, for groups of Millrace's own consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import click

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.errors import TryAgain
from millrace.client.group_client import GroupClient, GroupDescription, GroupMember
from millrace.config import parse_time
from millrace.errors import BrokerError, ConfigError, MillraceError, UnknownGroup, UnknownTopicOrPartition
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_json, print_records, print_rows, say
from millrace.records.topic_partition import TopicPartition
from millrace.wire.consumer_protocol import STREAMS_PROTOCOL
from millrace_commands.message_counts import MessageCount, count_messages
from millrace_commands.topics import TIMEOUT_S, bootstrap_option, chosen_partitions, led, naming_the_remedy


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, move and delete consumer groups.

    Example: millrace groups list --bootstrap 127.0.0.1:9092
    """


@groups.command("list")
@json_option()
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List every group with its kind, its state and its number of members.

    A group of Millrace's own consumers is `streams`; a group of Kafka's protocol is `classic`.

    Example: millrace groups list --json
    """
    with _client(bootstrap) as (_, client):
        records = [
            {"group": name, "kind": _kind(group), "state": group.state, "members": len(group.members)}
            for name, group in client.groups().items()
        ]
    print_records(records, as_json=as_json, none="no groups")


class _Position(NamedTuple):
    """A group's position in one partition; None for an unknown value, or without a member."""

    topic: str
    partition: int
    committed: int | None
    high_watermark: int | None
    lag_messages: int | None
    lag_is_exact: bool | None
    lag_bytes: int | None
    member: str | None
    host: str | None


@groups.command()
@click.argument("group")
@json_option()
@bootstrap_option
def describe(group: str, as_json: bool, bootstrap: str) -> None:
    """Show the position of GROUP in each partition, its lag, and the member that reads it.

    On Millrace an offset is a byte position, so a difference of offsets is a lag in bytes. Messages are
    counted in the first 1 MiB of each partition's lag; for a larger lag their number is estimated, and shown
    with a ~.

    Example: millrace groups describe warehouse
    """
    with _client(bootstrap) as (cluster, client):
        description, committed = client.describe(group), client.offsets(group)
        readers = {partition: member for member in description.members for partition in member.partitions}
        positions = list(group_positions(cluster, committed, readers))
    kind, state, members = _kind(description), description.state, description.members
    if as_json:
        partitions = [position._asdict() for position in positions]
        described = {"group": group, "kind": kind, "state": state, "partitions": partitions}
        print_json({**described, "members": [member.member_id for member in members]})
        return
    say(f"{group}  {kind}, {state}, members: {len(members)}")
    numbers = ("partition", "committed", "high watermark", "lag in messages", "lag in bytes")
    rows = [["-" if value is None else value for value in _row(position)] for position in positions]
    print_rows(("topic", *numbers, "member", "host"), rows)


def _row(position: _Position) -> Iterator[object]:
    for name, value in position._asdict().items():
        if name == "lag_messages" and position.lag_is_exact is False:
            yield f"~{value}"
        elif name != "lag_is_exact":
            yield value


@groups.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="WHERE",
    help="earliest, latest, an offset, or a time like 2026-03-01T12:00:00Z.",
)
@click.option("--partition", type=click.IntRange(0), help="Move only in this partition; default: in all.")
@bootstrap_option
def seek(group: str, topic: str, target: str, partition: int | None, bootstrap: str) -> None:
    """Move GROUP to another offset in TOPIC. The group's consumers must be stopped.

    With a time, GROUP moves to the first message of that time or later. A time without a zone is in UTC.

    Example: millrace groups seek warehouse PageView --to 2026-03-01T00:00:00Z
    """
    timestamp, offset = _target(target)
    if offset is not None and partition is None:
        raise click.UsageError("an offset belongs to one partition: name the partition with --partition")
    with _client(bootstrap) as (cluster, client):
        description = client.describe(group)
        if description.active:
            raise MillraceError(
                f"group {group!r} has members ({len(description.members)}): stop them, then move it"
            )
        with naming_the_remedy(topic, cluster):
            partitions = chosen_partitions(cluster, topic, partition)
        if offset is None:
            offsets = cluster.list_offsets(topic, timestamp, partitions)
        else:
            (number,) = partitions
            _check_kept(cluster, topic, number, offset)
            offsets = {number: offset}
        client.commit(group, {(topic, number): at for number, at in offsets.items()})
    for number, at in sorted(offsets.items()):
        say(f"{topic}-{number}", at)


@groups.command()
@click.argument("group")
@bootstrap_option
def delete(group: str, bootstrap: str) -> None:
    """Delete GROUP and all its offsets. The group's consumers must be stopped.

    Example: millrace groups delete warehouse
    """
    with _client(bootstrap) as (_, client):
        client.delete(group)
    say(f"deleted {group}")


@contextmanager
def _client(bootstrap: str) -> Iterator[tuple[ClusterClient, GroupClient]]:
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        try:
            yield cluster, GroupClient(cluster)
        except UnknownGroup as error:
            raise MillraceError(f"{error}: see `millrace groups list --bootstrap {bootstrap}`") from None


def _kind(group: GroupDescription) -> str:
    return "streams" if group.protocol == STREAMS_PROTOCOL else "classic"


def group_positions(
    cluster: ClusterClient,
    committed: Mapping[TopicPartition, int],
    readers: Mapping[TopicPartition, GroupMember],
) -> Iterator[_Position]:
    partitions = sorted({*committed, *readers})
    ends = {topic: _ends(cluster, topic) for topic in {topic for topic, _ in partitions}}
    for partition in partitions:
        topic, number = partition
        offset, end, reader = committed.get(partition), ends[topic].get(number), readers.get(partition)
        lag = None if offset is None or end is None else max(0, end - offset)
        member, host = (reader.member_id, reader.host) if reader else (None, None)
        counted = None if offset is None or end is None else lag_in(cluster, topic, number, offset, end)
        messages, exact = counted or (None, None)
        yield _Position(topic, number, offset, end, messages, exact, lag, member, host)


def lag_in(cluster: ClusterClient, topic: str, number: int, offset: int, end: int) -> MessageCount | None:
    """Return the number of messages of a lag; None if the partition is not readable or has no leader."""
    try:
        return count_messages(cluster, topic, number, offset, end)
    except (BrokerError, TryAgain):
        return None


def _ends(cluster: ClusterClient, topic: str) -> dict[int, int]:
    try:
        return cluster.list_offsets(topic, LATEST, led(cluster.topic(topic)))
    except UnknownTopicOrPartition:
        return {}  # deleted since


def _target(text: str) -> tuple[int, int | None]:
    """Return the value of --to: (timestamp, None), or (-, offset)."""
    if text in ("earliest", "latest"):
        return (EARLIEST if text == "earliest" else LATEST), None
    if text.isdecimal():
        return LATEST, int(text)
    try:
        return int(parse_time(text, "--to").timestamp() * 1000), None
    except ConfigError:
        raise ConfigError(
            f"--to {text!r} is neither earliest, latest, an offset nor a time like 2026-03-01T12:00:00Z"
        ) from None


def _check_kept(cluster: ClusterClient, topic: str, partition: int, offset: int) -> None:
    earliest = cluster.list_offsets(topic, EARLIEST, [partition])[partition]
    latest = cluster.list_offsets(topic, LATEST, [partition])[partition]
    if not earliest <= offset <= latest:
        raise MillraceError(f"{topic}-{partition} is kept from {earliest} to {latest}: {offset} is outside")
