"""Requests of clients about consumer groups: those that this broker coordinates, and others.

Runs on the loop; every answer comes through a callback, at once or, where ZooKeeper must be asked, within a
few seconds. The steps of such a request are a coroutine. Knows Kafka's messages, but neither their bytes nor
sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
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
from millrace_broker.groups.holding import CLOSE_S, GroupOwnership, coordinator_of, is_group_name
from millrace_broker.groups.work import Failed, Waiting, Work, begin, result_of, started
from millrace_broker.mailbox import Mailbox, outcome

K = TypeVar("K")
T = TypeVar("T")
MAX_OFFSET_METADATA = 4096
"""Characters a client may add to an offset; Kafka's limit."""
QUESTION_THREADS = 2
"""Threads for requests of members before they consume: a group's coordinator and its committed offsets."""
COUNT_S = 5.0
"""Pause between two counts of the groups in the cluster."""
CONSUMER = "consumer"
"""The protocol type of groups of consumers. Kafka's tools show no others."""
CommitRequested: TypeAlias = messages.OffsetCommitRequest.Partition
Listed: TypeAlias = Mapping[str, ListedGroup]
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
        mailbox.after(0.0, lambda: mailbox.begin(self._count()))
        mailbox.every(COUNT_S, lambda: mailbox.begin(self._count()))
        self._listing = False
        self._waiting_for_list: list[Waiting[Listed]] = []

    def coordinated(self) -> list[Group]:
        """Every group coordinated here; from any thread."""
        return self._ownership.groups()

    @property
    def size(self) -> int:
        """Groups in the cluster, as counted last, and groups and members here: what a request may name."""
        return self._registered + self._ownership.size

    async def _count(self) -> None:
        count = await self._questions.ask(self._registry.count)
        if not isinstance(count, ErrorCode):
            self._registered = count

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
        """Find the live broker that coordinates each group or must take it over; one question for all."""
        begin(self._mailbox, self._find(names), done, _to_all(names, done))

    async def _find(self, names: Collection[str]) -> Mapping[str, int | ErrorCode]:
        held = {name: self._broker_id for name in names if self.held(name) is not None}
        wrong = _wrong(names)
        others = set(names) - held.keys() - wrong.keys()
        if not others:
            return {**held, **wrong}
        found = await self._questions.ask(partial(self._look_up, others), items=len(others))
        return {**held, **wrong, **_each(others, found)}

    def _look_up(self, names: Collection[str]) -> dict[str, int | ErrorCode]:
        """In a thread: the coordinators of groups that are not coordinated here."""
        holders, brokers = self._registry.coordinators(names), self._cluster.brokers
        chosen = {name: holders.get(name, coordinator_of(name, brokers)) for name in names}
        away = ErrorCode.COORDINATOR_NOT_AVAILABLE  # the holder is dead, its session not over yet
        return {name: away if one is None or one not in brokers else one for name, one in chosen.items()}

    def use(self, name: str, use: Callable[[Group], None], failed: Failed) -> None:
        """`use` the group. This broker takes it over if no broker coordinates it and it is the chosen one."""
        self._ownership.use(name, lambda held: use(held.group), failed)

    def held(self, name: str) -> Group | None:
        held = self._ownership.get(name)
        return held.group if held is not None else None

    # Offsets

    def commit(self, request: messages.OffsetCommitRequest, answer: Callable[[Codes], None]) -> None:
        """Write the offsets, each for itself allowed or not; one code for each partition that is named."""
        partitions = {(t.name, p.partition_index): p for t in request.topics for p in t.partitions}
        begin(self._mailbox, self._commit(request, partitions), answer, _to_all(partitions, answer))

    async def _commit(
        self, request: messages.OffsetCommitRequest, partitions: Mapping[TopicPartition, CommitRequested]
    ) -> Codes | ErrorCode:
        name, member = request.group_id, request.member_id
        generation = request.generation_id_or_member_epoch
        held = await self._ownership.available(name)
        if not isinstance(held, ErrorCode):
            if code := held.group.check_commit(member, request.group_instance_id, generation):
                return code
        elif held is not ErrorCode.INCONSISTENT_GROUP_PROTOCOL or member or generation >= 0:
            return held
        refused, offsets = self._judge(partitions)
        if not offsets:
            return refused
        if not isinstance(held, ErrorCode):
            code = await held.commits.add(offsets)
        else:  # a group of Millrace's own consumers may be moved while it has none
            code = await self._work.ask(partial(self._rewind, name, offsets), items=len(offsets))
        return refused | dict.fromkeys(offsets, code)

    def _rewind(self, name: str, offsets: Offsets) -> ErrorCode:
        """In a thread: move a group of Millrace's own consumers."""
        check_topics(self._cluster, offsets)
        self._registry.rewind(name, offsets)
        return ErrorCode.NONE

    def _judge(
        self, partitions: Mapping[TopicPartition, CommitRequested]
    ) -> tuple[dict[TopicPartition, ErrorCode], Offsets]:
        """Return the codes of the refused partitions, and the offsets to write of the others."""
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
        """Find the committed offsets of each group, of the named partitions or of all. Any broker can.

        One question for all groups: a request may name thousands.
        """
        begin(self._mailbox, self._offsets(asked), done, _to_all(asked, done))

    async def _offsets(
        self, asked: Mapping[str, Collection[TopicPartition] | None]
    ) -> Mapping[str, Offsets | ErrorCode]:
        wrong = _wrong(asked)
        valid = {name: partitions for name, partitions in asked.items() if name not in wrong}
        if not valid:
            return wrong
        items = sum(len(partitions or [name]) for name, partitions in valid.items())
        found = await self._questions.ask(partial(self._read_offsets, valid), items=items)
        return {**wrong, **_each(valid, found)}

    def _read_offsets(self, asked: Mapping[str, Collection[TopicPartition] | None]) -> dict[str, Offsets]:
        """In a thread: the committed offsets of these groups."""
        committed = self._registry.offsets_of(self._to_read(asked))
        # What this broker knows of topics may be old.
        ids = self._cluster.topic_ids({topic for offsets in committed.values() for topic, _ in offsets})
        return {name: group_registry.current_offsets(committed.get(name, {}), ids) for name in asked}

    def _to_read(
        self, asked: Mapping[str, Collection[TopicPartition] | None]
    ) -> dict[str, set[TopicPartition] | None]:
        """In a thread: return the partitions for which each group may have committed an offset."""
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
        """Delete committed offsets of partitions that no member reads; return a code for each partition."""
        begin(self._mailbox, self._delete_offsets(name, partitions), done, failed)

    async def _delete_offsets(self, name: str, partitions: Collection[TopicPartition]) -> Codes | ErrorCode:
        held = self._ownership.get(name)
        if not is_group_name(name):
            return ErrorCode.INVALID_GROUP_ID
        if held is not None and not held.group.idle and held.group.state is not State.STABLE:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # Java asks again after this one only
        codes: dict[TopicPartition, ErrorCode] = {}
        for partition in partitions:
            if not self._exists(partition):
                codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif held is not None and held.group.members.reads(partition[0]):
                codes[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                codes[partition] = ErrorCode.NONE
        allowed = [partition for partition, code in codes.items() if not code]

        def delete() -> None:
            fence = self._left_over(name) if held is None else held.commits.fence
            self._registry.delete_offsets(name, allowed, fence=fence)

        return await self._administration.ask(delete, items=len(codes)) or codes

    # Administration

    def describe_groups(
        self, names: Collection[str], done: Callable[[Mapping[str, DescribedGroup | ErrorCode]], None]
    ) -> None:
        """Describe each group; NOT_COORDINATOR for one that only another broker can describe."""
        begin(self._mailbox, self._describe(names), done, _to_all(names, done))

    async def _describe(self, names: Collection[str]) -> Mapping[str, DescribedGroup | ErrorCode]:
        wrong = _wrong(names)
        held = {name: group.describe() for name in names if (group := self.held(name)) is not None}
        others = set(names) - held.keys() - wrong.keys()
        if not others:
            return {**held, **wrong}
        found = await self._administration.ask(partial(self._look_at, others), items=len(others))
        return {**held, **wrong, **_each(others, found)}

    def delete_groups(self, names: Collection[str], done: Callable[[Mapping[str, ErrorCode]], None]) -> None:
        """Delete the groups that have no members, with their offsets; return a code for each group."""
        begin(self._mailbox, self._delete_all(names), done, _to_all(names, done))

    async def _delete_all(self, names: Collection[str]) -> Mapping[str, ErrorCode] | ErrorCode:
        missing: Collection[str] = ()
        elsewhere = {name for name in names if is_group_name(name) and self.held(name) is None}
        if len(elsewhere) > 1:  # one look at ZooKeeper shows which of many are there
            found = await self._administration.ask(lambda: elsewhere - self._registry.names())
            if isinstance(found, ErrorCode):
                return found
            missing = found
        codes = dict.fromkeys(missing, ErrorCode.GROUP_ID_NOT_FOUND)
        deletions: dict[str, Future[ErrorCode]] = {
            name: started(self._mailbox, self._delete(name)) for name in names if name not in missing
        }
        for name, deletion in deletions.items():
            codes[name] = await outcome(deletion)
        return codes

    async def _delete(self, name: str) -> ErrorCode:
        def delete(fence: group_registry.Fence | None) -> None:
            self._registry.delete_group(name, fence=fence)

        held = self._ownership.get(name)
        if not is_group_name(name):
            return ErrorCode.INVALID_GROUP_ID
        if held is None:
            return await self._administration.ask(lambda: delete(self._left_over(name))) or ErrorCode.NONE
        if held.idle:
            return await self._ownership.give_up(name, delete)
        return ErrorCode.NON_EMPTY_GROUP

    def _look_at(self, names: Collection[str]) -> dict[str, DescribedGroup | ErrorCode]:
        """In a thread: describe groups that are not held here; NOT_COORDINATOR for other brokers' groups."""
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

    def list_groups(self, done: Callable[[Listed], None], failed: Failed) -> None:
        """List by name the groups coordinated here, and this broker's share of the others.

        Every group is read. Clients that ask during a reading all wait for one more reading.
        """
        begin(self._mailbox, self._wait_for_list(), done, failed)

    async def _wait_for_list(self) -> Listed | ErrorCode:
        waiting: Waiting[Listed] = Waiting(self._mailbox)
        self._waiting_for_list.append(waiting)
        if not self._listing:
            self._mailbox.begin(self._list())
        return await outcome(waiting)

    async def _list(self) -> None:
        """Read the groups for the waiting clients, then for clients that arrived meanwhile."""
        self._listing = True
        while all_waiting := self._waiting_for_list:
            self._waiting_for_list = []
            listed = await result_of(self._read_list())
            self._mailbox.begin(self._settle(all_waiting, listed))
        self._listing = False

    async def _settle(self, all_waiting: Iterable[Waiting[Listed]], listed: Listed | ErrorCode) -> None:
        """Answer one client in each turn of the loop: to write 3,000 groups takes 40 ms."""
        for waiting in all_waiting:
            waiting.settle(listed)
            await self._mailbox.sleep(0.0)

    async def _read_list(self) -> Listed | ErrorCode:
        held = {g.name: _listed(g.name, g.state, g.members.protocol_type) for g in self.coordinated()}
        others = await self._administration.run(partial(self._share, held.keys()))
        return others if isinstance(others, ErrorCode) else others | held

    def _share(self, held: Collection[str]) -> dict[str, ListedGroup]:
        """In a thread: this broker's share of the groups that are not coordinated here."""
        kinds = self._registry.groups()
        others = kinds.keys() - held
        holders, brokers = self._registry.coordinators(others), self._cluster.brokers
        return {
            name: _listed(name, self._state(name, kinds[name]), CONSUMER)
            for name in others
            if holders.get(name, coordinator_of(name, brokers)) == self._broker_id
        }

    def _state(self, name: str, kind: group_registry.GroupKind) -> State:
        """In a thread: the state of a group that no broker coordinates."""
        has_members = kind is group_registry.GroupKind.STREAMS and self._registry.members(name)
        return State.STABLE if has_members else State.EMPTY

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


def _wrong(names: Iterable[str]) -> dict[str, ErrorCode]:
    return {name: ErrorCode.INVALID_GROUP_ID for name in names if not is_group_name(name)}


def _each(keys: Iterable[K], found: Mapping[K, T] | ErrorCode) -> Mapping[K, T | ErrorCode]:
    """Return `found`, or the error for each of the keys."""
    return dict.fromkeys(keys, found) if isinstance(found, ErrorCode) else dict(found)


def _to_all(keys: Collection[K], answer: Callable[[Mapping[K, ErrorCode]], None]) -> Failed:
    """Return a function that answers with its error for each of the keys."""
    return lambda code: answer(dict.fromkeys(keys, code))
