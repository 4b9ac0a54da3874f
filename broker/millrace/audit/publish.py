"""Publishing on an audit topic: one message at a time, each awaited until the brokers have it.

What is published here may come twice (a retry whose first try did get through): every audit record says by
itself whether it was seen before. So a plain acks=all producer will do, one that can never fail for good.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException, Producer

from millrace.audit.counts import SequenceCounts
from millrace.audit.messages import (
    OFFLINE_AUDIT_TOPIC,
    WAREHOUSE,
    AuditCodec,
    AuditRecord,
    Count,
    LoadNumber,
)
from millrace.errors import MillraceError
from millrace.registry.client import SchemaRegistryClient

MAX_MESSAGE_BYTES = 8 << 20
AUDIT_TOPIC_SETTINGS = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
"""For a new audit topic: Apache Kafka takes no more than 1 MiB unless it is told to."""
_METADATA_TIMEOUT_S = 10.0
_POLL_S = 0.1
# librdkafka looks for expired messages once a second, and those in a request wait for it to end first.
EXPIRY_MARGIN_S = 5.0


class AuditPublisher:
    """Publishes to one audit topic of one cluster. One thread at a time; a context."""

    def __init__(self, bootstrap: str, topic: str, *, timeout_s: float = 60) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "compression.type": "zstd",
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "delivery.timeout.ms": int(timeout_s * 1000),
                "log_level": 2,  # what goes wrong is raised; librdkafka would print it besides
            }
        )

    def check_topics(self, *names: str) -> None:
        """MillraceError unless a broker answers and has the audit topic and all the topics named."""
        wait_s = min(_METADATA_TIMEOUT_S, self._timeout_s)
        for name in (*names, self.topic):
            try:
                found = self._producer.list_topics(name, timeout=wait_s).topics[name]
            except KafkaException as error:
                raise MillraceError(
                    f"no broker answers at {self.bootstrap} ({text_of(error)}): start one or give the right"
                    " address"
                ) from error
            if found.error is not None:
                raise MillraceError(
                    f"{self.bootstrap} has no topic {name} ({found.error.name()}):"
                    f" create it with `millrace topics create {name}`"
                )

    def publish(self, messages: Sequence[bytes]) -> None:
        """Publish the messages in order and return when all are acknowledged.

        MillraceError when one is not: it and those behind it may be in the topic or not.
        """
        outcomes: list[KafkaError | None] = []
        try:
            for message in messages:
                # One partition, whatever the topic has: what is said later must be read later.
                self._producer.produce(
                    self.topic, message, partition=0, on_delivery=lambda error, _: outcomes.append(error)
                )
            give_up_at = time.monotonic() + self._timeout_s + EXPIRY_MARGIN_S
            while len(outcomes) < len(messages) and time.monotonic() < give_up_at:
                self._producer.poll(_POLL_S)
        except (KafkaException, BufferError) as error:
            raise MillraceError(
                f"{self.bootstrap} takes nothing on {self.topic}: {text_of(error)}"
            ) from error
        failed = next((error for error in outcomes if error is not None), None)
        if failed is not None:
            raise MillraceError(f"{self.bootstrap} takes nothing on {self.topic}: {failed.str()}")
        if len(outcomes) < len(messages):
            raise MillraceError(f"{self.bootstrap} acknowledges nothing on {self.topic}")

    def close(self) -> None:
        """Give up what is not acknowledged and let librdkafka end."""
        self._producer.purge()
        self._producer.flush(1.0)

    def __enter__(self) -> AuditPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def text_of(error: BaseException) -> str:
    """What librdkafka says of an error, in one line."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if isinstance(cause, KafkaError) else str(cause)


def publish_load_counts(
    bootstrap: str, registry_url: str, *, topic: str, load: int, counts: SequenceCounts
) -> None:
    """Tell the auditor what one load put into the warehouse; `bootstrap` is the aggregate cluster's.

    May be repeated as often as one likes: a load counts once. MillraceError when it does not get through.
    """
    count = Count(
        time=time.time_ns() // 1_000_000,
        tier=WAREHOUSE,
        topic=topic,
        source=LoadNumber(load),
        foreign=0,
        counts=counts,
    )
    publish_records(bootstrap, registry_url, OFFLINE_AUDIT_TOPIC, [count])


def publish_edition_counts(
    bootstrap: str, registry_url: str, *, topic: str, load: int, editions: Sequence[SequenceCounts]
) -> None:
    """Tell the auditor what every edition of a load holds, the first one first; the last one counts.

    May be repeated as often as one likes: each edition changes the counts once, right after the one before.
    """
    now, records = time.time_ns() // 1_000_000, []
    before = SequenceCounts()
    for edition, counts in enumerate(editions, 1):
        records.append(
            Count(
                time=now, tier=WAREHOUSE, topic=topic, source=LoadNumber(load, edition), foreign=0,
                counts=counts.without(before), removed=before.without(counts),
            )
        )  # fmt: skip
        before = counts
    publish_records(bootstrap, registry_url, OFFLINE_AUDIT_TOPIC, records)


def publish_records(bootstrap: str, registry_url: str, topic: str, records: Sequence[AuditRecord]) -> None:
    """Publish audit records on a topic that must be there, and wait until they are acknowledged."""
    with SchemaRegistryClient(registry_url) as registry, AuditPublisher(bootstrap, topic) as publisher:
        codec = AuditCodec(registry)
        publisher.check_topics()
        publisher.publish([codec.encode(record) for record in records])
