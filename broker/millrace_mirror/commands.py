"""`millrace mirror`: show the progress of mirrors, reset stopped mirrors, translate consumers' offsets."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millrace.client.cluster_client import ClusterClient
from millrace.client.examine import examine
from millrace.client.runs import beginning
from millrace.config import BrokerConfig, KafkaMirrorConfig, load, read_toml
from millrace.errors import ConfigError, MillraceError
from millrace.help_texts import CommandGroup
from millrace.logs import start_logging
from millrace.printing import json_option, print_json, print_rows, say
from millrace.records import Cursor
from millrace.records.mirror_position import Origin
from millrace.signals import stop_on_signals
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace.zookeeper.session import Session
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.kafka_aggregate import KafkaAggregate
from millrace_mirror.offset_search import Outcome
from millrace_mirror.states import MirrorStates
from millrace_mirror.status import KafkaMirrorStatus, MirrorRow, MirrorStatus
from millrace_mirror.translation import EXPLAINED, Translation, Translator

if TYPE_CHECKING:
    from millrace.service.monitoring import MonitoringServer
    from millrace_mirror.kafka_target import KafkaTarget

logger = logging.getLogger("millrace.commands.mirror")

_CONFIG = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
_ORIGIN = click.option(
    "--origin", required=True, metavar="NAME", help="The origin cluster, as in [mirror.NAME]."
)


KAFKA_SECONDS = 10.0


@click.group(cls=CommandGroup)
def mirror() -> None:
    """Show and repair the mirrors of other clusters in this cluster.

    CONFIG is the file of any broker of the aggregate cluster: it names the cluster, its ZooKeeper and its
    origins.

    Example: millrace mirror status offline-1.toml
    """


@mirror.command()
@_CONFIG
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the file.")
def run(config: Path, overrides: Sequence[str]) -> None:
    """Copy other clusters into an Apache Kafka, exactly once, until SIGTERM or Ctrl-C.

    CONFIG names the Apache Kafka (cluster, bootstrap), Millrace's ZooKeeper and the origins as [mirror.NAME].
    Millrace's own brokers need no such process: they mirror by themselves.

    Only one process copies an origin: a process that is started later takes over, and the first ends with
    exit code 1.

    Example: millrace mirror run offline-kafka.toml
    """
    from millrace_mirror.into_kafka import mirror_into_kafka

    start_logging()
    stop = threading.Event()
    stop_on_signals(stop.set, limited=True)
    settings = load(KafkaMirrorConfig, config, overrides)

    def ready() -> None:
        say(f"ready: mirror into {settings.cluster} on {settings.bootstrap.partition(',')[0]}")
        sys.stdout.flush()

    with ExitStack() as opened:

        def show(states: MirrorStates, targets: Mapping[str, KafkaTarget]) -> None:
            if settings.metrics_listen:
                server = _metrics_server(settings, states, targets)
                opened.callback(server.close)
                server.start()
                logger.info("metrics on %s/metrics, health on /healthz", server.url)

        mirror_into_kafka(settings, stop, ready, show)


def _metrics_server(
    settings: KafkaMirrorConfig, states: MirrorStates, targets: Mapping[str, KafkaTarget]
) -> MonitoringServer:
    """Return the server of `metrics_listen`; its libraries are loaded only if it is used."""
    from millrace.service.access import AccessList
    from millrace.service.monitoring import MonitoringServer
    from millrace_mirror.metrics import KafkaMirrorNumbers

    access = AccessList(settings.metrics_access) if settings.metrics_access else None
    numbers = KafkaMirrorNumbers(states, targets)
    return MonitoringServer(settings.metrics_listen, "metrics_listen", numbers, lambda: (True, {}), access)


@mirror.command()
@click.option(
    "--cluster",
    metavar="NAME",
    required=True,
    help="Name of the aggregate cluster, as the audit and the registry know it.",
)
@click.option(
    "--bootstrap", metavar="HOST:PORT", required=True, help="One or more brokers of the aggregate cluster."
)
@click.option("--zookeeper", metavar="HOST:PORT", required=True, help="Millrace's ZooKeeper.")
@click.option(
    "--origin",
    "origins",
    metavar="NAME",
    required=True,
    multiple=True,
    help="MirrorMaker's name of a cluster.",
)
def adopt(cluster: str, bootstrap: str, zookeeper: str, origins: Sequence[str]) -> None:
    """Record in an Apache Kafka that MirrorMaker 2 copies other clusters into it.

    To the audit, loads and the registry that start afterwards, `dc1.Clicks` and `dc2.Clicks` are one topic,
    Clicks. Give --origin once for each of these clusters. To add an origin, run the command again, then
    restart the readers and the auditor.

    Example: millrace mirror adopt --cluster offline --bootstrap 10.3.0.1:9092 --zookeeper 10.3.0.9:2181
    --origin dc1 --origin dc2
    """
    from millrace_mirror.adopt import adopt as adopt_copies

    with (
        closing(Session.connect(zookeeper)) as session,
        ClusterClient(bootstrap, timeout_s=KAFKA_SECONDS) as client,
    ):
        copies = adopt_copies(session, cluster, client, origins)
    say(f"{cluster}: MirrorMaker copies {', '.join(copies.origins)}")


@mirror.command()
@_CONFIG
@json_option("Print one JSON array, an object for each partition.")
def status(config: Path, as_json: bool) -> None:
    """Show position, lag, latency and state of every mirrored partition, and of each origin together.

    Positions are offsets of the origin, and lag counts offsets that are not copied yet: bytes of a Millrace
    cluster's log, messages of Apache Kafka. Latency is the time from the timestamp of the last copied message
    until consumers saw it here, for an old event from its arrival at the origin. It is `?` after a first copy
    of old messages; `replay` means that the message was at least a day old.

    Example: millrace mirror status offline-1.toml --json
    """
    if _is_of_kafka(config):
        cluster, rows = _rows_of_kafka(load(KafkaMirrorConfig, config))
    else:
        with (
            _connected(config) as (settings, of_brokers),
            closing(MirrorStatus(of_brokers, settings.mirror)) as mirrors,
        ):
            cluster, rows = settings.cluster, mirrors.rows()
    if as_json:
        print_json([_row_json(row) for row in rows])
        return
    if not rows:
        say(f"cluster {cluster} mirrors nothing: its brokers' files name no topic that an origin has")
        return
    print_rows((*_PLACE, *_PROGRESS), [*map(_row_texts, rows)])
    current = sorted((row for row in rows if row.state != "retired"), key=_cluster_of)
    totals = [totals_of(name, list(of_origin)) for name, of_origin in groupby(current, _cluster_of)]
    print_rows(("origin", "partitions", "lag (offsets)", "latency", "states"), totals)


@mirror.command()
@_CONFIG
@_ORIGIN
@click.option("--topic", metavar="NAME", required=True, help="The mirrored topic.")
@click.option("--partition", type=int, help="The origin's partition; without it, all stopped partitions.")
@click.option(
    "--at", type=click.IntRange(min=0), metavar="OFFSET", help="Continue at this offset of the origin."
)
@click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")
def reset(config: Path, origin: str, topic: str, partition: int | None, at: int | None, yes: bool) -> None:
    """Let stopped partitions continue with the messages that their origin has now.

    A partition whose offsets have expired continues at the first remaining offset. If the origin's log is
    shorter than its copy, copying continues at the end of that log. If the log began again on an empty disk,
    give --partition N --at 0: otherwise the messages produced since then are left out. A partition of a topic
    that was deleted and recreated gets a new target partition; the old target partition keeps its messages.

    Example: millrace mirror reset offline-1.toml --origin dc1 --topic PageView --partition 0
    """
    if _is_of_kafka(config):
        raise ConfigError(
            f"{config}: only the process that copies into an Apache Kafka may write positions there: delete"
            " the stopped topic in the aggregate cluster, and it is copied again from its beginning"
        )
    with (
        _connected(config, origin) as (settings, cluster),
        closing(MirrorStatus(cluster, settings.mirror)) as mirrors,
    ):
        if at is not None and partition is None:
            raise ConfigError("--at needs --partition: an offset belongs to one partition")
        metadata = mirrors.origin(origin).topic(topic)
        if partition is not None and partition not in metadata.partitions:
            raise MillraceError(f"{origin} has no partition {topic}-{partition}")
        stopped = 0
        for number in metadata.partitions if partition is None else [partition]:
            stopped += reset_mirror(mirrors, Origin(origin, topic, metadata.topic_id, number), at, yes)
    if not stopped:
        say("nothing to reset: no partition is stopped")


def reset_mirror(mirrors: MirrorStatus, origin: Origin, at: int | None, yes: bool) -> bool:
    """Reset one partition if the user confirms it. Return False when it needs no reset."""
    name = f"{origin.cluster} {origin.topic}-{origin.partition}"
    if mirrors.former(origin) is not None:
        if yes or click.confirm(f"{name} was deleted and recreated: begin to copy the new one?"):
            answer = mirrors.ask(origin.topic, MirrorAppend(mode=MirrorMode.RESET, origin=origin))
            target = f"partition {answer.partition}"
            say(f"{name}: the new topic is copied into {target} from its beginning")
        return True
    position = mirrors.ask(origin.topic, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)).position
    client = mirrors.origin(origin.cluster)
    # It may have stopped before anything was recorded: the log is examined from its first offset.
    before = position or beginning(origin, client.bounds(origin.topic, origin.partition)[0])
    changed = examine(client, before)
    if changed is None:
        return False
    resume = changed.resume if at is None else Cursor(at)
    if yes or click.confirm(f"{name}: {changed}. Go on at offset {resume.next_offset}?"):
        expected = None if position is None else position.cursor.next_offset
        request = MirrorAppend(mode=MirrorMode.RESET, origin=origin, expected=expected, cursor=resume)
        mirrors.ask(origin.topic, request)
        say(f"{name}: goes on at offset {resume.next_offset}, it was at {before.cursor.next_offset}")
    return True


@mirror.command()
@_CONFIG
@click.argument("topic", required=False)
@_ORIGIN
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="The origin's partition; with --reverse, this cluster's partition.",
)
@click.option("--offset", type=click.IntRange(0), help="The offset to translate: the next offset to read.")
@click.option(
    "--group",
    metavar="NAME",
    help="Translate all offsets that this consumer group has committed, in all topics.",
)
@click.option("--reverse", is_flag=True, help="Translate from this cluster to the origin.")
@click.option("--apply", is_flag=True, help="Commit the group's translated offsets on the other side.")
@json_option("Print one JSON array, an object for each offset.")
def translate(
    config: Path,
    topic: str | None,
    origin: str,
    partition: int | None,
    offset: int | None,
    group: str | None,
    reverse: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Translate an origin's offsets into the exact offsets of its mirror, or back.

    For one offset give TOPIC, --partition and --offset. For a whole consumer group, give --group: stop its
    consumers, run the command with --apply, and start the consumers on the other cluster. They continue with
    the next message. If an offset cannot be translated, the reason is shown and nothing is committed.

    Example: millrace mirror translate offline-1.toml --origin dc1 --group warehouse --apply
    """
    given = [value is not None for value in (topic, partition, offset)]
    if any(given) if group is not None else not all(given):
        raise click.UsageError("give TOPIC, --partition and --offset, or --group, which means all its topics")
    if apply and group is None:
        raise click.UsageError("--apply needs --group")
    if _is_of_kafka(config):
        raise ConfigError(
            f"{config}: offsets cannot be translated for a mirror into Apache Kafka, whose log does not keep"
            " the origin's offsets. Start moved consumers at a time instead (`kafka-consumer-groups.sh"
            " --reset-offsets --to-datetime`)."
        )
    with (
        _connected(config, origin) as (settings, cluster),
        closing(Translator(cluster, origin, settings.mirror[origin], to_origin=reverse)) as translator,
    ):
        if topic is None or partition is None or offset is None:
            assert group is not None
            translations = translator.group(group)
        else:
            translations = [translator.one(topic, partition, offset)]
        _print_translations(translations, reverse, as_json)
        if apply and group is not None:
            translator.apply(group, translations)
            if not as_json:
                say(f"committed {len(translations)} offsets of group {group}")
    if group is None and translations[0].answer.outcome is not Outcome.TRANSLATED:
        raise MillraceError(f"offset {offset} is {EXPLAINED[translations[0].answer.outcome]}")


