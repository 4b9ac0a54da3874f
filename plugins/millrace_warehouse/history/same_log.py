"""Check that a topic's log is the log that its loads read: the same cluster, the same topic id, and not cut
back.

Offsets mean nothing in any other log. Without the check, another cluster's log would be loaded a second time,
or would seem to have lost messages that it never held. A log that was cut back has used offsets again.
"""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient
from millrace.client.fetcher import log_was_cut
from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import LoadManifest


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
    """Raise MillraceError, with advice, if the log is not the log that `load` was read from."""
    if different := another_log(client, topic_id, load):
        raise MillraceError(
            f"{different}: check --bootstrap; to load the present topic instead, give --accept-new-topic"
        )


def cut_log(client: ClusterClient, load: LoadManifest) -> str | None:
    """Return a sentence if the log no longer holds the batches at the load's end; else None."""
    ends = {part.partition: part.end for part in load.partitions if part.end_epoch is not None}
    epochs = {part.partition: part.end_epoch for part in load.partitions if part.end_epoch is not None}
    fetched = client.fetch(load.topic, ends, max_bytes=1, max_wait_ms=0, last_epochs=epochs) if ends else {}
    for partition, part in sorted(fetched.items()):
        if part.parting is not None:
            name = f"{load.topic}-{partition}"
            return log_was_cut(name, ends[partition], epochs[partition], part.parting)
    return None


def check_not_cut(client: ClusterClient, load: LoadManifest) -> None:
    """Raise MillraceError when the log was cut back, so that the next load would skip messages."""
    if cut := cut_log(client, load):
        raise MillraceError(
            f"{cut}; nothing was loaded: restore a newer copy of the log, or load into a new warehouse"
        )
