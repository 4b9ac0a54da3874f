"""Transactions on Apache Kafka, for tests of those who read what they leave behind."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import Producer


def transact(bootstrap: str, topic: str, values: list[bytes], *, commit: bool) -> None:
    """Send values to partition 0 in one transaction, and commit or abort it."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
