"""`millrace topics`: create, list, describe, alter and delete topics of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.client.errors import no_topic
from millrace.client.topic_admin import (
    add_partitions,
    alter_topic_settings,
    elect_preferred,
    elect_unclean,
    eligible_replicas,
    partition_sizes,
    topic_settings,
)
from millrace.errors import (
    BrokerError,
    ConfigError,
    ErrorCode,
    MillraceError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_json, print_records, print_rows, say
from millrace.wire.admin_messages import ORIGINS, ConfigSource
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_commands.topic_policy import policy

TIMEOUT_S = 10.0
_SOURCES: dict[int, str] = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.STATIC_BROKER: "broker",
    ConfigSource.DEFAULT: "default",
}
"""Names of the sources of a setting."""

bootstrap_option = click.option(
    "--bootstrap",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="One or more brokers of the cluster, separated by commas.",
)


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, and elect the leaders of their partitions.

    Example: millrace topics list --bootstrap 127.0.0.1:9092
    """


topics.add_command(policy)


@topics.command()
@click.argument("topic")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=None,
    help="Number of partitions; default: the broker's default_partitions.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=None,
    help="Replicas of each partition; default: the broker's default_replicas.",
)
@click.option(
    "--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting, for example retention.ms=-1."
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, and succeed.")
@bootstrap_option
def create(
    topic: str,
    partitions: int | None,
    replicas: int | None,
    settings: Sequence[str],
    if_not_exists: bool,
    bootstrap: str,
) -> None:
    """Create TOPIC; its partitions are spread over the live brokers.

    Example: millrace topics create PageView --partitions 8 --config retention.ms=86400000
    """
    values = _settings(settings)
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        assert client.cluster_id  # a broker answers: only a later failure may leave a topic behind
        try:
            client.create_topic(topic, partitions or -1, values, replicas=replicas or -1)
        except MillraceError as error:
            if if_not_exists and isinstance(error, TopicAlreadyExists):
                say(f"{topic} exists already, with {len(client.topic(topic).partitions)} partitions")
                return
            if isinstance(error, BrokerError) and error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
            raise MillraceError(
                f"topic {topic!r} may or may not have been created: {error}; see `millrace topics describe"
                f" {topic} --bootstrap {bootstrap}`, and create it again if it is not there"
            ) from None
        say(f"created {topic} with {len(client.topic(topic).partitions)} partitions")


@topics.command("list")
@json_option()
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List every topic with its partitions and replicas, and the number of under-replicated partitions.

    Example: millrace topics list --json
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        listed = sorted(client.topics().items())
    records = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(each.replicas) for each in topic.copies.values()), default=0),
            "under_replicated": sum(len(each.isr) < len(each.replicas) for each in topic.copies.values()),
        }
        for name, topic in listed
    ]
    print_records(records, as_json=as_json, none="no topics")


