"""Compares the newest load with the log: the same topic, not shorter, no offsets expired before a load."""

from __future__ import annotations

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import UnknownTopicOrPartition
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.same_log import another_log, cut_log
from millrace_warehouse.verify.check import Check


def check_log(check: Check, newest: LoadManifest, client: ClusterClient) -> None:
    """Compare the brokers' offsets with the ends of the newest load."""
    topic = check.topic.name
    try:
        topic_id = client.topic(topic).topic_id.hex
    except UnknownTopicOrPartition:
        check.problem(f"{topic} does not exist on {client.bootstrap}: its log is gone")
        return
    if different := another_log(client, topic_id, newest) or cut_log(client, newest.topic, newest.partitions):
        check.problem(different)
        return
    first, last = client.list_offsets(topic, EARLIEST), client.list_offsets(topic, LATEST)
    for part in newest.partitions:
        where, end = f"{topic}-{part.partition}", last.get(part.partition, 0)
        if part.partition not in last or end < part.end:
            check.problem(f"{where} ends at offset {end}, but was loaded up to {part.end}: messages are lost")
        elif first[part.partition] > part.end and first[part.partition] != part.end_base:
            check.problem(f"{where} offsets [{part.end}, {first[part.partition]}) expired before a load")
        elif end > part.end:
            check.note(f"{where} offsets [{part.end}, {end}) are not loaded yet")
