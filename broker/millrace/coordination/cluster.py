"""What the brokers of one cluster know together: who is alive, which topics there are, who leads what.

Owns these registries in ZooKeeper, all below `/<cluster>`, and snapshots of them in memory. Every change is
a compare-and-set, every snapshot is replaced whole. Does not know logs, sockets or consumer groups.

Brokers delete the logs of topics that a snapshot has lost, so only a topic whose entry is really gone may be
missing: a ZooKeeper that was wiped or holds another cluster is refused, an unreadable entry changes nothing.

    /<cluster>/id                persistent  "millrace-" and 32 hex digits, drawn once
    /<cluster>/brokers/ids/<id>  ephemeral   {"host", "port", "machine", "boot": id of this registration,
                                              "partitions", "topics": see stored_partitions}
    /<cluster>/topics/<topic>    persistent  see cluster_state.py

One file of more than 400 lines: brokers and topics share one watcher, one lock and one reading.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from millrace.coordination.liveness import is_dead, listens
from millrace.coordination.presence import Presence, Registration
from millrace.coordination.session import OPERATION_SECONDS, Session
from millrace.coordination.state import (
    BrokerAddress,
    TopicState,
    check_topic_name,
    decode_topic,
    encode_topic,
    new_topic,
    stored_partitions,
    with_mirrors,
)
from millrace.errors import InvalidTopic, MillraceError, TopicAlreadyExists, UnknownTopicOrPartition
from millrace.records.mirror_position import Origin
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX

log = logging.getLogger("millrace.cluster")


class Cluster:
    """One cluster's registries. `brokers` and `topics` are snapshots, readable from any thread."""

    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicState]

    def __init__(self, session: Session, cluster: str) -> None:
        self.session, self.name = session, cluster
        self.brokers, self.topics, self.cluster_id = {}, {}, ""
        self._client, self._call = session.client, session.call
        self._id, self._ids, self._topics = (f"/{cluster}/{name}" for name in ("id", "brokers/ids", "topics"))
        self._registration: tuple[int, bytes] | None = None
        self._stored = stored_partitions(())
        self._registered: Mapping[int, Registration] = {}
        self._presence = Presence(session.timeout_ms / 1000)
        self._dirty: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: everything
        self._wake, self._closed, self._refreshing = threading.Event(), threading.Event(), threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self._watcher = threading.Thread(target=self._watch, name=f"cluster {cluster}", daemon=True)

    @classmethod
    def connect(
        cls, zookeeper: str, cluster: str, *, session_timeout_ms: int = 6000, create: bool = True
    ) -> Cluster:
        """Its registries, created if need be; MillraceError within 10 s when ZooKeeper is not there."""
        self = cls(Session.connect(zookeeper, timeout_ms=session_timeout_ms), cluster)
        try:
            if not create and not self.session.read_all([self._id]):
                raise MillraceError(
                    f"no cluster {cluster!r} in ZooKeeper at {zookeeper}: start a broker of it"
                )
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        for path in (self._ids, self._topics):
            self._call(self._client.ensure_path_async, path)
        with contextlib.suppress(NodeExistsError):
            new_id = (BYTE_OFFSETS_PREFIX + uuid.uuid4().hex).encode()
            self._call(self._client.create_async, self._id, new_id)
        self.cluster_id = self._call(self._client.get_async, self._id)[0].decode()
        self._client.add_listener(self._on_state)
        self._dirty.put(None)
        self._refresh()
        self._watcher.start()

    def close(self) -> None:
        """Leave: the broker's registration ends with the session. Twice is harmless."""
        self._closed.set()
        self._wake.set()
        self.session.close()  # before the watcher is waited for: it may be asking a ZooKeeper that is gone
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            self._watcher.join(OPERATION_SECONDS)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in a thread of this object, after each change of a snapshot."""
        self._callbacks.append(callback)

    # Brokers

    def register_broker(self, broker_id: int, host: str, port: int) -> None:
        """List this broker as alive at an address it listens on already; stays so after lost sessions.

        MillraceError when a live broker holds the id. What a dead one left is taken over: at once when it
        ran on this machine, else when its session has expired.
        """
        record = {"host": host, "port": port, "machine": socket.gethostname(), "boot": uuid.uuid4().hex}
        registration = (broker_id, json.dumps(record | self._stored).encode())
        deadline = time.monotonic() + 2 + 2 * self.session.timeout_ms / 1000
        while (holder := self._register(registration)) is not None:
            other = (holder["host"], holder["port"])
            if time.monotonic() > deadline or (other != (host, port) and listens(*other)):
                raise MillraceError(
                    f"broker id {broker_id} of cluster {self.name} is held by a live broker at "
                    f"{other[0]}:{other[1]}: stop that one or give this one another broker_id"
                )
            self._closed.wait(0.1)
        self._registration = registration
        self._dirty.put(self._ids)
        self._refresh()
        self._wake.set()

    def store(self, places: Iterable[tuple[str, int]]) -> None:
        """Say in this broker's record which (topic, partition) it stores; now, or once it is registered."""
        self._stored = stored_partitions(places)
        if self._registration is not None:
            broker_id, data = self._registration
            self._registration = (broker_id, json.dumps(json.loads(data) | self._stored).encode())
            self._dirty.put(self._ids)
            self._wake.set()  # the watcher sees that what is recorded is not what should be

    def _register(self, registration: tuple[int, bytes]) -> Mapping[str, Any] | None:
        """Create the ephemeral node; None, or what the broker that holds the id has written."""
        broker_id, data = registration
        path, ours = f"{self._ids}/{broker_id}", json.loads(data)
        try:
            self._call(self._client.create_async, path, data, ephemeral=True)
            return None
        except NodeExistsError:
            pass
        try:
            found, stat = self._call(self._client.get_async, path)
        except NoNodeError:
            return self._register(registration)
        holder: Mapping[str, Any] = json.loads(found)
        if holder["boot"] == ours["boot"] and stat.ephemeralOwner == self.session.id:
            if found != data:
                self._call(self._client.set_async, path, data)
            return None
        if not is_dead(holder, ours):
            return holder
        if any(isinstance(result, Exception) for result in self._call(self._replace, path, stat, data)):
            return self._register(registration)  # it has expired, or been replaced, in the meantime
        return None

    def _replace(self, path: str, stat: Any, data: bytes) -> Any:
        change = self._client.transaction()
        change.delete(path, stat.version)
        change.create(path, data, ephemeral=True)
        return change.commit_async()

    # Topics

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> TopicState:
        """A new topic, its partitions spread over the live brokers.

        Raises InvalidTopic, InvalidPartitions, TopicAlreadyExists or NoLiveBroker. A topic of mirrored
        partitions starts with none: `allocate_mirror` adds them.
        """
        check_topic_name(name)
        self._check_identity()
        topic = new_topic(name, partitions, settings, sorted(self.brokers), self.topics)
        try:
            self._call(self._client.create_async, f"{self._topics}/{name}", encode_topic(topic))
        except NodeExistsError:
            # A create that is repeated after a lost connection may meet its own first try.
            if self._read_topic(name)[0].topic_id != topic.topic_id:
                raise TopicAlreadyExists(f"topic {name} exists already") from None
        self._reread(name)
        return topic

    def delete_topic(self, name: str) -> None:
        """Forget a topic; UnknownTopicOrPartition when there is none. Its brokers delete its logs."""
        self._check_identity()
        try:
            self._call(self._client.delete_async, self._node(name))
        except NoNodeError:
            raise UnknownTopicOrPartition(f"no topic {name} in cluster {self.name}") from None
        self._reread(name)

    def change_topic(self, name: str, change: Callable[[TopicState], TopicState]) -> TopicState:
        """Put what `change`, called once or several times, makes of a topic in its place: compare-and-set.

        Raises UnknownTopicOrPartition, or what `change` raises.
        """
        self._check_identity()
        changed = None
        while True:
            state, version = self._read_topic(name)
            if state == changed:  # a write repeated after a lost connection met its own first try
                self._reread(name)
                return state
            changed = change(state)
            if changed == state or self._write_topic(changed, version):
                return changed

    def topic_names(self) -> frozenset[str]:
        """The topics that ZooKeeper has now: one look at it, whatever they hold; for a thread."""
        self._call(self._client.sync_async, self._topics)  # a server that lags behind would not know it yet
        return frozenset(self._children(self._topics))

    def is_gone(self, name: str, topic_id: uuid.UUID) -> bool:
        """True if ZooKeeper holds no such topic, or another of its name; False when that is unreadable."""
        self._check_identity()
        try:
            return self._read_topic(name)[0].topic_id != topic_id
        except UnknownTopicOrPartition:
            return True
        except MillraceError as error:
            log.error("cluster %s: %s", self.name, error)
            return False

    def allocate_mirrors(
        self, topic: str, origins: Sequence[Origin], *, recreated: bool = False
    ) -> dict[Origin, int]:
        """The target partition of each origin partition: the one it has, or a new one, never reused.

        All in one write; a missing topic is created. OriginRecreated when one was allocated before under
        another topic id, unless `recreated` says so; PolicyViolation when the topic has ordinary partitions.
        """
        check_topic_name(topic)
        self._check_identity()
        while True:
            try:
                state, version = self._read_topic(topic)
            except UnknownTopicOrPartition:
                with contextlib.suppress(TopicAlreadyExists):
                    self.create_topic(topic, 0, {})
                continue
            changed = with_mirrors(state, origins, sorted(self.brokers), self.topics, recreated=recreated)
            if changed == state:
                self._reread(topic)  # another member may just have allocated them
            elif not self._write_topic(changed, version):
                continue
            targets = changed.targets()
            return {origin: targets[origin] for origin in origins}

    def _node(self, name: str) -> str:
        """A topic's node; UnknownTopicOrPartition for a name that no topic can have, such as a path."""
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            raise UnknownTopicOrPartition(str(error)) from None
        return f"{self._topics}/{name}"

    def _read_topic(self, name: str) -> tuple[TopicState, int]:
        try:
            data, stat = self._call(self._client.get_async, self._node(name))
        except NoNodeError:
            raise UnknownTopicOrPartition(f"no topic {name} in cluster {self.name}") from None
        return decode_topic(name, data), stat.version

    def _write_topic(self, topic: TopicState, version: int) -> bool:
        """Compare-and-set: False when somebody else changed the topic since `version` was read."""
        path = f"{self._topics}/{topic.name}"
        try:
            self._call(self._client.set_async, path, encode_topic(topic), version)
        except (BadVersionError, NoNodeError):
            return False
        self._reread(topic.name)
        return True

    # Snapshots

    def confirm(self) -> None:
        """Have in the snapshots whatever was written anywhere before this call; for a thread.

        MillraceError when ZooKeeper does not answer, or was wiped.
        """
        self._call(self._client.sync_async, self._topics)  # a server that lags behind would not know it yet
        self._dirty.put(None)
        self._refresh()
        self._wake.set()

    def _reread(self, topic: str) -> None:
        """Own changes are in the snapshot before the call that made them returns."""
        self._dirty.put(self._topics)
        self._dirty.put(f"{self._topics}/{topic}")
        self._refresh()
        self._wake.set()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._dirty.put(None)  # watches may have been lost with a session
            self._wake.set()
        elif not self._closed.is_set():
            log.warning("cluster %s: ZooKeeper at %s is %s", self.name, self.session.zookeeper, state.lower())

    def _on_event(self, event: Any) -> None:
        if event.path is not None:
            self._dirty.put(event.path)
            self._wake.set()

    def _watch(self) -> None:
        told = (self.brokers, self.topics)
        while not self._closed.is_set():
            awaited_s = self._presence.wait_s()
            self._wake.wait(awaited_s if self._dirty.empty() else 1.0)
            self._wake.clear()
            if awaited_s is not None:
                self._dirty.put(self._ids)
            try:
                self._refresh()
                self._stay_registered()
            except Exception as error:  # the registries must stay watched whatever one reading meets
                if self._closed.is_set():
                    return
                log.warning("cluster %s: cannot read its registries: %s", self.name, error)
                self._dirty.put(None)
                continue
            if (self.brokers, self.topics) != told:
                told = (self.brokers, self.topics)
                for callback in self._callbacks:
                    try:
                        callback()
                    except Exception:
                        log.exception("cluster %s: a listener failed", self.name)

    def _stay_registered(self) -> None:
        if self._registration is None:
            return
        broker_id, data = self._registration
        registered = self._registered.get(broker_id)
        if registered is not None and registered.record == json.loads(data):
            return
        holder = self._register(self._registration)
        self._dirty.put(self._ids)
        if holder is None:
            self._wake.set()
        else:
            log.error("broker id %s is held by %s:%s now", broker_id, holder["host"], holder["port"])

    def _refresh(self) -> None:
        """Read again what has changed, and watch it."""
        with self._refreshing:
            dirty: set[str | None] = set()
            while not self._dirty.empty():
                dirty.add(self._dirty.get())
            if not dirty:
                return
            try:
                session, registered, topics = self._read(dirty)
            except BaseException:
                self._dirty.put(None)
                raise
            self._registered, self.topics = registered, topics
            self.brokers = self._presence.alive(session, registered)

    def _read(
        self, dirty: set[str | None]
    ) -> tuple[int, Mapping[int, Registration], Mapping[str, TopicState]]:
        """Our session, the brokers and the topics; what was read over the end of a session is read again."""
        while True:
            session = self.session.id
            registered = self._read_brokers() if dirty & {None, self._ids} else self._registered
            topics = self._read_topics(dirty)
            self._check_identity()  # last: what was read before it is of this cluster, then
            if session and session == self.session.id:
                return session, registered, topics

    def _check_identity(self) -> None:
        """MillraceError when ZooKeeper does not hold this cluster any more."""
        with contextlib.suppress(NoNodeError):
            if self._call(self._client.get_async, self._id)[0].decode() == self.cluster_id:
                return
        raise MillraceError(
            f"ZooKeeper at {self.session.zookeeper} was wiped or holds another cluster {self.name}, not "
            f"{self.cluster_id}: restore its data; no log is deleted until then"
        )

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._call(self._client.get_children_async, path, self._on_event))
        except NoNodeError:
            self._check_identity()
            raise MillraceError(
                f"ZooKeeper at {self.session.zookeeper} has lost {path}: restore it"
            ) from None

    def _read_brokers(self) -> Mapping[int, Registration]:
        found = self.session.read_all(f"{self._ids}/{name}" for name in self._children(self._ids))
        return {
            int(path.rsplit("/", 1)[1]): Registration(json.loads(data), stat.ephemeralOwner)
            for path, (data, stat) in found.items()
        }

    def _read_topics(self, dirty: set[str | None]) -> Mapping[str, TopicState]:
        names = set(self._children(self._topics) if dirty & {None, self._topics} else self.topics)
        changed = {name for name in names if dirty & {None, f"{self._topics}/{name}"}}
        stale = changed | (names - self.topics.keys())
        topics = {name: topic for name, topic in self.topics.items() if name in names - stale}
        found = self.session.read_all((f"{self._topics}/{name}" for name in stale), self._on_event)
        for path, (data, _) in found.items():
            name = path.rsplit("/", 1)[1]
            try:
                topics[name] = decode_topic(name, data)
            except MillraceError as error:
                log.error("cluster %s: %s", self.name, error)
                topics |= {name: self.topics[name]} if name in self.topics else {}
        if stale - topics.keys():
            self._children(self._topics)  # a topic without an entry was deleted, unless all entries are lost
        return dict(sorted(topics.items()))
