"""`millrace groups`: list, describe, move and delete consumer groups, of both kinds.

All of it goes through the brokers, like every other command: they answer for groups of Kafka's classic
protocol and, from the registries, for those of Millrace's own consumers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from rich.table import Table

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.group_client import GroupClient, GroupDescription, Member, Place
from millrace.commands.help_texts import Group
from millrace.commands.tables import print_table
from millrace.commands.topics import TIMEOUT_S, bootstrap_option, json_option, led, naming_the_remedy
from millrace.errors import ConfigError, MillraceError, UnknownGroup, UnknownTopicOrPartition
from millrace.wire.consumer_protocol import STREAMS_PROTOCOL

ACTIVE = ("Stable", "PreparingRebalance", "CompletingRebalance")


@click.group(cls=Group)
def groups() -> None:
    """List, describe, move and delete consumer groups.

    Example: millrace groups list --bootstrap 127.0.0.1:9092
    """


@groups.command("list")
@json_option
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List every group with its kind, its state and its number of members.

    `streams` is a group of Millrace's own consumers, `classic` one of Kafka's protocol.

    Example: millrace groups list --json
    """
    with _asking(bootstrap) as (_, asked):
        found = asked.groups()
    rows = [
        {"group": name, "kind": _kind(group), "state": group.state, "members": len(group.members)}
        for name, group in found.items()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("group", "kind", "state", "members")
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    print_table(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a group is in one partition; None: not known, or nobody."""

    topic: str
    partition: int
    committed: int | None
    high_watermark: int | None
    member: str | None
    host: str | None

    @property
    def lag_bytes(self) -> int | None:
        """How much there is between the two."""
        if self.committed is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.committed)


@groups.command()
@click.argument("group")
@json_option
@bootstrap_option
def describe(group: str, as_json: bool, bootstrap: str) -> None:
    """Show where GROUP is in each partition, how far behind, and who reads it.

    The lag is in bytes, not in messages: on Millrace an offset is the byte position of a batch, to which the
    messages in the batch are added one by one.

    Example: millrace groups describe warehouse
    """
    with _asking(bootstrap) as (client, asked):
        described, committed = asked.describe(group), asked.offsets(group)
        readers = {place: member for member in described.members for place in member.partitions}
        rows = list(_places(client, committed, readers))
    if as_json:
        fields = [
            {name: getattr(row, name) for name in (*row.__dataclass_fields__, "lag_bytes")} for row in rows
        ]
        found = {"group": group, "kind": _kind(described), "state": described.state, "partitions": fields}
        click.echo(json.dumps(found | {"members": [member.member_id for member in described.members]}))
        return
    click.echo(f"{group}  {_kind(described)}, {described.state}, members: {len(described.members)}")
    table = Table("topic")
    for column in ("partition", "committed", "high watermark", "lag in bytes"):
        table.add_column(column, justify="right")
    table.add_column("member")
    table.add_column("host")
    for row in rows:
        numbers = (row.partition, row.committed, row.high_watermark, row.lag_bytes)
        texts = ["-" if value is None else str(value) for value in (*numbers, row.member, row.host)]
        table.add_row(row.topic, *texts)
    print_table(table)


@groups.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to", "target", required=True, metavar="WHERE",
    help="earliest, latest, an offset, or a time like 2026-03-01T12:00:00Z.",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(0), help="Move only in this partition; default: in all.")
@bootstrap_option
def seek(group: str, topic: str, target: str, partition: int | None, bootstrap: str) -> None:
    """Move GROUP to another place in TOPIC; its consumers must be stopped.

    A time means the first message of that time or later; without an offset from UTC it is in UTC.

    Example: millrace groups seek warehouse PageView --to 2026-03-01T00:00:00Z
    """
    timestamp, offset = _target(target)
    if offset is not None and partition is None:
        raise click.UsageError("an offset belongs to one partition: name it with --partition")
    with _asking(bootstrap) as (client, asked):
        described = asked.describe(group)
        if described.state in ACTIVE:
            raise MillraceError(
                f"group {group!r} has members ({len(described.members)}): stop them, then move it"
            )
        offsets = _offsets(client, topic, timestamp, offset, partition, bootstrap)
        asked.commit(group, {(topic, number): at for number, at in offsets.items()})
    for number, at in sorted(offsets.items()):
        click.echo(f"{topic}-{number}\t{at}")


@groups.command()
@click.argument("group")
@bootstrap_option
def delete(group: str, bootstrap: str) -> None:
    """Delete GROUP and all its offsets; its consumers must be stopped.

    Example: millrace groups delete warehouse
    """
    with _asking(bootstrap) as (_, asked):
        asked.delete(group)
    click.echo(f"deleted {group}")


@contextmanager
def _asking(bootstrap: str) -> Iterator[tuple[ClusterClient, GroupClient]]:
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        try:
            yield client, GroupClient(client, timeout_s=TIMEOUT_S)
        except UnknownGroup as error:
            raise MillraceError(f"{error}: see `millrace groups list --bootstrap {bootstrap}`") from None


def _kind(group: GroupDescription) -> str:
    return "streams" if group.protocol == STREAMS_PROTOCOL else "classic"


def _places(
    client: ClusterClient, committed: Mapping[Place, int], readers: Mapping[Place, Member]
) -> Iterator[_Place]:
    places = sorted({*committed, *readers})
    ends: dict[str, dict[int, int]] = {}
    for topic in {topic for topic, _ in places}:
        try:
            ends[topic] = client.list_offsets(topic, LATEST, led(client.topic(topic)))
        except UnknownTopicOrPartition:
            ends[topic] = {}  # deleted since
    for topic, number in places:
        reader = readers.get((topic, number))
        yield _Place(
            topic=topic, partition=number, committed=committed.get((topic, number)),
            high_watermark=ends[topic].get(number), member=reader.member_id if reader else None,
            host=reader.host if reader else None,
        )  # fmt: skip


def _target(text: str) -> tuple[int, int | None]:
    """What --to means: (timestamp, None), or (-, offset)."""
    if text in ("earliest", "latest"):
        return (EARLIEST if text == "earliest" else LATEST), None
    if text.isdecimal():
        return LATEST, int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--to {text!r} is neither earliest, latest, an offset nor a time like 2026-03-01T12:00:00Z"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000), None


def _offsets(
    client: ClusterClient, topic: str, timestamp: int, offset: int | None, partition: int | None,
    bootstrap: str,
) -> dict[int, int]:  # fmt: skip
    """Partition -> where to go on; MillraceError when there is no such partition or offset."""
    with naming_the_remedy(topic, bootstrap):
        partitions = client.topic(topic).partitions
    if partition is not None and partition not in partitions:
        raise MillraceError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
    if offset is None:
        return client.list_offsets(topic, timestamp, None if partition is None else [partition])
    assert partition is not None, "the caller has checked"
    earliest = client.list_offsets(topic, EARLIEST, [partition])[partition]
    latest = client.list_offsets(topic, LATEST, [partition])[partition]
    if not earliest <= offset <= latest:
        raise MillraceError(f"{topic}-{partition} is kept from {earliest} to {latest}: {offset} is outside")
    return {partition: offset}
