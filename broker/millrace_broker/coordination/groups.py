"""Consumer groups in ZooKeeper: kinds, members, owners, coordinators and committed offsets.

This module decides the content of these nodes, and which changes are made in one transaction. All methods of
the registry block: call them from threads. Its callers decide which broker coordinates a group and which
consumer owns a partition. Of topics it uses names and ids only.

    /<cluster>/consumers/<group>                             persistent  {"kind": "streams" | "classic"}
    /<cluster>/consumers/<group>/offsets/<topic>/<partition> persistent  see encode_offset
    /<cluster>/consumers/<group>/ids/<consumer>              ephemeral   {"host", "topics": {topic: streams}}
    /<cluster>/consumers/<group>/owners/<topic>/<partition>  ephemeral   the stream that reads the partition
    /<cluster>/consumers/<group>/coordinator                 ephemeral   id of the broker that coordinates
    /<cluster>/consumers/<group>/tenure-<session>-<random>   ephemeral   empty; goes with `coordinator`

Names are percent-encoded, because groups and consumers may have any name. A write is fenced by checks in the
same transaction. The checks prove more than the existence of a node, because the same node may belong to
another client or broker by then: a consumer's id is new with every registration, and so is the name of a
coordinator's tenure. Every new coordinator rewrites the group's node, so that node's version counts the
coordinators. The count alone is no fence, because it begins again when a group is deleted and recreated.
Brokers of versions without tenures use only the other nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID, uuid4

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from millrace import errors
from millrace.records.topic_partition import TopicPartition
from millrace.zookeeper.session import Session

MAX_PART_BYTES = 500_000
"""Most bytes of one transaction: the server closes the connection on a request of 1 MiB."""
CHANGE_BYTES = 100
"""Most bytes that a change takes beside its path and its data."""
TRIES = 20
"""Most tries of a transaction whose nodes other processes create or delete at the same time."""

_CONFLICTS = (NoNodeError, NodeExistsError, NotEmptyError, BadVersionError)


class GroupKind(StrEnum):
    """Kind of a group's members: consumers of `millrace_consumer`, or of Kafka's classic group protocol."""

    STREAMS = "streams"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset to read, with the id of its topic.

    A negative offset is kept as clients commit it, and means no offset: a reader then begins by its own rule.
    A topic that was deleted and recreated has other messages at the offset: see `current_offsets`.
    """

    offset: int
    metadata: str = ""
    time_ms: int
    topic_id: UUID | None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """One registered consumer: topic -> the number of streams with which it reads the topic."""

    topics: Mapping[str, int]
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Conditions under which a write may happen: versions of nodes, -1 meaning that the node exists."""

    checks: tuple[tuple[str, int], ...]
    broken: type[errors.NotCoordinator] | type[NotOwner]
    group_czxid: int = 0
    """In a coordinator's fence: the transaction that created the group."""

    def follows(self, former: Fence) -> bool:
        """Compare two fences of one coordinator. Return True if no other broker coordinated in between."""
        coordinators = self.checks[0][1] - former.checks[0][1]
        return self.group_czxid == former.group_czxid and 0 <= coordinators <= 1


class NotOwner(errors.MillraceError):
    """The consumer has lost its registration, and its ownership with it: it may not write."""


