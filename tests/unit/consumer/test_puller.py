"""One broker's puller: what an answer means for each partition in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millrace.client.cluster_client import EARLIEST
from millrace.client.fetcher import FetchLimits
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, Parting
from millrace.zookeeper.topic_state import BrokerAddress, PartitionState, TopicState
from millrace_broker.storage.epochs import EpochMap
from millrace_consumer.puller import ConsumerPuller, Pullers
from millrace_consumer.streams import MessageStream, OwnedPartition
from tests.support import wait_until


def answer(error: int = 0, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(
        error=error, high_watermark=0, last_stable_offset=0, log_start_offset=0, records=memoryview(records)
    )


@pytest.mark.parametrize("error", [ErrorCode.STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_a_partition_that_is_refused_is_named_and_does_not_hold_up_the_others(
    error: ErrorCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one whose offset is gone while the broker does not say what is left."""
    stream = MessageStream("clicks 0", 10_000_000, lambda: None)
    owned = {
        ("clicks", n): OwnedPartition(("clicks", n), UUID(int=1), stream, 0, lambda: True) for n in range(3)
    }
    state = TopicState("clicks", UUID(int=1), {}, {n: PartitionState(1, (1,), {1: ""}, 0) for n in range(3)})
    cluster: Any = SimpleNamespace(topics={"clicks": state}, brokers={1: BrokerAddress("127.0.0.1", 1)})
    puller = ConsumerPuller(Pullers("g", cluster, lambda: owned, start=EARLIEST, fetch_bytes=1000), 1)
    batch = bytes(build_batch([Message(1, None, b"x")]))
    answers = {("clicks", n): answer(records=batch) for n in range(3)}
    answers["clicks", 1] = answer(error)
    requests: list[set[int]] = []

    def receive() -> dict[TopicPartition, FetchedPartition]:
        time.sleep(0.01)
        return {("clicks", n): answers["clicks", n] for n in requests[-1]}

    broker = SimpleNamespace(
        request=lambda offsets, limits, epochs: requests.append({n for _, n in offsets}),
        receive=receive,
        bounds=lambda partitions: {},
    )
    monkeypatch.setattr(puller, "connected", lambda: broker)
    puller.start()
    wait_until("the others are asked for again and again", lambda: len(requests) > 20)
    assert all({0, 2} <= request for request in requests)
    assert sum(1 in request for request in requests) < len(requests) / 2, "it is asked for now and then"
    assert [owned["clicks", n].pull_offset for n in range(3)] == [1, 0, 1]
    assert f"clicks-1 waits: broker 1 answers {error.name}" in caplog.text
    answers["clicks", 1] = answer(records=batch)
    wait_until("it is read again", lambda: owned["clicks", 1].pull_offset == 1)
    puller.stop()
    puller.join()
    assert caplog.text.count("clicks-1") == 1


def test_a_consumer_goes_back_to_where_a_log_was_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = MessageStream("s", 1 << 20, lambda: None)
    partition = OwnedPartition(("clicks", 0), UUID(int=1), stream, 0, lambda: True)
    cluster: Any = SimpleNamespace(topics={}, brokers={})
    puller = ConsumerPuller(Pullers("g", cluster, dict, start=EARLIEST, fetch_bytes=1000), 1)
    log = EpochMap()
    batches = [
        (bytes(build_batch([Message(1, None, b"x")], base_offset=at, leader_epoch=3))) for at in (0, 1)
    ]
    asked: list[tuple[int, int]] = []

    def receive() -> dict[TopicPartition, FetchedPartition]:
        offset, epoch = asked[-1]
        parting = log.parting(epoch, offset, 9) if log.starts else None
        records = b"" if parting else b"".join(batches[offset:])
        fetched = FetchedPartition(0, 9, 9, 0, memoryview(records), (), parting and Parting(*parting))
        return {("clicks", 0): fetched}

    def request(
        offsets: Mapping[TopicPartition, int], _: FetchLimits, epochs: Mapping[TopicPartition, int]
    ) -> None:
        asked.append((offsets["clicks", 0], epochs["clicks", 0]))

    monkeypatch.setattr(puller, "connected", lambda: SimpleNamespace(request=request, receive=receive))
    monkeypatch.setattr(puller, "_ours", lambda: {("clicks", 0): partition})
    puller.round()
    assert (partition.pull_offset, partition.pull_epoch) == (2, 3)
    log.note(3, 0)
    log.note(4, 1)  # it came back without the second batch
    puller.round()
    assert asked[-1] == (2, 3)
    assert (partition.pull_offset, partition.pull_epoch) == (1, -1)
    assert "clicks-0 was read up to offset 2 in epoch 3, and epoch 3 ends at offset 1 there" in caplog.text
    assert [next(stream).offset for _ in range(2)] == [0, 1]
    puller.round()
    assert next(stream).offset == 1, "what lies there now was not delivered"
