"""An origin of several brokers: one that is down holds up its own partitions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

import pytest

from millrace.config import OriginConfig
from millrace.errors import MillraceError
from millrace.mirror import origin as module
from millrace.mirror.origin import OriginTopic
from millrace.mirror.runs import OffsetRules
from millrace.wire.client import TopicMetadata
from millrace.wire.fetch import FetchedPartition


class Brokers:
    """A stand-in for the client of a cluster whose broker N leads partitions N and N + 10."""

    down: ClassVar[set[int]] = set()
    asked: ClassVar[list[list[int]]] = []
    cluster: ClassVar[str] = "millrace-1"

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self.bootstrap = bootstrap

    @property
    def cluster_id(self) -> str:
        return self.cluster

    def topic(self, name: str) -> TopicMetadata:
        return TopicMetadata(name, UUID(int=1), {1: 1, 11: 1, 2: 2, 12: 2})

    def fetch(self, topic: str, offsets: Mapping[int, int], **options: Any) -> dict[int, FetchedPartition]:
        self.asked.append(sorted(offsets))
        if any(partition % 10 in self.down for partition in offsets):
            raise MillraceError("no answer")
        return {p: FetchedPartition(0, 0, 0, 0, memoryview(b"")) for p in offsets}


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> OriginTopic:
    monkeypatch.setattr(module, "ClusterClient", Brokers)
    monkeypatch.setattr(Brokers, "down", set())
    monkeypatch.setattr(Brokers, "asked", [])
    monkeypatch.setattr(Brokers, "cluster", "millrace-1")
    found = OriginTopic(OriginConfig(bootstrap="x:1"), "clicks", "test")
    found.describe()
    return found


OFFSETS = {1: 0, 2: 0, 11: 0, 12: 0}


def test_all_partitions_are_asked_for_at_once(topic: OriginTopic) -> None:
    found, failed = topic.fetch(OFFSETS)
    assert (sorted(found), failed) == ([1, 2, 11, 12], {})
    assert Brokers.asked == [[1, 2, 11, 12]]


def test_a_broker_that_is_down_is_left_out_and_asked_again_later(
    topic: OriginTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brokers, "down", {2})
    found, failed = topic.fetch(OFFSETS)
    assert sorted(found) == [1, 11]
    assert failed == {2: "no answer", 12: "no answer"}
    Brokers.asked.clear()
    found, failed = topic.fetch(OFFSETS)
    assert sorted(found) == [1, 11]
    assert sorted(failed) == [2, 12]
    assert Brokers.asked == [[1, 11]], "the one that is down costs no time"

    monkeypatch.setattr(Brokers, "down", set())
    monkeypatch.setattr(module, "PROBE_EVERY_SECONDS", 0.0)
    topic._silent[2] = (0.0, "no answer")
    found, failed = topic.fetch(OFFSETS)
    assert (sorted(found), failed) == ([1, 2, 11, 12], {})
    Brokers.asked.clear()
    topic.fetch(OFFSETS)
    assert Brokers.asked == [[1, 2, 11, 12]]


def test_the_clusters_id_tells_byte_positions_from_numbers(
    topic: OriginTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert topic.offset_rules() == OffsetRules(byte_positions=True)
    monkeypatch.setattr(Brokers, "cluster", "MkU3OEVBNTcwNTJENDM2Qg")
    for policy, compacted in (("delete", False), ("compact,delete", True), (None, False)):
        monkeypatch.setattr(module, "topic_setting", lambda *_, policy=policy: policy)
        assert topic.offset_rules() == OffsetRules(byte_positions=False, compacted=compacted)
