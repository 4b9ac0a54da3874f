"""What ZooKeeper holds of consumer groups: kinds, members, owners, coordinators and committed offsets.

Owns these nodes and which of their changes go together. All methods block: call them from threads. Does not
decide who owns or coordinates what, and does not know topics beyond their names and ids.

    /<cluster>/consumers/<group>                             persistent  {"kind": "streams" | "classic"}
    /<cluster>/consumers/<group>/offsets/<topic>/<partition> persistent  see entries.py
    /<cluster>/consumers/<group>/ids/<consumer>              ephemeral   {"host", "topics": {topic: streams}}
    /<cluster>/consumers/<group>/owners/<topic>/<partition>  ephemeral   the stream that reads the partition
    /<cluster>/consumers/<group>/coordinator                 ephemeral   id of the broker that coordinates

Names are percent-encoded, because groups and consumers may have any. A write is fenced by checks in the same
transaction. They prove more than "the node is there", because the same node may be somebody else's by then:
a consumer's id is new with every registration, and every new coordinator writes the group's node anew, so
that node's version counts the coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from millrace.coordination.group_entries import (
    CommittedOffset,
    GroupKind,
    StreamsMember,
    committed_positions,
    consumer_of,
    current_offsets,
    decode_kind,
    decode_member,
    decode_offset,
    encode_kind,
    encode_member,
    encode_offset,
    in_parts,
    name_of,
    node_name,
    place_of,
    stream_name,
)
from millrace.coordination.session import Session
from millrace.errors import (
    BrokerError,
    GroupNotEmpty,
    InconsistentGroupKind,
    InvalidGroup,
    MillraceError,
    NotCoordinator,
    UnknownGroup,
)
from millrace.records.topic_partition import TopicPartition

__all__ = [
    "CommittedOffset",
    "ConsumerRegistry",
    "Fence",
    "GroupKind",
    "NotOwner",
    "StreamsMember",
    "committed_positions",
    "consumer_of",
    "current_offsets",
    "stream_name",
]  # fmt: skip

TRIES = 20
"""Of a transaction whose nodes others create or delete at the same time."""

_CONFLICTS = (NoNodeError, NodeExistsError, NotEmptyError, BadVersionError)


class NotOwner(MillraceError):
    """The consumer's registration is gone, and with it what it owned: nothing of it may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What must still hold when something is written: versions of nodes, -1 meaning that it exists."""

    checks: tuple[tuple[str, int], ...]
    broken: type[NotCoordinator] | type[NotOwner]

    def follows(self, former: Fence) -> bool:
        """Of two fences of the same coordinator: True if nobody else coordinated in between."""
        return 0 <= self.checks[0][1] - former.checks[0][1] <= 1


