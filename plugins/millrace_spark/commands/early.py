"""Checks that a command makes within a second, before it starts a JVM: addresses, names and folders.

The job repeats each check whose result may change. A check fails here only if nothing could be loaded at all.
A warehouse is given as `absolute_warehouse` returns it. A warehouse that is not a local folder is left to the
job.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.client.errors import no_topic
from millrace.config import parse_addresses
from millrace.errors import ConfigError, MillraceError
from millrace.urls import without_secret
from millrace_warehouse.option_values import check_writable

if TYPE_CHECKING:
    from millrace_registry.subjects import Subjects

TIMEOUT_S = 10.0
MASTER_TIMEOUT_S = 5.0


def topics_to_load(
    warehouse: str,
    bootstrap: str,
    registry: str,
    named_by: Subjects,
    format_of: Callable[[str], str],
    named: Sequence[str],
    matching: str,
) -> tuple[list[str], list[str]]:
    """Return the named and matching topics to load, and the matching topics without a registered schema.

    `format_of` returns the format that the command or a topic's policy names, or empty.

    Raise MillraceError when there is nothing to load. A named topic that does not exist is left to the job,
    unless it is the only topic: other topics can still be loaded.
    """
    matched = _matched(bootstrap, named, matching)
    from millrace.client.cluster_client import ClusterClient
    from millrace_registry.client import SchemaRegistryClient
    from millrace_registry.retained import ids_in
    from millrace_warehouse.log.formats import AVRO, PLAIN_SCHEMAS, check_is_avro, no_schema

    def ids(topic: str) -> Iterable[int]:
        with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
            return ids_in(client, topic, tail_only=True)

    with SchemaRegistryClient(registry) as schemas:

        def versions(topic: str) -> list[int]:
            try:
                return schemas.versions(named_by.of_messages(topic, partial(ids, topic), schemas))
            except ConfigError:  # the messages name the subject, and there is none yet
                return []

        def has_columns(topic: str) -> bool:
            return format_of(topic) in PLAIN_SCHEMAS or bool(versions(topic))

        without = [name for name in matched if not has_columns(name)]
        # Requested even if a topic has a table, and so a schema: the registry's address may be wrong.
        if not matched and not any(map(has_columns, named)) and _are_new(warehouse, named):
            topic, format = named[0], format_of(named[0])
            with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
                if not format:
                    check_is_avro(client, topic, schemas.find_schema)
                raise no_schema(client, topic, repr(topic), schemas, format or AVRO)
    topics = [*named, *(name for name in matched if name not in without)]
    if not topics:
        raise MillraceError(
            f"no topic that matches {matching!r} has a schema at {without_secret(registry)}"
            f" ({', '.join(without[:5])}): register them with `millrace schemas apply`"
        )
    return topics, without


def _matched(bootstrap: str, named: Sequence[str], matching: str) -> list[str]:
    """Return matching topics that are not named.

    Raise MillraceError if no matching topic and no named topic exists.
    """
    from millrace.client.cluster_client import ClusterClient

    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        existing = set(client.topics())
    # Apache Kafka reserves names that begin with two underscores.
    matched = [
        name
        for name in sorted(existing - set(named))
        if matching and re.fullmatch(matching, name) and not name.startswith("__")
    ]
    if matched or existing & set(named):
        return matched
    if named:
        raise no_topic(named[0], bootstrap, existing)
    raise MillraceError(
        f"no topic on {bootstrap} matches {matching!r}: see `millrace topics list --bootstrap {bootstrap}`"
    )


def _are_new(warehouse: str, topics: Sequence[str]) -> bool:
    """Return True if none of the topics has a table in a local warehouse."""
    return warehouse.startswith("/") and not any(Path(warehouse, topic).is_dir() for topic in topics)


def check_warehouse(warehouse: str) -> None:
    """Raise ConfigError when a local warehouse cannot be written."""
    if warehouse.startswith("/"):
        check_writable(Path(warehouse), f"warehouse {warehouse}")


def check_master(master: str) -> None:
    """Raise ConfigError when no standalone master of spark://HOST:PORT[,HOST:PORT] accepts a connection."""
    if not master.startswith("spark://"):
        return
    for address in parse_addresses(master.removeprefix("spark://"), "--master"):
        with suppress(OSError, UnicodeError), socket.create_connection(address, MASTER_TIMEOUT_S):
            return
    raise ConfigError(f"no Spark master answers at {master}: start it, or give the right --master")


def check_table(warehouse: str, topic: str, loads: Sequence[int] = ()) -> None:
    """Raise MillraceError when a local warehouse lacks the topic or a load."""
    if not warehouse.startswith("/"):
        return
    folder = Path(warehouse, topic)
    if not folder.is_dir():
        raise MillraceError(
            f"no load of {topic} in {warehouse}: check both names, or run `millrace load {topic}` first"
        )
    for load in loads:
        if not (folder / "loads" / f"{load:010d}.json").is_file():
            raise MillraceError(f"{topic} has no load {load} in {warehouse}: check --loads")
