"""What clients may ask a broker about consumer groups: those it coordinates, and what it can say of others.

Runs on the loop; every answer comes through a callback, at once or, where ZooKeeper must be asked, within a
few seconds. Knows Kafka's messages, but neither their bytes nor sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

from millrace.config import BrokerConfig
from millrace.errors import ErrorCode
from millrace.records.topic_partition import TopicPartition
from millrace.wire import group_messages as messages
from millrace.wire.consumer_protocol import STREAMS_PROTOCOL, encode_assignment
from millrace.wire.group_messages import DescribedGroup, ListedGroup
from millrace_broker.coordination import groups as group_registry
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.groups.commits import Offsets, check_topics
from millrace_broker.groups.group import Group, State
from millrace_broker.groups.holding import (
    CLOSE_S,
    CoordinatedGroup,
    GroupOwnership,
    coordinator_of,
    is_group_name,
)
from millrace_broker.groups.work import Failed, Waiting, Work
from millrace_broker.mailbox import Mailbox

T = TypeVar("T")
MAX_OFFSET_METADATA = 4096
"""Characters a client may add to an offset; Kafka's limit."""
QUESTION_THREADS = 2
"""For what members ask before they consume: who coordinates a group, and what it has committed."""
COUNT_S = 5.0
"""Pause between two counts of the groups in the cluster."""
CONSUMER = "consumer"
"""The protocol type of groups of consumers. Kafka's tools show no others."""
WaitingForList: TypeAlias = Waiting[Mapping[str, ListedGroup]]
Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]


