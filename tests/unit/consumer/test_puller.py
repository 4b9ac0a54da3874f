"""One broker's puller: what an answer means for each partition in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millrace.client.cluster_client import EARLIEST
from millrace.consumer.puller import ConsumerPuller, Pullers
from millrace.consumer.streams import MessageStream, OwnedPartition
from millrace.coordination.state import BrokerAddress, PartitionState, TopicState
from millrace.errors import ErrorCode, MillraceError
from millrace.records import Message, build_batch
from millrace.wire.fetch import FetchedPartition


def answer(error: int = 0, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(
        error=error, high_watermark=0, last_stable_offset=0, log_start_offset=0, records=memoryview(records)
    )


@pytest.mark.parametrize("error", [ErrorCode.STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_a_partition_that_is_refused_is_named_and_does_not_hold_up_the_others(
    error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose offset is gone while the broker does not say what is left."""
    stream = MessageStream("clicks 0", 10_000, lambda: None)
    owned = {
        ("clicks", n): OwnedPartition(("clicks", n), UUID(int=1), stream, 0, lambda: True) for n in range(3)
    }
    state = TopicState("clicks", UUID(int=1), {}, {n: PartitionState(1, (1,), {1: ""}, 0) for n in range(3)})
    cluster: Any = SimpleNamespace(topics={"clicks": state}, brokers={1: BrokerAddress("127.0.0.1", 1)})
    puller = ConsumerPuller(Pullers("g", cluster, lambda: owned, start=EARLIEST, fetch_bytes=1000), 1)
    batch = bytes(build_batch([Message(1, None, b"x")]))
    answers = {("clicks", n): answer(records=batch) for n in range(3)}
    answers["clicks", 1] = answer(error)
    broker = SimpleNamespace(
        request=lambda offsets, limits: None, receive=lambda: answers, bounds=lambda partitions: {}
    )
    monkeypatch.setattr(puller, "connected", lambda: broker)
    with pytest.raises(MillraceError, match=f"{error.name} for clicks-1"):
        puller.round()
    assert [owned["clicks", n].pull_offset for n in range(3)] == [1, 0, 1]
