"""Publishing on an audit topic: each call waits until the brokers have acknowledged its messages.

A message may arrive twice, by a retry after a successful first try. Every audit record itself shows a
repetition. Therefore a plain acks=all producer is enough, which never fails permanently.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millrace.client.confluent import connected, text_of
from millrace.errors import MillraceError
from millrace.wire.cluster_id import check_cluster
from millrace_audit.reports.counts import SequenceCounts, SequenceTally
from millrace_audit.reports.messages import (
    HourRows,
    LoadCount,
    LoadEnd,
    LoadNumber,
    RejectedMessages,
    TableCount,
    UnkeyedRows,
    now_ms,
)

T = TypeVar("T")

MAX_MESSAGE_BYTES = 8 << 20
AUDIT_TOPIC_SETTINGS = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
"""Settings of a new audit topic: Apache Kafka's default limit is 1 MiB."""
PART_BYTES = 512 << 10
"""Size of the messages that report a load or a table. It must not change: a half-reported load continues in
the same parts."""
_RANGE_BYTES, _NUMBERS_BYTES = 20, 40
"""Largest sizes of a range and of the numbers beside the names: Avro writes each number in up
to ten bytes."""
_MOST_ENTRIES = 20_000
"""Most hours or windows in one part, beside its sequences: each takes up to 30 bytes."""
_METADATA_TIMEOUT_S = 10.0
_POLL_S = 0.1
# librdkafka looks for expired messages once a second; those in a request expire only when the request ends.
EXPIRY_MARGIN_S = 5.0


class UnknownTopic(MillraceError):
    """The brokers answer, but they do not have the topic."""