class ConsumerRegistry:
    """The groups of one cluster. Ephemeral nodes live as long as `session`."""

    def __init__(self, session: Session, cluster: str) -> None:
        self._session, self._client, self._call = session, session.client, session.call
        self._cluster = cluster
        self._root = f"/{cluster}/consumers"
        self._seen: set[str] = set()  # offset nodes seen once: most commits need no look-up

    # Groups

    def names(self) -> set[str]:
        return {unquote(name) for name in self._session.children(self._root)}

    def count(self) -> int:
        """Return the number of groups, without reading their names."""
        root = self._session.get(self._root)
        return 0 if root is None else int(root[1].numChildren)

    def groups(self) -> dict[str, GroupKind]:
        return self.kinds(self.names())

    def kinds(self, groups: Iterable[str]) -> dict[str, GroupKind]:
        """Return the kinds of the groups that exist; all are read at once."""
        nodes = self._session.read_all(map(self._group, self._among(groups)))
        return {name_of(path): _decode_kind(data) for path, (data, _) in nodes.items()}

    def _among(self, groups: Iterable[str]) -> set[str]:
        """Return the groups to look up: if there are more names than groups, only the names of existing
        groups.
        """
        asked = set(groups)
        return asked & self.names() if len(asked) > 1 and self.count() < len(asked) else asked

    def kind(self, group: str) -> GroupKind | None:
        node = self._session.get(self._group(group))
        return _decode_kind(node[0]) if node is not None else None

    def claim(self, group: str, kind: GroupKind) -> None:
        """Create the group if it does not exist. Raise InconsistentGroupKind when it is of the other kind."""
        path = self._group(group)

        def create(change: TransactionRequest) -> None:
            change.create(path, json.dumps({"kind": kind}).encode())
            for name in ("offsets", "ids", "owners"):
                change.create(f"{path}/{name}")

        while (present := self.kind(group)) is None:
            self._call(self._client.ensure_path_async, self._root)
            self._transact(create)
        if present != kind:
            raise errors.InconsistentGroupKind(
                f"group {group!r} of cluster {self._cluster} is of kind {present}: take another name, "
                "or delete that group first"
            )

    def delete_group(self, group: str, *, fence: Fence | None = None) -> None:
        """Delete a group with all its offsets, and its coordinator's node under `fence`.

        Raise UnknownGroup if the group does not exist. Raise GroupNotEmpty when a consumer is registered or a
        partition is owned. Raise NotCoordinator when the coordinator is not the one of `fence`.
        """
        path = self._group(group)
        for _ in range(TRIES):
            nodes = self._tree(path)  # first: nodes created after the checks must not be deleted
            self._check_unused(group, fence)
            last = {path, *(check for check, _ in fence.checks)} if fence is not None else {path}
            if self._delete_all(sorted(nodes, key=last.__contains__), fence):
                return
        raise errors.GroupNotEmpty(f"group {group!r} is in use: stop its consumers first")

    def _check_unused(self, group: str, fence: Fence | None) -> None:
        """Refuse a change of a group that does not exist, has consumers, or has another coordinator."""
        if self.kind(group) is None:
            raise self._unknown(group)
        if self._session.children(f"{self._group(group)}/ids") or self.owners(group):
            raise errors.GroupNotEmpty(f"group {group!r} has consumers: stop them first")
        if fence is None and (broker := self.coordinator(group)) is not None:
            raise self._coordinated(group, broker)

    def _unknown(self, group: str) -> errors.UnknownGroup:
        return errors.UnknownGroup(f"no group {group!r} in cluster {self._cluster}")

    def _coordinated(self, group: str, broker: int) -> errors.NotCoordinator:
        return errors.NotCoordinator(
            f"group {group!r} is coordinated by broker {broker}: send the request there"
        )

    # Offsets

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of these partitions, or of all; see also `current_offsets`."""
        return self.offsets_of({group: partitions}).get(group, {})

    def offsets_of(
        self, groups: Mapping[str, Iterable[TopicPartition] | None]
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Return the offsets of each existing group, as `offsets` does. All are read at once."""
        asked = {f"{self._group(group)}/offsets": groups[group] for group in self._among(groups)}
        paths = self._leaves({directory: None for directory, named in asked.items() if named is None})
        paths += [path for directory, named in asked.items() for path in _nodes(directory, named or ())]
        nodes = self._session.read_all(paths)
        self._seen.update(nodes)
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for path, (data, _) in nodes.items():
            offsets.setdefault(_group_of(path), {})[partition_of(path)] = decode_offset(data)
        return offsets

    def committed(self, groups: Mapping[str, Collection[str]]) -> dict[str, set[TopicPartition]]:
        """Return the partitions of these topics for which each group has committed an offset."""
        named = {f"{self._group(group)}/offsets": groups[group] for group in self._among(groups)}
        committed: dict[str, set[TopicPartition]] = {}
        for path in self._leaves(named):
            committed.setdefault(_group_of(path), set()).add(partition_of(path))
        return committed

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, fence: Fence | None = None
    ) -> None:
        """Write offsets of a claimed group, in one transaction unless there are too many.

        Raise NotCoordinator or NotOwner when the fence no longer holds. Raise UnknownGroup when the group was
        deleted.
        """
        for part in self._encoded(group, offsets):
            self._write(group, part, fence)

    def rewind(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write offsets of a streams group without consumers.

        Raise GroupNotEmpty when a consumer is registered.
        """
        ids = f"{self._group(group)}/ids"
        if self._session.children(ids):
            raise errors.GroupNotEmpty(f"group {group!r} has consumers: stop them first")
        for part in self._encoded(group, offsets):
            self._write(group, part, None, unused=ids)

    def delete_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, fence: Fence | None = None
    ) -> None:
        """Delete the offsets of these partitions, under the coordinator's fence if there is one.

        Raise UnknownGroup if the group does not exist. Raise GroupNotEmpty when a consumer is registered.
        Raise NotCoordinator when the coordinator is not the one of `fence`.
        """
        paths = _nodes(f"{self._group(group)}/offsets", partitions)
        for _ in range(TRIES):
            self._check_unused(group, fence)
            if self._delete_all(sorted(self._session.read_all(paths)), fence):
                return
        raise errors.BrokerError(f"the offsets of group {group!r} change too fast to be deleted")

    def keep_offsets(self, groups: Iterable[str]) -> None:
        """Mark the offsets of these groups as used now: the groups have members, or the last member has just
        left.
        """
        self._session.touch_all(f"{self._group(group)}/offsets" for group in groups)

    def expire_offsets(self, groups: Collection[str], before_ms: float) -> dict[str, int]:
        """Delete offsets that were not used since `before_ms`, of groups without members, and then groups
        without offsets.

        Return the number of deleted offsets by group. Offsets of a group with consumers of Millrace's own
        count as used now.
        """
        paths = {self._group(group): group for group in groups}
        nodes = self._session.read_all(paths)
        coordinated = self.coordinators(groups)
        consumers = self._session.children_of(f"{path}/ids" for path in paths)
        unused = [
            path for path in nodes if paths[path] not in coordinated and not consumers.get(f"{path}/ids")
        ]
        self.keep_offsets(paths[path] for path in nodes if consumers.get(f"{path}/ids"))
        directories = self._session.read_all(f"{path}/offsets" for path in unused)
        offsets: dict[str, dict[str, int]] = {}  # group -> node of an expired offset -> its version
        left = set[str]()
        for path, (data, stat) in self._session.read_all(self._leaves(dict.fromkeys(directories))).items():
            group_path = path.rsplit("/", 3)[0]
            directory = directories[f"{group_path}/offsets"][1]
            used_ms = directory.mtime if directory.version else 0  # only `keep_offsets` writes it
            if max(used_ms, stat.mtime, decode_offset(data).time_ms) < before_ms:
                offsets.setdefault(group_path, {})[path] = stat.version
            else:
                left.add(group_path)
        expired: dict[str, int] = {}
        for path in unused:
            over, (kind, stat) = offsets.get(path, {}), nodes[path]
            if not self._delete_unused(path, stat.version, over):
                continue
            if over:
                expired[paths[path]] = len(over)
            if path not in left and (over or _decode_kind(kind) is GroupKind.CLASSIC):
                with suppress(errors.UnknownGroup, errors.GroupNotEmpty, errors.NotCoordinator):
                    self.delete_group(paths[path])
        return expired

    def _delete_unused(self, group_path: str, version: int, offsets: Mapping[str, int]) -> bool:
        """Delete offsets of these versions.

        Return False when the group has been used since they were read.
        """
        ids = f"{group_path}/ids"

        def delete(change: TransactionRequest, part: Iterable[str]) -> None:
            change.check(group_path, version)  # a new coordinator writes it
            change.delete(ids)  # fails if a consumer is below it
            change.create(ids)
            for path in part:
                change.delete(path, offsets[path])

        self._seen.difference_update(offsets)
        parts = _in_parts(dict.fromkeys(offsets, b"")) if offsets else ()
        return all(self._transact(partial(delete, part=part)) is not None for part in parts)

    def _encoded(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Iterator[dict[str, bytes]]:
        paths = _nodes(f"{self._group(group)}/offsets", offsets)
        return _in_parts(dict(zip(paths, map(encode_offset, offsets.values()), strict=True)))

    def _write(
        self, group: str, offsets: Mapping[str, bytes], fence: Fence | None, *, unused: str | None = None
    ) -> None:
        def write(change: TransactionRequest) -> None:
            if unused is not None:  # fails if anything is below it
                change.delete(unused)
                change.create(unused)
            for path, data in offsets.items():
                if path in self._seen:
                    change.set_data(path, data)
                else:
                    change.create(path, data)

        for _ in range(TRIES):
            unseen = offsets.keys() - self._seen
            self._seen.update(self._session.read_all(unseen))
            self._create_parents(group, unseen)
            if self._transact(write, fence) is not None:
                self._seen.update(offsets)
                return
            self._seen.difference_update(offsets)
            if unused is not None and self._session.children(unused):
                raise errors.GroupNotEmpty(f"group {group!r} has a consumer now: stop it first")
        raise errors.BrokerError(f"the offsets of group {group!r} change too fast to be written")

    def _create_parents(self, group: str, paths: Iterable[str]) -> None:
        for parent in sorted({path.rpartition("/")[0] for path in paths}):
            try:
                with suppress(NodeExistsError):
                    self._call(self._client.create_async, parent)
            except NoNodeError:
                raise self._unknown(group) from None

    # Coordinators of classic groups

    def coordinate(self, group: str, broker_id: int) -> Fence:
        """Become the coordinator of a claimed group. Raise NotCoordinator when another live broker is its
        coordinator.

        The nodes of an earlier process of the same broker are replaced at once.
        """
        path, node = self._group(group), f"{self._group(group)}/coordinator"

        tenures = f"tenure-{self._session.id:x}-"

        def take(change: TransactionRequest, kind: bytes, *, replace: bool) -> None:
            if replace:
                change.delete(node)
            change.create(node, str(broker_id).encode(), ephemeral=True)
            change.create(f"{path}/{tenures}{uuid4().hex}", ephemeral=True)
            change.set_data(path, kind)

        for _ in range(TRIES):
            present = self._session.get(path)  # first: its version must not be newer
            if present is None:
                raise self._unknown(group)
            kind, stat = present
            holder = self._session.get(node)
            if holder is not None and holder[1].ephemeralOwner == self._session.id:
                ours = [name for name in self._session.children(path) if name.startswith(tenures)]
                checks = ((path, stat.version), (node, -1), *((f"{path}/{name}", -1) for name in ours))
                return Fence(checks=checks, broken=errors.NotCoordinator, group_czxid=stat.czxid)
            if holder is not None and int(holder[0]) != broker_id:
                raise self._coordinated(group, int(holder[0]))
            unchanged = Fence(checks=((path, stat.version),), broken=errors.NotCoordinator)
            # A conflict: another broker was faster, or a try whose answer was lost has succeeded.
            with suppress(errors.NotCoordinator):
                self._transact(partial(take, kind=kind, replace=holder is not None), unchanged)
        raise errors.NotCoordinator(f"the coordinator of group {group!r} changes too fast")

    def coordinator(self, group: str) -> int | None:
        return self.coordinators([group]).get(group)

    def coordinators(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the coordinating broker of each group that has one. All are read at once."""
        nodes = {f"{self._group(group)}/coordinator": group for group in self._among(groups)}
        return {nodes[path]: int(data) for path, (data, _) in self._session.read_all(nodes).items()}

    def resign(self, group: str, fence: Fence) -> None:
        """Stop being the coordinator; do nothing if another broker is already the coordinator."""
        with suppress(errors.NotCoordinator):
            self._delete_all([path for path, _ in fence.checks[1:]], fence)

    # Members and owners of streams groups

    def register(self, group: str, consumer: str, member: StreamsMember) -> Fence:
        """List a consumer, under an id that was never used before, as long as the session lasts.

        The fence holds for that time. Raise InconsistentGroupKind when the group is a classic group.
        """
        path = f"{self._group(group)}/ids/{node_name(consumer)}"
        while True:
            self.claim(group, GroupKind.STREAMS)
            with suppress(NoNodeError):  # the group was deleted in the meantime
                # The node may exist only by an earlier try whose answer was lost: the id is used nowhere
                # else.
                with suppress(NodeExistsError):
                    self._call(self._client.create_async, path, encode_member(member), ephemeral=True)
                return Fence(checks=((path, -1),), broken=NotOwner)

    def unregister(self, group: str, fence: Fence) -> None:
        """Remove a consumer from the list; it must have given up its partitions before."""
        with suppress(NotOwner):
            self._delete_all([fence.checks[0][0]], fence)

    def members(self, group: str, watch: Callable[[Any], None] | None = None) -> dict[str, StreamsMember]:
        """Return the registered consumers.

        Kazoo's thread calls `watch` once, when a consumer comes or goes.
        """
        ids = f"{self._group(group)}/ids"
        nodes = self._session.read_all(f"{ids}/{name}" for name in self._session.children(ids, watch))
        return {name_of(path): StreamsMember(**json.loads(data)) for path, (data, _) in nodes.items()}

    def own(self, group: str, streams: Mapping[TopicPartition, str], fence: Fence) -> bool:
        """Claim all of these partitions, each for a stream. Return False, and claim none, when any has an
        owner.

        Raise NotOwner when the registration of `fence` is gone.
        """
        paths = _nodes(f"{self._group(group)}/owners", streams)
        self._create_parents(group, paths)

        def create(change: TransactionRequest, part: Mapping[str, bytes]) -> None:
            for path, stream in part.items():
                change.create(path, stream, ephemeral=True)

        for part in _in_parts(dict(zip(paths, map(str.encode, streams.values()), strict=True))):
            if self._transact(partial(create, part=part), fence) is None and not self._holds(part):
                self.disown(group, streams, fence)  # undo the parts before
                return False
        return True

    def _holds(self, nodes: Mapping[str, bytes]) -> bool:
        """Return True if this session has written the nodes: then a try whose answer was lost has succeeded
        as a whole.
        """
        return {path: data for path, (data, _) in self._session.read_all(nodes).items()} == nodes

    def disown(self, group: str, partitions: Iterable[TopicPartition], fence: Fence) -> None:
        """Give up the partitions owned under `fence`. Raise NotOwner when fence and ownership are lost."""
        paths = _nodes(f"{self._group(group)}/owners", partitions)
        for _ in range(TRIES):
            nodes = self._session.read_all(paths)
            ours = [path for path, (_, stat) in nodes.items() if stat.ephemeralOwner == self._session.id]
            if self._delete_all(ours, fence):
                return
        raise errors.BrokerError(f"the partitions that group {group!r} owns change too fast to be given up")

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """Return the stream that reads each partition."""
        nodes = self._session.read_all(self._leaves({f"{self._group(group)}/owners": None}))
        return {partition_of(path): data.decode() for path, (data, _) in nodes.items()}

    # Nodes

    def _group(self, group: str) -> str:
        if not group:
            raise errors.InvalidGroup("a group needs a name")
        return f"{self._root}/{node_name(group)}"

    def _tree(self, path: str) -> list[str]:
        """Return the node and all below it, children before their parents."""
        below = [node for name in self._session.children(path) for node in self._tree(f"{path}/{name}")]
        return [*below, path]

    def _leaves(self, directories: Mapping[str, Collection[str] | None]) -> list[str]:
        """Return the nodes of all partitions of these topics, or of all, in directories of groups."""
        wanted: list[str] = []
        for directory, names in self._session.children_of(directories).items():
            topics = directories[directory]
            chosen = set(names) if topics is None else set(map(node_name, topics))
            wanted += [f"{directory}/{name}" for name in names if name in chosen]
        below = self._session.children_of(wanted)
        return [f"{topic}/{partition}" for topic in below for partition in below[topic]]

    def _delete_all(self, paths: Iterable[str], fence: Fence | None) -> bool:
        def delete(change: TransactionRequest, part: Iterable[str]) -> None:
            for path in part:
                change.delete(path)

        for part in _in_parts(dict.fromkeys(paths, b"")):
            self._seen.difference_update(part)
            if self._transact(partial(delete, part=part), fence) is None:
                return False
        return True

    def _transact(
        self, fill: Callable[[TransactionRequest], None], fence: Fence | None = None
    ) -> list[Any] | None:
        """Return the results of a transaction; None when an existing or a missing node prevented it.

        Raise the error of the fence when the fence does not hold.
        """
        checks = fence.checks if fence is not None else ()

        def attempt() -> Any:
            change = self._client.transaction()
            for path, version in checks:
                change.check(path, version)
            fill(change)
            return change.commit_async()

        results: list[Any] = self._call(attempt)
        # The steps before the failed one, and those after it, have errors of their own.
        failed = [index for index, result in enumerate(results) if isinstance(result, _CONFLICTS)]
        if fence is not None and failed and failed[0] < len(checks):
            raise fence.broken(f"node {checks[failed[0]][0]} in ZooKeeper now belongs to another process")
        if not failed and any(isinstance(result, KazooException) for result in results):
            raise errors.BrokerError(
                f"ZooKeeper at {self._session.zookeeper} refuses a transaction: {results}"
            )
        return None if failed else results


def current_offsets(
    committed: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[str, UUID]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of topics whose id is unchanged. Offsets of other topics count as not committed.

    A negative offset counts as not committed, too: clients commit it to make a group begin again.
    """
    return {
        partition: offset
        for partition, offset in committed.items()
        if topic_ids.get(partition[0]) == offset.topic_id and offset.offset >= 0
    }


def committed_positions(
    committed: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[str, UUID]
) -> dict[TopicPartition, int]:
    """Return the positions to read on from: the current offsets."""
    current = current_offsets(committed, topic_ids)
    return {partition: offset.offset for partition, offset in current.items()}


def stream_name(consumer_id: str, index: int) -> str:
    """Return the name of one of a consumer's streams, as the owner of a partition."""
    return f"{consumer_id}-{index}"


def consumer_of(stream: str) -> str:
    return stream.rpartition("-")[0]


def node_name(name: str) -> str:
    """Return a name as the name of a node: `.` and `..` would be steps of a path."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def name_of(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def partition_of(path: str) -> TopicPartition:
    topic, _, partition = path.rpartition("/")
    return name_of(topic), int(partition)


def _group_of(path: str) -> str:
    """Return the group whose offset or owner of a partition is at `path`."""
    return name_of(path.rsplit("/", 3)[0])


def encode_member(member: StreamsMember) -> bytes:
    return json.dumps({"host": member.host, "topics": dict(member.topics)}).encode()


def encode_offset(committed: CommittedOffset) -> bytes:
    """Return the content of an offset's node. It is five times as fast as with `dataclasses.asdict`."""
    value = {
        "offset": committed.offset,
        "metadata": committed.metadata,
        "time_ms": committed.time_ms,
        "topic_id": committed.topic_id and committed.topic_id.hex,
        "leader_epoch": committed.leader_epoch,
    }
    return json.dumps(value).encode()


def decode_offset(data: bytes) -> CommittedOffset:
    value = json.loads(data)
    return CommittedOffset(**{**value, "topic_id": value["topic_id"] and UUID(value["topic_id"])})


def _decode_kind(data: bytes) -> GroupKind:
    return GroupKind(json.loads(data)["kind"])


def _nodes(directory: str, partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{directory}/{node_name(topic)}/{number}" for topic, number in partitions]


def _in_parts(changes: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield paths and data, in their order, in as few parts as transactions can take; at least one part."""
    part: dict[str, bytes] = {}
    size = 0
    for path, data in changes.items():
        change = CHANGE_BYTES + len(path.encode()) + len(data)
        if part and size + change > MAX_PART_BYTES:
            yield part
            part, size = {}, 0
        part[path] = data
        size += change
    yield part