def _is_of_kafka(config: Path) -> bool:
    """Return True for the file of `millrace mirror run`. Raise ConfigError when it cannot be read."""
    return "bootstrap" in read_toml(config)


def _rows_of_kafka(settings: KafkaMirrorConfig) -> tuple[str, list[MirrorRow]]:
    with (
        closing(Session.connect(settings.zookeeper, identity=settings.zookeeper_identity)) as session,
        ClusterClient(settings.bootstrap, timeout_s=KAFKA_SECONDS) as client,
    ):
        if session.get(f"/{settings.cluster}/id") is None:
            raise MillraceError(
                f"nothing was mirrored into {settings.cluster} yet: start `millrace mirror run` with the same"
                " file"
            )
        aggregate = KafkaAggregate(session, settings.cluster, client)
        with closing(KafkaMirrorStatus(aggregate, client, settings.mirror)) as mirrors:
            return settings.cluster, mirrors.rows()


@contextmanager
def _connected(config: Path, origin: str | None = None) -> Iterator[tuple[BrokerConfig, Cluster]]:
    """Yield the file's settings and its cluster. Raise ConfigError when the settings lack the origin."""
    settings = load(BrokerConfig, config)
    if origin is not None and origin not in settings.mirror:
        origins = ", ".join(settings.mirror) or "none"
        raise ConfigError(f"{config} has no [mirror.{origin}]; origins: {origins}")
    identity = settings.zookeeper_identity
    with Cluster.connect(settings.zookeeper, settings.cluster, identity=identity) as cluster:
        yield settings, cluster


