"""The auditor's reading of audit topics whose beginning, or middle, is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import pytest

from millrace.client.cluster_client import EARLIEST, FetchedPartition, TopicMetadata
from millrace.records import BatchHeader, Message, build_batch
from millrace_audit.auditor.answers import AuditRules
from millrace_audit.auditor.auditor import Auditor
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import AuditCodec, AuditRecord
from tests.unit.audit.test_ledger import BEATS, NOW, RULES, WHOLE, Audit, W, heartbeat, hello, report
from tests.unit.audit.test_messages import Ids

LATER = W + 20 * WINDOW_MS


class Topic:
    """The audit topic of one partition as a cluster's client sees it, its beginning expired on demand."""

    def __init__(self, codec: AuditCodec) -> None:
        self.codec, self.start, self.end = codec, 0, 0
        self.batches: list[bytes] = []

    def publish(self, *records: AuditRecord) -> None:
        for record in records:
            batch = bytearray(build_batch([Message(0, None, self.codec.encode(record))]))
            batch[0:8] = self.end.to_bytes(8, "big")
            self.end += len(batch)
            self.batches.append(bytes(batch))

    def expire(self) -> None:
        self.batches.clear()
        self.start = self.end

    def topics(self) -> dict[str, TopicMetadata]:
        return {"audit": TopicMetadata("audit", UUID(int=7), {0: 1})}

    def list_offsets(self, topic: str, timestamp: int) -> dict[int, int]:
        if timestamp == EARLIEST or not self.batches:
            return {0: self.start}
        last = BatchHeader.parse(self.batches[-1])
        assert last is not None
        return {0: last.next_offset}

    def fetch(self, topic: str, offsets: Mapping[int, int], **_: int) -> dict[int, FetchedPartition]:
        return {0: FetchedPartition(0, self.end, self.end, self.start, memoryview(b"".join(self.batches)))}


@pytest.fixture
def store() -> Iterator[AuditStore]:
    store = AuditStore("sqlite://")
    yield store
    store.close()


@pytest.fixture
def topic() -> Topic:

    return Topic(AuditCodec(Ids()))


def auditor(store: AuditStore, topic: Topic, rules: AuditRules = RULES) -> Auditor:
    found = Auditor(store, rules, "127.0.0.1:1", "http://nobody")
    found._client, found._codec = topic, topic.codec  # type: ignore[assignment]
    return found


def test_an_auditor_that_begins_behind_expired_records_calls_nothing_before_complete(
    store: AuditStore, topic: Topic
) -> None:
    topic.publish(*WHOLE)
    topic.expire()
    beats = [heartbeat(tier, time=LATER) for tier in ("dc1", "dc2", "offline")]
    topic.publish(hello(2, "dc2"), report(0, instance=2, cluster="dc2"), *beats)
    auditor(store, topic).apply_all()
    audit = Audit(store)
    window = audit.window()
    assert window["verdict"] == "unknown", "what instance 1 sent then has never been heard of"
    assert "audit records expired before the auditor read them" in window["reasons"][0]
    topic.publish(*(heartbeat(tier, time=LATER + 9 * WINDOW_MS) for tier in ("dc1", "dc2", "offline")))
    auditor(store, topic).apply_all()
    assert audit.window(LATER + WINDOW_MS)["verdict"] == "complete"
    assert audit.window()["verdict"] == "unknown"


def test_an_auditor_that_was_away_too_long_keeps_what_it_knew_and_doubts_the_time_between(
    store: AuditStore, topic: Topic
) -> None:
    topic.publish(*WHOLE)
    assert auditor(store, topic).apply_all()
    assert not auditor(store, topic).apply_all()
    audit = Audit(store)
    assert audit.answer()["verdict"] == "complete"
    topic.publish(hello(2, "dc2"), report(0, (0, 9), instance=2, cluster="dc2", window=NOW))
    topic.expire()
    topic.publish(*(heartbeat(tier, time=LATER) for tier in ("dc1", "dc2", "offline")))
    auditor(store, topic).apply_all()
    assert audit.window()["verdict"] == "complete"
    assert audit.window(NOW)["verdict"] == "unknown"
    assert audit.answer()["watermark"] == "2015-05-17T11:40:00Z"


def test_an_audit_topic_read_from_its_beginning_leaves_no_doubt(store: AuditStore, topic: Topic) -> None:
    topic.publish(*WHOLE[:4])
    auditor(store, topic).apply_all()
    topic.publish(*WHOLE[4:], *BEATS)
    auditor(store, topic).apply_all()
    assert Audit(store).answer()["verdict"] == "complete"
