"""Erased rows that a topic's logs may still hold, and for how long.

Rows cannot be erased in a log: its offsets are bytes, and its segments are deleted whole, by age and size.
This module asks each named cluster for the topic's settings and the start of its log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.topic_admin import topic_settings
from millrace.errors import UnknownTopicOrPartition
from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import LoadManifest

MARGIN = timedelta(days=1)
"""Safety margin: a segment is deleted at the check after its time, and a mirror may pause a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHolds:
    """The offsets that one cluster's log of a topic holds, and their retention."""

    bootstrap: str
    cluster_id: str
    retention: str
    """The topic's settings: `retention.ms`, `retention.bytes` and `cleanup.policy`."""
    retention_ms: int | None
    """Time in ms after which records are deleted; None where nothing is deleted by age."""
    offsets: int
    """Offsets in the log now, in all partitions."""
    loads_again: int
    """Loads whose offsets are all still in the log. A re-load of them leaves out erased rows."""


def ask_logs(topic: layout.Topic, addresses: Sequence[str]) -> list[LogHolds]:
    """Ask each cluster what its log holds. Raise MillraceError when a cluster does not answer."""
    return [_ask(topic, address) for address in addresses]


def _ask(topic: layout.Topic, address: str) -> LogHolds:
    with ClusterClient(address) as client:
        try:
            client.topic(topic.name)
            # Several topics where MirrorMaker 2 fills the cluster: each origin's copy has its own settings.
            retentions = [_retention(client, name) for name in client.names_there(topic.name)]
        except UnknownTopicOrPartition:
            none = {"retention_ms": 0, "offsets": 0, "loads_again": 0}
            return LogHolds(
                bootstrap=address, cluster_id=client.cluster_id, retention="no such topic", **none
            )
        first, last = client.list_offsets(topic.name, EARLIEST), client.list_offsets(topic.name, LATEST)
        kept = [milliseconds for _, milliseconds in retentions]
        again = sum(
            load.cluster_id == client.cluster_id and _is_there(load, first)
            for load in layout.loads_after(topic, 0)
            if load.ranges
        )
        return LogHolds(
            bootstrap=address,
            cluster_id=client.cluster_id,
            retention="; ".join(dict.fromkeys(text for text, _ in retentions)),
            retention_ms=None if None in kept else max(ms for ms in kept if ms is not None),
            offsets=sum(last[partition] - first.get(partition, 0) for partition in last),
            loads_again=again,
        )


def _retention(client: ClusterClient, topic: str) -> tuple[str, int | None]:
    """Return a topic's settings of retention and its time in ms, or None for the time where nothing is
    deleted by age.
    """
    names = ("retention.ms", "retention.bytes", "cleanup.policy")
    settings = {each.name: each.value or "" for each in topic_settings(client, topic, names)}
    kept = int(settings.get("retention.ms") or -1)
    deletes = "delete" in settings.get("cleanup.policy", "delete")
    text = ", ".join(f"{name}={settings[name]}" for name in names if settings.get(name))
    return text, kept if kept >= 0 and deletes else None


def _is_there(load: LoadManifest, first: dict[int, int]) -> bool:
    return all(first.get(part.partition, part.end) <= part.start for part in load.ranges)


def in_force_until(logs: Sequence[LogHolds], now: datetime | None = None) -> str | None:
    """Return the time from which no log holds its present records.

    Return None if a log keeps them for ever, or if no cluster was asked. A mirror may copy a record just
    before it expires, so the times of all clusters add up.
    """
    times = [log.retention_ms for log in logs]
    if not times or None in times:
        return None
    milliseconds = sum(time for time in times if time is not None)
    try:
        until = (now or datetime.now(UTC)) + timedelta(milliseconds=milliseconds) + MARGIN
    except OverflowError:
        return None
    return until.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def origins(topic: layout.Topic) -> Iterator[str]:
    """Yield the clusters from which the newest load's partitions were mirrored."""
    newest = layout.newest_load(topic)
    if newest is not None:
        yield from sorted({part.origin.cluster for part in newest.partitions if part.origin is not None})