def _text(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def latency_text(milliseconds: int | None) -> str:
    """Return a latency in seconds or hours.

    Return `replay` for a day or more: then old messages are being replayed.
    """
    if milliseconds is None:
        return "?"
    hours = milliseconds / 3_600_000
    if hours >= 24:
        return "replay"
    return f"{hours:.1f} h" if hours >= 2 else f"{milliseconds / 1000:,.1f} s"


_PLACE = ("topic", "origin", "partition", "leader")
_PROGRESS = ("position\n(offset)", "origin's end\n(offset)", "lag\n(offsets)", "latency", "state")


def _row_texts(row: MirrorRow) -> Sequence[object]:
    origin = f"{row.origin.cluster} {row.origin.partition}"
    position = row.position.cursor.next_offset if row.position is not None else None
    numbers = (_text(position), _text(row.origin_high_watermark), _text(row.lag))
    state = f"{row.state}: {row.detail}" if row.detail else row.state
    return (row.topic, origin, row.partition, row.leader, *numbers, latency_text(row.latency_ms), state)


def _cluster_of(row: MirrorRow) -> str:
    return row.origin.cluster


def totals_of(origin: str, rows: Sequence[MirrorRow]) -> Sequence[object]:
    """Return one origin's totals: the sum of its partitions' lags if all are known, and the
    longest latency.
    """
    lags = [row.lag for row in rows if row.lag is not None]
    latency = max((row.latency_ms for row in rows if row.latency_ms is not None), default=None)
    states = sorted(Counter(str(row.state) for row in rows).items())
    lag = _text(sum(lags) if len(lags) == len(rows) else None)
    return (origin, len(rows), lag, latency_text(latency), ", ".join(f"{n} {state}" for state, n in states))


def _row_json(row: MirrorRow) -> dict[str, Any]:
    position = row.position
    return {
        "topic": row.topic,
        "partition": row.partition,
        "origin": {**asdict(row.origin), "topic_id": str(row.origin.topic_id)},
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
    }


def _print_translations(translations: Sequence[Translation], reverse: bool, as_json: bool) -> None:
    if as_json:
        print_json([_translation_json(translation) for translation in translations])
        return
    if not translations:
        say("nothing to translate: the group reads no topic that is mirrored from there")
        return
    answer = "at the origin" if reverse else "in the copy"
    rows = []
    for one in translations:
        outcome, offset = one.answer
        text = offset if outcome is Outcome.TRANSLATED else EXPLAINED[outcome]
        rows.append((one.topic, one.origin_partition, one.partition, one.offset, text))
    print_rows(("topic", "origin partition", "partition", "offset", answer), rows)


def _translation_json(translation: Translation) -> dict[str, Any]:
    outcome, offset = translation.answer
    return {
        "topic": translation.topic,
        "origin_partition": translation.origin_partition,
        "partition": translation.partition,
        "offset": translation.offset,
        "outcome": outcome.name.lower(),
        "translated": offset if outcome is Outcome.TRANSLATED else None,
    }
