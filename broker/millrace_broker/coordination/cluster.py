"""The shared knowledge of one cluster's brokers: live brokers, topics, and the leaders of partitions.

These registries are in ZooKeeper, all below `/<cluster>`, with snapshots of them in memory. Every change is a
compare-and-set, and every snapshot is replaced whole. Logs, sockets and consumer groups are handled
elsewhere. A method that asks ZooKeeper waits for it, so it is for a thread; the snapshots are for any thread.

A change costs by what changed: ZooKeeper names each topic that was created, changed or deleted, and only that
topic is read. All are read at the start and after each lost connection.

Brokers delete the logs of topics that a snapshot has lost, so a snapshot may lack only a topic whose entry is
really deleted: a ZooKeeper that was wiped or holds another cluster is refused, and an unreadable entry
changes nothing.

    /<cluster>/id                persistent  drawn once, see cluster_id.py of `wire`
    /<cluster>/brokers/ids/<id>  ephemeral   {"host", "port": its address for clients,
                                              "listeners": {name: [host, port]} for clients of each,
                                              "bound": [host, port], its address on its machine,
                                              "directory": id of its log directory,
                                              "rack", "protocol": see topic_state.BrokerAddress,
                                              "machine", "boot": id of this registration,
                                              "partitions", "topics": see brokers.stored_partitions}
    /<cluster>/topics            persistent  its version counts the deletions of topics
    /<cluster>/topics/<topic>    persistent  see topic_state.py of `zookeeper`
    /<cluster>/directories/<id>  persistent  see directories.py
    /<cluster>/clock             persistent  written for ZooKeeper's stamp, holds nothing
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from millrace.errors import InvalidTopic, MillraceError, TopicAlreadyExists, UnknownTopicOrPartition
from millrace.records.mirror_position import Origin
from millrace.records.topic_partition import TopicPartition
from millrace.topic_names import check_topic_name
from millrace.wire.cluster_id import new_cluster_id
from millrace.zookeeper.session import OPERATION_SECONDS, Session
from millrace.zookeeper.topic_state import BrokerAddress, Replicas, TopicState, decode_topic, encode_topic
from millrace_broker.coordination.brokers import (
    Presence,
    Record,
    Registration,
    has_ended,
    listens,
    register,
    stored_partitions,
)
from millrace_broker.coordination.new_partitions import new_topic, with_mirrors
from millrace_broker.coordination.placement import Load

logger = logging.getLogger("millrace.cluster")
Changes: TypeAlias = Mapping[str, TopicState | None]
"""Topics by name; None for a topic that was deleted."""
REGISTER_AGAIN_S = 1.0
"""Pause before a broker whose id another broker holds tries to register again."""
GATHER_S = 0.005
"""Time for which the watcher gathers changes, so that those which come together are read together."""


class Cluster:
    """One cluster's registries. `brokers`, `topics` and `load` are snapshots, readable from any thread."""

    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicState]
    load: Load
    """Replicas and leaders of `topics` on each broker."""

    def __init__(self, session: Session, cluster: str, default_replicas: int = 1) -> None:
        self.session, self.name, self._default_replicas = session, cluster, default_replicas
        self.brokers, self.topics, self.load, self.cluster_id = {}, {}, Load(), ""
        self._client, self._call = session.client, session.call
        self._id, self._ids, self._topics, self._clock = (
            f"/{cluster}/{name}" for name in ("id", "brokers/ids", "topics", "clock")
        )
        self._own: tuple[int, Record] | None = None  # our broker's id, and the constant part of its record
        self._stored = stored_partitions(())
        self._registered: Mapping[int, Registration] = {}
        self._register_from = 0.0
        self._compared: tuple[object, object] = (None, None)
        """The registrations and the partitions for which our registration was last found to be right."""
        self._presence = Presence(session.timeout_ms / 1000)
        self._dirty: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: everything
        self._wake, self._closed, self._refreshing = threading.Event(), threading.Event(), threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self._watcher = threading.Thread(target=self._watch, name=f"cluster {cluster}", daemon=True)

    @classmethod
    def connect(
        cls,
        zookeeper: str,
        cluster: str,
        *,
        session_timeout_ms: int = 6000,
        create: bool = True,
        identity: str = "",
        default_replicas: int = 1,
    ) -> Cluster:
        """Return the registries of a cluster, created if necessary. Raise MillraceError within 10 s when
        ZooKeeper does not answer.

        The first mirrored partitions of a topic get `default_replicas`.
        """
        session = Session.connect(zookeeper, timeout_ms=session_timeout_ms, identity=identity)
        self = cls(session, cluster, default_replicas)
        try:
            if not create and self.session.get(self._id) is None:
                raise MillraceError(
                    f"no cluster {cluster!r} in ZooKeeper at {zookeeper}: start one of its brokers"
                )
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        for path in (self._ids, self._topics, f"/{self.name}/consumers"):
            self._call(self._client.ensure_path_async, path)
        if self.session.get(self._id) is None:  # asked first: a read-only session may not create
            with suppress(NodeExistsError):
                self._call(self._client.create_async, self._id, new_cluster_id(self.name).encode())
        self.cluster_id = self._call(self._client.get_async, self._id)[0].decode()
        self._client.add_listener(self._on_state)
        self._reread(None)
        self._watcher.start()

    def close(self) -> None:
        """Leave: the broker's registration ends with the session. A second call does nothing."""
        self._closed.set()
        self._wake.set()
        self.session.close()  # first: the watcher may be waiting for ZooKeeper
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            self._watcher.join(OPERATION_SECONDS)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of the cluster's live brokers, as a bootstrap text.

        Raise MillraceError if no broker is alive.
        """
        if not self.brokers:
            raise MillraceError(f"no broker of cluster {self.name} is alive: start one")
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    @property
    def is_connected(self) -> bool:
        """False while ZooKeeper does not answer: then the snapshots may be stale. From any thread."""
        return bool(self.session.client.connected)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in a thread of this object, after each change of a snapshot."""
        self._callbacks.append(callback)

    # Brokers

    def register_broker(
        self, broker_id: int, address: BrokerAddress, bound: tuple[str, int] | None = None
    ) -> None:
        """List this broker as alive at an address on which it already listens. It stays listed after lost
        sessions.

        `bound` is the address on this machine, if different. Raise MillraceError when a live broker holds the
        broker's id. The registration of a dead broker is replaced: at once when it ran on this machine, else
        when its session has expired.
        """
        host, port = address.host, address.port
        own = {
            "host": host,
            "port": port,
            "listeners": {name: list(at) for name, at in address.listeners.items()},
            "bound": list(bound or (host, port)),
            "directory": address.directory,
            "rack": address.rack,
            "protocol": address.protocol,
            "machine": socket.gethostname(),
            "boot": uuid.uuid4().hex,
        }
        deadline = time.monotonic() + 2 + 2 * self.session.timeout_ms / 1000
        while (holder := self._register(broker_id, own)) is not None:
            other = (holder["host"], holder["port"])
            if time.monotonic() > deadline or (other != (host, port) and listens(*other)):
                raise self._held(broker_id, other)
            self._closed.wait(0.1)
        self._own = broker_id, own
        self._reread(self._ids)

    def await_free(self, broker_id: int) -> None:
        """Wait until no broker holds the id.

        Raise MillraceError when a live broker holds it, or may hold it.
        """
        deadline = time.monotonic() + 2 + 2 * self.session.timeout_ms / 1000
        while (node := self.session.get(f"{self._ids}/{broker_id}")) is not None:
            holder = json.loads(node[0])
            if has_ended(holder):
                return
            if time.monotonic() > deadline or listens(holder["host"], holder["port"]):
                raise self._held(broker_id, (holder["host"], holder["port"]))
            self._closed.wait(0.1)

    def _held(self, broker_id: int, other: tuple[str, int]) -> MillraceError:
        return MillraceError(
            f"broker id {broker_id} of cluster {self.name} is held by a live broker at "
            f"{other[0]}:{other[1]}: stop that broker, or give this broker another broker_id"
        )

    def store(self, partitions: Iterable[TopicPartition]) -> None:
        """Write the list of stored partitions into this broker's record: now, or once the broker is
        registered.
        """
        self._stored = stored_partitions(partitions)
        if self._own is not None:
            self._mark(self._ids)  # the watcher corrects the record

    def _register(self, broker_id: int, own: Record) -> Record | None:
        return register(self.session, f"{self._ids}/{broker_id}", {**own, **self._stored})

    def _stay_registered(self) -> None:
        known, stored = self._registered, self._stored
        if self._own is None or (known is self._compared[0] and stored is self._compared[1]):
            return
        broker_id, own = self._own
        registered = known.get(broker_id)
        if registered is not None and registered.record == {**own, **stored}:
            self._compared = known, stored
            return
        if time.monotonic() < self._register_from:
            self._dirty.put(self._ids)
            return
        holder = self._register(broker_id, own)
        self._dirty.put(self._ids)
        if holder is None:
            self._wake.set()
        else:
            self._register_from = time.monotonic() + REGISTER_AGAIN_S
            logger.error("broker id %s is held by %s:%s now", broker_id, holder["host"], holder["port"])

    def zookeeper_time(self) -> float:
        """Return ZooKeeper's time in seconds since 1970, from the stamp of a write. Blocks: for a thread."""
        self._check_identity()
        with suppress(NodeExistsError):
            self._call(self._client.create_async, self._clock)
        return float(self._call(self._client.set_async, self._clock, b"").mtime / 1000)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, str],
        *,
        replicas: int = 1,
        assigned: Sequence[Replicas] = (),
    ) -> TopicState:
        """Create and return a new topic, its partitions spread over the live brokers.

        Raise InvalidTopic, TopicAlreadyExists, or the errors of `new_topic`. A topic of mirrored partitions
        starts without partitions: `allocate_mirrors` adds them.
        """
        check_topic_name(name)
        self._check_identity()
        if replicas > len(self.brokers) or not self.brokers.keys() >= set(chain(*assigned)):
            self._reread(self._ids)  # a broker that has just started may not be in the snapshot
        topic = new_topic(
            name, partitions, settings, self.brokers, self.load, replicas=replicas, assigned=assigned
        )
        try:
            self._call(self._client.create_async, self._topic(name), encode_topic(topic))
        except NodeExistsError:
            # A create that is repeated after a lost connection may meet its own first try.
            if self._read_topic(name).topic_id != topic.topic_id:
                raise TopicAlreadyExists(f"topic {name} exists already") from None
        self._reread(self._topic(name))
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic's entry; its brokers then delete its logs.

        Raise UnknownTopicOrPartition when there is no entry.
        """
        self._check_identity()
        path, created = self._topic(name), None
        while True:
            deletions = self._deletions()
            node = self.session.get(path)
            if node is None and created is None:
                raise self._unknown(name)
            # A delete that is repeated after a lost connection may find that its first try has succeeded.
            if node is None or created not in (None, node[1].czxid):
                break
            created = node[1].czxid
            counted = (("check", self._topics, deletions), ("set_data", self._topics, b""))
            if self._transact(*counted, ("delete", path)) is not None:
                break
        self._reread(path)

    def change_topic(self, name: str, change: Callable[[TopicState], TopicState]) -> TopicState:
        """Replace a topic by the result of `change`, called once or several times: compare-and-set.

        The returned topic has its node's version. Raise UnknownTopicOrPartition, or the errors of `change`.
        """
        self._check_identity()
        changed, path = None, self._topic(name)
        while True:
            # First: a topic that is deleted and recreated from now on may get the version that is read.
            deletions = self._deletions()
            state = self._read_topic(name)
            # A write that is repeated after a lost connection may meet its own first try.
            changed = state if state == changed else change(state)
            if changed != state:
                write = ("set_data", path, encode_topic(changed), state.version)
                results = self._transact(("check", self._topics, deletions), write)
                if results is None:
                    continue  # another writer was faster
                changed = replace(changed, version=results[-1].version)
            self._reread(path)
            return changed

    def allocate_mirrors(
        self, topic: str, origins: Sequence[Origin], *, recreated: bool = False
    ) -> dict[Origin, int]:
        """Return the target partition of each origin partition: its present one, or a new one, never reused.

        All changes are one write; a missing topic is created. Raise OriginRecreated when an origin was
        allocated before under another topic id, unless `recreated` allows it. Raise PolicyViolation when the
        topic has ordinary partitions.
        """

        def add(state: TopicState) -> TopicState:
            return with_mirrors(
                state, origins, self.brokers, self.load, replicas=self._default_replicas, recreated=recreated
            )

        while True:
            try:
                targets = self.change_topic(topic, add).targets()
                return {origin: targets[origin] for origin in origins}
            except UnknownTopicOrPartition:
                with suppress(TopicAlreadyExists):
                    self.create_topic(topic, 0, {})

    def topic_names(self) -> frozenset[str]:
        """Return the topics that ZooKeeper has now, by one look-up; for a thread."""
        self._call(self._client.sync_async, self._topics)  # a server that lags behind would miss new ones
        return frozenset(self._children(self._topics))

    def topic_ids(self, names: Iterable[str]) -> dict[str, uuid.UUID]:
        """Return the present id of each of these topics that exists; for a thread.

        The snapshot may be stale: it gives the id of a topic only if the topic still has the same node.
        """
        paths = {self._topic(name): name for name in names}
        stats = {paths[path]: stat for path, stat in self.session.stats(paths).items()}
        known = {name: topic for name in stats if (topic := self.topics.get(name)) is not None}
        ids = {name: topic.topic_id for name, topic in known.items() if topic.czxid == stats[name].czxid}
        for name in stats.keys() - ids.keys():
            with suppress(UnknownTopicOrPartition):
                ids[name] = self._read_topic(name).topic_id
        return ids

    def is_gone(self, name: str, topic_id: uuid.UUID) -> bool:
        """Return True if ZooKeeper holds no topic of that name and id.

        An unreadable entry counts as present.
        """
        self._check_identity()
        try:
            return self._read_topic(name).topic_id != topic_id
        except UnknownTopicOrPartition:
            return True
        except MillraceError as error:
            logger.error("cluster %s: %s", self.name, error)
            return False

    def _topic(self, name: str) -> str:
        """Return a topic's path. Raise UnknownTopicOrPartition for a name that no topic can have."""
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            raise UnknownTopicOrPartition(str(error)) from None
        return f"{self._topics}/{name}"

    def _unknown(self, name: str) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(f"no topic {name} in cluster {self.name}")

    def _read_topic(self, name: str) -> TopicState:
        node = self.session.get(self._topic(name))
        if node is None:
            raise self._unknown(name)
        return decode_topic(name, node[0], node[1].version, node[1].czxid)

    # Snapshots

    def holds(self, topic: str, partition: int, topic_id: uuid.UUID) -> bool:
        """Return True if ZooKeeper itself, not only the snapshot, has that topic's partition; for a
        thread."""
        path = f"{self._topics}/{topic}"
        self._call(self._client.sync_async, path)
        self._check_identity()
        node = self.session.get(path)
        if node is None:
            return False
        found = decode_topic(topic, node[0], node[1].version, node[1].czxid)
        return found.topic_id == topic_id and partition in found.partitions

    def confirm(self, topic: str | None = None) -> None:
        """Read into the snapshots every write made by any broker before this call; for a thread.

        With `topic` only that topic is read. Raise MillraceError when ZooKeeper does not answer, or was
        wiped.
        """
        self._call(self._client.sync_async, self._topics)  # a server that lags behind would miss new ones
        self._reread(None if topic is None else self._topic(topic))

    def _mark(self, *paths: str | None) -> None:
        """Make the watcher read these nodes again; None: everything."""
        for path in paths:
            self._dirty.put(path)
        self._wake.set()

    def _reread(self, *paths: str | None) -> None:
        """Read nodes again, so that a change is in the snapshot before the call that made it returns."""
        self._mark(*paths)
        self._refresh()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._mark(None)  # watches may have been lost with a session
        elif not self._closed.is_set():
            logger.warning(
                "cluster %s: ZooKeeper at %s is %s", self.name, self.session.zookeeper, state.lower()
            )

    def _on_event(self, event: Any) -> None:
        if event.path is not None:
            self._mark(event.path)

    def _watch(self) -> None:
        notified = (self.brokers, self.topics)
        while not self._closed.is_set():
            awaited_s = self._presence.wait_s()
            if self._wake.wait(awaited_s if self._dirty.empty() else 1.0):
                self._closed.wait(GATHER_S)
            self._wake.clear()
            if awaited_s is not None:
                self._dirty.put(self._ids)
            try:
                self._refresh()
                self._stay_registered()
            except Exception as error:  # one failed reading must not end the watch
                if self._closed.is_set():
                    return
                logger.warning("cluster %s: cannot read its registries: %s", self.name, error)
                self._dirty.put(None)
                continue
            if self.brokers is not notified[0] or self.topics is not notified[1]:
                notified = (self.brokers, self.topics)
                for callback in self._callbacks:
                    try:
                        callback()
                    except Exception:
                        logger.exception("cluster %s: a listener failed", self.name)

    def _refresh(self) -> None:
        with self._refreshing:
            dirty: set[str | None] = set()
            while not self._dirty.empty():
                dirty.add(self._dirty.get())
            if not dirty:
                return
            try:
                session, registered, changes = self._read(dirty)
            except BaseException:
                self._dirty.put(None)
                raise
            self._registered = registered
            if changes:
                self.load = self.load.changed([self.topics.get(name) for name in changes], changes.values())
                self.topics = _with(self.topics, changes)
            alive = self._presence.alive(session, registered)
            self.brokers = self.brokers if alive == self.brokers else alive

    def _read(self, dirty: set[str | None]) -> tuple[int, Mapping[int, Registration], Changes]:
        """Return the session's id, the brokers and the changed topics, all read within this session."""
        while True:
            session = self.session.id
            registered = self._read_brokers() if dirty & {None, self._ids} else self._registered
            changes = self._read_topics(dirty)
            if session and session == self.session.id:
                return session, registered, changes

    def _check_identity(self) -> None:
        """Raise MillraceError when ZooKeeper no longer holds this cluster."""
        self._check_id(self.session.get(self._id))

    def _check_id(self, node: tuple[bytes, Any] | None) -> None:
        if node is None or node[0].decode() != self.cluster_id:
            raise MillraceError(
                f"ZooKeeper at {self.session.zookeeper} was wiped or holds another cluster {self.name}, not "
                f"{self.cluster_id}: restore its data; no log is deleted until then"
            )

    def _children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        try:
            return list(self._call(self._client.get_children_async, path, watch))
        except NoNodeError:
            raise self._lost(path) from None

    def _deletions(self) -> int:
        """Return a number that grows with each deletion of a topic."""
        node = self.session.get(self._topics)
        if node is None:
            raise self._lost(self._topics)
        return int(node[1].version)

    def _transact(self, *operations: tuple[Any, ...]) -> list[Any] | None:
        """Make operations of kazoo, each a name with arguments, in one transaction; return their results.

        Return None when the version or the lack of a node prevented it.
        """

        def attempt() -> Any:
            transaction = self._client.transaction()
            for operation, *arguments in operations:
                getattr(transaction, operation)(*arguments)
            return transaction.commit_async()

        results: list[Any] = self._call(attempt)
        if any(isinstance(result, BadVersionError | NoNodeError) for result in results):
            return None
        if any(isinstance(result, KazooException) for result in results):
            raise MillraceError(f"ZooKeeper at {self.session.zookeeper} refuses a transaction: {results}")
        return results

    def _lost(self, path: str) -> MillraceError:
        self._check_identity()
        return MillraceError(f"ZooKeeper at {self.session.zookeeper} has lost {path}: restore it")

    def _read_brokers(self) -> Mapping[int, Registration]:
        names = self._children(self._ids, self._on_event)
        nodes = self.session.read_all(f"{self._ids}/{name}" for name in names)
        return {
            int(path.rpartition("/")[2]): Registration(json.loads(data), stat.ephemeralOwner)
            for path, (data, stat) in nodes.items()
        }

    def _read_topics(self, dirty: set[str | None]) -> Changes:
        """Return the topics whose nodes differ from the snapshot, of the nodes in `dirty`, or of all.

        If all are read, ZooKeeper may have been restored from an older copy: then a node may differ though it
        has the known version.
        """
        start = f"{self._topics}/"
        names = {path.removeprefix(start) for path in dirty if path is not None and path.startswith(start)}
        if None in dirty:
            # First: a change after the listing is then an event.
            self.session.watch_tree(self._topics, self._on_event)
            names |= {*self._children(self._topics), *self.topics}
        # The id is read last: it proves that everything before it was read from this cluster.
        nodes = self.session.read_all([*(start + name for name in names), self._id])
        self._check_id(nodes.get(self._id))
        changes: dict[str, TopicState | None] = {}
        for name in names:
            known, node = self.topics.get(name), nodes.get(start + name)
            if node is None:
                changes |= {} if known is None else {name: None}
                continue
            same = known is not None and (known.version, known.czxid) == (node[1].version, node[1].czxid)
            if same and None not in dirty:
                continue
            try:
                found = decode_topic(name, node[0], node[1].version, node[1].czxid)
            except MillraceError as error:
                logger.error("cluster %s: %s", self.name, error)
                continue
            if not same or found != known:
                changes[name] = found
        if None in changes.values():
            self._deletions()  # a topic without an entry was deleted, unless all entries are lost
        return changes


def _with(topics: Mapping[str, TopicState], changes: Changes) -> Mapping[str, TopicState]:
    """Return the topics after these changes."""
    after = dict(topics)
    for name, topic in changes.items():
        if topic is None:
            after.pop(name, None)
        else:
            after[name] = topic
    return after
