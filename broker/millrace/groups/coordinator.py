"""What clients may ask a broker about consumer groups: those it coordinates, and what it can say of others.

Runs on the loop; every answer comes through a callback, at once or, where ZooKeeper must be asked, within a
few seconds. Knows no sockets and no wire format of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

from millrace.config import BrokerConfig
from millrace.coordination.groups import (
    CommittedOffset,
    ConsumerRegistry,
    Fence,
    GroupKind,
    consumer_of,
    current_offsets,
)
from millrace.errors import ErrorCode
from millrace.groups.group import Group, GroupSnapshot, MemberSnapshot, State
from millrace.groups.holding import CoordinatedGroup, GroupOwnership, Snapshots, coordinator_of, is_group_name
from millrace.groups.member import ClientName
from millrace.groups.timing import Clock
from millrace.groups.work import Failed
from millrace.mailbox import Mailbox
from millrace.records.topic_partition import TopicPartition
from millrace.wire.consumer_protocol import STREAMS_PROTOCOL, decode_subscription, encode_assignment
from millrace.wire.group_messages import OffsetCommitRequest, OffsetCommitRequestPartition

T = TypeVar("T")
MAX_OFFSET_METADATA = 4096
"""Characters a client may add to an offset; Kafka's limit."""
CONSUMER = "consumer"
"""The protocol type of groups of consumers. Kafka's tools show no others."""
Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]