class Groups:
    """A broker's part in the cluster's consumer groups."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        registry: group_registry.ConsumerRegistry,
        mailbox: Mailbox,
        *,
        wall_clock: Callable[[], float] = time.time,
        standstills: Callable[[], int] = lambda: 0,
    ) -> None:
        """`standstills` counts how often this broker stood still: then others may coordinate its groups."""
        self._cluster, self._registry, self._wall_clock = cluster, registry, wall_clock
        self._broker_id = config.broker_id
        self._mailbox = mailbox
        self._questions, self._administration = Work(mailbox, QUESTION_THREADS), Work(mailbox, 1)
        self._ownership = GroupOwnership(
            config, cluster, registry, mailbox, standstills, self._administration, wall_clock
        )
        self._work = self._ownership.work
        self._registered = 0
        mailbox.after(0.0, self._count)
        mailbox.every(COUNT_S, self._count)
        self._listing = False
        self._waiting_for_list: list[WaitingForList] = []

    def coordinated(self) -> list[Group]:
        """Every group coordinated here; from any thread."""
        return self._ownership.groups()

    @property
    def size(self) -> int:
        """Groups in the cluster, as counted last, and groups and members here: what a request may name."""
        return self._registered + self._ownership.size

    def _count(self) -> None:
        def done(count: int) -> None:
            self._registered = count

        self._questions.ask(self._registry.count, done, lambda _: None)

    def check(self) -> None:
        """ZooKeeper is back: see which groups are still coordinated here."""
        self._ownership.check()

    def close(self) -> None:
        """Give up every group; the loop has ended."""
        end = time.monotonic() + CLOSE_S
        self._ownership.close()
        for work in (self._questions, self._administration):
            work.close(max(0.0, end - time.monotonic()))

    # Members

    def find(self, names: Collection[str], done: Callable[[Mapping[str, int | ErrorCode]], None]) -> None:
        """For each group the live broker that coordinates it, or that is to do so; one question for all."""
        held = {name: self._broker_id for name in names if self.held(name) is not None}
        wrong = {name: ErrorCode.INVALID_GROUP_ID for name in names if not is_group_name(name)}
        others = set(names) - held.keys() - wrong.keys()

        def look_up() -> dict[str, int | ErrorCode]:
            holders, brokers = self._registry.coordinators(others), self._cluster.brokers
            chosen = {name: holders.get(name, coordinator_of(name, brokers)) for name in others}
            away = ErrorCode.COORDINATOR_NOT_AVAILABLE  # the holder is dead, its session not over yet
            return {name: away if one is None or one not in brokers else one for name, one in chosen.items()}

        def answer(found: Mapping[str, int | ErrorCode]) -> None:
            done({**held, **wrong, **found})

        def failed(code: ErrorCode) -> None:
            answer(dict.fromkeys(others, code))

        if others:
            self._questions.ask(look_up, answer, failed, items=len(others))
        else:
            answer({})

    def use(self, name: str, use: Callable[[Group], None], failed: Failed) -> None:
        """`use` the group, which this broker takes over if nobody coordinates it and the choice is on it."""
        self._ownership.use(name, lambda held: use(held.group), failed)

    def held(self, name: str) -> Group | None:
        held = self._ownership.get(name)
        return held.group if held is not None else None

    # Offsets

    def commit(self, request: messages.OffsetCommitRequest, answer: Callable[[Codes], None]) -> None:
        """Write the offsets, each for itself allowed or not; one code for each partition that is named."""
        partitions = {(t.name, p.partition_index): p for t in request.topics for p in t.partitions}

        def write_by(write: Callable[[Offsets, Callable[[ErrorCode], None]], None]) -> None:
            refused, offsets = self._judge(partitions)
            if offsets:
                write(offsets, lambda code: answer(refused | dict.fromkeys(offsets, code)))
            else:
                answer(refused)

        def rewind(offsets: Offsets, done: Callable[[ErrorCode], None]) -> None:
            def write() -> None:
                check_topics(self._cluster, offsets)
                self._registry.rewind(request.group_id, offsets)

            self._work.ask(write, lambda _: done(ErrorCode.NONE), done, items=len(offsets))

        def failed(code: ErrorCode) -> None:
            anonymous = not request.member_id and request.generation_id_or_member_epoch < 0
            if code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL and anonymous:
                write_by(rewind)  # a group of Millrace's own consumers may be moved while it has none
            else:
                answer(dict.fromkeys(partitions, code))

        def use(held: CoordinatedGroup) -> None:
            code = held.group.check_commit(
                request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
            )
            if code:
                failed(code)
            else:
                write_by(held.commits.add)

        self._ownership.use(request.group_id, use, failed)

    def _judge(
        self, partitions: Mapping[TopicPartition, messages.OffsetCommitRequest.Partition]
    ) -> tuple[dict[TopicPartition, ErrorCode], Offsets]:
        """Why partitions are refused, and the offsets of the others as they are to be written."""
        refused: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, group_registry.CommittedOffset] = {}
        time_ms = int(self._wall_clock() * 1000)
        for partition, request in partitions.items():
            metadata = request.committed_metadata or ""
            if not self._exists(partition):
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > MAX_OFFSET_METADATA:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets[partition] = group_registry.CommittedOffset(
                    offset=request.committed_offset,
                    metadata=metadata,
                    time_ms=time_ms,
                    topic_id=self._cluster.topics[partition[0]].topic_id,
                    leader_epoch=request.committed_leader_epoch,
                )
        return refused, offsets

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._cluster.topics.get(partition[0])
        return topic is not None and partition[1] in topic.partitions

    def offsets(
        self,
        asked: Mapping[str, Collection[TopicPartition] | None],
        done: Callable[[Mapping[str, Offsets | ErrorCode]], None],
    ) -> None:
        """What each group has committed, of the partitions that are named or of all; any broker can say it.

        One question for all groups: a request may name thousands.
        """
        wrong = {name: ErrorCode.INVALID_GROUP_ID for name in asked if not is_group_name(name)}
        names = asked.keys() - wrong.keys()

        def look_up() -> dict[str, Offsets]:
            committed = self._registry.offsets_of(self._to_read({name: asked[name] for name in names}))
            # What this broker knows of topics may be old.
            ids = self._cluster.topic_ids({topic for offsets in committed.values() for topic, _ in offsets})
            return {name: group_registry.current_offsets(committed.get(name, {}), ids) for name in names}

        def failed(code: ErrorCode) -> None:
            done({**wrong, **dict.fromkeys(names, code)})

        if names:
            items = sum(len(asked[name] or [name]) for name in names)
            self._questions.ask(look_up, lambda found: done({**wrong, **found}), failed, items=items)
        else:
            done(wrong)

    def _to_read(
        self, asked: Mapping[str, Collection[TopicPartition] | None]
    ) -> dict[str, set[TopicPartition] | None]:
        """In a thread: those of the partitions of which each group may have committed something."""
        read: dict[str, set[TopicPartition] | None] = {}
        others: dict[str, set[TopicPartition]] = {}
        for name, partitions in asked.items():
            read[name] = None if partitions is None else set(filter(self._exists, partitions))
            if missing := set(partitions or ()) - (read[name] or set()):
                others[name] = missing
        # A request may name any number of others: only what the group has committed of them is read.
        if others:
            topics = {name: {topic for topic, _ in missing} for name, missing in others.items()}
            for name, committed in self._registry.committed(topics).items():
                read[name] = (read[name] or set()) | others[name] & committed
        return read

    def delete_offsets(
        self, name: str, partitions: Collection[TopicPartition], done: Callable[[Codes], None], failed: Failed
    ) -> None:
        """Forget what is committed of these partitions; one code for each. What members read is kept."""
        held = self._ownership.get(name)

        def judge(partition: TopicPartition) -> ErrorCode:
            if not self._exists(partition):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            is_read = held is not None and held.group.members.reads(partition[0])
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE

        codes = {partition: judge(partition) for partition in partitions}

        def delete() -> None:
            fence = self._left_over(name) if held is None else held.commits.fence
            allowed = [partition for partition, code in codes.items() if not code]
            self._registry.delete_offsets(name, allowed, fence=fence)

        if held is not None and not held.group.idle and held.group.state is not State.STABLE:
            failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # Java asks again after this one only
        else:
            self._ask(name, delete, lambda _: done(codes), failed, items=len(codes))

    # Administration

    def _ask(
        self,
        name: str,
        question: Callable[[], T],
        done: Callable[[T], None],
        failed: Failed,
        *,
        items: int = 1,
    ) -> None:
        if is_group_name(name):
            self._administration.ask(question, done, failed, items=items)
        else:
            failed(ErrorCode.INVALID_GROUP_ID)

    def describe_groups(
        self, names: Collection[str], done: Callable[[Mapping[str, DescribedGroup | ErrorCode]], None]
    ) -> None:
        """How each group is; NOT_COORDINATOR for one of which only another broker can say it."""
        known: dict[str, DescribedGroup | ErrorCode] = {}
        for name in names:
            if (group := self.held(name)) is not None:
                known[name] = group.describe()
            elif not is_group_name(name):
                known[name] = ErrorCode.INVALID_GROUP_ID
        others = set(names) - known.keys()

        def failed(code: ErrorCode) -> None:
            done({**known, **dict.fromkeys(others, code)})

        if others:
            self._administration.ask(
                lambda: self._look_at(others),
                lambda found: done({**known, **found}),
                failed,
                items=len(others),
            )
        else:
            done(known)

    def delete_groups(self, names: Collection[str], done: Callable[[Mapping[str, ErrorCode]], None]) -> None:
        """Forget those of the groups that have no members, and their offsets; one code for each.

        Which of many are there takes one look at ZooKeeper.
        """
        results: dict[str, ErrorCode] = {}
        elsewhere = {name for name in names if is_group_name(name) and self.held(name) is None}

        def note(name: str, code: ErrorCode) -> None:
            results[name] = code
            if len(results) == len(names):
                done(results)

        def delete_all(missing: Collection[str]) -> None:
            for name in names:
                if name in missing:
                    note(name, ErrorCode.GROUP_ID_NOT_FOUND)
                else:
                    self._delete(name, partial(note, name))

        if not names:
            done(results)
        elif len(elsewhere) > 1:
            self._administration.ask(
                lambda: elsewhere - self._registry.names(),
                delete_all,
                lambda code: done(dict.fromkeys(names, code)),
            )
        else:
            delete_all(())

    def _look_at(self, names: Collection[str]) -> dict[str, DescribedGroup | ErrorCode]:
        """In a thread: groups that are not coordinated here; NOT_COORDINATOR for those that are elsewhere."""
        kinds = self._registry.kinds(names)
        holders = self._registry.coordinators(kinds)

        def described(name: str) -> DescribedGroup | ErrorCode:
            if name not in kinds:
                return _described(name, State.DEAD)
            if kinds[name] is group_registry.GroupKind.STREAMS:
                return self._look_at_streams(name)
            if holders.get(name, self._broker_id) != self._broker_id:
                return ErrorCode.NOT_COORDINATOR
            return _described(name, State.EMPTY, CONSUMER)

        return {name: described(name) for name in names}

    def _look_at_streams(self, name: str) -> DescribedGroup:
        """In a thread: a group of Millrace's own consumers, which partitions each of them owns included."""
        owned: dict[str, list[TopicPartition]] = {}
        for partition, stream in self._registry.owners(name).items():
            owned.setdefault(group_registry.consumer_of(stream), []).append(partition)
        members = tuple(
            messages.DescribedGroup.Member(
                member_id=consumer,
                client_id=consumer,
                client_host=member.host,
                member_assignment=encode_assignment(owned.get(consumer, ())),
            )
            for consumer, member in self._registry.members(name).items()
        )
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=name,
            group_state=State.STABLE if members else State.EMPTY,
            protocol_type=CONSUMER,
            protocol_data=STREAMS_PROTOCOL,
            members=members,
        )

    def list_groups(self, done: Callable[[Mapping[str, ListedGroup]], None], failed: Failed) -> None:
        """By name the groups coordinated here, and of the others this broker's share.

        Every group is read, so whoever asks while that is done waits for the next reading, all for the same.
        """
        self._waiting_for_list.append(Waiting(self._mailbox, done, failed))
        if not self._listing:
            self._list()

    def _list(self) -> None:
        all_waiting, self._waiting_for_list = self._waiting_for_list, []
        self._listing = True
        held = {g.name: _listed(g.name, g.state, g.members.protocol_type) for g in self.coordinated()}

        def share() -> dict[str, ListedGroup]:
            kinds = self._registry.groups()
            others = kinds.keys() - held
            holders = self._registry.coordinators(others)
            brokers = self._cluster.brokers
            return {
                name: _listed(name, self._state(name, kinds[name]), CONSUMER)
                for name in others
                if holders.get(name, coordinator_of(name, brokers)) == self._broker_id
            }

        def finish(answer: Callable[[WaitingForList], None]) -> None:
            self._listing = False
            if self._waiting_for_list:
                self._list()
            answer_next(answer)

        def answer_next(answer: Callable[[WaitingForList], None]) -> None:
            # One in each turn of the loop: to write 3,000 groups takes 40 ms.
            answer(all_waiting.pop(0))
            if all_waiting:
                self._mailbox.post(partial(answer_next, answer))

        self._administration.run(
            share,
            lambda others: finish(lambda waiting: waiting.succeed(others | held)),
            lambda code: finish(lambda waiting: waiting.fail(code)),
        )

    def _state(self, name: str, kind: group_registry.GroupKind) -> State:
        """In a thread: the state of a group that no broker coordinates."""
        has_members = kind is group_registry.GroupKind.STREAMS and self._registry.members(name)
        return State.STABLE if has_members else State.EMPTY

    def _delete(self, name: str, answer: Callable[[ErrorCode], None]) -> None:
        def delete(fence: group_registry.Fence | None) -> None:
            self._registry.delete_group(name, fence=fence)

        held = self._ownership.get(name)
        if held is None:
            self._ask(name, lambda: delete(self._left_over(name)), lambda _: answer(ErrorCode.NONE), answer)
        elif held.idle:
            self._ownership.give_up(name, delete, answer)
        else:
            answer(ErrorCode.NON_EMPTY_GROUP)

    def _left_over(self, name: str) -> group_registry.Fence | None:
        """In a thread: the fence of a node of this broker's for a group that is not coordinated here."""
        ours = self._registry.coordinator(name) == self._broker_id
        return self._registry.coordinate(name, self._broker_id) if ours else None


def _described(name: str, state: State, protocol_type: str = "") -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.NONE, group_id=name, group_state=state, protocol_type=protocol_type
    )


def _listed(name: str, state: State, protocol_type: str) -> ListedGroup:
    return ListedGroup(group_id=name, protocol_type=protocol_type, group_state=state)