class ConsumerRegistry:
    """The groups of one cluster. Ephemeral nodes live as long as `session`."""

    def __init__(self, session: Session, cluster: str) -> None:
        self._session, self._client, self._call = session, session.client, session.call
        self._cluster = cluster
        self._root = f"/{cluster}/consumers"
        self._known: set[str] = set()  # offset nodes that were there once: most commits need not ask

    # Groups

    def names(self) -> set[str]:
        """Every group's name."""
        return {name_of(f"/{name}") for name in self._session.children(self._root)}

    def groups(self) -> dict[str, GroupKind]:
        """Every group of the cluster, by name."""
        paths = [self._group(name) for name in self.names()]
        found = self._session.read_all(paths)
        return {name_of(path): decode_kind(data) for path, (data, _) in found.items()}

    def kind(self, group: str) -> GroupKind | None:
        """The group's kind, or None when there is no such group."""
        try:
            return decode_kind(self._call(self._client.get_async, self._group(group))[0])
        except NoNodeError:
            return None

    def claim(self, group: str, kind: GroupKind) -> None:
        """Make sure that the group exists; InconsistentGroupKind when it is of the other kind."""
        path, data = self._group(group), encode_kind(kind)

        def create(change: TransactionRequest) -> None:
            change.create(path, data)
            for name in ("offsets", "ids", "owners"):
                change.create(f"{path}/{name}")

        while (found := self.kind(group)) is None:
            self._call(self._client.ensure_path_async, self._root)
            self._transact(create)
        if found != kind:
            raise InconsistentGroupKind(
                f"group {group!r} of cluster {self._cluster} is of kind {found}: take another name, "
                "or delete that group first"
            )

    def delete_group(self, group: str, *, fence: Fence | None = None) -> None:
        """Forget a group with all its offsets; its coordinator's node, under `fence`, goes with it.

        UnknownGroup when there is none; GroupNotEmpty when a consumer is registered or a partition owned;
        NotCoordinator when there is a coordinator that the fence is not of.
        """
        path = self._group(group)
        for _ in range(TRIES):
            below = self._below(path)  # first: what comes after the questions must not be deleted
            self._check_unused(group, fence)
            last = (f"{path}/coordinator", path)  # what the fence checks
            if self._delete_all(sorted(below, key=last.__contains__), fence):
                return
        raise GroupNotEmpty(f"group {group!r} is in use: stop its consumers first")

    def _check_unused(self, group: str, fence: Fence | None) -> None:
        """Refuse a change of a group that is not there, has consumers, or is another coordinator's."""
        if self.kind(group) is None:
            raise UnknownGroup(f"no group {group!r} in cluster {self._cluster}")
        if self._session.children(f"{self._group(group)}/ids") or self.owners(group):
            raise GroupNotEmpty(f"group {group!r} has consumers: stop them first")
        if fence is None and (broker := self.coordinator(group)) is not None:
            raise NotCoordinator(f"group {group!r} is coordinated by broker {broker}: ask that one")

    def _below(self, path: str) -> list[str]:
        """The node and all below it, children before their parents."""
        found = [each for name in self._session.children(path) for each in self._below(f"{path}/{name}")]
        return [*found, path]

    def _delete_all(self, paths: list[str], fence: Fence | None) -> bool:
        for part in in_parts(dict.fromkeys(paths, b"")):
            self._known.difference_update(part)

            def delete(change: TransactionRequest, part: Iterable[str] = part) -> None:
                for each in part:
                    change.delete(each)

            if self._transact(delete, fence) is None:
                return False
        return True

    # Offsets

    def offsets(
        self, group: str, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What is committed, of these partitions or of all; see also `current_offsets`."""
        if places is None:
            places = self._places(f"{self._group(group)}/offsets")
        found = self._session.read_all(self._offset(group, place) for place in places)
        self._known.update(found)
        return {place_of(path): decode_offset(data) for path, (data, _) in found.items()}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, fence: Fence | None = None
    ) -> None:
        """Write offsets of a group that was claimed, in one transaction unless they are too many for it.

        NotCoordinator or NotOwner when the fence does not hold any more, UnknownGroup when the group is gone.
        """
        for part in in_parts(self._encoded(group, offsets)):
            self._commit(group, part, fence)

    def delete_offsets(
        self, group: str, places: Iterable[TopicPartition], *, fence: Fence | None = None
    ) -> None:
        """Forget what is committed of these partitions, under the coordinator's fence if there is one.

        UnknownGroup when there is no such group; GroupNotEmpty when a consumer is registered; NotCoordinator
        when there is a coordinator that the fence is not of.
        """
        paths = [self._offset(group, place) for place in places]
        for _ in range(TRIES):
            self._check_unused(group, fence)
            if self._delete_all(sorted(self._session.read_all(paths)), fence):
                return
        raise BrokerError(f"the offsets of group {group!r} change too fast to be deleted")

    def rewind(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write offsets of a streams group that nobody reads; GroupNotEmpty when a consumer is registered."""
        ids = f"{self._group(group)}/ids"
        if self._session.children(ids):
            raise GroupNotEmpty(f"group {group!r} has consumers: stop them first")
        for part in in_parts(self._encoded(group, offsets)):
            self._commit(group, part, None, unused=ids)

    def _encoded(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[str, bytes]:
        return {self._offset(group, place): encode_offset(offset) for place, offset in offsets.items()}

    def _commit(
        self, group: str, offsets: Mapping[str, bytes], fence: Fence | None, *, unused: str | None = None
    ) -> None:
        def write(change: TransactionRequest) -> None:
            if unused is not None:  # fails if anything is below it
                change.delete(unused)
                change.create(unused)
            for path, data in offsets.items():
                if path in self._known:
                    change.set_data(path, data)
                else:
                    change.create(path, data)

        for _ in range(TRIES):
            unknown = offsets.keys() - self._known
            self._known.update(self._session.read_all(unknown))
            for parent in {path.rsplit("/", 1)[0] for path in unknown}:
                self._create_missing(group, parent)
            if self._transact(write, fence) is not None:
                self._known.update(offsets)
                return
            self._known.difference_update(offsets)
            if unused is not None and self._session.children(unused):
                raise GroupNotEmpty(f"group {group!r} has got a consumer: stop it first")
        raise BrokerError(f"the offsets of group {group!r} change too fast to be written")

    def _create_missing(self, group: str, path: str) -> None:
        """One directory of a group; UnknownGroup when there is no such group."""
        try:
            self._call(self._client.create_async, path)
        except NodeExistsError:
            pass
        except NoNodeError:
            raise UnknownGroup(f"no group {group!r} in cluster {self._cluster}") from None

    # Coordinators of classic groups

    def coordinate(self, group: str, broker_id: int) -> Fence | int:
        """Become the coordinator of a group that was claimed, or say which live broker is it already.

        What an earlier life of the same broker has left is taken over at once.
        """
        path, node = self._group(group), f"{self._group(group)}/coordinator"
        data = str(broker_id).encode()
        for _ in range(TRIES):
            try:
                kind, stat = self._call(self._client.get_async, path)  # first: its version must not be newer
            except NoNodeError:
                raise UnknownGroup(f"no group {group!r} in cluster {self._cluster}") from None
            found = self._session.read_all([node]).get(node)
            if found is not None and found[1].ephemeralOwner == self._session.id:
                return Fence(checks=((path, stat.version), (node, -1)), broken=NotCoordinator)
            if found is not None and int(found[0]) != broker_id:
                return int(found[0])

            def take(change: TransactionRequest, former: bool = found is not None) -> None:
                if former:
                    change.delete(node)
                change.create(node, data, ephemeral=True)
                change.set_data(path, kind)  # noqa: B023  # called before the loop goes on

            before = Fence(checks=((path, stat.version),), broken=NotCoordinator)
            try:
                self._transact(take, before)
            except NotCoordinator:
                continue  # somebody was faster, or a try whose answer was lost has succeeded
        raise NotCoordinator(f"the coordinator of group {group!r} changes too fast")

    def coordinator(self, group: str) -> int | None:
        """The broker that coordinates the group, or None when nobody does."""
        return self.coordinators([group]).get(group)

    def coordinators(self, groups: Iterable[str]) -> dict[str, int]:
        """Group -> broker, of those that somebody coordinates; asked for all at once."""
        nodes = {f"{self._group(group)}/coordinator": group for group in groups}
        return {nodes[path]: int(data) for path, (data, _) in self._session.read_all(nodes).items()}

    def resign(self, group: str, fence: Fence) -> None:
        """Stop being the coordinator; nothing happens when somebody else is it by now."""
        try:
            self._transact(lambda change: change.delete(f"{self._group(group)}/coordinator"), fence)
        except NotCoordinator:
            return

    # Members and owners of streams groups

    def register(self, group: str, consumer: str, member: StreamsMember) -> Fence:
        """List a consumer, under an id never used before, as long as the session lasts.

        The fence holds as long as that. InconsistentGroupKind when the group is a classic one.
        """
        path = f"{self._group(group)}/ids/{node_name(consumer)}"
        data = encode_member(member)
        while True:
            self.claim(group, GroupKind.STREAMS)
            try:
                self._call(self._client.create_async, path, data, ephemeral=True)
            except NoNodeError:
                continue  # the group was deleted in the meantime
            except NodeExistsError:
                pass  # a try whose answer was lost has succeeded: nobody else has the id
            return Fence(checks=((path, -1),), broken=NotOwner)

    def unregister(self, group: str, fence: Fence) -> None:
        """Take a consumer off the list; what it owns must have been given up before."""
        try:
            self._transact(lambda change: change.delete(fence.checks[0][0]), fence)
        except NotOwner:
            return

    def members(self, group: str, watch: Callable[[Any], None] | None = None) -> dict[str, StreamsMember]:
        """The registered consumers; `watch` is called once, in kazoo's thread, when one comes or goes."""
        ids = f"{self._group(group)}/ids"
        found = self._session.read_all(f"{ids}/{name}" for name in self._session.children(ids, watch))
        return {name_of(path): decode_member(data) for path, (data, _) in found.items()}

    def own(self, group: str, streams: Mapping[TopicPartition, str], fence: Fence) -> bool:
        """Own all of these partitions, each for a stream; False, and own none, when one has an owner.

        NotOwner when the registration that `fence` stands for is gone.
        """
        nodes = {self._owner(group, place): stream.encode() for place, stream in streams.items()}
        for parent in sorted({path.rsplit("/", 1)[0] for path in nodes}):
            self._create_missing(group, parent)
        for part in in_parts(nodes):

            def create(change: TransactionRequest, part: Mapping[str, bytes] = part) -> None:
                for path, stream in part.items():
                    change.create(path, stream, ephemeral=True)

            if self._transact(create, fence) is None and not self._holds(part):
                self.disown(group, streams, fence)  # the parts before
                return False
        return True

    def _holds(self, nodes: Mapping[str, bytes]) -> bool:
        """True if they are ours: a try whose answer was lost has succeeded, and it was all or nothing."""
        return {path: data for path, (data, _) in self._session.read_all(nodes).items()} == nodes

    def disown(self, group: str, places: Iterable[TopicPartition], fence: Fence) -> None:
        """Give up those partitions that are owned under `fence`; NotOwner when that is gone, and they too."""
        paths = [self._owner(group, place) for place in places]
        for _ in range(TRIES):
            found = self._session.read_all(paths)
            ours = [path for path, (_, stat) in found.items() if stat.ephemeralOwner == self._session.id]
            if self._delete_all(ours, fence):
                return
        raise BrokerError(f"what group {group!r} owns changes too fast to be given up")

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """Partition -> the stream that reads it."""
        places = self._places(f"{self._group(group)}/owners")
        found = self._session.read_all(self._owner(group, place) for place in places)
        return {place_of(path): data.decode() for path, (data, _) in found.items()}

    # Nodes

    def _group(self, group: str) -> str:
        if not group:
            raise InvalidGroup("a group needs a name")
        return f"{self._root}/{node_name(group)}"

    def _offset(self, group: str, place: TopicPartition) -> str:
        return f"{self._group(group)}/offsets/{node_name(place[0])}/{place[1]}"

    def _owner(self, group: str, place: TopicPartition) -> str:
        return f"{self._group(group)}/owners/{node_name(place[0])}/{place[1]}"

    def _places(self, directory: str) -> list[TopicPartition]:
        return [
            (name_of(f"/{topic}"), int(partition))
            for topic in self._session.children(directory)
            for partition in self._session.children(f"{directory}/{topic}")
        ]

    def _transact(
        self, fill: Callable[[TransactionRequest], None], fence: Fence | None = None
    ) -> list[Any] | None:
        """The results of a transaction; None when it did nothing, because of a node that is there or is not.

        Raises what the fence says when it does not hold.
        """
        checks = fence.checks if fence is not None else ()

        def attempt() -> Any:
            change = self._client.transaction()
            for path, version in checks:
                change.check(path, version)
            fill(change)
            return change.commit_async()

        results: list[Any] = self._call(attempt)
        # The steps before the one that failed, and those behind it, have errors of their own.
        failed = [index for index, result in enumerate(results) if isinstance(result, _CONFLICTS)]
        if fence is not None and failed and failed[0] < len(checks):
            raise fence.broken(f"what is at {checks[failed[0]][0]} in ZooKeeper is not ours any more")
        if not failed and any(isinstance(result, KazooException) for result in results):
            raise BrokerError(f"ZooKeeper at {self._session.zookeeper} refuses a transaction: {results}")
        return None if failed else results