class Groups:
    """A broker's part in the cluster's consumer groups."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Snapshots,
        registry: ConsumerRegistry,
        mailbox: Mailbox,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        standstills: Callable[[], int] = lambda: 0,
    ) -> None:
        """`standstills` counts how often this broker stood still: then others may coordinate its groups."""
        self._cluster, self._registry, self._wall_clock = cluster, registry, wall_clock
        self._broker_id = config.broker_id
        self._ownership = GroupOwnership(
            config, cluster, registry, mailbox, Clock(now, mailbox.after), standstills
        )
        self._work = self._ownership.work

    def describe(self) -> list[GroupSnapshot]:
        """Every group coordinated here, as it is now; from any thread."""
        groups = [self._ownership.get(name) for name in self._ownership.names()]
        return [held.group.snapshot() for held in groups if held is not None]

    def check(self) -> None:
        """ZooKeeper is back: see which groups are still coordinated here."""
        self._ownership.check()

    def close(self) -> None:
        """Give up every group; the loop has ended."""
        self._ownership.close()

    def _ask(self, name: str, question: Callable[[], T], done: Callable[[T], None], failed: Failed) -> None:
        """Ask ZooKeeper something about a group."""
        if is_group_name(name):
            self._work.ask(question, done, failed)
        else:
            failed(ErrorCode.INVALID_GROUP_ID)

    # Members

    def find(self, name: str, done: Callable[[int], None], failed: Failed) -> None:
        """The live broker that coordinates the group, or that is to do so."""

        def found(holder: int | None) -> None:
            broker = coordinator_of(name, self._cluster.brokers) if holder is None else holder
            if broker is not None and broker in self._cluster.brokers:
                done(broker)
            else:
                failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # the holder is dead, its session not over yet

        if self._ownership.get(name) is not None:
            done(self._broker_id)
        else:
            self._ask(name, lambda: self._registry.coordinator(name), found, failed)

    def use(self, name: str, use: Callable[[Group], None], failed: Failed) -> None:
        """`use` the group, which this broker takes over if nobody coordinates it and the choice is on it."""
        self._ownership.use(name, lambda held: use(held.group), failed)

    def held(self, name: str) -> Group | None:
        held = self._ownership.get(name)
        return held.group if held is not None else None

    # Offsets

    def commit(self, request: OffsetCommitRequest, answer: Callable[[Codes], None]) -> None:
        """Write the offsets, each for itself allowed or not; one code for each partition that is named."""
        partitions = {(t.name, p.partition_index): p for t in request.topics for p in t.partitions}

        def failed(code: ErrorCode) -> None:
            anonymous = not request.member_id and request.generation_id_or_member_epoch < 0
            if code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL and anonymous:
                self._write(partitions, partial(self._rewind, request.group_id), answer)
            else:
                answer(dict.fromkeys(partitions, code))

        def use(held: CoordinatedGroup) -> None:
            code = held.group.check_commit(
                request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
            )
            if code:
                failed(code)
            else:
                self._write(partitions, held.commits.add, answer)

        self._ownership.use(request.group_id, use, failed)

    def _write(
        self,
        partitions: Mapping[TopicPartition, OffsetCommitRequestPartition],
        write: Callable[[Mapping[TopicPartition, CommittedOffset], Callable[[ErrorCode], None]], None],
        answer: Callable[[Codes], None],
    ) -> None:
        codes, offsets = self._checked(partitions)
        if offsets:
            write(offsets, lambda code: answer(codes | dict.fromkeys(offsets, code)))
        else:
            answer(codes)

    def _rewind(
        self, name: str, offsets: Mapping[TopicPartition, CommittedOffset], done: Callable[[ErrorCode], None]
    ) -> None:
        """A group of Millrace's own consumers may be put somewhere else while it has none."""
        self._work.ask(lambda: self._registry.rewind(name, offsets), lambda _: done(ErrorCode.NONE), done)

    def _checked(
        self, partitions: Mapping[TopicPartition, OffsetCommitRequestPartition]
    ) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
        """What is to be said of each partition, and the offsets that may be written."""
        codes = {place: self._refuse(place, partition) for place, partition in partitions.items()}
        time_ms = int(self._wall_clock() * 1000)
        offsets = {
            place: CommittedOffset(
                offset=partitions[place].committed_offset,
                metadata=partitions[place].committed_metadata or "",
                time_ms=time_ms,
                topic_id=self._cluster.topics[place[0]].topic_id,
                leader_epoch=partitions[place].committed_leader_epoch,
            )
            for place, code in codes.items()
            if not code
        }
        return codes, offsets

    def _refuse(self, place: TopicPartition, partition: OffsetCommitRequestPartition) -> ErrorCode:
        if not self._is_there(place):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(partition.committed_metadata or "") > MAX_OFFSET_METADATA:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _is_there(self, place: TopicPartition) -> bool:
        topic = self._cluster.topics.get(place[0])
        return topic is not None and place[1] in topic.partitions

    def offsets(
        self,
        name: str,
        places: Collection[TopicPartition] | None,
        done: Callable[[Mapping[TopicPartition, CommittedOffset]], None],
        failed: Failed,
    ) -> None:
        """What is committed, of these partitions or of all; any broker can say it."""
        # ZooKeeper is asked for no partition that is not there: a request may name any number of them.
        there = None if places is None else {place for place in places if self._is_there(place)}

        def found(committed: Mapping[TopicPartition, CommittedOffset]) -> None:
            ids = {topic.name: topic.topic_id for topic in self._cluster.topics.values()}
            done(current_offsets(committed, ids))

        self._ask(name, lambda: self._registry.offsets(name, there), found, failed)

    # Administration

    def describe_groups(
        self, names: Collection[str], done: Callable[[Mapping[str, GroupSnapshot | ErrorCode]], None]
    ) -> None:
        """How each group is; NOT_COORDINATOR for one of which only another broker can say it."""

        def unknown(name: str) -> GroupSnapshot:
            return GroupSnapshot(name=name, state=State.DEAD)

        self._ask_about_each(names, self._describe, unknown, done)

    def delete_groups(self, names: Collection[str], done: Callable[[Mapping[str, ErrorCode]], None]) -> None:
        """Forget those of the groups that have no members, and their offsets; one code for each."""
        self._ask_about_each(names, self._delete, lambda _: ErrorCode.GROUP_ID_NOT_FOUND, done)

    def _ask_about_each(
        self,
        names: Collection[str],
        ask: Callable[[str, Callable[[T | ErrorCode], None]], None],
        unknown: Callable[[str], T | ErrorCode],
        done: Callable[[Mapping[str, T | ErrorCode]], None],
    ) -> None:
        """Tell of each name the result of `ask`, or of `unknown` for a group that nobody has.

        Which those are takes one look at ZooKeeper, however many are named.
        """
        results: dict[str, T | ErrorCode] = {}
        elsewhere = {name for name in names if is_group_name(name) and self._ownership.get(name) is None}

        def note(name: str, result: T | ErrorCode) -> None:
            results[name] = result
            if len(results) == len(names):
                done(results)

        def ask_all(nobodys: Collection[str]) -> None:
            for name in names:
                if name in nobodys:
                    note(name, unknown(name))
                else:
                    ask(name, partial(note, name))

        def failed(code: ErrorCode) -> None:
            for name in names:
                note(name, code)

        if not names:
            done(results)
        elif len(elsewhere) > 1:
            self._work.ask(lambda: elsewhere - self._registry.names(), ask_all, failed)
        else:
            ask_all(())

    def _describe(self, name: str, answer: Callable[[GroupSnapshot | ErrorCode], None]) -> None:
        held = self._ownership.get(name)
        if held is not None:
            answer(held.group.snapshot())
        else:
            self._ask(name, lambda: self._look_at(name), answer, answer)

    def _look_at(self, name: str) -> GroupSnapshot | ErrorCode:
        """In a thread: a group that is not coordinated here; NOT_COORDINATOR when it is elsewhere."""
        kind = self._registry.kind(name)
        if kind is GroupKind.STREAMS:
            return self._look_at_streams(name)
        if kind is None:
            return GroupSnapshot(name=name, state=State.DEAD)
        if self._registry.coordinator(name) not in (None, self._broker_id):
            return ErrorCode.NOT_COORDINATOR
        return GroupSnapshot(name=name, state=State.EMPTY, protocol_type=CONSUMER)

    def _look_at_streams(self, name: str) -> GroupSnapshot:
        """In a thread: a group of Millrace's own consumers, which partitions each of them owns included."""
        owned: dict[str, list[TopicPartition]] = {}
        for place, stream in self._registry.owners(name).items():
            owned.setdefault(consumer_of(stream), []).append(place)
        members = tuple(
            MemberSnapshot(
                member_id=consumer,
                client=ClientName(consumer, member.host),
                assignment=encode_assignment(owned.get(consumer, ())),
            )
            for consumer, member in self._registry.members(name).items()
        )
        return GroupSnapshot(
            name=name,
            state=State.STABLE if members else State.EMPTY,
            protocol_type=CONSUMER,
            protocol=STREAMS_PROTOCOL,
            members=members,
        )

    def list_groups(self, done: Callable[[Mapping[str, GroupSnapshot]], None], failed: Failed) -> None:
        """By name the groups coordinated here, and of the others this broker's share, without members."""
        held = {group.name: group for group in self.describe()}

        def rest() -> dict[str, GroupSnapshot]:
            groups = self._registry.groups()
            others = groups.keys() - held
            holders = self._registry.coordinators(others)
            brokers = self._cluster.brokers
            return {
                name: GroupSnapshot(name=name, state=self._state(name, groups[name]), protocol_type=CONSUMER)
                for name in others
                if holders.get(name, coordinator_of(name, brokers)) == self._broker_id
            }

        self._work.ask(rest, lambda others: done(others | held), failed)

    def _state(self, name: str, kind: GroupKind) -> State:
        """In a thread: the state of a group that no broker coordinates."""
        has_members = kind is GroupKind.STREAMS and self._registry.members(name)
        return State.STABLE if has_members else State.EMPTY

    def _delete(self, name: str, answer: Callable[[ErrorCode], None]) -> None:
        held = self._ownership.get(name)
        if held is None:
            self._ask(name, lambda: self._delete_elsewhere(name), lambda _: answer(ErrorCode.NONE), answer)
        elif held.group.idle and not held.commits.busy:
            self._ownership.give_up(name, partial(self._delete_fenced, name), answer)
        else:
            answer(ErrorCode.NON_EMPTY_GROUP)

    def _delete_elsewhere(self, name: str) -> None:
        """In a thread: a group that is not coordinated here."""
        self._delete_fenced(name, self._left_over(name))

    def _delete_fenced(self, name: str, fence: Fence | None) -> None:
        self._registry.delete_group(name, fence=fence)

    def _left_over(self, name: str) -> Fence | None:
        """In a thread: the fence of a node of this broker's for a group that is not coordinated here."""
        ours = self._registry.coordinator(name) == self._broker_id
        fence = self._registry.coordinate(name, self._broker_id) if ours else None
        return fence if isinstance(fence, Fence) else None

    def delete_offsets(
        self, name: str, places: Collection[TopicPartition], done: Callable[[Codes], None], failed: Failed
    ) -> None:
        """Forget what is committed of these partitions; one code for each. What members read is kept."""
        held = self._ownership.get(name)
        members = held.group.snapshot().members if held is not None else ()
        read = [decode_subscription(member.metadata) for member in members]
        codes = {place: self._refuse_deletion(place, read) for place in places}
        wanted = [place for place, code in codes.items() if not code]

        def delete() -> None:
            fence = self._left_over(name) if held is None else held.commits.fence
            self._registry.delete_offsets(name, wanted, fence=fence)

        if held is not None and not held.group.idle and held.group.state is not State.STABLE:
            failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # Java asks again after this one only
        else:
            self._ask(name, delete, lambda _: done(codes), failed)

    def _refuse_deletion(self, place: TopicPartition, read: Collection[Collection[str] | None]) -> ErrorCode:
        if not self._is_there(place):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_read = any(topics is None or place[0] in topics for topics in read)
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