class AuditPublisher:
    """Publishes to one audit topic of one cluster. For one thread at a time; a context manager."""

    def __init__(
        self, bootstrap: str, topic: str, *, timeout_s: float = 60, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Connect; `settings` are librdkafka's settings of security.

        They replace the process's client file.
        """
        self.topic = topic
        self.bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._producer = connected(
            Producer,
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "allow.auto.create.topics": False,
                "compression.type": "zstd",
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "delivery.timeout.ms": int(timeout_s * 1000),
                "log_level": 2,  # what goes wrong is raised; librdkafka would print it besides
                **(settings or {}),
            },
        )

    def check_cluster(self, name: str, *, give_up_at: float = math.inf) -> None:
        """Raise MillraceError unless a broker answers, and WrongCluster when its cluster has another name."""
        check_cluster(name, self._metadata(self.topic, give_up_at).cluster_id, self.bootstrap)

    def check_topics(self, *names: str, give_up_at: float = math.inf) -> None:
        """Raise MillraceError unless a broker answers.

        Raise UnknownTopic unless the broker has these topics and `audit`.
        """
        for name in (*names, self.topic):
            topic = self._metadata(name, give_up_at).topics[name]
            if topic.error is not None:
                raise UnknownTopic(
                    f"{self.bootstrap} has no topic {name} ({topic.error.name()}):"
                    f" create it with `millrace topics create {name} --bootstrap {self.bootstrap}`"
                )

    def _metadata(self, topic: str, give_up_at: float) -> Any:
        wait_s = min(_METADATA_TIMEOUT_S, self._timeout_s, max(give_up_at - time.monotonic(), _POLL_S))
        try:
            return self._producer.list_topics(topic, timeout=wait_s)
        except KafkaException as error:
            raise MillraceError(
                f"no broker answers at {self.bootstrap} ({text_of(error)}): start one or give the right"
                " address"
            ) from error

    def publish(
        self, messages: Sequence[bytes], *, keys: Sequence[bytes] = (), give_up_at: float = math.inf
    ) -> int:
        """Publish the messages in order, with their keys if there are any; return when all are acknowledged.

        Return the offset of the last message.

        Raise MillraceError when a message is not acknowledged, at `give_up_at` of the monotonic clock at the
        latest. That message and the later messages may be in the topic or not, and may still arrive.
        """
        outcomes: list[tuple[KafkaError | None, Message]] = []
        try:
            for message, key in zip_longest(messages, keys):
                # Always partition 0: messages must be read in the order in which they were published.
                self._producer.produce(
                    self.topic, message, key, partition=0, on_delivery=lambda *sent: outcomes.append(sent)
                )
            give_up_at = min(give_up_at, time.monotonic() + self._timeout_s + EXPIRY_MARGIN_S)
            while len(outcomes) < len(messages) and time.monotonic() < give_up_at:
                self._producer.poll(_POLL_S)
        except (KafkaException, BufferError) as error:
            raise self._refused(error) from error
        for failed in (error for error, _ in outcomes if error is not None):
            raise self._refused(failed)
        if len(outcomes) < len(messages):
            raise MillraceError(f"{self.bootstrap} did not acknowledge all messages on {self.topic} in time")
        return max((int(sent.offset() or 0) for _, sent in outcomes), default=0)

    def _refused(self, error: BaseException | KafkaError) -> MillraceError:
        return MillraceError(f"{self.bootstrap} refuses messages on {self.topic}: {text_of(error)}")

    def close(self) -> None:
        """Give up on unacknowledged messages and wait up to a second for librdkafka to end."""
        self._producer.purge()
        self._producer.flush(1.0)

    def __enter__(self) -> AuditPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EditionRows:
    """Rows of an edition that are reported beside its sequences."""

    unkeyed: Sequence[UnkeyedRows] = ()
    """Differences from the edition before, by window."""
    hours: Sequence[HourRows] = ()
    rejected: Sequence[RejectedMessages] = ()


def edition_records(
    topic: str,
    source: LoadNumber,
    before: SequenceCounts,
    counts: SequenceCounts,
    ends: Sequence[LoadEnd] = (),
    rows: EditionRows = EditionRows(),
) -> list[LoadCount]:
    """Return the records of a load's edition as changes from the edition before, in parts that fit into
    messages.

    The same counts always make the same parts, so a repeated report continues after the last part that the
    auditor has. `ends` are the offsets up to which the topic is loaded with this load.
    """
    pieces = _pieces(counts.without(before), before.without(counts))
    most = max(len(rows.unkeyed), len(rows.hours))
    pieces += [(SequenceCounts(), SequenceCounts())] * (-(-most // _MOST_ENTRIES) - len(pieces))
    count = partial(LoadCount, time=now_ms(), topic=topic, ends=ends)
    return [
        count(
            counts=more,
            removed=less,
            source=replace(source, part=part, parts=len(pieces)),
            unkeyed=_share(rows.unkeyed, part),
            hours=_share(rows.hours, part),
            rejected=rows.rejected if part == len(pieces) else [],
        )
        for part, (more, less) in enumerate(pieces, 1)
    ]


def _share(entries: Sequence[T], part: int) -> Sequence[T]:
    return entries[(part - 1) * _MOST_ENTRIES : part * _MOST_ENTRIES]


def table_records(
    topic: str, snapshot: int, windows: Sequence[int], counts: SequenceCounts, unkeyed: Mapping[int, int]
) -> list[TableCount]:
    """Return the records, without their numbers, of the counts of a published table's windows."""
    pieces = _pieces(counts, SequenceCounts())
    return [
        TableCount(
            time=now_ms(),
            topic=topic,
            number=0,
            snapshot=snapshot,
            replaces=[] if at else windows,
            counts=more,
            unkeyed=[] if at else [UnkeyedRows(window, unkeyed.get(window, 0)) for window in windows],
        )
        for at, (more, _) in enumerate(pieces)
    ]


def _pieces(more: SequenceCounts, less: SequenceCounts) -> list[tuple[SequenceCounts, SequenceCounts]]:
    """Split both into pieces whose messages have at most PART_BYTES, window after window.

    At least one piece.
    """
    pieces = [(SequenceCounts(), SequenceCounts())]
    size = 0
    for key in sorted(more.tallies.keys() | less.tallies.keys(), key=lambda key: (key.window, key)):
        ranges = [
            (side, pair)
            for side, counts in enumerate((more, less))
            for pair in counts.tallies.get(key, SequenceTally()).ranges()
        ]
        name_bytes = 2 * (_NUMBERS_BYTES + len(f"{key.server}{key.service}".encode()))
        # A producer's window stays in one piece if it fits, so that it changes at once.
        most = max(1, (PART_BYTES - name_bytes) // _RANGE_BYTES)
        for some in (ranges[index : index + most] for index in range(0, len(ranges), most)):
            needed = name_bytes + _RANGE_BYTES * len(some)
            if size and size + needed > PART_BYTES:
                pieces.append((SequenceCounts(), SequenceCounts()))
                size = 0
            size += needed
            for side, (first, last) in some:
                pieces[-1][side].add(*key, first, last)
    return pieces
