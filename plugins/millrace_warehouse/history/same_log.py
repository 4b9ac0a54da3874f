"""Whether a topic's log is the one that its loads were read from: of that cluster, and with that topic's id.

Offsets mean nothing in any other. Taken for the same, another cluster's log would be loaded a second time, or
be believed to have lost what it never held.
"""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import LoadManifest


def another_log(client: ClusterClient, topic_id: str, load: LoadManifest) -> str | None:
    """One sentence when the topic with this id, in hex, is not the one that was loaded; None when it is."""
    if client.cluster_id != load.cluster_id:
        return (
            f"{client.bootstrap} is another cluster ({client.cluster_id}) than {load.topic} was loaded from"
            f" ({load.cluster_id})"
        )
    if topic_id != load.topic_id:
        return (
            f"topic {load.topic} was deleted and created anew on {client.bootstrap} (its id is {topic_id},"
            f" the loads are of {load.topic_id})"
        )
    return None


def check_same_log(client: ClusterClient, topic_id: str, load: LoadManifest) -> None:
    """MillraceError, with the way on, when the next load would be of another log than this one."""
    if different := another_log(client, topic_id, load):
        raise MillraceError(
            f"{different}: check --bootstrap; if that was done on purpose, --accept-new-topic goes on with"
            " the topic that is there"
        )
