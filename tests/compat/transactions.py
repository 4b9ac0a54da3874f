"""Transactions on Apache Kafka, for tests of those who read what they leave behind."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import Message, Producer

from millrace.client.cluster_client import LATEST, ClusterClient
from tests.support import wait_until


def transact(bootstrap: str, topic: str, values: list[bytes], *, commit: bool) -> None:
    """Send values to partition 0 in one transaction, commit or abort it, and wait for its marker.

    No transaction may be open there. Kafka answers before the marker stands in the partition; until then
    readers of committed records end before the transaction.
    """
    last = -1

    def delivered(error: object, message: Message) -> None:
        nonlocal last
        assert error is None, error
        last = max(last, message.offset() or 0)

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    with ClusterClient(bootstrap) as client:
        wait_until("the marker", lambda: client.list_offsets(topic, LATEST, [0])[0] > last + 1)