@topics.command()
@click.argument("topic")
@json_option()
@bootstrap_option
def describe(topic: str, as_json: bool, bootstrap: str) -> None:
    """Show settings of TOPIC, and leader, replicas, offsets and size of each partition.

    Replicas are ids of brokers: all replicas, the in-sync replicas, and the replicas that may lead although
    they are not in sync. Offsets are byte positions, not counts of messages; -1 means that a number is
    unknown, because the partition's broker is not running. A mirrored topic shows its origins, too.

    Example: millrace topics describe PageView
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, client):
        metadata = client.topic(topic)
        partitions = list(_partitions(client, metadata))
        settings = {setting.name: setting for setting in topic_settings(client, topic)}
    origins = _origins(settings.pop(ORIGINS).value if ORIGINS in settings else None)
    for partition in partitions:
        if partition["partition"] in origins:
            partition["origin"] = origins[partition["partition"]]
    rows = [
        {"name": name, "value": setting.value, "source": _SOURCES.get(setting.config_source, "cluster")}
        for name, setting in settings.items()
    ]
    topic_id = str(metadata.topic_id)
    if as_json:
        print_json({"topic": topic, "topic_id": topic_id, "partitions": partitions, "settings": rows})
        return
    say(f"{topic}  id {topic_id}")
    columns = ["partition", "leader", "epoch", "replicas", "in sync", "eligible", "start", "high watermark"]
    columns += ["bytes", "origin"] if origins else ["bytes"]
    rows_shown = [
        [",".join(map(str, value)) if isinstance(value, tuple) else value for value in partition.values()]
        for partition in partitions
    ]
    print_rows(columns, rows_shown)
    for number in sorted(metadata.partitions.keys() - led(metadata)):
        say(_leaderless(f"{topic}-{number}", metadata.copies[number].replicas))
    print_rows(("setting", "value", "set by"), [list(row.values()) for row in rows])


@topics.command()
@click.argument("topic")
@click.option(
    "--config",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a setting, for example retention.ms=-1.",
)
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Delete a setting, so that the brokers' setting applies.",
)
@click.option("--partitions", type=click.IntRange(1), default=None, help="New total number of partitions.")
@bootstrap_option
def alter(
    topic: str, settings: Sequence[str], deleted: Sequence[str], partitions: int | None, bootstrap: str
) -> None:
    """Change settings of TOPIC, or give it more partitions, while it is in use.

    Partitions are only ever added, and old messages stay where they are: from then on a key may belong to
    another partition than before. A mirrored topic gets its partitions from its origins only.

    Example: millrace topics alter PageView --config retention.ms=86400000 --delete-config flush.ms
    """
    changes: dict[str, str | None] = {**_settings(settings)}
    for key in deleted:
        if key in changes:
            raise ConfigError(f"{key} is both set and deleted")
        changes[key] = None
    if not changes and partitions is None:
        raise ConfigError("nothing to change: give --config, --delete-config or --partitions")
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, client):
        if changes:
            alter_topic_settings(client, topic, changes)
            say(f"changed {', '.join(changes)} of {topic}")
        if partitions is not None:
            add_partitions(client, topic, partitions)
            say(f"{topic} has {partitions} partitions")


@topics.command()
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@click.option("--unclean", is_flag=True, help="Let --replica lead although it may lack committed messages.")
@click.option(
    "--replica", type=click.IntRange(0), default=None, help="The broker that must lead (--unclean)."
)
@click.option("--reason", metavar="TEXT", default="", help="Reason, for the brokers' log.")
@bootstrap_option
def elect(partitions: Sequence[str], unclean: bool, replica: int | None, reason: str, bootstrap: str) -> None:
    """Make the first replica of partitions their leader again; without arguments, of all partitions.

    With --unclean, --replica becomes the leader of partitions that no replica can lead without a loss: each
    disk that had all committed messages is lost or was restored from an older copy. Messages that --replica
    lacks are lost, and their offsets may be used for other messages.

    Example: millrace topics elect --unclean PageView-0 --replica 3 --reason "disks of 1 and 2 burnt"
    """
    named = [_partition(text) for text in partitions]
    if unclean and (not named or replica is None or not reason.strip()):
        raise ConfigError("--unclean needs --replica, --reason and a partition, such as PageView-0")
    if not unclean and (replica is not None or reason):
        raise ConfigError("--replica and --reason are for --unclean")
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        if unclean and replica is not None:
            for topic, number in named:
                elect_unclean(client, topic, number, replica, reason)
                say(f"{topic}-{number} continues with the messages of broker {replica}")
            return
        outcomes = elect_preferred(client, named or None)
    for partition, (_, refusal) in outcomes.items():
        say(f"{partition}: {refusal or 'its first replica leads from now on'}")
    if not outcomes:
        say("the first replica of each partition leads already")
    failed = [name for name, (code, _) in outcomes.items() if code not in (0, ErrorCode.ELECTION_NOT_NEEDED)]
    if failed:
        raise MillraceError(f"{len(failed)} of {len(outcomes)} elections failed, such as that of {failed[0]}")


def _partition(text: str) -> tuple[str, int]:
    topic, dash, number = text.rpartition("-")
    if not dash or not number.isdecimal():
        raise ConfigError(f"{text!r} is not TOPIC-PARTITION, such as PageView-0")
    return topic, int(number)


@topics.command()
@click.argument("topic")
@bootstrap_option
def delete(topic: str, bootstrap: str) -> None:
    """Delete TOPIC and every message in it.

    Example: millrace topics delete PageView
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, client):
        client.delete_topic(topic)
    say(f"deleted {topic}")


@contextmanager
def naming_the_remedy(topic: str, client: ClusterClient) -> Iterator[None]:
    """Turn the protocol's error for an unknown topic into advice."""
    try:
        yield
    except UnknownTopicOrPartition:
        raise no_topic(topic, client.bootstrap, client.topics()) from None


def chosen_partitions(client: ClusterClient, topic: str, only: int | None) -> list[int]:
    """Return the topic's partitions, or only the requested one.

    Raise MillraceError when that does not exist.
    """
    partitions = list(client.topic(topic).partitions)
    if only is None:
        return partitions
    if only not in partitions:
        raise MillraceError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {only}")
    return [only]


def led(topic: TopicMetadata) -> list[int]:
    """Return the partitions that have a leader: without a leader a partition's offsets are unknown."""
    return [partition for partition, leader in topic.partitions.items() if leader >= 0]


def _leaderless(partition: str, replicas: Sequence[int]) -> str:
    """Return the reason why a partition may have no leader, and the remedy."""
    brokers = ", ".join(map(str, replicas))
    return (
        f"{partition} has no leader: start its brokers ({brokers}). If they all run, a log directory was"
        " empty or put back from an older copy, and its replica may lack messages: put back the newest copy"
        " if there is one, then run"
        f" `millrace topics elect --unclean {partition} --replica {replicas[0]} --reason WHY`"
    )


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--config {text!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def _partitions(client: ClusterClient, topic: TopicMetadata) -> Iterator[dict[str, Any]]:
    """Yield leader, replicas, offsets and size of each partition, -1 for unknown numbers."""
    served = led(topic)
    starts = client.list_offsets(topic.name, EARLIEST, served)
    ends = client.list_offsets(topic.name, LATEST, served)
    sizes = partition_sizes(client, topic.name, topic.partitions)
    lacking = any(len(each.isr) < len(each.replicas) for each in topic.copies.values())
    # Apache Kafka has this request only since 3.8.
    eligible = (
        eligible_replicas(client, topic.name)
        if lacking and client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)
        else {}
    )
    for number, leader in topic.partitions.items():
        yield {
            "partition": number,
            "leader": leader,
            "leader_epoch": topic.copies[number].leader_epoch,
            "replicas": topic.copies[number].replicas,
            "in_sync": topic.copies[number].isr,
            "eligible": eligible.get(number, ()),
            "start": starts.get(number, -1),
            "high_watermark": ends.get(number, -1),
            "bytes": sizes.get(number, -1),
        }


def _origins(text: str | None) -> dict[int, str]:
    """Return for each partition the origin's partition of which it is a copy."""
    entries = [entry.partition("=") for entry in (text or "").split(",")]
    return {int(number): origin for number, equals, origin in entries if equals}
