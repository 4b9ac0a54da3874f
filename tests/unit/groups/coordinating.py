"""Brokers that share a registry, each with a loop and a clock that tests turn by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from millrace.config import BrokerConfig
from millrace.wire.fields import TopicItems
from millrace.wire.group_messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from millrace.zookeeper.topic_state import BrokerAddress, PartitionState, TopicState
from millrace_broker.groups import ClientName, Group, Groups, State
from millrace_broker.groups.holding import coordinator_of
from millrace_broker.mailbox import Mailbox
from tests.support import wait_until
from tests.unit.groups.registry import MemoryRegistry


@dataclass
class Cluster:
    """Brokers' knowledge of each other and of topics."""

    brokers: dict[int, BrokerAddress]
    topics: dict[str, TopicState]
    written: dict[str, TopicState] | None = None
    """Topics that ZooKeeper has while brokers do not know them yet."""
    zookeeper_s: float = 1e12

    def topic_ids(self, names: Iterable[str]) -> dict[str, uuid.UUID]:
        topics = self.topics if self.written is None else self.written
        return {name: topics[name].topic_id for name in names if name in topics}

    def zookeeper_time(self) -> float:
        """ZooKeeper's clock: far ahead, so that the brokers' own decide."""
        return self.zookeeper_s


@dataclass
class Answers:
    """The answers received, errors and results alike."""

    heard: list[Any] = field(default_factory=list)

    def __call__(self, answer: Any) -> None:
        self.heard.append(answer)


class Broker:
    """One broker's groups, with a loop that tests turn and a clock they move."""

    def __init__(self, broker_id: int, cluster: Cluster, registry: MemoryRegistry) -> None:
        self.now = 100.0
        self.mailbox = Mailbox(lambda: self.now)
        config = BrokerConfig(broker_id=broker_id, cluster="test", group_initial_rebalance_delay_ms=0)
        self.standstills, self.wall_s = 0, 5.0
        self.groups = Groups(
            config,
            cluster,  # type: ignore[arg-type]
            registry,  # type: ignore[arg-type]
            self.mailbox,
            wall_clock=lambda: self.wall_s,
            standstills=lambda: self.standstills,
        )

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        def turned() -> Any:
            self.mailbox.run()
            return condition()

        return wait_until(what, turned)

    def passes(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            self.mailbox.run()
            while self.mailbox.seconds_to_next() == 0.0:
                self.mailbox.run()

    def ask(self, question: Callable[[Answers], None]) -> Any:
        """The one answer to a question."""
        answers = Answers()
        question(answers)
        self.until("an answer", lambda: answers.heard)
        assert len(answers.heard) == 1
        return answers.heard[0]

    def find(self, name: str) -> Any:
        return self.ask(lambda answers: self.groups.find([name], answers))[name]

    def use(self, name: str) -> Any:
        return self.ask(lambda answers: self.groups.use(name, answers, answers))

    def listed(self) -> Any:
        return self.ask(lambda answers: self.groups.list_groups(answers, answers))

    def delete_offsets(self, name: str, *places: tuple[str, int]) -> Any:
        return self.ask(lambda answers: self.groups.delete_offsets(name, places, answers, answers))

    def look_at(self, name: str) -> Any:
        return self.ask(lambda answers: self.groups.describe_groups([name], answers))[name]

    def delete(self, name: str) -> Any:
        return self.ask(lambda answers: self.groups.delete_groups([name], answers))[name]

    def offsets(self, name: str) -> Any:
        return self.fetch(name, None)

    def fetch(self, name: str, places: Collection[tuple[str, int]] | None) -> Any:
        return self.ask(lambda answers: self.groups.offsets({name: places}, answers))[name]

    def commit(self, name: str, offset: int = 7, **changes: Any) -> Any:
        return self.ask(lambda answers: self.groups.commit(commit_request(name, offset, **changes), answers))

    def join(self, name: str, metadata: bytes = b"") -> tuple[Group, list[JoinGroupResponse]]:
        """A group with a member, and what that hears."""
        group = self.use(name)
        assert isinstance(group, Group), group
        heard: list[JoinGroupResponse] = []
        protocol = JoinGroupRequest.Protocol(name="range", metadata=metadata)
        request = JoinGroupRequest(
            group_id=name, session_timeout=30_000, protocol_type="consumer", protocols=(protocol,)
        )
        group.join(request, ClientName("c", "/h"), heard.append)
        self.until("the group has a generation", lambda: heard)
        return group, heard

    def stable(self, name: str, metadata: bytes = b"") -> tuple[Group, Any]:
        """A group with one member that has its assignment, and how the member calls itself in a commit."""
        group, (joined,) = self.join(name, metadata)
        sync = SyncGroupRequest(group_id=name, generation_id=joined.generation_id, member_id=joined.member_id)
        group.sync(sync, lambda _: None)
        assert group.state is State.STABLE
        return group, {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}


def logged_bugs(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of logged tracebacks, and clear the log: else the test fails for them."""
    bugs = [record for record in caplog.records if record.levelname == "ERROR" and record.exc_info]
    caplog.clear()
    return len(bugs)


def commit_request(name: str, offset: int, **changes: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.Partition(
        partition_index=changes.pop("partition", 0),
        committed_offset=offset,
        committed_metadata=changes.pop("metadata", "m"),
    )
    topic = TopicItems(name=changes.pop("topic", "t"), partitions=(partition,))
    return OffsetCommitRequest(group_id=name, topics=(topic,), **changes)


def topic_state(name: str) -> TopicState:
    return TopicState(name, uuid.uuid4(), {}, {0: PartitionState(1, (1,), {1: ""}, 0)})


def name_for(broker_id: int, number: int = 0) -> str:
    """A group the choice of two brokers for falls on this one."""
    names = (f"group{n}" for n in range(1000))
    return [name for name in names if coordinator_of(name, (1, 2)) == broker_id][number]
