"""Check that a topic's log is the log that its loads read: the same cluster, the same topic id, and not cut
back.

Offsets mean nothing in any other log. Without the check, another cluster's log would be loaded a second time,
or would seem to have lost messages that it never held. A log that was cut back has used offsets again.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.client.cluster_client import ClusterClient
from millrace.client.fetcher import log_was_cut
from millrace.errors import ErrorCode, MillraceError
from millrace_warehouse.history.manifest import LoadManifest, PartitionRange


class RefusedLog(MillraceError):
    """A log that must not be loaded, or not into this folder, before a person has acted: trying again does
    not help.
    """


def another_log(client: ClusterClient, topic_id: str, load: LoadManifest) -> str | None:
    """Return a sentence if the topic with this id, in hex, is not the topic that was loaded; else None."""
    if client.cluster_id != load.cluster_id:
        return (
            f"{client.bootstrap} is another cluster ({client.cluster_id}) than {load.topic} was loaded from"
            f" ({load.cluster_id})"
        )
    if topic_id != load.topic_id:
        return (
            f"topic {load.topic} was deleted and recreated on {client.bootstrap} (its id is {topic_id},"
            f" the loads are of {load.topic_id})"
        )
    return None


def check_same_log(client: ClusterClient, topic_id: str, load: LoadManifest) -> None:
    """Raise RefusedLog, with advice, if the log is not the log that `load` was read from."""
    if different := another_log(client, topic_id, load):
        raise RefusedLog(
            f"{different}: check --bootstrap; to load the present topic instead, give --accept-new-topic"
        )


def cut_log(client: ClusterClient, topic: str, parts: Iterable[PartitionRange]) -> str | None:
    """Return a sentence if the log no longer holds the batches at the ends of these parts; else None.

    A log that holds a batch of an epoch holds all that was before it. So of several parts of one partition
    only the last end of each epoch is asked for.
    """
    ends = dict[tuple[int, int], int]()
    for part in parts:
        if part.end_epoch is not None:
            key = part.partition, part.end_epoch
            ends[key] = max(part.end, ends.get(key, 0))
    while ends:
        epochs = dict([*ends])  # one epoch of each partition
        offsets = {partition: ends.pop((partition, epoch)) for partition, epoch in epochs.items()}
        fetched = client.fetch(topic, offsets, max_bytes=1, max_wait_ms=0, last_epochs=epochs)
        for partition, answer in sorted(fetched.items()):
            name, offset, end = f"{topic}-{partition}", offsets[partition], answer.high_watermark
            if answer.parting is not None:
                return log_was_cut(name, offset, epochs[partition], answer.parting)
            if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE and offset > end:
                return f"{name} ends at offset {end}, but was read up to {offset}: messages are lost"
    return None


def check_not_cut(client: ClusterClient, topic: str, parts: Iterable[PartitionRange]) -> None:
    """Raise RefusedLog when the log was cut back, so that the next load would skip messages."""
    if cut := cut_log(client, topic, parts):
        raise RefusedLog(
            f"{cut}; nothing was loaded: restore a newer copy of the log, or load into a new warehouse"
        )
