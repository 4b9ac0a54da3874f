"""Record in an Apache Kafka that MirrorMaker 2 copies into it: readers then see the copies by origin.

client/copied_topics.py describes the record and its meaning. This module copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, Message, Producer

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import librdkafka_settings, text_of
from millrace.client.copied_topics import COPIES_KEY, COPIES_TOPIC, CopiedTopics
from millrace.client.kafka_positions import SETTINGS
from millrace.errors import MillraceError, TopicAlreadyExists
from millrace.zookeeper.session import Session
from millrace_mirror.kafka_aggregate import claim_name

_SEND_SECONDS = 30.0


def adopt(session: Session, cluster: str, client: ClusterClient, origins: Sequence[str]) -> CopiedTopics:
    """Record in the cluster that MirrorMaker 2 copies these origins into it, for readers that start later.

    Origins that are already recorded keep their numbers, and stay recorded if `origins` lacks them. Raise
    MillraceError when the record cannot be written.
    """
    claim_name(session, cluster, client)
    before = client.copies
    names = list(dict.fromkeys([*(before.origins if before else ()), *origins]))
    with suppress(TopicAlreadyExists):
        client.create_topic(COPIES_TOPIC, 1, SETTINGS)
    copies = CopiedTopics(tuple(names), client.topic(COPIES_TOPIC).topic_id)
    if copies != before:
        _write(client, copies)
    return copies


def _write(client: ClusterClient, copies: CopiedTopics) -> None:
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        failed.extend([error] if error is not None else [])

    timeout = {"message.timeout.ms": int(_SEND_SECONDS * 1000), "log_level": 2}  # errors are raised
    timeout["allow.auto.create.topics"] = False
    settings = {"bootstrap.servers": client.bootstrap, "acks": "all", **timeout}
    producer = Producer({**librdkafka_settings(client.security), **settings})
    producer.produce(COPIES_TOPIC, copies.encode(), COPIES_KEY, partition=0, on_delivery=on_delivery)
    if producer.flush(_SEND_SECONDS + 1) or failed:
        why = f": {text_of(failed[0])}" if failed else ""
        raise MillraceError(f"{client.bootstrap} does not accept the record of {COPIES_TOPIC}{why}")
